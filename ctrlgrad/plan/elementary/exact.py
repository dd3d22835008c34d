"""Signs, comparisons, lengths and division with remainder, with NumPy's meaning for each special value.

These work on every format or integer dtype; but for the lengths they are exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ctrlgrad.dtypes import dtype_kind, finfo
from ctrlgrad.plan.elementary.constants import SINGLE, Format
from ctrlgrad.plan.elementary.exponential import Functions
from ctrlgrad.plan.elementary.notation import absolute, bits, copysign, floor, is_nan, square_root
from ctrlgrad.plan.expression import Number, fma, select

# Floats.


def sign(x: Number) -> Number:
    return select(x > 0.0, 1.0, select(x < 0.0, -1.0, select(x.equals(0.0), 0.0, x)))


def signbit(x: Number) -> Number:
    return bits(x) < 0


def maximum(x: Number, y: Number) -> Number:
    """Of two zeros 0, of which -0 is only the larger one beside another -0."""
    return select(x.equals(y), (bits(x) & bits(y)).bits(x.dtype), select((x > y) | is_nan(x), x, y))


def minimum(x: Number, y: Number) -> Number:
    """Of two zeros -0, unless both are 0."""
    return select(x.equals(y), (bits(x) | bits(y)).bits(x.dtype), select((x < y) | is_nan(x), x, y))


def nextafter(x: Number, y: Number) -> Number:
    """Positive floats, read as integers, are in order; so are negative ones, backwards."""
    smallest = float(finfo(x.dtype).smallest_subnormal)
    number = bits(x)
    moved = select((y > x) ^ (x > 0.0), number - 1, number + 1).bits(x.dtype)
    moved = select(x.equals(0.0), copysign(smallest, y), moved)
    # Of two zeros NumPy gives the second, but before NumPy 2.5 the first of half floats.
    same = x if x.dtype == np.float16 else y
    return select(x.equals(y), same, select(is_nan(x) | is_nan(y), x + y, moved))


def lengths(f: Format) -> Functions:
    """hypot."""

    def single(x: Number, y: Number) -> Number:
        p, q = x.convert(np.float64), y.convert(np.float64)
        either = absolute(x).equals(math.inf) | absolute(y).equals(math.inf)
        return select(either, math.inf, square_root(p * p + q * q).convert(np.float32))

    def double(x: Number, y: Number) -> Number:
        p, q = absolute(x), absolute(y)
        first = p > q
        long, short = select(first, p, q), select(first, q, p)
        ratio = select(short.equals(0.0), 0.0, short / long)
        r = select(long.equals(short), 1.0, ratio)
        length = long * square_root(1.0 + r * r)
        return select(p.equals(math.inf) | q.equals(math.inf), math.inf, length)

    return {"hypot": single if f is SINGLE else double}


# Division of floats with remainder.


def divisions(f: Format) -> Functions:
    """fmod, the exact remainder with the sign of `x`, where not `is_beyond_fmod`."""

    def fmod(x: Number, y: Number) -> Number:
        """x - n y for a whole n that may be one too large: that difference is a float, and so is the one put right."""
        n = (x / y).unary("trunc")
        r = select(n.equals(0.0), x, fma(-n, y, x))
        back = r + copysign(absolute(y), x)
        r = copysign(select((r < 0.0) ^ (x < 0.0), select(r.equals(0.0), r, back), r), x)
        return select(absolute(x).equals(math.inf), math.nan, r)

    return {"fmod": fmod}


def is_beyond_fmod(f: Format) -> Callable[[Number, Number], Number]:
    """Whether a quotient is so large that its whole part, truncated, may be off by more than one."""
    limit = 2.0 ** (f.mantissa_bits - 1)

    def beyond(x: Number, y: Number) -> Number:
        return (absolute(x / y) > limit) & y.differs(0.0) & (absolute(x) < math.inf)

    return beyond


def remainder(x: Number, y: Number, r: Number) -> Number:
    """With the divisor's sign, as Python's %, for `r` = fmod(x, y)."""
    adjusted = select((r < 0.0) ^ (y < 0.0), r + y, r)
    return select(y.equals(0.0), r, select(r.equals(0.0), copysign(0.0, y), adjusted))


def floor_divide(x: Number, y: Number, r: Number) -> Number:
    """(x - remainder) / y, which division leaves near an integer, rounded to that integer."""
    opposite = r.differs(0.0) & ((r < 0.0) ^ (y < 0.0))
    ratio = x / y
    quotient = (x - r) / y
    quotient = select(opposite, quotient - 1.0, quotient)
    whole = floor(quotient)
    whole = select(quotient - whole > 0.5, whole + 1.0, whole)
    return select(y.equals(0.0), ratio, select(quotient.equals(0.0), copysign(0.0, ratio), whole))


# Integers: division by zero gives 0, by -1 the negative, which wraps.


def integer_floor_divide(x: Number, y: Number) -> Number:
    if dtype_kind(x.dtype) == "u":
        return select(y.equals(0), 0, x / select(y.equals(0), 1, y))
    direct = y.equals(0) | y.equals(-1)
    divisor = select(direct, 1, y)
    quotient = x / divisor
    rest = x - quotient * divisor
    quotient = select(rest.differs(0) & ((rest < 0) ^ (y < 0)), quotient - 1, quotient)
    return select(direct, select(y.equals(0), 0, -x), quotient)


def integer_remainder(x: Number, y: Number) -> Number:
    if dtype_kind(x.dtype) == "u":
        return select(y.equals(0), 0, x.binary("remainder", select(y.equals(0), 1, y)))
    direct = y.equals(0) | y.equals(-1)
    rest = x.binary("remainder", select(direct, 1, y))
    rest = select(rest.differs(0) & ((rest < 0) ^ (y < 0)), rest + y, rest)
    return select(direct, 0, rest)


def integer_sign(x: Number) -> Number:
    one = select(x.differs(0), x.builder.constant(1, x.dtype), 0)
    return one if dtype_kind(x.dtype) == "u" else select(x < 0, -1, one)


def shifted_left(x: Number, count: Number) -> Number:
    """Nothing is left of a number that is shifted by its width or more, or by a negative count."""
    width = 8 * x.dtype.itemsize
    within = (count < width) if dtype_kind(x.dtype) == "u" else (count >= 0) & (count < width)
    return select(within, x << select(within, count, 0), 0)


def shifted_right(x: Number, count: Number) -> Number:
    """But its sign is."""
    width = 8 * x.dtype.itemsize
    if dtype_kind(x.dtype) == "u":
        within = count < width
        return select(within, x >> select(within, count, 0), 0)
    within = (count >= 0) & (count < width)
    return x >> select(within, count, width - 1)
