"""The bits of numbers, by the names of `jax.lax`."""

from __future__ import annotations

from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad.dtypes import BFLOAT16, dtype_kind, finfo
from ctrlgrad.errors import ShapeError, TypeMismatchError
from ctrlgrad.frontend.apply import apply
from ctrlgrad.source import here
from ctrlgrad.transforms.custom_jvp import custom_jvp


def _unsigned(x: Any) -> Any:
    """The bits of numbers as unsigned integers of their width."""
    dtype = x.dtype
    return apply("float_to_bits", [x]) if dtype_kind(dtype) == "f" else x.astype(f"u{dtype.itemsize}")


def _read_as(bits: Any, dtype: Any) -> Any:
    """Unsigned integers as the bits of numbers of their width."""
    if dtype_kind(dtype) != "f":
        return bits.astype(dtype)
    return apply("bits_to_bfloat16" if dtype == BFLOAT16 else "bits_to_float", [bits])


def bitcast_convert_type(operand: Any, new_dtype: Any) -> Any:
    """The bits of numbers read as another dtype; as `jax.lax.bitcast_convert_type`. It has no derivative.

    Of a narrower dtype each number makes several, along a new last axis, the lowest bits first; of a wider one the
    last axis, of that size, makes one.

    >>> bitcast_convert_type(np.float32(1.0), np.uint32) == 0x3F800000
    np.True_
    """
    x, dtype = cnp.asarray(operand), np.dtype(new_dtype)
    for d in (x.dtype, dtype):
        if dtype_kind(d) not in "iuf":
            raise TypeMismatchError(
                "lax.bitcast_convert_type: a dtype without bits of its own",
                source=here(),
                expected="integers or floats",
                got=f"{x.dtype.name} to {dtype.name}",
            )
    old, new = x.dtype.itemsize, dtype.itemsize
    bits = _unsigned(x)
    if new < old:
        shifts = np.arange(old // new, dtype=bits.dtype) * bits.dtype.type(8 * new)
        bits = (bits[..., None] >> shifts).astype(f"u{new}")
    elif new > old:
        if not x.ndim or x.shape[-1] != new // old:
            raise ShapeError(
                "lax.bitcast_convert_type: the last axis does not make one number",
                source=here(),
                expected=f"[..., {new // old}]",
                got=str(x.shape),
            )
        wide = bits.astype(f"u{new}")
        bits = cnp.asarray(0, wide.dtype)
        for k in range(new // old):
            bits = bits | wide[..., k] << wide.dtype.type(8 * old * k)
    return _read_as(bits, dtype)


def reduce_precision(operand: Any, exponent_bits: int, mantissa_bits: int) -> Any:
    """Floats rounded to those that have so many bits; as `jax.lax.reduce_precision`. Its derivative is 1.

    >>> float(reduce_precision(np.float32(1.2345), 8, 3))
    1.25
    """
    x = cnp.asarray(operand)
    if dtype_kind(x.dtype) != "f":
        raise TypeMismatchError("lax.reduce_precision: not floats", source=here(), got=x.dtype.name)

    @custom_jvp
    def rounded(x: Any) -> Any:
        return _rounded(x, exponent_bits, mantissa_bits)

    rounded.defjvps(lambda t, out, x: t)
    return rounded(x)


def _rounded(x: Any, exponent_bits: int, mantissa_bits: int) -> Any:
    info = finfo(x.dtype)
    bits = _unsigned(x)
    of: Any = bits.dtype.type
    width = int(info.nmant)
    if mantissa_bits < width:
        # To the nearest, halves to even: an overflow of the mantissa goes on into the exponent.
        last = 1 << (width - mantissa_bits)
        is_odd = (bits >> of(width - mantissa_bits)) & of(1)
        bits = (bits + (is_odd + of((last >> 1) - 1))) & of(2 ** (8 * x.dtype.itemsize) - last)
    if exponent_bits < info.nexp:
        sign, infinity = of(1 << (8 * x.dtype.itemsize - 1)), of(((1 << info.nexp) - 1) << width)
        bias, reduced = (1 << (info.nexp - 1)) - 1, (1 << (exponent_bits - 1)) - 1
        exponent = bits & infinity
        small = cnp.where(exponent <= of((bias - reduced) << width), bits & sign, bits)
        bits = cnp.where(exponent > of((bias + reduced) << width), (bits & sign) | infinity, small)
    return cnp.where(cnp.isnan(x), x, _read_as(bits, x.dtype))


def population_count(x: Any) -> Any:
    """How many bits of integers are set.

    >>> population_count(np.array([7, -1], np.int8))
    array([3, 8], dtype=int8)
    """
    x = cnp.asarray(x)
    bits = _unsigned(x).astype(np.uint64)
    # Sums of neighbouring bits, pairs and groups of four; the bytes' sum by a product.
    bits = bits - ((bits >> np.uint64(1)) & np.uint64(0x5555555555555555))
    bits = (bits & np.uint64(0x3333333333333333)) + ((bits >> np.uint64(2)) & np.uint64(0x3333333333333333))
    bits = (bits + (bits >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    for shift in (8, 16, 32):
        bits = bits + (bits >> np.uint64(shift))
    return (bits & np.uint64(0x7F)).astype(x.dtype)


def clz(x: Any) -> Any:
    """How many of the highest bits of integers are zero.

    >>> clz(np.array([1, 0, -1], np.int8))
    array([7, 8, 0], dtype=int8)
    """
    x = cnp.asarray(x)
    bits = _unsigned(x)
    width = 8 * x.dtype.itemsize
    shift = 1
    while shift < width:
        bits = bits | (bits >> bits.dtype.type(shift))
        shift *= 2
    return (width - population_count(bits)).astype(x.dtype)


def shift_right_logical(x: Any, y: Any) -> Any:
    """x shifted to the right with zeros coming in.

    >>> int(shift_right_logical(np.int8(-128), 7))
    1
    """
    x = cnp.asarray(x)
    bits = _unsigned(x)
    return cnp.right_shift(bits, cnp.asarray(y).astype(bits.dtype)).astype(x.dtype)


def mulhi(x: Any, y: Any) -> Any:
    """The higher half of the bits of a product of integers.

    >>> int(mulhi(np.int32(2**20), np.int32(2**20)))
    256
    """
    x, y = cnp.asarray(x), cnp.asarray(y)
    width = 8 * x.dtype.itemsize
    if width < 64:
        wide: Any = np.int64 if dtype_kind(x.dtype) == "i" else np.uint64
        return (x.astype(wide) * y.astype(wide) >> wide(width)).astype(x.dtype)
    # By halves of 32 bits, unsigned; a negative factor takes the other one off.
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    a, b = _unsigned(x), _unsigned(y)
    middle = (a >> half) * (b & low) + ((a & low) * (b & low) >> half)
    high = (a >> half) * (b >> half) + (middle >> half) + (((a & low) * (b >> half) + (middle & low)) >> half)
    zero = np.uint64(0)
    if dtype_kind(x.dtype) == "i":
        high = high - cnp.where(x < 0, b, zero) - cnp.where(y < 0, a, zero)
    return high.astype(x.dtype)


__all__ = [
    "bitcast_convert_type",
    "clz",
    "mulhi",
    "population_count",
    "reduce_precision",
    "shift_right_logical",
]
