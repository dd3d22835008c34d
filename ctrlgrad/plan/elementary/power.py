"""power: y log x in float64, with as many extra bits as the exponential then uses up; and powers of integers."""

from __future__ import annotations

import math

import numpy as np

from ctrlgrad.plan.elementary.constants import DOUBLE, LOG_TAIL_EXTENDED, TWO_THIRDS, Format
from ctrlgrad.plan.elementary.exponential import ExponentialParts, Functions, exponentials
from ctrlgrad.plan.elementary.logarithm import Binade, logarithms
from ctrlgrad.plan.elementary.notation import absolute, copysign, floor, horner, is_nan
from ctrlgrad.plan.expression import Number, fma, select

FEW_BITS = 8
"""Of the exponents of most powers of integers."""


def powers(f: Format) -> Functions:
    """power of a format."""
    return {"power": _double if f is DOUBLE else _single}


def _with_sign_and_limits(x: Number, y: Number, magnitude: Number) -> Number:
    """IEEE 754's `pow`, given abs(x)**y where abs(x) != 1."""
    whole = floor(y).equals(y)
    half = 0.5 * y
    odd = whole & (2.0 * floor(half)).differs(y)
    r = select(absolute(x).equals(1.0) & ~is_nan(y), 1.0, magnitude)
    r = select(odd, copysign(r, x), r)
    r = select((x < 0.0) & (x > -math.inf) & ~whole, math.nan, r)
    return select(y.equals(0.0) | x.equals(1.0), 1.0, r)


def _single(x: Number, y: Number) -> Number:
    p, q = x.convert(np.float64), y.convert(np.float64)
    exp, log = exponentials(DOUBLE)["exp"], logarithms(DOUBLE)["log"]
    return _with_sign_and_limits(p, q, exp(q * log(absolute(p)))).convert(np.float32)


def _log_pair(x: Number) -> tuple[Number, Number]:
    """log of a positive finite x, as a sum of two: relative error about 2**-64.

    With s = f / (2 + f), log(1 + f) = 2 s + s**3 (2/3 + s**2 P(s**2)); all but P in pairs of float64 (T. J. Dekker,
    1971; products by fma).
    """
    ln2, ln2_rest = DOUBLE.ln2
    third, third_rest = TWO_THIRDS
    n, v = Binade(DOUBLE).reduced(x)
    d = 2.0 + v
    s = v / d
    s_rest = (fma(-s, d, v) - s * (v - (d - 2.0))) / d
    z = s * s
    z_rest = fma(s, s, -z) + 2.0 * s * s_rest
    w = z * horner(z, LOG_TAIL_EXTENDED)
    t = third + w
    t_rest = (third - t) + w + third_rest
    c = s * z
    c_rest = fma(s, z, -c) + s * z_rest + s_rest * z
    u = c * t
    u_rest = fma(c, t, -u) + c * t_rest + c_rest * t
    m = 2.0 * s + u
    m_rest = (2.0 * s - m) + u + (2.0 * s_rest + u_rest)
    e = n * ln2
    e_rest = fma(n, ln2, -e) + n * ln2_rest
    high = e + m
    return high, ((e - high) + m) + (e_rest + m_rest)


def _double(x: Number, y: Number) -> Number:
    parts = ExponentialParts(DOUBLE)
    a = absolute(x)
    inside = (a > 0.0) & (a < math.inf) & (absolute(y) < math.inf)
    high, low = _log_pair(select(inside, a, 2.0))
    product = y * high
    product_rest = fma(y, high, -product) + y * low
    limited = parts.clamped(product, *DOUBLE.exp_range)
    count = parts.counted(limited)
    r = parts.reduced(limited, count) + select(limited.equals(product), product_rest, 0.0)
    outside = select((a > 1.0) ^ (y > 0.0), a.builder.constant(0.0, a.dtype), math.inf)
    outside = select(~is_nan(a) & ~is_nan(y), outside, math.nan)
    return _with_sign_and_limits(x, y, select(inside, parts.scaled(1.0 + parts.tail(r), count), outside))


def integer_power(base: Number, exponent: Number, bit_count: int) -> Number:
    """base**exponent by squaring, for an exponent of so many bits; integers wrap."""
    result = select((exponent & 1).differs(0), base, 1)
    for bit in range(1, bit_count):
        base = base * base
        result = select((exponent & (1 << bit)).differs(0), result * base, result)
    return result
