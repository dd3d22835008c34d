"""Rounding, signs, comparisons, lengths and division with remainder, with NumPy's meaning for each special value."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ctrlgrad.engines.native.elementary_constants import SINGLE, Format
from ctrlgrad.engines.native.elementary_exponential import Kernels, kernel
from ctrlgrad.engines.native.intrinsics import (
    absolute,
    bits,
    c_remainder,
    ceil,
    copysign,
    floor,
    round_even,
    square_root,
    truncate,
    where,
)


def instructions(f: Format) -> Kernels:
    """Ops that are an instruction or a few of them, and exact but for `sqrt`, which rounds correctly."""
    number, integer = f.dtype, f.integer
    zero, one = number(0), number(1)
    smallest = np.finfo(number).smallest_subnormal
    up, down, none = integer(1), integer(-1), integer(0)

    @kernel
    def sign(x: Any) -> Any:
        return where(x > zero, one, where(x < zero, -one, where(x == zero, zero, x)))

    @kernel
    def signbit(x: Any) -> Any:
        return bits(x) < none

    @kernel
    def maximum(x: Any, y: Any) -> Any:
        return where((x >= y) | (x != x), x, y)

    @kernel
    def minimum(x: Any, y: Any) -> Any:
        return where((x <= y) | (x != x), x, y)

    @kernel
    def nextafter(x: Any, y: Any) -> Any:
        """Positive floats, read as integers, are in order; so are negative ones, backwards."""
        away = where((y > x) ^ (x > zero), down, up)
        moved = where(x == zero, copysign(smallest, y), bits(integer(bits(x) + away)))
        return where(x == y, y, where((x != x) | (y != y), x + y, moved))

    same = {"floor": floor, "ceil": ceil, "trunc": truncate, "rint": round_even, "sqrt": square_root, "abs": absolute}
    kernels = {name: _unary(function) for name, function in same.items()}
    kernels["copysign"] = kernel(lambda x, y: copysign(x, y))
    kernels |= {"sign": sign, "signbit": signbit, "maximum": maximum, "minimum": minimum, "nextafter": nextafter}
    return kernels


def _unary(function: Any) -> Any:
    """An intrinsic as a kernel."""
    return kernel(lambda x: function(x))


def lengths(f: Format) -> Kernels:
    """hypot."""
    zero, one = f.dtype(0), f.dtype(1)
    infinity = f.dtype(math.inf)

    @kernel
    def single(x: Any, y: Any) -> Any:
        p, q = np.float64(x), np.float64(y)
        either = (absolute(x) == infinity) | (absolute(y) == infinity)
        return where(either, infinity, np.float32(square_root(p * p + q * q)))

    @kernel
    def double(x: Any, y: Any) -> Any:
        p, q = absolute(x), absolute(y)
        long, short = where(p > q, p, q), where(p > q, q, p)
        ratio = where(short == zero, zero, short / long)
        r = where(long == short, one, ratio)
        length = long * square_root(one + r * r)
        return where((p == infinity) | (q == infinity), infinity, length)

    return {"hypot": single if f is SINGLE else double}


def sums_of_exponentials(exp: Any, log1p: Any, f: Format) -> Kernels:
    """logaddexp."""
    ln2 = f.ln2[0]

    @kernel
    def logaddexp(x: Any, y: Any) -> Any:
        larger = where(x > y, x, y)
        return larger + where(x == y, ln2, log1p(exp(-absolute(x - y))))

    return {"logaddexp": logaddexp}


def divisions(f: Format) -> Kernels:
    """remainder and floor_divide, by the C library's fmod: exact, and not vectorised."""
    zero, half, one = f.dtype(0), f.dtype(0.5), f.dtype(1)

    @kernel
    def remainder(x: Any, y: Any) -> Any:
        """With the divisor's sign, as Python's %."""
        r = c_remainder(x, y)
        adjusted = where((r < zero) ^ (y < zero), r + y, r)
        return where(y == zero, r, where(r == zero, copysign(zero, y), adjusted))

    @kernel
    def floor_divide(x: Any, y: Any) -> Any:
        """(x - remainder) / y, which division leaves near an integer, rounded to that integer."""
        r = c_remainder(x, y)
        opposite = (r != zero) & ((r < zero) ^ (y < zero))
        quotient = (x - r) / y - where(opposite, one, zero)
        whole = floor(quotient)
        whole = where(quotient - whole > half, whole + one, whole)
        return where(y == zero, x / y, where(quotient == zero, copysign(zero, x / y), whole))

    return {"remainder": remainder, "floor_divide": floor_divide}
