"""Short names for operations on numbers, so that elementary functions read as their formulas."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ctrlgrad.dtypes import BFLOAT16
from ctrlgrad.plan.expression import Number, fma

_AS_WIDE = {np.dtype(f"f{size}"): np.dtype(f"i{size}") for size in (2, 4, 8)}
_AS_WIDE |= {integer: float_ for float_, integer in _AS_WIDE.items()}
_AS_WIDE[BFLOAT16] = np.dtype(np.int16)


def bits(x: Number) -> Number:
    """The same bits as the other type of its width: a float as a signed integer, an integer as a float of NumPy's."""
    return x.bits(_AS_WIDE[x.dtype])


def absolute(x: Number) -> Number:
    return x.unary("abs")


def floor(x: Number) -> Number:
    return x.unary("floor")


def square_root(x: Number) -> Number:
    return x.unary("sqrt")


def copysign(x: Number | float, sign: Number) -> Number:
    """x with the sign of the other."""
    if not isinstance(x, Number):
        x = sign.builder.constant(x, sign.dtype)
    return x.binary("copysign", sign)


def is_nan(x: Number) -> Number:
    return x.differs(x)


def horner(x: Number, coefficients: Sequence[float]) -> Number:
    """The polynomial in `x` with these coefficients, lowest power first: a chain of fused multiply-adds."""
    *rest, last = coefficients
    value = x.builder.constant(last, x.dtype)
    for coefficient in reversed(rest):
        value = fma(value, x, coefficient)
    return value


def paired(x: Number, coefficients: Sequence[float]) -> Number:
    """The same polynomial in half as many dependent steps, for one multiplication more (G. Estrin, "Organization of
    Computer Systems", 1960): of the square of `x`, with pairs of terms as coefficients."""
    pairs = [horner(x, coefficients[k : k + 2]) for k in range(0, len(coefficients), 2)]
    square, value = x * x, pairs.pop()
    for pair in reversed(pairs):
        value = fma(value, square, pair)
    return value
