"""Python numbers beside traced arrays, as in NumPy 2 (NEP 50): their value counts, their dtype does not."""

from __future__ import annotations

import math
import operator
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.errors import NumberOverflowError, UserInputError

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


# `options(default_float=)` decides the dtype of floats that have none of their own, and of nothing else.


KEY = cg.random.key(0)
WIDE, NARROW, WHOLE = np.ones(3), np.ones(3, np.float32), np.arange(3)

# Arrays made without a dtype.
MADE: dict[str, Any] = {
    "zeros": lambda: cnp.zeros(3),
    "ones": lambda: cnp.ones((2, 2)),
    "full": lambda: cnp.full(3, 2.0),
    "eye": lambda: cnp.eye(2),
    "identity": lambda: cnp.identity(2),
    "tri": lambda: cnp.tri(2),
    "linspace": lambda: cnp.linspace(0.0, 1.0, 3),
    "arange": lambda: cnp.arange(0.0, 1.0, 0.5),
    "array": lambda: cnp.array([1.0, [2.0][0]]),
    "asarray": lambda: cnp.asarray(1.0),
    "fftfreq": lambda: cnp.fft.fftfreq(4),
    "a number": lambda: cnp.sin(1.0),
    "two numbers": lambda: cnp.add(1.0, 2),
    "integers": lambda: cnp.sqrt(WHOLE),
    "a quotient of integers": lambda: cnp.divide(WHOLE, 2),
    "integers and a number": lambda: cnp.multiply(WHOLE, 0.5),
    "a mean of integers": lambda: cnp.mean(WHOLE),
    "a histogram's edges": lambda: cnp.histogram(WHOLE, 2)[1],
    "edges in a range": lambda: cnp.histogram_bin_edges(WHOLE, 2, (0, 1)),
    "a density": lambda: cnp.histogram(WHOLE, 2, density=True)[0],
    "counts of cells": lambda: cnp.histogramdd(WHOLE[:, None], 2)[0],
    "a weighted count": lambda: cnp.bincount(WHOLE, WHOLE, length=3),
    "a quantile of integers": lambda: cnp.quantile(WHOLE, 0.3),
    "float_power": lambda: cnp.float_power(WHOLE, 2),
    "a power of integers": lambda: cnp.power(WHOLE, 0.5),
    "bartlett": lambda: cnp.bartlett(3),
    "blackman": lambda: cnp.blackman(3),
    "hamming": lambda: cnp.hamming(3),
    "hanning": lambda: cnp.hanning(3),
    "a norm of integers": lambda: cg.nn.rms_norm(WHOLE),
    "a window": lambda: cnp.kaiser(4, 2),
    "no window": lambda: cnp.kaiser(1, 2.0),
    "a transform of integers": lambda: cnp.fft.fft(WHOLE).real,
    "a complex number of integers": lambda: cnp.make_complex(WHOLE, 0).imag,
    "erf of integers": lambda: cg.scipy.special.erfc(WHOLE),
    "factors of integers": lambda: cg.scipy.linalg.lu(np.eye(2, dtype=int))[1],
    "a declared type": lambda: cnp.zeros(3, cg.TensorSpec((3,)).type.dtype),
    "the standard's": lambda: cnp.zeros(3, cnp.__array_namespace_info__().default_dtypes()["real floating"]),
    "one_hot": lambda: cg.nn.one_hot(WHOLE, 3),
    "he_normal": lambda: cg.nn.initializers.he_normal()(KEY, (2, 3)),
}
MADE |= {
    name: lambda name=name: getattr(cg.random, name)(KEY, shape=(3,))
    for name in ("uniform", "normal", "gumbel", "laplace", "logistic", "cauchy", "exponential", "lognormal", "maxwell")
}
MADE |= {
    name: lambda name=name: getattr(cg.random, name)(KEY, 2.0, shape=(3,))
    for name in ("gamma", "pareto", "chisquare", "t", "rayleigh", "generalized_normal")
}


@pytest.mark.parametrize("name", MADE)
def test_floats_without_a_dtype_have_the_default(name: str) -> None:
    traced = cg.function(lambda: cnp.add(MADE[name](), 0))
    for dtype in ("float64", "float32", "float64"):
        with cg.options(default_float=dtype, engine="reference"):
            assert MADE[name]().dtype == traced().dtype == dtype


def test_arrays_keep_their_dtype() -> None:
    def program(x: Any) -> Any:
        y = cg.fori_loop(0, 3, lambda i, c: cg.cond(cnp.sum(c) > 0, lambda c: c * 2.0 + 1, lambda c: c - 1.0, c), x)
        return cnp.where(y > 1.0, y, 0.5) + cnp.mean(y) * np.pi, cnp.maximum(y, 0.0) ** 2, cnp.clip(y, -1.0, 1.0)

    for x in (WIDE, NARROW):
        found = set()
        for dtype in ("float64", "float32"):
            with cg.options(default_float=dtype, engine="reference"):
                results = [*cg.function(program)(x), *program(x), cg.grad(lambda x: cnp.sum(program(x)[0]))(x)]
                found |= {y.dtype for y in results}
                assert cnp.array([x[0], 1.0]).dtype == np.result_type(x.dtype, np.float64)
        assert found == {x.dtype}


def test_python_floats_as_arguments() -> None:
    f = cg.function(lambda a, b: (a * 2.0, cg.while_loop(lambda c: c < b, lambda c: c * 2.0, a)))
    for engine in ("reference", "native"):
        for dtype in ("float32", "float64", "float32"):
            with cg.options(default_float=dtype, engine=engine):
                for _ in range(2):
                    found = f(0.3, 4.0)
                    assert [y.dtype for y in found] == [dtype] * 2
                    np.testing.assert_allclose(found, [0.6, 4.8], rtol=1e-6)
                assert cg.grad(lambda x: x**2)(3.0).dtype == dtype
    assert f.traces == 2


def test_a_conversion_in_rewritten_python() -> None:
    f = cg.function(lambda n: float(n), autograph=True)
    for dtype in ("float32", "float64"):
        with cg.options(default_float=dtype, engine="reference"):
            assert f(WHOLE[2]).dtype == dtype


def test_double_precision_is_kept_where_arrays_have_it() -> None:
    with cg.options(default_float="float32", engine="reference"):
        assert cnp.float_power(WIDE, 2).dtype == cnp.bincount(WHOLE, WIDE, length=3).dtype == np.float64
        assert cnp.float_power(NARROW, 2).dtype == np.float32
    assert cnp.float_power(NARROW, 2).dtype == cnp.bincount(WHOLE, NARROW, length=3).dtype == np.float64


def test_integers_are_compared_exactly() -> None:
    with cg.options(default_float="float32"):
        assert not cnp.isclose(2**24 + 1, 2**24, rtol=0, atol=0)
        assert cnp.isclose(2**24 + 1, np.int64(2**24 + 1), rtol=0, atol=0)


def test_complex_numbers_have_the_width_of_the_default() -> None:
    with cg.options(default_float="float32"):
        assert cnp.asarray(1.0 + 2.0j).dtype == cnp.exp(1j).dtype == np.complex64
        assert cnp.asarray(np.complex128(1j)).dtype == np.complex128


def test_unsupported_default_floats_are_refused() -> None:
    with pytest.raises(UserInputError, match="no such default"), cg.options(default_float="float16"):
        pass


def test_the_environment_sets_the_default() -> None:
    command = [sys.executable, "-c", "import ctrlgrad.numpy as cnp; print(cnp.zeros(2).dtype)"]
    for value, shown in (("float32", "float32"), ("half", "CTRLGRAD_DEFAULT_FLOAT: there is no such default")):
        run = subprocess.run(
            command, env={**os.environ, "CTRLGRAD_DEFAULT_FLOAT": value}, capture_output=True, text=True, check=False
        )
        assert shown in run.stdout + run.stderr


def rounded(x: Any) -> Any:
    return round(x.shape[0] / 2) + math.floor(x.shape[0] / 3) + math.ceil(x.shape[0] / 3) + math.trunc(x.shape[0] / 3)


SIZES_AS_NUMBERS: dict[str, Any] = {
    "shape": lambda x: x / x.shape[0],
    "size": lambda x: x / x.size,
    "numpy's size": lambda x: x / cnp.size(x),
    "numpy's shape": lambda x: x / cnp.shape(x)[0],
    "product of a shape": lambda x: x / math.prod(cnp.stack([x, x]).shape),
    "size of two dimensions": lambda x: x / cnp.size(cnp.stack([x, x])),
    "size of a part": lambda x: x / x[1:].size,
    "arithmetic": lambda x: x * (1 - 1 / x.shape[0]) + x * -(x.shape[0] // 2) + x * x.shape[0] ** 0.5,
    "divmod, shift, abs": lambda x: x * sum(divmod(x.shape[0], 2)) + (x.shape[0] << 1) * x + abs(x.shape[0] - 9) * x,
    "rounded": lambda x: x * rounded(x),
    "function": lambda x: cnp.maximum(x, x.shape[0]),
    "where": lambda x: cnp.where(x > 1, x, x.shape[0]),
    "of lax": lambda x: cg.lax.mul(x, x.shape[0]),
    "power": lambda x: x ** x.shape[0],
    "branch": lambda x: x * cg.cond(x[0] > 0, lambda: x.shape[0], lambda: 3),
    "carry": lambda x: cg.fori_loop(0, x.shape[0], lambda i, y: y / x.shape[0] + x[i], x[0]),
    "initial carry": lambda x: cg.scan(lambda n, y: (n + 1, n * y), x.shape[0], x)[1],
    "rows of vmap": lambda x: cg.vmap(lambda y: y / x.shape[0])(x),
    "axis of vmap": lambda x: cg.vmap(lambda y: y / cg.lax.axis_size("rows"), axis_name="rows")(x),
    "gradient": lambda x: cg.grad(lambda x: (x * x).sum() / x.size)(x),
    "array": lambda x: x * cnp.sqrt(x.shape[0]),
    "range": lambda x: x * cnp.arange(x.shape[0]),
}


OF_FLOATS = ("rounded", "gradient", "function", "where", "power", "carry", "branch")
SIZES_BY_DTYPE = [
    (name, dtype)
    for name in SIZES_AS_NUMBERS
    for dtype in (["float32"] if name in OF_FLOATS else ["int32", "float32", "complex64"])
]


@pytest.mark.parametrize(("name", "dtype"), SIZES_BY_DTYPE)
def test_an_unknown_size_promotes_like_the_python_integer_of_a_known_one(name, dtype):
    """Found: the second call, of another size, gave float64, and a loop's carry that was divided by it was refused."""
    f, xs = SIZES_AS_NUMBERS[name], [np.arange(1, n + 1).astype(dtype) for n in (3, 4, 5)]
    unknown = cg.function(f, engine="reference")
    found = [unknown(x) for x in xs]
    assert unknown.traces == 2
    for x, y in zip(xs, found, strict=True):
        expected = cg.function(f, engine="reference")(x)
        assert y.dtype == expected.dtype
        np.testing.assert_allclose(y, expected, rtol=1e-6)


NEEDS_THE_NUMBER: dict[str, Any] = {
    "list repeated": lambda x: x * sum([2] * x.shape[0]),
    "repeated list": lambda x: x * sum(x.shape[0] * (1, 2)),
    "negative power": lambda x: x * x.shape[0] ** -1,
    "negative power of a size": lambda x: x * x.size**-2,
    "frequencies": lambda x: x * cnp.fft.fftfreq(x.shape[0]).astype(x.dtype),
    "permutation": lambda x: x[cg.random.permutation(cg.random.key(0), x.shape[0])],
    "choice": lambda x: x[cg.random.choice(cg.random.key(0), x.shape[0], (2,))],
    "choice without replacement": lambda x: x[cg.random.choice(cg.random.key(0), x.shape[0], (2,), replace=False)],
}


@pytest.mark.parametrize("name", NEEDS_THE_NUMBER)
def test_an_unknown_size_stands_for_its_number_where_python_needs_one(name):
    """Found: a list times an unknown size was multiplied by element; the others ended in errors of NumPy or Python."""
    f = NEEDS_THE_NUMBER[name]
    compiled = cg.function(f, engine="reference")
    for n in (3, 4, 5, 4):
        x = np.arange(1, n + 1).astype("float32")
        found, expected = compiled(x), cg.function(f, engine="reference")(x)
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_numpy_integers_are_counts_of_random_choices():
    key = cg.random.key(0)
    for replace in (True, False):
        found = cg.random.choice(key, np.int64(4), (2,), replace=replace)
        np.testing.assert_array_equal(found, cg.random.choice(key, 4, (2,), replace=replace))
