"""Python numbers beside traced arrays, as in NumPy 2 (NEP 50): their value counts, their dtype does not."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.errors import NumberOverflowError

COMPARISONS = (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne)
NUMBERS = (0, -1, 127, 128, 255, 256, 300, -129, 10**10, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64, 10**30)
DTYPES = ("bool", "int8", "uint8", "int32", "uint32", "int64", "uint64")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("compare", COMPARISONS, ids=lambda f: f.__name__)
def test_comparisons_with_any_python_integer_are_numpys(dtype, compare):
    x = np.array([0, 1, 100]).astype(dtype)
    # NumPy compares booleans as int64, which it does not leave.
    numbers = [n for m in NUMBERS for n in (m, -m) if dtype != "bool" or m < 2**63]
    found = cg.function(lambda x: [(compare(x, n), compare(n, x)) for n in numbers], engine="reference")(x)
    for n, (left, right) in zip(numbers, found, strict=True):
        np.testing.assert_array_equal(left, compare(x, n), err_msg=str(n))
        np.testing.assert_array_equal(right, compare(n, x), err_msg=str(n))
        assert left.dtype == np.bool_ and left.shape == x.shape


@pytest.mark.parametrize("compare", COMPARISONS, ids=lambda f: f.__name__)
def test_comparisons_of_what_stands_for_a_python_integer(compare):
    for n in (5, 10**10, 2**63, -(2**70)):
        found = cg.function(lambda k: compare(k, n), engine="reference")(5)  # noqa: B023
        assert bool(found) is compare(5, n)


def test_a_loop_counts_up_to_a_large_python_integer():
    assert int(cg.while_loop(lambda k: k < 10**10, lambda k: k * 10 + 1, np.int64(1))) == 11111111111
    assert int(cg.while_loop(lambda k: k < 10**10, lambda k: k * 10 + 1, 1)) == 11111111111


OUT_OF_BOUNDS: dict[str, tuple[Any, Any]] = {
    "add": (lambda x: x + 300, np.uint8),
    "a negative number to unsigned": (lambda x: x + -1, np.uint64),
    "int32": (lambda x: x * 2**40, np.int32),
    "int64": (lambda x: x + 2**63, np.int64),
    "bool": (lambda x: x + 2**70, np.bool_),
    "float64": (lambda x: x + 10**400, np.float64),
    "floor_divide": (lambda x: x // 300, np.uint8),
    "power": (lambda x: x**300, np.uint8),
    "bitwise": (lambda x: x ^ 300, np.int8),
    "minimum": (lambda x: np.minimum(x, 300), np.uint8),
    "full_like": (lambda x: np.full_like(x, 300), np.uint8),
}


@pytest.mark.parametrize("f, dtype", OUT_OF_BOUNDS.values(), ids=OUT_OF_BOUNDS)
def test_a_number_that_the_dtype_cannot_hold_is_refused_as_by_numpy(f, dtype):
    x = np.array([3, 4]).astype(dtype)
    if dtype is not np.float64:  # NumPy goes on with Python objects
        with pytest.raises(OverflowError):
            f(x)
    with pytest.raises(NumberOverflowError, match="does not fit the dtype") as caught:
        cg.function(f, engine="reference")(x)
    assert isinstance(caught.value, OverflowError) and "test_python_numbers.py" in str(caught.value)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: cnp.at(x)[0].set(300),
        lambda x: cnp.where(x > 3, x, 300),
        lambda x: cnp.full(2, -1, dtype="uint8") + x,
        lambda x: cnp.asarray([1, 300], dtype="uint8") + x,
        lambda x: cg.fori_loop(0, 2, lambda i, c: x[0], 300),
        lambda x: cg.fori_loop(0, 2, lambda i, c: c, (x, 2**70)),
    ],
)
def test_nor_does_it_wrap_around_anywhere_else(f):
    with pytest.raises(NumberOverflowError, match="does not fit the dtype"):
        cg.function(f, engine="reference")(np.array([3, 4], np.uint8))


def test_large_numbers_take_part_as_floats():
    x = np.ones(2, np.float32)
    found = cg.function(lambda x: (x + 2**40, x < 2**100, x * 2**65), engine="reference")(x)
    assert found[0].dtype == np.float32 and found[2].dtype == np.float32
    np.testing.assert_array_equal(found[0], x + 2**40)
    assert found[1].all()
    np.testing.assert_array_equal(found[2], x * 2.0**65)
