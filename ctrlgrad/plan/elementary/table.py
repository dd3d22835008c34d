"""Table of elementary functions as expressions, each with its largest error.

Special values are NumPy's: NaN in gives NaN (but `power` gives 1 for x**0 and 1**y, and `hypot` infinity for an
infinite side), zeros keep their sign, overflow is infinity, and subnormal numbers are not flushed. Errors are in units
in the last place (ULP) of the correctly rounded result.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ctrlgrad.dtypes import dtype_kind, finfo
from ctrlgrad.forks import once
from ctrlgrad.ops import elementwise
from ctrlgrad.plan.elementary.constants import (
    DOUBLE,
    LOG_TAIL_DOUBLE,
    LOG_TAIL_EXTENDED,
    LOG_TAIL_SINGLE,
    SINGLE,
    TWO_THIRDS,
    Format,
)
from ctrlgrad.plan.elementary.notation import absolute, bits, copysign, floor, horner, is_nan, paired, square_root
from ctrlgrad.plan.expression import Expression, ExpressionBuilder, Number, fma, select
from ctrlgrad.records import record

# power: y log x in float64, with as many extra bits as the exponential then uses up; and powers of integers.


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


# sin, cos, tan and the inverse circular functions, for each floating-point format.
#
# sin and cos: abs(x) = n pi / 2 + r with pi / 2 as a sum of three, subtracted by fma (W. J. Cody and W. Waite,
# "Software Manual for the Elementary Functions", 1980, chapter 8), then both polynomials; n says which of them, and
# its sign. The first subtraction is exact, so the relative error of r stays near half an ULP up to
# `Format.trigonometric_limit`; beyond it these forms are not valid. The inverses reduce to polynomials on [0, 1] or
# [0, 1/2] by their identities.


@record
class Angle:
    """An angle r up to pi / 4, the same but for the last term of its reduction, and the square of that.

    Where r is large enough for its square to matter, its last term is too small to. Only the linear term of a sine
    needs it, and the remaining terms need not wait for it.
    """

    r: Number
    near: Number
    square: Number


def circular(f: Format) -> Functions:
    """sin, cos and tan, for abs(x) up to `f.trigonometric_limit`."""
    top_bit = f.dtype.itemsize * 8 - 1

    def counted(a: Number) -> Number:
        return fma(a, 2 / math.pi, f.magic)

    def reduced(a: Number, count: Number) -> Angle:
        first, second, third = f.pi_half
        n = count - f.magic
        near = fma(n, -second, fma(n, -first, a))
        return Angle(fma(n, -third, near), near, near * near)

    def sin_of(angle: Angle) -> Number:
        z = angle.square
        return fma(angle.near * z, paired(z, f.sin_tail), angle.r)

    def cos_of(angle: Angle) -> Number:
        z = angle.square
        return fma(z * z, paired(z, f.cos_tail), fma(z, -0.5, 1.0))

    def with_sign(y: Number, sign_bits: Number) -> Number:
        """y, negated where the top bit of the integer is set."""
        return bits(bits(y) ^ ((sign_bits >> top_bit) << top_bit))

    def sin(x: Number) -> Number:
        a = absolute(x)
        count = counted(a)
        r = reduced(a, count)
        n = bits(count)
        y = select((n & 1).equals(1), cos_of(r), sin_of(r))
        return with_sign(y, (n << (top_bit - 1)) ^ bits(x))

    def cos(x: Number) -> Number:
        a = absolute(x)
        count = counted(a)
        r = reduced(a, count)
        n = bits(count) + 1
        y = select((n & 1).equals(1), cos_of(r), sin_of(r))
        return with_sign(y, n << (top_bit - 1))

    def tan(x: Number) -> Number:
        a = absolute(x)
        count = counted(a)
        r = reduced(a, count)
        n = bits(count)
        s, c = sin_of(r), cos_of(r)
        turned = (n & 1).equals(1)
        return with_sign(select(turned, c, s) / select(turned, s, c), (n << top_bit) ^ bits(x))

    return {"sin": sin, "cos": cos, "tan": tan}


def inverses(f: Format) -> Functions:
    """arcsin, arccos, arctan and arctan2."""
    pi_half, pi_half_rest = f.pi_half[0], f.pi_half[1]
    pi, pi_rest = 2 * pi_half, 2 * pi_half_rest

    def arctan_of(t: Number) -> Number:
        """arctan(t) for t from 0 to 1."""
        z = t * t
        return fma(t * z, horner(z, f.arctan_tail), t)

    def arctan(x: Number) -> Number:
        a = absolute(x)
        y = arctan_of(select(a > 1.0, 1.0 / a, a))
        return copysign(select(a > 1.0, (pi_half - y) + pi_half_rest, y), x)

    def arctan2(y: Number, x: Number) -> Number:
        p, q = absolute(y), absolute(x)
        steep = p > q
        t = select(steep, q, p) / select(steep, p, q)
        t = select(p.equals(q), select(p.equals(0.0), p.builder.constant(0.0, p.dtype), 1.0), t)
        r = arctan_of(t)
        r = select(steep, (pi_half - r) + pi_half_rest, r)
        r = select(copysign(1.0, x) < 0.0, (pi - r) + pi_rest, r)
        return copysign(r, y)

    def arcsin_reduced(a: Number) -> Number:
        """arcsin(a) up to 1/2; above, arcsin(sqrt((1 - a) / 2)) = (pi / 2 - arcsin(a)) / 2."""
        z = select(a > 0.5, (1.0 - a) * 0.5, a * a)
        s = select(a > 0.5, square_root(z), a)
        return fma(s * z, horner(z, f.arcsin_tail), s)

    def arcsin(x: Number) -> Number:
        a = absolute(x)
        y = arcsin_reduced(a)
        return copysign(select(a > 0.5, (pi_half - 2.0 * y) + pi_half_rest, y), x)

    def arccos(x: Number) -> Number:
        a = absolute(x)
        y = arcsin_reduced(a)
        small = pi_half - (copysign(y, x) - pi_half_rest)
        return select(a > 0.5, select(x > 0.0, 2.0 * y, (pi - 2.0 * y) + pi_rest), small)

    return {"arctan": arctan, "arctan2": arctan2, "arcsin": arcsin, "arccos": arccos}


# exp and its kin, for each floating-point format.
#
# x = n log 2 + r with an integer n (W. J. Cody and W. Waite, "Software Manual for the Elementary Functions", 1980,
# chapter 6); expm1(r) is a polynomial, and 2**n is written into the exponent bits, in two factors, so that subnormal
# results round once. There is no branch and no conversion between floats and integers: adding `Format.magic` rounds a
# float to an integer and leaves it in the low bits.


Functions = dict[str, Callable[..., Number]]
"""Elementary functions by name: numbers to a number."""


def bits_of(value: float, f: Format) -> int:
    """The bits of a float of the format, as its integer."""
    return int(np.array(value, f.dtype).view(f.integer))


@record
class ExponentialParts:
    """The steps of exp, which `power` takes too."""

    f: Format

    def clamped(self, x: Number, low: float, high: float) -> Number:
        """x kept between both; NaN stays NaN."""
        x = select(x > high, high, x)
        return select(x < low, low, x)

    def counted(self, x: Number) -> Number:
        """magic + n."""
        return fma(x, 1 / math.log(2), self.f.magic)

    def reduced(self, x: Number, count: Number) -> Number:
        """x less n log 2, for `count` = magic + n; fma keeps what the products would round away."""
        n = count - self.f.magic
        ln2, rest = self.f.ln2
        return fma(n, -rest, fma(n, -ln2, x))

    def tail(self, r: Number) -> Number:
        """expm1(r) for a reduced r."""
        return fma(r * r, paired(r, self.f.expm1_tail), r)

    def scaled(self, y: Number, count: Number) -> Number:
        """y 2**n; neither factor overflows or is subnormal on its own; both are 0 at the low end of exp's range."""
        width, one_bits = self.f.mantissa_bits, bits_of(1.0, self.f)
        # The bits of magic are even, and 0 where a shift leaves them: no sum has to take them out. Unsigned, since
        # processors shift 64 signed bits in several steps.
        n = count.bits(self.f.unsigned)
        first = n >> 1
        second = n - first
        return y * ((first << width) + one_bits).bits(self.f.dtype) * ((second << width) + one_bits).bits(self.f.dtype)


def exponentials(f: Format) -> Functions:
    """exp, exp2, expm1, tanh, sigmoid, cosh and sinh."""
    parts = ExponentialParts(f)
    clamped, counted, reduced, tail, scaled = parts.clamped, parts.counted, parts.reduced, parts.tail, parts.scaled
    width, magic, (lowest, highest) = f.mantissa_bits, f.magic, f.exp_range
    exp2_lowest, exp2_highest = math.floor(lowest / math.log(2)), math.ceil(highest / math.log(2))
    smallest_normal = float(np.finfo(f.dtype).tiny)
    tanh_limit = float(f.dtype.type(0.4 * width + 1))

    def exp(x: Number) -> Number:
        x = clamped(x, lowest, highest)
        count = counted(x)
        return scaled(1.0 + tail(reduced(x, count)), count)

    def exp2(x: Number) -> Number:
        x = clamped(x, exp2_lowest, exp2_highest)
        count = x + magic
        return scaled(1.0 + tail((x - (count - magic)) * f.ln2[0]), count)

    def half_exp(x: Number) -> Number:
        """exp(x) / 2, which overflows later than exp, for x >= 0."""
        x = select(x > highest + 1, highest + 1, x)
        count = counted(x)
        return scaled(1.0 + tail(reduced(x, count)), count - 1.0)

    def half_expm1(x: Number) -> Number:
        """expm1(x) / 2 for an x within the range."""
        count = counted(x)
        power = bits((bits(count) << width) + bits_of(0.5, f))
        return fma(power, tail(reduced(x, count)), power - 0.5)

    def expm1(x: Number) -> Number:
        y = half_expm1(clamped(x, f.expm1_lowest, highest))
        # Half of a subnormal number is rounded.
        return select(absolute(x) < smallest_normal, x, copysign(y + y, x))

    def tanh(x: Number) -> Number:
        a = absolute(x)
        a = select(a > tanh_limit, tanh_limit, a)
        y = half_expm1(a + a)
        return copysign(y / (y + 1.0), x)

    sigmoid_lowest = float(f.dtype.type((f.zero_exponent - (width + 1)) * math.log(2)))

    def sigmoid(x: Number) -> Number:
        y = -absolute(x)
        y = select(y < sigmoid_lowest, sigmoid_lowest, y)
        count = counted(y)
        # exp(y) 2**(mantissa_bits + 1) is normal or 0, so that one more factor rounds once where exp(y) is subnormal.
        lift = 2.0 ** (width + 1)
        lifted = bits((bits(count) << width) + bits_of(lift, f))
        power = (1.0 + tail(reduced(y, count))) * lifted * (1 / lift)
        return select(x < 0.0, power, 1.0) / (1.0 + power)

    def cosh(x: Number) -> Number:
        power = half_exp(absolute(x))
        return power + 0.25 / power

    def sinh(x: Number) -> Number:
        z = x * x
        power = half_exp(absolute(x))
        return select(z < 1.0, fma(x * z, horner(z, f.sinh_tail), x), copysign(power - 0.25 / power, x))

    return {"exp": exp, "exp2": exp2, "expm1": expm1, "tanh": tanh, "sigmoid": sigmoid, "cosh": cosh, "sinh": sinh}


# log and its kin, for each floating-point format.
#
# x = 2**n (1 + f) with 1 + f between sqrt(1/2) and sqrt(2), then a polynomial in f, or in s = f / (2 + f); without
# branches, and without conversions between floats and integers.


@record
class Binade:
    """A positive number as 2**n (1 + f)."""

    f: Format

    def exponent(self, x: Number) -> Number:
        """n of a normal x, as an integer."""
        return (bits(x) - bits_of(math.sqrt(0.5), self.f)) >> self.f.mantissa_bits

    def as_float(self, n: Number) -> Number:
        """An integer as a float."""
        return bits(n + bits_of(self.f.magic, self.f)) - self.f.magic

    def mantissa(self, x: Number, n: Number) -> Number:
        """1 + f."""
        return bits(bits(x) - (n << self.f.mantissa_bits))

    def reduced(self, x: Number) -> tuple[Number, Number]:
        """n, as a float, and f; of subnormal numbers too."""
        lift = self.f.mantissa_bits + 1
        is_small = x < float(finfo(self.f.dtype).tiny)
        y = select(is_small, x * 2.0**lift, x)
        n = self.exponent(y)
        return self.as_float(n) - select(is_small, float(lift), self.constant(x, 0.0)), self.mantissa(y, n) - 1.0

    @staticmethod
    def constant(like: Number, value: float) -> Number:
        return like.builder.constant(value, like.dtype)


def _rest_single(v: Number) -> Number:
    return v * v * fma(v, paired(v, LOG_TAIL_SINGLE), -0.5)


def _rest_double(v: Number) -> Number:
    s = v / (2.0 + v)
    z = s * s
    square = 0.5 * v * v
    return s * fma(z, paired(z, LOG_TAIL_DOUBLE), square) - square


def _bounded(x: Number, y: Number) -> Number:
    """y, the logarithm of a finite x > 0, or what the logarithm of any other x is."""
    edge = select(x.equals(0.0), x.builder.constant(-math.inf, x.dtype), math.nan)
    return select(x > 0.0, select(x < math.inf, y, math.inf), edge)


def logarithms(f: Format) -> Functions:
    """log, log2, log10, log1p, arctanh, arcsinh and arccosh."""
    binade = Binade(f)
    ln2, ln2_rest = f.ln2
    log10_2, log10_2_rest = f.log10_2
    large = 2.0 ** (f.mantissa_bits + 4)
    # log1p(v) - v for a reduced v.
    rest = _rest_single if f is SINGLE else _rest_double

    def log(x: Number) -> Number:
        n, v = binade.reduced(x)
        return _bounded(x, fma(n, ln2, v + fma(n, ln2_rest, rest(v))))

    def log2(x: Number) -> Number:
        n, v = binade.reduced(x)
        return _bounded(x, fma(v + rest(v), 1 / math.log(2), n))

    def log10(x: Number) -> Number:
        n, v = binade.reduced(x)
        return _bounded(x, fma(n, log10_2, fma(v + rest(v), 1 / math.log(10), n * log10_2_rest)))

    def log1p(x: Number) -> Number:
        """As log of u = 1 + x, with what that sum rounded away (D. E. Knuth's two-sum) added to f."""
        u = 1.0 + x
        back = u - 1.0
        lost = (1.0 - (u - back)) + (x - back)
        bit_count = binade.exponent(u)
        n = binade.as_float(bit_count)
        unscaled = select(u < large, bits(bits_of(1.0, f) - (bit_count << f.mantissa_bits)), 0.0)
        v = select(bit_count.equals(0), x, fma(lost, unscaled, binade.mantissa(u, bit_count) - 1.0))
        return copysign(_bounded(u, fma(n, ln2, v + fma(n, ln2_rest, rest(v)))), x)

    def arctanh(x: Number) -> Number:
        a = absolute(x)
        return copysign(0.5 * log1p((a + a) / (1.0 - a)), x)

    def arcsinh(x: Number) -> Number:
        a = absolute(x)
        z = a * a
        is_large = a > large
        y = log1p(select(is_large, a, a + z / (1.0 + square_root(1.0 + z))))
        return copysign(select(is_large, y + ln2, y), x)

    def arccosh(x: Number) -> Number:
        t = x - 1.0
        is_large = x > large
        y = log1p(select(is_large, x, t + square_root(t * (t + 2.0))))
        return select(x < 1.0, math.nan, select(is_large, y + ln2, y))

    public = {"log": log, "log2": log2, "log10": log10, "log1p": log1p}
    return public | {"arctanh": arctanh, "arcsinh": arcsinh, "arccosh": arccosh}


def sums_of_exponentials(f: Format) -> Functions:
    """logaddexp."""
    parts = ExponentialParts(f)
    rest = _rest_single if f is SINGLE else _rest_double
    (lowest, _), (ln2, ln2_rest) = f.exp_range, f.ln2
    # Below it, log1p(x) is x: its further terms, which may be too small for any float, are left out.
    negligible = 2.0 ** -(f.mantissa_bits + 2)

    def exp(x: Number) -> Number:
        """exp for x <= 0."""
        x = select(x < lowest, lowest, x)
        count = parts.counted(x)
        return parts.scaled(1.0 + parts.tail(parts.reduced(x, count)), count)

    def log1p(x: Number) -> Number:
        """log1p for 0 <= x <= 1: of f = x, or of 1 + x = 2 (1 + f)."""
        is_large = x > math.sqrt(2) - 1
        v = select(is_large, fma(x, 0.5, -0.5), x)
        further = rest(select(x < negligible, 0.0, v))
        zero = x.builder.constant(0.0, x.dtype)
        return select(is_large, ln2, zero) + (v + (further + select(is_large, ln2_rest, zero)))

    def logaddexp(x: Number, y: Number) -> Number:
        larger = select(x > y, x, y)
        return larger + select(x.equals(y), ln2, log1p(exp(-absolute(x - y))))

    return {"logaddexp": logaddexp}


# Signs, comparisons, lengths and division with remainder, with NumPy's meaning for each special value.
#
# These work on every format or integer dtype; but for the lengths they are exact.


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
    """Test that a quotient is so large that its whole part, truncated, may be off by more than one."""
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


MAX_ULP = {
    "exp": (1.1, 1.1),
    "exp2": (1.2, 1.2),
    "expm1": (1.8, 2.2),
    "log": (1.0, 1.0),
    "log2": (1.8, 1.8),
    "log10": (2.5, 3.0),
    "log1p": (1.6, 1.6),
    "tanh": (2.6, 2.6),
    "sigmoid": (2.5, 2.5),
    "sinh": (1.8, 1.8),
    "cosh": (1.5, 1.5),
    "power": (0.51, 1.5),
    "sin": (1.7, 1.7),
    "cos": (1.7, 1.7),
    "tan": (4.0, 4.0),
    "arcsin": (2.2, 2.4),
    "arccos": (1.5, 1.5),
    "arctan": (1.6, 1.9),
    "arctan2": (1.9, 2.0),
    "arcsinh": (2.2, 2.2),
    "arccosh": (2.4, 2.4),
    "arctanh": (2.2, 2.2),
    "hypot": (0.51, 2.2),
    "logaddexp": (2.0, 2.0),
    "fmod": (0.0, 0.0),
    "erfinv": (4.0, 5.5),
}
"""The functions of floats, each with the stated bound of its error for float32 and float64."""
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


@dataclass(frozen=True)
class Elementary:
    """A function of numbers of one dtype that gives one of that dtype."""

    name: str
    dtype: np.dtype
    arity: int
    max_ulp: float
    """The stated bound of its error; 0 is an exact result.

    For `logaddexp`, ULP of the largest of 1, the result and the larger operand, by magnitude: its terms may cancel.
    """
    function: Callable[..., Number]
    beyond: Callable[..., Number] | None = None
    """Whether `function` does not hold for these arguments; None where it holds for all."""
    library: str | None = None
    """What holds beyond: a function of the C library, or an elementary one of that name."""

    @once
    def expression(self) -> Expression:
        """Its result, and for a function with a limit whether the arguments are beyond it."""
        builder = ExpressionBuilder()
        arguments = [builder.emit("argument", (), self.dtype, k) for k in range(self.arity)]
        results = [self.function(*arguments)]
        if self.beyond is not None:
            results.append(self.beyond(*arguments))
        return builder.finish(*results)


@functools.cache
def elementary(name: str, dtype: np.dtype) -> Elementary:
    """The function of a name on a dtype. Raises KeyError where there is none."""
    if name in ("integer_power", "integer_power_any") and dtype.name in _INTEGERS:
        return _integer_power(name, dtype)
    column = {"float32": 0, "float64": 1}[dtype.name]
    f = (SINGLE, DOUBLE)[column]
    function = _functions(f)[name]
    beyond = is_beyond_fmod(f) if name == "fmod" else _beyond(f) if name in circular(f) else None
    library = None if beyond is None else name + ("f" if f is SINGLE else "")
    arity = sum(p.kind is not p.KEYWORD_ONLY for p in inspect.signature(function).parameters.values())
    return Elementary(name, dtype, arity, MAX_ULP[name][column], function, beyond, library)


def all_elementary() -> list[Elementary]:
    """Every function on every dtype."""
    floats = [elementary(name, f.dtype) for f in (SINGLE, DOUBLE) for name in MAX_ULP]
    return floats + [elementary("integer_power", np.dtype(dtype)) for dtype in _INTEGERS]


@functools.cache
def _functions(f: Format) -> Functions:
    functions: Functions = {}
    for family in (exponentials, logarithms, sums_of_exponentials, powers, circular, inverses, lengths, divisions):
        functions |= family(f)
    given = elementwise.Functions(f is SINGLE, functions["log"], square_root, select)
    return functions | {name: functools.partial(formula, of=given) for name, formula in elementwise.FORMULAS.items()}


def _beyond(f: Format) -> Callable[[Number], Number]:
    """Test that an angle is too large for the reduction."""
    return lambda x: absolute(x) > f.trigonometric_limit


def _integer_power(name: str, dtype: np.dtype) -> Elementary:
    bit_count = 8 * dtype.itemsize - (dtype_kind(dtype) == "i")
    if name == "integer_power_any" or bit_count <= FEW_BITS:
        return Elementary(name, dtype, 2, 0.0, lambda x, y: integer_power(x, y, bit_count))
    few = 1 << FEW_BITS
    return Elementary(
        name,
        dtype,
        2,
        0.0,
        lambda x, y: integer_power(x, y, FEW_BITS),
        # A negative exponent is an error before it is a number.
        lambda x, y: y >= few,
        "integer_power_any",
    )
