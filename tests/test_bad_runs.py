"""Errors for values that leak, for mistakes that a run shows, and for shapes that do not fit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mistakes import Mistakes, differentiated, eager, traced, ways

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
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

THIS = Path(__file__)
mistake = Mistakes(THIS)
line_of = mistake.line_of

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


def test_fori_loop_bound_that_is_no_number() -> None:
    def f(x):
        return cg.fori_loop(0, x > 0.0, lambda i, c: c + x, 0.0)  # <- boolean bound

    with mistake(TypeMismatchError, "boolean bound", "fori_loop", "i64[]", "bool[]"):
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
    with mistake(TypeMismatchError, "aux", "has_aux", "(result, aux)"):
        cg.grad(lambda x: x * x, has_aux=True)(1.0)  # <- aux


def test_cotangent_and_tangent_that_do_not_fit() -> None:
    _, pullback = cg.vjp(lambda x: x * 2.0, np.ones(3))
    with mistake(TypeMismatchError, "cotangent", "vjp", "f64[3]", "f64[2]"):
        pullback(np.ones(2))  # <- cotangent
    with mistake(TypeMismatchError, "tangent", "jvp", "f64[3]", "f64[2]"):
        cg.jvp(lambda x: x * 2.0, (np.ones(3),), (np.ones(2),))  # <- tangent


def test_non_functions_and_non_arguments_are_refused() -> None:
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


@pytest.mark.parametrize("f", [cg.function(lambda x: x + 1), cg.grad(lambda x: x * x)], ids=["function", "grad"])
def test_a_call_on_a_declared_type(f: Any) -> None:
    with mistake(TypeMismatchError, "declared here", "has no numbers", "TensorSpec", "ctrlgrad.eval_shape"):
        f(cg.TensorSpec(()))  # <- declared here


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

    with mistake(
        TracingError, "recursion", "factorial: tracing it takes calls that are nested deeper than Python", "while_loop"
    ):
        cg.function(factorial)(3.0)  # <- recursion
