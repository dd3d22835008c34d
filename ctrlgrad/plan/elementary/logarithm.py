"""log and its kin, for each floating-point format.

x = 2**n (1 + f) with 1 + f between sqrt(1/2) and sqrt(2), then a polynomial in f, or in s = f / (2 + f); without
branches, and without conversions between floats and integers.
"""

from __future__ import annotations

import math

from ctrlgrad.dtypes import finfo
from ctrlgrad.plan.elementary.constants import LOG_TAIL_DOUBLE, LOG_TAIL_SINGLE, SINGLE, Format
from ctrlgrad.plan.elementary.exponential import ExponentialParts, Functions, bits_of
from ctrlgrad.plan.elementary.notation import absolute, bits, copysign, paired, square_root
from ctrlgrad.plan.expression import Number, fma, select
from ctrlgrad.records import record


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
