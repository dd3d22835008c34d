"""Elementwise functions of `jax.lax` that NumPy lacks or defines differently."""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad.advice import check_choice
from ctrlgrad.dtypes import BFLOAT16, as_dtype, dtype_kind, finfo, result_type
from ctrlgrad.errors import ShapeError, TypeMismatchError
from ctrlgrad.frontend.apply import apply
from ctrlgrad.frontend.functions import publish
from ctrlgrad.transforms.custom_calls import custom_jvp, custom_vjp


def div(x: Any, y: Any) -> Any:
    """x / y; of integers towards zero.

    >>> int(div(np.array(-7), 2)), float(div(7.0, 2.0))
    (-3, 3.5)
    """
    dtype = result_type(*(cnp.asarray(v).dtype for v in (x, y)))
    return cnp.asarray((x - cnp.fmod(x, y)) // y) if dtype_kind(dtype) in "iu" else cnp.divide(x, y)


def rsqrt(x: Any) -> Any:
    """1 / sqrt(x).

    >>> float(rsqrt(4.0))
    0.5
    """
    return cnp.reciprocal(cnp.sqrt(x))


def integer_pow(x: Any, y: int) -> Any:
    """x to the power of a Python integer.

    >>> float(integer_pow(2.0, 3))
    8.0
    """
    return cnp.asarray(x) ** y


def round(x: Any, rounding_method: int = 0) -> Any:
    """The nearest whole numbers: halves away from zero, or with method 1 to even ones.

    >>> round(np.array([0.5, 2.5])), round(np.array([0.5, 2.5]), 1)
    (array([1., 3.]), array([0., 2.]))
    """
    x = cnp.asarray(x)
    if int(rounding_method) == 1:
        return cnp.round(x)
    whole = cnp.trunc(x)
    # An infinity is whole. The sign of a zero is that of x.
    is_half = cnp.abs(x - cnp.where(cnp.isinf(x), 0.0, whole)) >= 0.5
    return cnp.where(is_half & cnp.isfinite(x), whole + cnp.sign(x), whole)


@custom_jvp
def _clamp(low: Any, x: Any, high: Any) -> Any:
    return cnp.minimum(cnp.maximum(x, low), high)


# As in JAX: where x is at a bound, neither has a part.
_clamp.defjvps(
    lambda t, out, low, x, high: cnp.where((low > x) & (low < high), t, 0),
    lambda t, out, low, x, high: cnp.where((x > low) & (x < high), t, 0),
    lambda t, out, low, x, high: cnp.where(high < x, t, 0),
)


def clamp(min: Any, x: Any, max: Any) -> Any:
    """x between two bounds.

    >>> clamp(0.0, np.array([-1.0, 0.5, 3.0]), 1.0)
    array([0. , 0.5, 1. ])
    """
    x = cnp.asarray(x)
    low, high = (cnp.broadcast_to(cnp.asarray(bound).astype(x.dtype), x.shape) for bound in (min, max))
    return _clamp(low, x, high) if dtype_kind(x.dtype) == "f" else cnp.minimum(cnp.maximum(x, low), high)


def select_n(which: Any, *cases: Any) -> Any:
    """For each element the case whose number it is; a boolean chooses among two.

    >>> select_n(np.array([True, False]), np.zeros(2), np.ones(2))
    array([1., 0.])
    """
    which, found = cnp.asarray(which), cases[-1]
    for number in reversed(range(len(cases) - 1)):
        found = cnp.where(which <= number if dtype_kind(which.dtype) != "b" else ~which, cases[number], found)
    return found


def convert_element_type(operand: Any, new_dtype: Any) -> Any:
    """The operand with another dtype.

    >>> convert_element_type(1.5, np.int32).dtype
    dtype('int32')
    """
    return cnp.astype(cnp.asarray(operand), new_dtype)


# The bits of numbers, by the names of `jax.lax`.


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
    x, dtype = cnp.asarray(operand), as_dtype("lax.bitcast_convert_type", new_dtype)
    for d in (x.dtype, dtype):
        if dtype_kind(d) not in "iuf":
            raise TypeMismatchError(
                "lax.bitcast_convert_type: a dtype without bits of its own",
                expected="integers or floats",
                got=f"{x.dtype.name} to {dtype.name}",
                hint="cast bools to uint8; convert real and imaginary parts by themselves",
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
                expected=f"[..., {new // old}]",
                got=str(x.shape),
                hint="reshape, so that the last axis holds the parts of one number",
            )
        wide = bits.astype(f"u{new}")
        bits = cnp.asarray(0, wide.dtype)
        for k in range(new // old):
            bits = bits | wide[..., k] << wide.dtype.type(8 * old * k)
    return _read_as(bits, dtype)


def reduce_precision(operand: Any, exponent_bits: int, mantissa_bits: int) -> Any:
    """Round floats to fewer bits of exponent and mantissa; as `jax.lax.reduce_precision`. Its derivative is 1.

    >>> float(reduce_precision(np.float32(1.2345), 8, 3))
    1.25
    """
    x = cnp.asarray(operand)
    if dtype_kind(x.dtype) != "f":
        raise TypeMismatchError(
            "lax.reduce_precision: not floats", got=x.dtype.name, hint="x.astype(float) makes floats"
        )

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
    """Number of set bits of integers.

    >>> population_count(np.array([7, -1], np.int8))
    array([3, 8], dtype=int8)
    """
    x = cnp.asarray(x)
    return cnp.bitwise_count(_unsigned(x)).astype(x.dtype)


def clz(x: Any) -> Any:
    """Number of leading zero bits of integers.

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


# Dimension numbers of a gather, a scatter or a convolution, by JAX's classes and names.


class GatherDimensionNumbers(NamedTuple):
    """The axes of a gather; as `jax.lax.GatherDimensionNumbers`.

    Args:
        offset_dims: axes of the result along which the slices lie.
        collapsed_slice_dims: axes of the operand, of slices of size 1, that the result does not have.
        start_index_map: for each component of a start, the axis of the operand that it counts along.
        operand_batching_dims, start_indices_batching_dims: axes in common.

    >>> rows = GatherDimensionNumbers((1,), collapsed_slice_dims=(0,), start_index_map=(0,))
    >>> rows.operand_batching_dims
    ()
    """

    offset_dims: tuple[int, ...]
    collapsed_slice_dims: tuple[int, ...]
    start_index_map: tuple[int, ...]
    operand_batching_dims: tuple[int, ...] = ()
    start_indices_batching_dims: tuple[int, ...] = ()


class ScatterDimensionNumbers(NamedTuple):
    """The axes of a scatter; as `jax.lax.ScatterDimensionNumbers`.

    Args:
        update_window_dims: axes of the updates along which the windows lie.
        inserted_window_dims: axes of the operand, of windows of size 1, that the updates do not have.
        scatter_dims_to_operand_dims: for each component of a start, the axis of the operand that it counts along.
        operand_batching_dims, scatter_indices_batching_dims: axes in common.

    >>> ScatterDimensionNumbers((), (0,), (0,)).inserted_window_dims
    (0,)
    """

    update_window_dims: tuple[int, ...]
    inserted_window_dims: tuple[int, ...]
    scatter_dims_to_operand_dims: tuple[int, ...]
    operand_batching_dims: tuple[int, ...] = ()
    scatter_indices_batching_dims: tuple[int, ...] = ()


class ConvDimensionNumbers(NamedTuple):
    """The axes of a convolution; as `jax.lax.ConvDimensionNumbers`.

    Args:
        lhs_spec: of the input: the batch, the features, then the spatial axes.
        rhs_spec: of the kernels: the features out, the features in, then the window's.
        out_spec: of the result, as `lhs_spec`.

    >>> ConvDimensionNumbers((0, 2, 1), (2, 1, 0), (0, 2, 1)).lhs_spec
    (0, 2, 1)
    """

    lhs_spec: tuple[int, ...]
    rhs_spec: tuple[int, ...]
    out_spec: tuple[int, ...]


class GatherScatterMode(enum.Enum):
    """Treatment of slices that do not lie inside the operand; as `jax.lax.GatherScatterMode`.

    CLIP moves them inside, FILL_OR_DROP reads a fill value and writes nothing, PROMISE_IN_BOUNDS says that there are
    none (reads of them are moved inside and writes, cotangents too, dropped), and ONE_HOT is CLIP.

    >>> GatherScatterMode.from_any("drop") is GatherScatterMode.FILL_OR_DROP
    True
    """

    CLIP = 0
    FILL_OR_DROP = 1
    PROMISE_IN_BOUNDS = 2
    ONE_HOT = 3

    @staticmethod
    def from_any(mode: Any) -> GatherScatterMode:
        """A mode by its name: "clip", "fill", "drop" or "promise_in_bounds"; None is "fill"."""
        # JAX's own modes are known by their text: this library does not import JAX.
        name = "fill" if mode is None else str(mode).removeprefix("GatherScatterMode.").lower()
        name = "fill_or_drop" if name in ("fill", "drop") else name
        modes = {m.name.lower(): m for m in GatherScatterMode}
        check_choice("lax", "mode", name, modes)
        return modes[name]


# Windows that are promised to lie inside: XLA checks none, reads them moved inside and drops what is written.
#
# So a read that breaks its promise is not the transpose of a write that does, and JAX takes the one as the derivative
# of the other all the same: cotangents of broken reads are dropped, tangents are read. Two functions of what stands
# in the windows do this, each the rule of the other's transpose: what is read passes `read`, what is written
# `written`.


@custom_vjp
def read(values: Any, inside: Any) -> Any:
    """The values unchanged; their cotangents are zero outside."""
    return values


@custom_vjp
def written(values: Any, inside: Any) -> Any:
    """The values inside and zeros outside; their cotangents are unchanged."""
    return cnp.where(inside, values, cnp.zeros_like(values))


read.defjvp(lambda primals, tangents: (read(*primals), read(tangents[0], primals[1])))
read.defvjp(lambda values, inside: (read(values, inside), inside), lambda inside, ct: (written(ct, inside), None))
written.defjvp(lambda primals, tangents: (written(*primals), written(tangents[0], primals[1])))
written.defvjp(lambda values, inside: (written(values, inside), inside), lambda inside, ct: (read(ct, inside), None))


publish(__name__, "read", "written")
