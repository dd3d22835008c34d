"""A mistake in a program raises a clear error while it is traced, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mistakes import Mistakes, differentiated, eager, traced, ways

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines.reference import Run, run_graph
from ctrlgrad.errors import (
    CtrlgradError,
    DifferentiationError,
    ShapeError,
    TracingError,
    TypeMismatchError,
    UserInputError,
)

THIS = Path(__file__)
mistake = Mistakes(THIS)
line_of = mistake.line_of

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
def test_predicate_that_is_no_scalar(way) -> None:
    def f(x):
        return cg.cond(x, lambda: x, lambda: -x)  # <- predicate of two

    with mistake(
        TypeMismatchError, "predicate of two", "cond", "bool[]", "f64[2]", "or choose by elements with numpy.where"
    ):
        way(f, np.ones(2))


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
        return np.linalg.tensorsolve(x, x)  # <- tensorsolve

    with mistake(TracingError, "tensorsolve", "np.linalg.tensorsolve"):
        traced(f, np.ones((2, 2)))


def test_a_ufunc_method_that_is_not_supported() -> None:
    def f(x):
        return np.frompyfunc(max, 2, 1).outer(x, x)  # <- outer

    with mistake(TracingError, "outer", ".outer is not supported on traced tensors"):
        traced(f, np.ones(2))


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda x: np.add(x, 1.0, casting="no"), "casting="),
        (lambda x: np.add(x, 1.0, subok=False), "subok="),
        (lambda x: x.cumsum(initial=3.0), "initial="),
        (lambda x: x.mean(weights=None), "weights="),
        (lambda x: np.tanh(x, out=np.zeros(2)), "out="),
    ],
    ids=["casting", "subok", "initial", "method", "out"],
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
        with mistake(TracingError, "outside array", "ctrlgrad.numpy.asarray(xs)[t]"):
            way(f, 2.0)


def test_the_advice_for_indexing_a_numpy_array_works() -> None:
    xs = np.arange(40_000.0).reshape(4, 10_000)

    def f(w):
        return cg.fori_loop(0, 4, lambda t, total: total * w + cnp.asarray(xs)[t][0], 0.0)

    assert f(2.0) == 10_000.0 * (4 + 4 + 3)
    assert cg.grad(f)(2.0) == 10_000.0 * (4 + 2)
    run = Run()
    run_graph(cg.function(cg.grad(f)).graph(2.0), [np.float64(2.0)], run)
    assert run.counters.copied_bytes == 0


X, IMAGE, KERNEL = np.linspace(0.1, 1.0, 6), np.ones((1, 1, 4, 4)), np.ones((1, 1, 2, 2))
HEADS = np.ones((1, 3, 2, 4))
# Calls with a number of something, and the least one that means anything.
WITH_A_NUMBER: dict[str, tuple[Callable[[Any], Any], int]] = {
    "map": (lambda n: cg.map(np.sin, X, batch_size=n), 1),
    "while_loop: maximum": (lambda n: cg.while_loop(lambda c: c < 0, lambda c: c, 0, maximum_iterations=n), 0),
    "while_loop: parallel": (lambda n: cg.while_loop(lambda c: c < 0, lambda c: c, 0, parallel_iterations=n), 1),
    "scan: length": (lambda n: cg.scan(lambda c, _: (c, c), 0.0, None, length=n), 0),
    "scan: unroll": (lambda n: cg.scan(lambda c, r: (c, r), 0.0, X, unroll=n), 0),
    "lax.sort": (lambda n: cg.lax.sort((X, X), num_keys=n), 1),
    "lax.top_k": (lambda n: cg.lax.top_k(X, n), 0),
    "lax.iota": (lambda n: cg.lax.iota(np.float32, n), 0),
    "lax.conv: stride": (lambda n: cg.lax.conv(IMAGE, KERNEL, (n, 1), "VALID"), 1),
    "lax.conv: stride and padding": (lambda n: cg.lax.conv(IMAGE, KERNEL, (n, 1), "SAME"), 1),
    "lax.conv: dilation": (lambda n: cg.lax.conv(IMAGE, KERNEL, (1, 1), "VALID", rhs_dilation=(1, n)), 1),
    "lax.reduce_window": (lambda n: cg.lax.reduce_window(X, 0.0, cg.lax.add, (2,), (n,)), 1),
    "scipy.linalg.expm": (lambda n: cg.scipy.linalg.expm(np.eye(2), max_squarings=n), 0),
    "polyder": (lambda n: cnp.polyder(X, n), 0),
    "polyint": (lambda n: cnp.polyint(X, n), 0),
    "vander": (lambda n: cnp.vander(X, n), 0),
    "histogram": (lambda n: cnp.histogram(X, n), 1),
    "nn.one_hot": (lambda n: cg.nn.one_hot(np.array([0, 1]), n), 0),
    "nn.attention_cache": (lambda n: cg.nn.attention_cache(1, n, 2, 4), 0),
    "nn.attention": (lambda n: cg.nn.dot_product_attention(HEADS, HEADS, HEADS, local_window_size=n), 0),
}


@pytest.mark.parametrize("name", WITH_A_NUMBER)
def test_a_number_of_something_that_is_none(name: str) -> None:
    """One below the least one is refused, and the least one is not."""
    call, least = WITH_A_NUMBER[name]
    call(least)
    with pytest.raises(CtrlgradError):
        call(least - 1)
    with pytest.raises(CtrlgradError):
        call(1.5)


@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.array])
@pytest.mark.parametrize("name", WITH_A_NUMBER)
def test_a_number_of_something_may_be_numpys(name: str, kind: Any) -> None:
    """NumPy's functions take their own integers, and arrays of one without axes."""
    call, least = WITH_A_NUMBER[name]
    if not name.startswith(("while_loop", "scan")) or kind is not np.array:
        call(kind(least))


def test_bins_and_windows_as_numpy_takes_them() -> None:
    for bins in (np.int64(3), np.array(3)):
        np.testing.assert_array_equal(cnp.histogram(X, bins)[0], np.histogram(X, 3)[0])
        np.testing.assert_array_equal(cnp.histogram2d(X, X, bins)[0], np.histogram2d(X, X, 3)[0])
        np.testing.assert_array_equal(cnp.histogramdd([X, X], bins)[0], np.histogramdd([X, X], 3)[0])
    attend = lambda sides: cg.nn.dot_product_attention(HEADS, HEADS, HEADS, local_window_size=sides)
    np.testing.assert_array_equal(attend(np.array([1, 0])), attend((1, 0)))


def test_a_maximum_number_of_iterations_that_is_a_boolean() -> None:
    """Once the compiler was given the text `True`."""
    with pytest.raises(CtrlgradError, match="maximum_iterations is not usable"):
        cg.while_loop(lambda c: c < 0, lambda c: c, 0, maximum_iterations=True)


def test_more_keys_than_operands() -> None:
    with pytest.raises(CtrlgradError, match="more keys than operands"):
        cg.lax.sort((X, X), num_keys=3)


def test_an_option_that_does_not_exist() -> None:
    with pytest.raises(CtrlgradError, match=r"no such option(.|\n)*check_nans(.|\n)*strong_zeros"), cg.options(foo=1):
        pass
