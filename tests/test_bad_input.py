"""What the library says to a mistake, and that nothing is left behind by it.

A comment `# <- mark` names the line that an error must show. After every mistake correct calls still work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines.reference import Run, run_graph
from ctrlgrad.errors import (
    CtrlgradError,
    DifferentiationError,
    IndexOutOfRangeError,
    LeakedValueError,
    MaximumIterationsError,
    ShapeError,
    TracingError,
    TypeMismatchError,
    UserInputError,
)
from ctrlgrad.frontend import trace

THIS = Path(__file__)


def line_of(mark: str) -> int:
    """The line of this file that ends with `# <- mark`."""
    (line,) = [n for n, text in enumerate(THIS.read_text().splitlines(), 1) if text.endswith(f"# <- {mark}")]
    return line


@contextmanager
def mistake(kind: type[CtrlgradError], mark: str, *parts: str) -> Iterator[None]:
    """The block raises `kind` at the marked line with all five parts and `parts` in its text; then all works on."""
    with pytest.raises(kind) as caught:
        yield
    error, text = caught.value, str(caught.value)
    assert f"{THIS.name}:{line_of(mark)} " in text, text
    for label in ("problem", "expected", "got", "hint"):
        assert getattr(error, label), f"no {label} in:\n{text}"
    assert "expected: " in text and "got: " in text and "try: " in text
    for part in parts:
        assert part in text, f"{part!r} is not in:\n{text}"
    assert trace.current() is None
    correct_calls_work()


def correct_calls_work() -> None:
    def f(x: Any) -> Any:
        return cg.while_loop(lambda y: y < 10.0, lambda y: y * 2.0, x)

    assert float(f(3.0)) == 12.0
    assert float(cg.function(f)(3.0)) == 12.0
    assert float(cg.grad(f)(3.0)) == 4.0


def traced(fn: Callable[..., Any], *args: Any) -> Any:
    return cg.function(fn)(*args)


def differentiated(fn: Callable[..., Any], *args: Any) -> Any:
    # With the value: a gradient alone does not run what it has no need of, mistakes included.
    return cg.value_and_grad(fn)(*args)


def eager(fn: Callable[..., Any], *args: Any) -> Any:
    return fn(*args)


ways = pytest.mark.parametrize("way", [eager, traced, differentiated])

# Conditions.


@ways
def test_condition_that_is_not_bool(way) -> None:
    def f(x):
        return cg.while_loop(lambda y: y - 10.0, lambda y: y + 1.0, x)  # <- float condition

    with mistake(TypeMismatchError, "float condition", "while_loop", "boolean scalar", "bool[]", "f64[]"):
        way(f, 1.0)


@ways
def test_condition_that_is_not_a_scalar(way) -> None:
    def f(x):
        return cnp.sum(cg.while_loop(lambda y: y < 10.0, lambda y: y + 1.0, x))  # <- vector condition

    with mistake(TypeMismatchError, "vector condition", "while_loop", "bool[]", "bool[3]", "any"):
        way(f, np.ones(3))


@ways
def test_condition_that_returns_nothing(way) -> None:
    def f(x):
        return cg.while_loop(lambda y: None, lambda y: y + 1.0, x)  # <- no condition

    with mistake(TypeMismatchError, "no condition", "while_loop", "bool[]", "nothing"):
        way(f, 1.0)


@ways
def test_predicate_that_is_not_bool(way) -> None:
    def f(x):
        return cg.cond(x, lambda: x, lambda: -x)  # <- float predicate

    with mistake(TypeMismatchError, "float predicate", "cond", "boolean scalar", "bool[]", "f64[]"):
        way(f, np.float64(1.0))


# A body whose result differs from the carry.


@ways
def test_body_that_changes_the_structure(way) -> None:
    def f(x):
        step = lambda c: {"i": c["i"] + 1, "state": c["state"][0]}
        return cg.while_loop(lambda c: c["i"] < 3, step, {"i": 0, "state": (x, x)})["i"]  # <- structure

    with mistake(TypeMismatchError, "structure", "while_loop", "['state'][1]", "counterpart", "f64[]"):
        way(f, np.float64(1.0))


@ways
def test_body_that_changes_a_dtype(way) -> None:
    def f(x):
        step = lambda c: {"n": c["n"] + 0.5, "x": c["x"]}
        return cg.while_loop(lambda c: c["n"] < 3, step, {"n": np.int64(0), "x": x})["x"]  # <- dtype

    with mistake(TypeMismatchError, "dtype", "while_loop", "['n']", "i64[]", "f64[]", "astype"):
        way(f, np.float64(1.0))


@ways
def test_body_that_changes_a_shape(way) -> None:
    def f(x):
        return cg.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, cnp.stack([c[1], c[1]])), (0, x))[0]  # <- shape

    with mistake(TypeMismatchError, "shape", "while_loop", "[1]", "f64[3]", "f64[2,3]"):
        way(f, np.ones(3))


def test_every_path_that_differs_is_named() -> None:
    def f(x):
        step = lambda c: {"a": c["a"].astype(np.float32), "b": c["b"][:1], "c": c["c"]}
        return cg.while_loop(lambda c: c["c"][0] < 3.0, step, {"a": x, "b": x, "c": x})  # <- two paths

    with mistake(TypeMismatchError, "two paths", "['a']", "f32[2]", "['b']", "f64[1]"):
        traced(f, np.ones(2))


@ways
def test_scan_whose_step_is_no_pair(way) -> None:
    def f(x):
        return cg.scan(lambda c, row: c + row, 0.0, x)  # <- no pair

    with mistake(TypeMismatchError, "no pair", "scan", "(carry, y)"):
        way(f, np.ones(3))


def test_scan_over_lengths_that_differ() -> None:
    def f(x, y):
        return cg.scan(lambda c, row: (c + row[0], None), 0.0, (x, y))  # <- two lengths

    with mistake(ShapeError, "two lengths", "scan", "f64[3]", "f64[4]"):
        traced(f, np.ones(3), np.ones(4))


# Branches that differ.


@ways
def test_branches_of_different_structure(way) -> None:
    def f(x):
        return cg.cond(x > 0.0, lambda: (x, x), lambda: {"a": x})  # <- branch structure

    with mistake(TypeMismatchError, "branch structure", "cond", "true_fun", "false_fun", "['a']"):
        way(f, np.float64(1.0))


@ways
def test_branches_of_different_dtype(way) -> None:
    def f(x):
        return cg.cond(x > 0.0, lambda: (x, x), lambda: (x, x.astype(np.float32)))[0]  # <- branch dtype

    with mistake(TypeMismatchError, "branch dtype", "cond", "[1]", "true_fun returns f64[]", "false_fun returns f32[]"):
        way(f, np.float64(1.0))


@ways
def test_branches_of_different_shape(way) -> None:
    def f(x):
        return cnp.sum(cg.cond(x[0] > 0.0, lambda: x, lambda: x[:2]))  # <- branch shape

    with mistake(TypeMismatchError, "branch shape", "cond", "true_fun returns f64[3]", "false_fun returns f64[2]"):
        way(f, np.ones(3))


# Gradients that do not exist.


def test_gradient_of_a_vector() -> None:
    def f(x):
        return x * x

    with mistake(DifferentiationError, "vector gradient", "scalar", "f64[3]", "vjp"):
        cg.grad(f)(np.ones(3))  # <- vector gradient


def test_gradient_of_several_results() -> None:
    def f(x):
        return x, x

    with mistake(DifferentiationError, "two results", "scalar"):
        cg.grad(f)(1.0)  # <- two results


def test_gradient_of_an_integer_result() -> None:
    def f(x):
        return cg.while_loop(lambda c: c[1] < 10.0, lambda c: (c[0] + 1, c[1] * 2.0), (0, x))[0]

    with mistake(DifferentiationError, "integer result", "i64[]"):
        cg.grad(f)(1.0)  # <- integer result


def test_gradient_with_respect_to_an_integer() -> None:
    def f(x, n):
        return x * n

    with mistake(DifferentiationError, "integer argument", "i64[]", "argnums"):
        cg.grad(f, argnums=1)(np.float64(2.0), np.int64(3))  # <- integer argument


def test_argnums_beyond_the_arguments() -> None:
    def f(x):
        return x * x

    with mistake(UserInputError, "argnums", "argnums"):
        cg.grad(f, argnums=1)(2.0)  # <- argnums


# Python control flow on a traced tensor.


def test_python_if() -> None:
    def f(x):
        if x > 0.0:  # <- if
            return x
        return -x

    with mistake(TracingError, "if", "`if`", "cond"):
        traced(f, 1.0)


def test_python_while() -> None:
    def f(x):
        while x < 10.0:  # <- while
            x = x * 2.0
        return x

    with mistake(TracingError, "while", "`while`", "while_loop"):
        traced(f, 1.0)


def test_python_if_inside_a_body() -> None:
    def f(x):
        def step(y):
            return y * 2.0 if y > 3.0 else y + 1.0  # <- if in body

        return cg.while_loop(lambda y: y < 10.0, step, x)

    for way in (eager, traced, differentiated):
        with mistake(TracingError, "if in body", "cond"):
            way(f, 1.0)


def test_python_and() -> None:
    def f(x):
        return cg.while_loop(lambda y: y < 10.0 and y > 0.0, lambda y: y * 2.0, x)  # <- and

    with mistake(TracingError, "and", "`and`", "logical_and"):
        traced(f, 1.0)


@pytest.mark.parametrize(
    ("convert", "name"),
    [(int, "int()"), (float, "float()"), (bool, "bool()"), (range, "range()"), (complex, "complex()")],
)
def test_conversion_to_a_python_number(convert: Callable[[Any], Any], name: str) -> None:
    def f(x):
        return x * len([convert(x)])  # <- conversion

    with mistake(TracingError, "conversion", name):
        traced(f, np.int64(3))


def test_conversion_to_an_array() -> None:
    def f(x):
        return np.asarray(x) + 1.0  # <- asarray

    with mistake(TracingError, "asarray", "NumPy array"):
        traced(f, np.ones(3))


def test_item_assignment() -> None:
    def f(x):
        x[0] = 1.0  # <- assignment
        return x

    with mistake(TracingError, "assignment", ".at["):
        traced(f, np.ones(3))


def test_length_of_a_scalar() -> None:
    def f(x):
        return x * len(x)  # <- len

    with mistake(TracingError, "len", "len() of a scalar", "rank 1"):
        traced(f, 1.0)


def test_iterating_over_a_scalar() -> None:
    def f(x):
        return sum(y for y in x)  # <- iteration

    with mistake(TracingError, "iteration"):
        traced(f, 1.0)


def test_a_function_that_is_not_supported() -> None:
    def f(x):
        return np.linalg.lstsq(x, x)  # <- lstsq

    with mistake(TracingError, "lstsq", "np.linalg.lstsq"):
        traced(f, np.ones((2, 2)))


def test_a_ufunc_method_that_is_not_supported() -> None:
    def f(x):
        return np.add.outer(x, x)  # <- outer

    with mistake(TracingError, "outer", "np.add.outer"):
        traced(f, np.ones(2))


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda x: np.add(x, 1.0, dtype=np.float32), "dtype="),
        (lambda x: np.multiply(x, 2.0, where=np.array([True, False])), "where="),
        (lambda x: np.sum(x, initial=3.0), "initial="),
        (lambda x: x.mean(weights=None), "weights="),
        (lambda x: np.tanh(x, out=np.zeros(2)), "out="),
    ],
    ids=["dtype", "where", "initial", "method", "out"],
)
def test_an_argument_that_is_not_supported(call: Callable[[Any], Any], named: str) -> None:
    def f(x):
        return call(x)

    with pytest.raises(TracingError) as caught:
        traced(f, np.ones(2))
    error = caught.value
    assert named in str(error) and THIS.name in str(error.source)
    assert error.expected and error.got and error.hint


def test_arguments_that_say_nothing_are_no_mistake() -> None:
    f = lambda x: (np.sum(x, axis=None, out=None), np.add(x, 1.0, where=True), np.max(x, keepdims=False))
    total, more, largest = traced(f, np.arange(3.0))
    assert total == 3.0 and largest == 2.0
    np.testing.assert_array_equal(more, [1.0, 2.0, 3.0])


def test_indexing_a_numpy_array_by_a_traced_scalar() -> None:
    xs = np.arange(12.0).reshape(4, 3)

    def f(w):
        return cg.fori_loop(0, 4, lambda t, total: total * w + cnp.sum(xs[t]), 0.0)  # <- outside array

    for way in (eager, traced, differentiated):
        with mistake(TracingError, "outside array", "ctrlgrad.numpy.take(xs, t, axis=0)"):
            way(f, 2.0)


def test_the_advice_for_indexing_a_numpy_array_works() -> None:
    xs = np.arange(40_000.0).reshape(4, 10_000)

    def f(w):
        return cg.fori_loop(0, 4, lambda t, total: total * w + cnp.take(xs, t, axis=0)[0], 0.0)

    assert f(2.0) == 10_000.0 * (4 + 4 + 3)
    assert cg.grad(f)(2.0) == 10_000.0 * (4 + 2)
    run = Run()
    run_graph(cg.function(cg.grad(f)).graph(2.0), [np.float64(2.0)], run)
    assert run.counters.copied_bytes == 0


# Leaks.


@ways
def test_value_that_leaked_out_of_a_body(way) -> None:
    def f(x):
        kept = []

        def step(y):
            kept.append(y * 2.0)  # <- made
            return y + 1.0

        y = cg.while_loop(lambda y: y < 10.0, step, x)
        return y + kept[0]  # <- leaked from body

    made = f"{THIS.name}:{line_of('made')}"
    with mistake(LeakedValueError, "leaked from body", "after its function or region has ended", made, "carry"):
        way(f, 1.0)


@pytest.mark.parametrize("way", [traced, differentiated])  # outside of a trace nothing in it is traced
def test_value_that_leaked_out_of_a_branch(way) -> None:
    def f(x):
        kept = []
        y = cg.cond(x > 0.0, lambda: kept.append(x * 2.0) or x, lambda: x)
        return cg.cond(x > 0.0, lambda: y, lambda: y * kept[0])  # <- leaked from branch

    with mistake(LeakedValueError, "leaked from branch"):
        way(f, np.float64(1.0))


def test_value_that_leaked_out_of_a_function() -> None:
    kept = []

    def f(x):
        kept.append(x * 2.0)
        return x

    traced(f, 1.0)
    with mistake(LeakedValueError, "leaked outside"):
        kept[0] + 1.0  # <- leaked outside

    def g(x):
        return x + kept[0]  # <- leaked into another

    with mistake(LeakedValueError, "leaked into another"):
        traced(g, 1.0)


@pytest.mark.parametrize(
    "use", [lambda x: x + 1.0, float, bool, np.asarray, lambda x: cg.function(lambda y: y + x)(1.0)], ids=range(5)
)
def test_a_leaked_carry_says_where_it_was_made_whatever_it_is_used_for(use) -> None:
    kept = []
    cg.fori_loop(0, 3, lambda i, c: (kept.append(c), c * 2.0)[1], 1.0)  # <- traced the body
    with pytest.raises(LeakedValueError) as caught:
        use(kept[0])
    assert "from body, made at " in caught.value.got
    assert f"{THIS.name}:{line_of('traced the body')} " in caught.value.got


def test_leaked_value_returned_from_another_function() -> None:
    kept = []
    traced(lambda x: kept.append(x) or x, 1.0)
    with mistake(LeakedValueError, "leaked result"):
        cg.function(lambda x: kept[0])(1.0)  # <- leaked result


# Run time.


@ways
def test_index_out_of_range_names_the_iteration(way) -> None:
    def f(xs):
        step = lambda c: (c[0] + 1, c[1] + cnp.take(xs, c[0], axis=0) ** 2)  # <- row
        return cg.while_loop(lambda c: c[0] < 8, step, (0, 0.0))[1]

    with mistake(IndexOutOfRangeError, "row", "getitem", "iteration 5", "index 5", "size 5"):
        way(f, np.ones(5))


@ways
def test_index_out_of_range_in_an_inner_loop_names_both_iterations(way) -> None:
    def f(xs):
        def outer(i, total):
            return cg.fori_loop(0, 3, lambda j, t: t + cnp.take(xs, i + j, axis=0) ** 2, total)  # <- inner row

        return cg.fori_loop(0, 4, outer, 0.0)

    with mistake(IndexOutOfRangeError, "inner row", "iteration 2", "iteration 1", "getitem"):
        way(f, np.ones(3))


@ways
def test_update_out_of_range(way) -> None:
    def f(x):
        ys = cg.fori_loop(0, 5, lambda i, ys: ys.at[i].set(x), cnp.zeros(4))  # <- update
        return cnp.sum(ys * ys)

    with mistake(IndexOutOfRangeError, "update", "iteration 4", "setitem"):
        way(f, 1.0)


@ways
def test_tensor_array_read_out_of_range(way) -> None:
    def f(x):
        rows = cg.TensorArray(np.float64, 3, ()).write(0, x)
        return cg.fori_loop(0, 5, lambda i, total: total * rows.read(i), x)  # <- slot

    with mistake(IndexOutOfRangeError, "slot", "iteration 3", "TensorArray", "3"):
        way(f, 1.0)


@ways
def test_tensor_array_write_out_of_range(way) -> None:
    def f(x):
        rows = cg.TensorArray(np.float64, 3, ())
        return cnp.prod(cg.fori_loop(0, 5, lambda i, rows: rows.write(i, x), rows).stack())  # <- written slot

    with mistake(IndexOutOfRangeError, "written slot", "iteration 3", "TensorArray"):
        way(f, 1.0)


@ways
def test_index_that_is_known_to_be_out_of_range(way) -> None:
    def f(x):
        return cnp.sum(x * 2.0) + cnp.take(x, 7)  # <- static index

    with mistake(IndexOutOfRangeError, "static index", "7", "3"):
        way(f, np.ones(3))


@ways
def test_maximum_iterations_exceeded(way) -> None:
    def f(x):
        return cg.while_loop(lambda y: y > 0.0, lambda y: y * 1.5, x, maximum_iterations=7, name="climb")  # <- maximum

    with mistake(MaximumIterationsError, "maximum", "while_loop", "maximum_iterations=7", "true after 7 iterations"):
        way(f, 1.0)


def test_options_that_are_not_usable() -> None:
    with mistake(UserInputError, "negative maximum", "maximum_iterations", "-1"):
        cg.while_loop(lambda y: y < 1.0, lambda y: y, 0.0, maximum_iterations=-1)  # <- negative maximum


# Shapes and dtypes of array functions.


@ways
def test_shapes_that_do_not_broadcast(way) -> None:
    def f(x):
        return cnp.sum(cnp.add(x, cnp.ones(4)))  # <- broadcast

    with mistake(CtrlgradError, "broadcast", "add", "f64[3]", "f64[4]"):
        way(f, np.ones(3))


@ways
def test_matrix_product_that_does_not_fit(way) -> None:
    def f(x):
        return cnp.sum(cnp.matmul(x, cnp.ones((2, 5))))  # <- matmul

    with mistake(CtrlgradError, "matmul", "matmul"):
        way(f, np.ones((2, 3)))


def test_result_that_is_no_array() -> None:
    def f(x):
        return x, object()

    with mistake(TypeMismatchError, "object result", "f: ", "object"):
        cg.function(f)(1.0)  # <- object result


def test_carry_and_result_that_are_no_arrays() -> None:
    def carry(x):
        return cg.while_loop(lambda c: c[0] < 3, lambda c: c, (x, "text"))[0]  # <- text carry

    def body(x):
        return cg.while_loop(lambda c: c < 3, lambda c: "text", x)  # <- text body

    for way in (eager, traced):
        with mistake(TypeMismatchError, "text carry", "while_loop", "str"):
            way(carry, 1.0)
        with mistake(TypeMismatchError, "text body", "body", "str"):
            way(body, 1.0)


@pytest.mark.parametrize("length", ["xs", 3], ids=["scalar xs", "nothing"])
def test_scan_without_rows(length: Any) -> None:
    def f(x):
        step = lambda c, row: (c + x, None)
        if length == "xs":
            return cg.scan(step, 0.0, x)[0]  # <- scalar xs
        return cg.scan(step, 0.0)[0]  # <- no length

    with mistake(ShapeError, "scalar xs" if length == "xs" else "no length", "scan"):
        traced(f, 1.0)


def test_fori_loop_bound_that_is_no_integer() -> None:
    def f(x):
        return cg.fori_loop(0, x, lambda i, c: c + x, 0.0)  # <- float bound

    with mistake(TypeMismatchError, "float bound", "fori_loop", "i64[]", "f64[]"):
        traced(f, 1.0)


def test_switch_without_branches_and_with_a_float_index() -> None:
    with mistake(UserInputError, "no branches", "switch"):
        cg.switch(0, [])  # <- no branches
    with mistake(TypeMismatchError, "float index", "switch", "f64[]"):
        cg.switch(0.5, [lambda: 1.0, lambda: 2.0])  # <- float index
    with mistake(UserInputError, "no pairs", "case"):
        cg.case([])  # <- no pairs


def test_pushing_to_a_tensor_array_of_fixed_size() -> None:
    def f(x):
        return cg.TensorArray(np.float64, 3).push(x).stack()  # <- fixed size

    with mistake(TracingError, "fixed size", "push", "3"):
        traced(f, 1.0)


def test_aux_that_is_missing() -> None:
    with mistake(TypeMismatchError, "aux", "has_aux", "(loss, aux)"):
        cg.grad(lambda x: x * x, has_aux=True)(1.0)  # <- aux


def test_cotangent_and_tangent_that_do_not_fit() -> None:
    _, pullback = cg.vjp(lambda x: x * 2.0, np.ones(3))
    with mistake(TypeMismatchError, "cotangent", "vjp", "f64[3]", "f64[2]"):
        pullback(np.ones(2))  # <- cotangent
    with mistake(TypeMismatchError, "tangent", "jvp", "f64[3]", "f64[2]"):
        cg.jvp(lambda x: x * 2.0, (np.ones(3),), (np.ones(2),))  # <- tangent


def test_what_is_no_function_or_no_argument() -> None:
    with mistake(UserInputError, "no function", "callable", "int"):
        cg.function(3)  # <- no function
    with mistake(TypeMismatchError, "unhashable", "hashable", "bytearray"):
        cg.function(lambda x, y: x)(1.0, bytearray(b"y"))  # <- unhashable


SHAPE_MISTAKES: dict[str, Callable[[Any], Any]] = {
    "reshape": lambda x: x.reshape((4, 2)),
    "broadcast_to": lambda x: cnp.broadcast_to(x, (3, 2)),
    "squeeze": lambda x: cnp.squeeze(x, 0),
    "concat": lambda x: cnp.concat([x, cnp.ones((3, 4))], 0),
    "transpose": lambda x: cnp.permute_dims(x, (0, 0)),
    "sum": lambda x: cnp.sum(x, axis=2),
    "indexing": lambda x: x[5],
    "an indexed update": lambda x: x.at[0].set(cnp.ones(7)),
}


@pytest.mark.parametrize("operation", SHAPE_MISTAKES)
def test_shapes_that_do_not_fit(operation: str) -> None:
    """The lambda is the user's code here; an error names its line, the operation, and what was expected and got."""
    with pytest.raises(CtrlgradError) as caught:
        traced(SHAPE_MISTAKES[operation], np.ones((2, 3)))
    error = caught.value
    assert error.source is not None and error.source.file == str(THIS) and "<lambda>" in error.source.function
    assert error.expected and error.got, str(error)


def test_call_that_does_not_fit_the_signature() -> None:
    f = cg.function(lambda x: x * 2.0, signature=(cg.TensorSpec((None, 3), np.float64),))
    assert f(np.ones((2, 3))).shape == (2, 3)
    with mistake(CtrlgradError, "signature", "f64[?,3]", "f64[2,4]"):
        f(np.ones((2, 4)))  # <- signature


# The errors are also the built-in ones that a Python user expects.


def test_errors_are_builtin_errors_too() -> None:
    pairs = {
        TypeMismatchError: TypeError,
        ShapeError: ValueError,
        TracingError: TypeError,
        LeakedValueError: RuntimeError,
        DifferentiationError: TypeError,
        IndexOutOfRangeError: IndexError,
        MaximumIterationsError: RuntimeError,
        UserInputError: ValueError,
    }
    assert all(issubclass(ours, builtin) and issubclass(ours, CtrlgradError) for ours, builtin in pairs.items())


def test_numbers_of_traced_tensors() -> None:
    with mistake(TracingError, "item", "x.item()", "leave it out"):
        cg.function(lambda x: x.item())(2.0)  # <- item
    with mistake(TracingError, "tolist", "x.tolist()", "ctrlgrad.scan"):
        cg.function(lambda x: x.tolist())(np.ones(2))  # <- tolist


def test_recursion_that_only_data_would_end() -> None:
    def factorial(x: Any) -> Any:
        return cg.cond(x > 1.0, lambda: x * factorial(x - 1.0), lambda: x)

    with mistake(TracingError, "recursion", "factorial: tracing it never came to an end", "while_loop"):
        cg.function(factorial)(3.0)  # <- recursion
