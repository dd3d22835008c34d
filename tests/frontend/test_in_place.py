"""In-place forms on arrays of `ctrlgrad.numpy`: no other name sees a change, and compiled code does the same."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.errors import TracingError

FLOATS, INTEGERS = np.array([[3.0, 1.0], [2.0, 5.0]]), np.array([[3, 1], [2, 5]])
# The operator, its first operand and its second.
OPERATORS: dict[str, tuple[Callable[[Any, Any], Any], Any, Any]] = {
    "+=": (operator.iadd, FLOATS, FLOATS),
    "+= of another dtype": (operator.iadd, INTEGERS, 0.5),
    "+= that broadcasts": (operator.iadd, FLOATS[0], FLOATS),
    "-=": (operator.isub, FLOATS, 0.5),
    "*=": (operator.imul, FLOATS, FLOATS),
    "/=": (operator.itruediv, FLOATS, 2.0),
    "/= of integers": (operator.itruediv, INTEGERS, 2),
    "//=": (operator.ifloordiv, INTEGERS, 2),
    "%=": (operator.imod, INTEGERS, 2),
    "**=": (operator.ipow, FLOATS, 2.0),
    "@=": (operator.imatmul, FLOATS, FLOATS),
    "&=": (operator.iand, INTEGERS, 3),
    "|=": (operator.ior, INTEGERS, 4),
    "^=": (operator.ixor, INTEGERS, 1),
    "<<=": (operator.ilshift, INTEGERS, 1),
    ">>=": (operator.irshift, INTEGERS, 1),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_gives_its_name_a_new_array_eagerly_and_compiled(name: str) -> None:
    """The result, and what an alias shows after it."""
    operation, first, second = OPERATORS[name]

    def run(x: Any, y: Any) -> Any:
        acc = cnp.asarray(x)
        alias = acc
        acc = operation(acc, y)
        return acc, alias

    eager, compiled = run(first.copy(), second), cg.function(run)(first, second)
    for found, expected in zip(eager, compiled, strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(eager[1], first)


@pytest.mark.parametrize("start", [lambda: cnp.zeros(3), lambda: cnp.zeros(()), lambda: cnp.array([0.0, 0.0, 0.0])])
def test_a_sum_that_begins_with_zeros_takes_traced_values(start: Callable[[], Any]) -> None:
    """The commonest idiom of NumPy's, under a gradient."""

    def total(x: Any) -> Any:
        acc = start()
        for k in range(1, 4):
            acc += k * x
        return cnp.sum(acc * acc)

    x = np.array([1.0, -2.0, 0.5]) if np.ndim(start()) else np.array(2.0)
    np.testing.assert_allclose(cg.grad(total)(x), 72.0 * x)
    np.testing.assert_allclose(cg.function(cg.grad(total))(x), 72.0 * x)
    np.testing.assert_allclose(total(x), cg.function(total)(x))


WRITES: dict[str, Callable[[Any], Any]] = {
    "x[i] = v": lambda x: x.__setitem__(0, 9.0),
    "x[:] = v": lambda x: x.__setitem__(slice(None), 9.0),
    "x[mask] = v": lambda x: x.__setitem__(x > 1, 9.0),
    "x[i] += v": lambda x: operator.setitem(x, 0, x[0] + 1.0),
    "x.sort()": lambda x: x.sort(),
    "x.partition(1)": lambda x: x.partition(1),
    "x.fill(v)": lambda x: x.fill(9.0),
    "x.put(i, v)": lambda x: x.put(0, 9.0),
    "x.resize(n)": lambda x: x.resize(2),
    "x.shape = n": lambda x: setattr(x, "shape", (4, 1)),
    "np.add(x, y, out=x)": lambda x: np.add(x, x, out=x),
    "np.copyto": lambda x: np.copyto(x, 9.0),
    "np.put": lambda x: np.put(x, 0, 9.0),
    "np.putmask": lambda x: np.putmask(x, x > 1, 9.0),
    "np.place": lambda x: np.place(x, x > 1, [9.0]),
    "np.fill_diagonal": lambda x: np.fill_diagonal(x.reshape(2, 2), 9.0),
}
ARRAYS: dict[str, Callable[[], Any]] = {
    "asarray": lambda: cnp.asarray(FLOATS.ravel()),
    "an op": lambda: cnp.sqrt(cnp.asarray(FLOATS.ravel()) ** 2),
    "an operator": lambda: cnp.asarray(FLOATS.ravel()) * 1.0,
    "a copy": lambda: cnp.asarray(FLOATS.ravel()).copy(),
    "another dtype": lambda: cnp.asarray(INTEGERS.ravel()).astype(np.float64),
    "a slice": lambda: cnp.concatenate([FLOATS.ravel(), FLOATS.ravel()])[:4],
}


# NumPy asks for the flag of the memory alone, which its own operators leave set.
BY_FLAG = {"np.add(x, y, out=x)", "np.copyto", "np.put", "np.putmask", "np.place", "np.fill_diagonal"}


@pytest.mark.parametrize(
    "name, array",
    [
        (name, array)
        for name in WRITES
        for array in ARRAYS
        if name not in BY_FLAG or array in ("asarray", "an op", "a slice")
    ],
)
def test_a_write_into_an_array_is_refused_eagerly_as_when_compiled(name: str, array: str) -> None:
    x = ARRAYS[array]()
    before = np.array(x)
    with pytest.raises((TracingError, ValueError)):
        WRITES[name](x)
    np.testing.assert_array_equal(x, before)
    with pytest.raises((TracingError, AttributeError)):
        cg.function(lambda x: WRITES[name](x))(before)


@pytest.mark.parametrize("name", ["x[i] = v", "x.sort()", "x.fill(v)", "x.shape = n"])
def test_a_refused_write_says_what_to_write_instead(name: str) -> None:
    with pytest.raises(TracingError, match="cannot be changed in place") as caught:
        WRITES[name](cnp.arange(4.0))
    assert "test_in_place.py" in str(caught.value) and "numpy.array(x)" in str(caught.value)


def test_arrays_of_numpys_own_stay_writable() -> None:
    """The argument of `asarray`, and what `np.array` makes."""
    given = np.arange(4.0)
    shown = cnp.asarray(given)
    given[0] = 9.0
    copy = np.array(shown)
    copy[1] = 7.0
    assert given[0] == 9.0 and shown[1] == 1.0


METHODS = [lambda x: x.mean(axis=0), lambda x: x.var(), lambda x: x.std(axis=0), lambda x: x.cumsum(), np.mean, np.var]


@pytest.mark.parametrize(
    "fn", [np.sort, np.median, np.gradient, np.flip, np.unwrap, np.nan_to_num, np.diff, np.unique, *METHODS]
)
def test_numpys_functions_that_fill_an_array_of_their_own_take_ours(fn: Callable[[Any], Any]) -> None:
    np.testing.assert_array_equal(fn(cnp.arange(4.0)), fn(np.arange(4.0)))


# Functions that have nothing to do for this operand, and give it back.
GIVEN_BACK: dict[str, Callable[[Any], Any]] = {
    "squeeze": cnp.squeeze,
    "real": cnp.real,
    "positive": cnp.positive,
    "conjugate": cnp.conjugate,
    "clip": cnp.clip,
    "atleast_1d": cnp.atleast_1d,
    "pad": lambda x: cnp.pad(x, 0),
    "tile": lambda x: cnp.tile(x, 1),
    "broadcast_arrays": lambda x: cnp.broadcast_arrays(x, x)[0],
    "einsum": lambda x: cnp.einsum("ij->ij", x),
    "matrix_power": lambda x: cnp.linalg.matrix_power(x, 1),
    "stop_gradient": cg.stop_gradient,
}


@pytest.mark.parametrize("name", GIVEN_BACK)
def test_an_operator_on_a_result_leaves_the_arrays_of_the_caller(name: str) -> None:
    def run(x: Any) -> Any:
        y = GIVEN_BACK[name](x)
        y += 1.0
        return y, x

    x = FLOATS.copy()
    eager, compiled = run(x), cg.function(run)(FLOATS)
    for found, expected in zip(eager, compiled, strict=True):
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(x, FLOATS)
