"""Bits of numbers: NumPy's views, and what JAX gives."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad import lax
from ctrlgrad.errors import ShapeError, TypeMismatchError


@pytest.mark.parametrize("engine", ["reference", "native"])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i4", "u1", "i8"])
def test_bits_are_those_of_a_view(dtype: str, engine: str) -> None:
    x = np.array([3, 0, 1, 100, 7, 2, 9, 1]).astype(dtype)
    x[0] -= 6 if dtype[0] != "u" else 0
    if dtype[0] == "f":
        x[:3] = -0.0, np.inf, 1.3
    with cg.options(engine=engine):
        for other in ("u", "i") if dtype[0] == "f" else ("u", "f") if dtype != "u1" else ("i",):
            new = f"{other}{x.dtype.itemsize}"
            found = cg.function(lambda x, d=new: lax.bitcast_convert_type(x, d))(x)
            assert found.dtype == new and found.tobytes() == x.tobytes()


def test_bits_in_other_widths() -> None:
    x = np.array([1.5, -2.25])
    for dtype in ("u4", "i2", "f4", "u1"):
        found = lax.bitcast_convert_type(x, dtype)
        np.testing.assert_array_equal(found, x.view(dtype).reshape(2, -1))
        np.testing.assert_array_equal(lax.bitcast_convert_type(found, "f8"), x)
    with pytest.raises(ShapeError, match="does not make one number"):
        lax.bitcast_convert_type(np.ones(3, "u1"), "u4")
    with pytest.raises(TypeMismatchError, match="without bits"):
        lax.bitcast_convert_type(np.ones(3, bool), "u4")


def test_bits_have_no_derivative() -> None:
    f = lambda x: x * lax.bitcast_convert_type(lax.bitcast_convert_type(x, np.uint64), np.float64)
    assert cg.grad(f)(3.0) == 3.0


@pytest.mark.parametrize("exponent, mantissa", [(8, 7), (5, 10), (5, 2), (4, 30), (11, 52), (2, 1)])
def test_floats_of_fewer_bits_are_those_of_jax(exponent: int, mantissa: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=200).astype(np.float32) * np.float32(2.0) ** rng.integers(-40, 40, 200).astype(np.float32)
    x[:8] = np.inf, -np.inf, np.nan, 0.0, -0.0, 1.0, 3.4e38, 1e-45
    found = lax.reduce_precision(x, min(exponent, 8), min(mantissa, 23))
    expected = jax.lax.reduce_precision(x, min(exponent, 8), min(mantissa, 23))
    np.testing.assert_array_equal(found, expected)
    assert cg.grad(lambda x: cnp.sum(lax.reduce_precision(x, 8, 3) ** 2))(np.array([1.3]))[0] == 2.5


@pytest.mark.parametrize("dtype", ["i1", "u2", "i4", "u8", "i8"])
def test_counts_of_bits(dtype: str) -> None:
    info = np.iinfo(dtype)
    x = np.array([0, 1, 6, 100, info.max, info.min, info.max // 3], dtype)
    unsigned = [int(v) % 2**info.bits for v in x]
    np.testing.assert_array_equal(lax.population_count(x), [v.bit_count() for v in unsigned])
    np.testing.assert_array_equal(lax.clz(x), [info.bits - v.bit_length() for v in unsigned])
    high = [[int(a) * int(b) >> info.bits for b in x] for a in x]
    np.testing.assert_array_equal(lax.mulhi(x[:, None], x), np.array(high, dtype))


def test_shifts_beyond_the_width_are_those_of_jax() -> None:
    x, by = np.array([-8, 8, -1, 5], np.int32), np.array([1, 40, 32, -1], np.int32)
    for name in ("shift_left", "shift_right_arithmetic", "shift_right_logical"):
        for engine in ("reference", "native"):
            with cg.options(engine=engine):
                found = cg.function(getattr(lax, name))(x, by)
            np.testing.assert_array_equal(found, getattr(jax.lax, name)(x, by), err_msg=f"{name} {engine}")
