"""Elementary functions of complex numbers, which are pairs of real ones, by the real elementary functions.

Where C (and with it NumPy) states a result for infinities and zeros of either sign, so do these for the functions'
branch cuts and for products of zero and infinity. Division, square and reciprocal are NumPy's to the bit (R. L. Smith,
1962). Inverse functions are W. Kahan's ("Branch cuts for complex elementary functions", 1987).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ctrlgrad.dtypes import finfo
from ctrlgrad.plan.elementary.constants import DOUBLE, SINGLE
from ctrlgrad.plan.elementary.notation import absolute, bits, copysign, is_nan, square_root
from ctrlgrad.plan.expression import Number, call, fma, select

Pair = tuple[Number, Number]
"""The real and the imaginary part."""


def _call(name: str, *args: Number) -> Number:
    return call(name, args[0].dtype, *args)


def _swapped(function: Callable[[Pair], Pair]) -> Callable[[Pair], Pair]:
    """i times the conjugate, around a function: what makes sin of sinh."""

    def swapped(z: Pair) -> Pair:
        re, im = function((z[1], z[0]))
        return im, re

    return swapped


def _pick(condition: Number, a: Pair, b: Pair) -> Pair:
    return select(condition, a[0], b[0]), select(condition, a[1], b[1])


def _product(a: Number, b: Number) -> Number:
    """a b, where zero times infinity is zero."""
    degenerate = (a.equals(0.0) & absolute(b).equals(math.inf)) | (b.equals(0.0) & absolute(a).equals(math.inf))
    return select(degenerate, copysign(0.0, bits(bits(a) ^ bits(b))), a * b)


def _largest(x: Number) -> float:
    return float(finfo(x.dtype).max)


# Arithmetic.


def add(a: Pair, b: Pair) -> Pair:
    return a[0] + b[0], a[1] + b[1]


def subtract(a: Pair, b: Pair) -> Pair:
    return a[0] - b[0], a[1] - b[1]


def multiply(a: Pair, b: Pair) -> Pair:
    return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]


def strong_multiply(a: Pair, b: Pair) -> Pair:
    re, im = multiply(a, b)
    is_zero = a[0].equals(0) & a[1].equals(0)
    return select(is_zero, 0, re), select(is_zero, 0, im)


def square(a: Pair) -> Pair:
    return a[0] * a[0] - a[1] * a[1], a[0] * a[1] + a[1] * a[0]


def divide(a: Pair, b: Pair) -> Pair:
    p, q = absolute(b[0]), absolute(b[1])
    wide = p >= q
    long, short = select(wide, b[0], b[1]), select(wide, b[1], b[0])
    ratio = short / long
    scale = 1.0 / (long + short * ratio)
    re = select(wide, a[0] + a[1] * ratio, a[0] * ratio + a[1])
    im = select(wide, a[1] - a[0] * ratio, a[1] * ratio - a[0])
    is_zero = p.equals(0.0) & q.equals(0.0)
    return _pick(is_zero, (a[0] / p, a[1] / p), (re * scale, im * scale))


def reciprocal(a: Pair) -> Pair:
    wide = absolute(a[1]) <= absolute(a[0])
    long, short = select(wide, a[0], a[1]), select(wide, a[1], a[0])
    ratio = short / long
    scale = select(wide, long + short * ratio, short * ratio + long)
    return _pick(wide, (1.0 / scale, -ratio / scale), (ratio / scale, -1.0 / scale))


def modulus(z: Pair) -> Number:
    return _call("hypot", *z)


# Exponentials and logarithms.


def exp(z: Pair) -> Pair:
    """exp of a complex number, as a product of two factors where exp of the real part overflows."""
    x, y = z
    is_large = x > _overflow(x)
    e = _call("exp", select(is_large, x * 0.5, x))
    last = select(is_large, e, 1.0)
    re, im = (_product(_product(_call(name, y), e), last) for name in ("cos", "sin"))
    return re, select(y.equals(0.0), y, im)


def _overflow(x: Number) -> float:
    """A little below where exp becomes infinite."""
    return (SINGLE if x.dtype == np.float32 else DOUBLE).exp_range[1] - 1


def expm1(z: Pair) -> Pair:
    x, y = z
    a = _call("sin", y * 0.5)
    re = _call("expm1", x) * _call("cos", y) - 2.0 * a * a
    return re, _call("exp", x) * _call("sin", y)


def log(z: Pair) -> Pair:
    """Near modulus 1 by abs(z)**2 - 1, whose rounding errors fma gives; scaled where abs(z) overflows."""
    x, y = absolute(z[0]), absolute(z[1])
    first = x > y
    long, short = select(first, x, y), select(first, y, x)
    is_large = long > _largest(x) / 4
    scale = select(is_large, x.builder.constant(0.25, x.dtype), 1.0)
    length = _call("hypot", x * scale, y * scale)
    p, q = long * long, short * short
    excess = ((p - 1.0) + q) + (fma(long, long, -p) + fma(short, short, -q))
    far = _call("log", length)
    far = select(is_large, far + math.log(4), far)
    near = 0.5 * _call("log1p", excess)
    return select((length > 0.5) & (length < 1.5) & ~is_large, near, far), _call("arctan2", z[1], z[0])


def log1p(z: Pair) -> Pair:
    """log(1 + z); for a small z by abs(1 + z)**2 - 1 = 2 x + y**2 + x**2, a sum that is exact where it cancels."""
    x, y = z
    shifted = log((1.0 + x, y))
    p, q = x * x, y * y
    excess = ((x + x) + q) + p + (fma(x, x, -p) + fma(y, y, -q))
    is_small = (absolute(x) < 0.25) & (absolute(y) < 0.75)
    return select(is_small, 0.5 * _call("log1p", excess), shifted[0]), shifted[1]


def log_to(base: float) -> Callable[[Pair], Pair]:
    """The logarithm to a base."""

    def scaled(z: Pair) -> Pair:
        re, im = log(z)
        return re * (1 / math.log(base)), im * (1 / math.log(base))

    return scaled


def sqrt(z: Pair) -> Pair:
    """By t = sqrt((abs(x) + abs(z)) / 2), whose argument is scaled away from overflow and subnormal numbers."""
    x, y = z
    info = finfo(x.dtype)
    one = x.builder.constant(1.0, x.dtype)
    long = select(absolute(x) > absolute(y), absolute(x), absolute(y))
    is_large, is_small = long > float(info.max) / 4, long < float(info.tiny) * 2.0**info.nmant
    lift = 2.0 ** (info.nmant // 2 + 1)
    scale = select(is_large, 0.25, select(is_small, lift * lift, one))
    back = select(is_large, 2.0, select(is_small, 1 / lift, one))
    a = absolute(x) * scale
    t = square_root((a + _call("hypot", a, y * scale)) * 0.5)
    other = (absolute(y) * scale) / (t + t) * back
    t = t * back
    right = x >= 0.0
    re, im = select(right, t, other), select(right, other, t)
    is_zero, is_infinite = x.equals(0.0) & y.equals(0.0), absolute(y).equals(math.inf)
    re = select(is_zero, 0.0, select(is_infinite, math.inf, re))
    return re, copysign(select(is_zero, 0.0, select(is_infinite, math.inf, im)), y)


def power(a: Pair, b: Pair) -> Pair:
    """Whole real exponents below 100 by squaring, all other exponents by exp and log, as NumPy does."""
    general = exp(multiply(b, log(a)))
    size = absolute(b[0])
    is_whole = b[1].equals(0.0) & (size < 100.0) & b[0].unary("floor").equals(b[0])
    count = select(is_whole, size, 0.0).convert(np.int32)
    one = a[0].builder.constant(1.0, a[0].dtype)
    zero = a[0].builder.constant(0.0, a[0].dtype)
    result, factor = (one, zero), a
    for bit in range(7):
        result = _pick((count & (1 << bit)).differs(0), factor if bit == 0 else multiply(result, factor), result)
        factor = multiply(factor, factor)
    whole = _pick(b[0] < 0.0, divide((one, zero), result), result)
    result = _pick(is_whole, whole, general)
    base_is_zero = a[0].equals(0.0) & a[1].equals(0.0)
    at_zero = select(b[0] > 0.0, zero, math.nan)
    result = _pick(base_is_zero, (at_zero, at_zero), result)
    return _pick(b[0].equals(0.0) & b[1].equals(0.0), (one, zero), result)


# Circular and hyperbolic functions.


def sinh(z: Pair) -> Pair:
    return _of_exponentials(z, "sinh", "cosh")


def cosh(z: Pair) -> Pair:
    return _of_exponentials(z, "cosh", "sinh")


def _of_exponentials(z: Pair, of_cos: str, of_sin: str) -> Pair:
    """of_cos(x) cos(y) and of_sin(x) sin(y); where these overflow, exp(abs(x)) / 2 in two factors."""
    x, y = z
    a = absolute(x)
    is_large = a > _overflow(x)
    e = _call("exp", select(is_large, a, 0.0) * 0.5)
    last = select(is_large, e, 1.0)

    def part(name: str, angle: Number) -> Number:
        large = copysign(e * 0.5, x) if name == "sinh" else e * 0.5
        return _product(_product(angle, select(is_large, large, _call(name, x))), last)

    return part(of_cos, _call("cos", y)), part(of_sin, _call("sin", y))


def tanh(z: Pair) -> Pair:
    x, y = z
    is_large = absolute(x) > (11.0 if x.dtype == np.float32 else 22.0)
    t = _call("tan", y)
    s = _call("sinh", select(is_large, 0.0, x))
    beta, rho = 1.0 + t * t, square_root(1.0 + s * s)
    scale = 1.0 + beta * s * s
    e = _call("exp", -absolute(x))
    turn = select(absolute(x).equals(math.inf) & absolute(y).equals(math.inf), y, _call("sin", y) * _call("cos", y))
    far = copysign(1.0, x), _product(_product(4.0 * turn, e), e)
    return _pick(is_large, far, (beta * rho * s / scale, t / scale))


def cos(z: Pair) -> Pair:
    return cosh((-z[1], z[0]))


sin, tan = _swapped(sinh), _swapped(tanh)


def sigmoid(z: Pair) -> Pair:
    """1 / (1 + exp(-z)), or exp(z) / (1 + exp(z)): of the two the one whose exponential does not overflow."""
    is_left = z[0] < 0.0
    power = exp(_pick(is_left, z, (-z[0], -z[1])))
    one, zero = power[0].builder.constant(1.0, z[0].dtype), power[0].builder.constant(0.0, z[0].dtype)
    return divide(_pick(is_left, power, (one, zero)), (1.0 + power[0], power[1]))


# Their inverses.


def _roots(z: Pair) -> tuple[Pair, Pair]:
    """sqrt(1 - z) and sqrt(1 + z)."""
    return sqrt((1.0 - z[0], -z[1])), sqrt((1.0 + z[0], z[1]))


def arcsin(z: Pair) -> Pair:
    minus, plus = _roots(z)
    re = _call("arctan2", z[0], _product(minus[0], plus[0]) - _product(minus[1], plus[1]))
    return re, _call("arcsinh", minus[0] * plus[1] - minus[1] * plus[0])


def arccos(z: Pair) -> Pair:
    minus, plus = _roots(z)
    re = 2.0 * _call("arctan2", minus[0], plus[0])
    return re, _call("arcsinh", plus[0] * minus[1] - plus[1] * minus[0])


def arccosh(z: Pair) -> Pair:
    minus, plus = sqrt((z[0] - 1.0, z[1])), sqrt((z[0] + 1.0, z[1]))
    re = _call("arcsinh", minus[0] * plus[0] + minus[1] * plus[1])
    return re, 2.0 * _call("arctan2", minus[1], plus[0])


def arctanh(z: Pair) -> Pair:
    """Beyond `limit` as 1 / z; `least` keeps the results finite beside the pole at 1."""
    x, y = absolute(z[0]), absolute(z[1])
    limit = math.sqrt(_largest(x)) / 4
    least = 1 / limit
    is_large = (x > limit) | (y > limit)
    half_pi = x.builder.constant(math.pi / 2, x.dtype)
    far = select(isinf(z), 0.0, reciprocal((x, y))[0]), half_pi
    b = y + least
    pole_re = _call("log", square_root(square_root(4.0 + y * y)) / square_root(b))
    pole = pole_re, (half_pi + _call("arctan", b * 0.5)) * 0.5
    pole = _pick(y.equals(0.0), (y.builder.constant(math.inf, y.dtype), y), pole)
    back = 1.0 - x
    near = (
        _call("log1p", 4.0 * x / (back * back + b * b)) * 0.25,
        _call("arctan2", y + y, back * (1.0 + x) - b * b) * 0.5,
    )
    re, im = _pick(is_large, far, _pick(x.equals(1.0), pole, near))
    return copysign(re, z[0]), copysign(im, z[1])


arcsinh, arctan = _swapped(arcsin), _swapped(arctanh)


# Tests.


def equal(a: Pair, b: Pair) -> Number:
    return a[0].equals(b[0]) & a[1].equals(b[1])


def not_equal(a: Pair, b: Pair) -> Number:
    return a[0].differs(b[0]) | a[1].differs(b[1])


def isnan(z: Pair) -> Number:
    return is_nan(z[0]) | is_nan(z[1])


def isinf(z: Pair) -> Number:
    return absolute(z[0]).equals(math.inf) | absolute(z[1]).equals(math.inf)


def isfinite(z: Pair) -> Number:
    return (absolute(z[0]) < math.inf) & (absolute(z[1]) < math.inf)
