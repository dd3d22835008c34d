"""Elementwise functions at zeros of both signs, subnormals, infinities and NaN.

Engines agree, and agree with NumPy and JAX where these agree with each other. Of two zeros -0 is the smaller one.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp

ONE = [
    "abs",
    "sign",
    "exp",
    "expm1",
    "exp2",
    "log",
    "log1p",
    "log2",
    "log10",
    "sqrt",
    "square",
    "cbrt",
    "sin",
    "cos",
    "tan",
    "sinh",
    "cosh",
    "tanh",
    "arcsin",
    "arccos",
    "arctan",
    "arcsinh",
    "arccosh",
    "arctanh",
    "floor",
    "ceil",
    "rint",
    "trunc",
    "reciprocal",
    "negative",
    "isnan",
    "isinf",
    "isfinite",
    "signbit",
]
TWO = [
    "add",
    "subtract",
    "multiply",
    "divide",
    "maximum",
    "minimum",
    "fmax",
    "fmin",
    "power",
    "copysign",
    "nextafter",
    "arctan2",
    "hypot",
    "remainder",
    "fmod",
    "floor_divide",
    "logaddexp",
    "heaviside",
    "float_power",
]
ENGINES = ["native", "reference", "dataflow"]


def numbers(dtype: type) -> np.ndarray:
    limits = np.finfo(dtype)
    positive = [0, 1, 0.5, 1.5, 2.5, np.inf, limits.tiny, limits.smallest_subnormal, limits.max, limits.eps, 3, 1e10]
    return np.array([*positive, *(-x for x in positive), np.nan], dtype)


def agree(found: Any, expected: Any) -> np.ndarray:
    """Mask of the numbers that agree to a few units in the last place, with their signs."""
    found, expected = np.asarray(found), np.asarray(expected)
    if expected.dtype.kind != "f":
        return found == expected
    tolerance = 64 * np.finfo(expected.dtype).eps
    with np.errstate(all="ignore"):
        close = (found == expected) | (np.abs(found - expected) <= tolerance * np.abs(expected))
    return np.isnan(found) & np.isnan(expected) | close & (np.signbit(found) == np.signbit(expected))


def check(name: str, *xs: np.ndarray) -> None:
    with np.errstate(all="ignore"):
        of_numpy = getattr(np, name)(*xs)
    with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
        of_jax = np.asarray(jax.jit(getattr(jnp, name))(*xs))
    found = [cg.function(getattr(cnp, name), engine=engine)(*xs) for engine in ENGINES]
    for engine, each in zip(ENGINES, found, strict=True):
        wrong = agree(of_numpy, of_jax) & ~agree(each, of_numpy)
        assert not wrong.any(), (engine, [x[wrong] for x in xs], each[wrong], of_numpy[wrong])
        apart = ~agree(each, found[0])
        assert not apart.any(), (engine, [x[apart] for x in xs], each[apart], found[0][apart])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ONE)
def test_functions_of_one_number(name: str, dtype: type) -> None:
    check(name, numbers(dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", TWO)
def test_functions_of_two_numbers(name: str, dtype: type) -> None:
    x, y = (z.ravel() for z in np.meshgrid(numbers(dtype), numbers(dtype)))
    check(name, x, y)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("engine", ENGINES)
def test_the_larger_of_two_zeros_is_the_positive_one(engine: str, dtype: type) -> None:
    x, y = np.array([0.0, -0.0, 0.0, -0.0], dtype), np.array([0.0, 0.0, -0.0, -0.0], dtype)
    for names, negative in ((("maximum", "fmax"), [0, 0, 0, 1]), (("minimum", "fmin"), [0, 1, 1, 1])):
        for name in names:
            found = cg.function(getattr(cnp, name), engine=engine)(x, y)
            np.testing.assert_array_equal(np.signbit(found), negative)
    assert not np.signbit(cg.function(lambda x: cnp.clip(x, 0.0, 1.0), engine=engine)(y[:2])).any()


@pytest.mark.parametrize("x, y", [(-3.0, 1.0), (3.0, 1.0), (0.0, 2.0), (-0.0, 2.0), (-2.5, 2.0), (5.5, -2.0)])
def test_derivatives_of_fmod_are_those_of_jax(x: float, y: float) -> None:
    found = cg.grad(cnp.fmod, argnums=(0, 1))(x, y)
    np.testing.assert_array_equal(found, jax.grad(jnp.fmod, argnums=(0, 1))(x, y))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("size", [0, 1, 2, 3])
def test_more_elements_are_asked_for_than_an_axis_of_unknown_size_has(size: int, axis: int, engine: str) -> None:
    shape = [2, 2]
    shape[axis] = size
    signature = (cg.TensorSpec(tuple(None if k == axis else 2 for k in range(2))),)
    largest = cg.function(lambda x: cg.lax.top_k(x, 3, axis=axis), engine=engine, signature=signature)
    if size == 3:
        assert largest(np.ones(shape))[0].shape == tuple(shape)
    else:
        with pytest.raises(cg.errors.ShapeError, match="does not have as many elements"):
            largest(np.ones(shape))


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint8"])
def test_remainders_of_integers_at_the_ends_of_their_range(dtype: str) -> None:
    limits = np.iinfo(dtype)
    each = np.array([limits.min, limits.min + 1, limits.max, 1, 2, 3, 7, *([-1, -2, -3] if limits.min else [])], dtype)
    x, y = (z.ravel() for z in np.meshgrid(each, each[each != 0]))
    with np.errstate(all="ignore"):
        expected = np.fmod(x, y)
    for engine in ENGINES:
        np.testing.assert_array_equal(cg.function(cnp.fmod, engine=engine)(x, y), expected)
        np.testing.assert_array_equal(cg.function(cg.from_jax(jax.lax.rem), engine=engine)(x, y), expected)
