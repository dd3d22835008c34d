"""exp, log and their kin as branch-free kernels: one instance of the source for each floating-point format.

exp: x = n log 2 + r with an integer n (W. J. Cody and W. Waite, "Software Manual for the Elementary Functions", 1980,
chapter 6); expm1(r) is a polynomial, and 2**n is written into the exponent bits, in two factors, so that subnormal
results round once. log: x = 2**n (1 + f) with 1 + f between sqrt(1/2) and sqrt(2), then a polynomial in f, or in
s = f / (2 + f). Kernels hold no branch, no call and no conversion between floats and integers: adding `Format.magic`
rounds a float to an integer and leaves it in the low bits, which is what lets loops over them vectorise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

from ctrlgrad.engines.native.elementary_constants import (
    DOUBLE,
    LOG_TAIL_DOUBLE,
    LOG_TAIL_EXTENDED,
    LOG_TAIL_SINGLE,
    SINGLE,
    TANH_DENOMINATOR,
    TANH_LIMIT,
    TANH_NUMERATOR,
    TWO_THIRDS,
    Format,
)
from ctrlgrad.engines.native.intrinsics import absolute, bits, copysign, floor, fma, horner, square_root, where

Kernels = dict[str, Any]


def kernel(function: Callable[..., Any]) -> Any:
    """The function, compiled at its first use and inlined where compiled code calls it."""
    return njit(error_model="numpy", forceinline=True)(function)


def exponentials(f: Format) -> Kernels:
    """exp, exp2, expm1, tanh, sigmoid, cosh and sinh, and with them the parts that `powers` takes."""
    number, integer, width, magic = f.dtype, f.integer, f.mantissa_bits, f.magic
    half, one, quarter = number(0.5), number(1), number(0.25)
    tanh_limit = number(0.4 * int(width) + 1)
    unlift = number(2.0 ** -(int(width) + 1))
    lift_bits = integer((one / unlift).view(integer))
    magic_bits, one_bits, half_bits = (integer(v.view(integer)) for v in (magic, one, half))
    lowest, highest = f.exp_range
    exp2_lowest, exp2_highest = number(math.floor(lowest / math.log(2))), number(math.ceil(highest / math.log(2)))
    log2_e, minus_ln2, minus_ln2_rest = number(1 / math.log(2)), -f.ln2[0], -f.ln2[1]
    ln2, tail, sinh_tail, expm1_lowest = f.ln2[0], f.expm1_tail, f.sinh_tail, f.expm1_lowest

    @kernel
    def tail_of(r: Any) -> Any:
        """expm1(r) for a reduced r."""
        return fma(r * r, horner(r, tail), r)

    @kernel
    def reduced(x: Any, count: Any) -> Any:
        """x less n log 2, for `count` = magic + n; fma keeps what the products would round away."""
        n = count - magic
        return fma(n, minus_ln2_rest, fma(n, minus_ln2, x))

    @kernel
    def counted(x: Any) -> Any:
        return fma(x, log2_e, magic)

    @kernel
    def scaled(y: Any, count: Any) -> Any:
        """y 2**n; neither factor overflows or is subnormal on its own."""
        n = integer(bits(count) - magic_bits)
        first = integer(n >> 1)
        second = integer(n - first)
        return (
            y * bits(integer(integer(first << width) + one_bits)) * bits(integer(integer(second << width) + one_bits))
        )

    @kernel
    def clamped(x: Any, low: Any, high: Any) -> Any:
        """x kept between both; NaN stays NaN."""
        x = where(x > high, high, x)
        return where(x < low, low, x)

    @kernel
    def exp(x: Any) -> Any:
        x = clamped(x, lowest, highest)
        count = counted(x)
        return scaled(one + tail_of(reduced(x, count)), count)

    @kernel
    def exp2(x: Any) -> Any:
        x = clamped(x, exp2_lowest, exp2_highest)
        count = x + magic
        return scaled(one + tail_of((x - (count - magic)) * ln2), count)

    @kernel
    def half_exp(x: Any) -> Any:
        """exp(x) / 2, which overflows later than exp, for x >= 0."""
        x = where(x > highest + one, highest + one, x)
        count = counted(x)
        return scaled(one + tail_of(reduced(x, count)), count - one)

    @kernel
    def half_expm1(x: Any) -> Any:
        """expm1(x) / 2 for an x within the range."""
        count = counted(x)
        power = bits(integer(integer(bits(count) << width) + half_bits))
        return fma(power, tail_of(reduced(x, count)), power - half)

    @kernel
    def expm1(x: Any) -> Any:
        y = half_expm1(clamped(x, expm1_lowest, highest))
        return copysign(y + y, x)

    @kernel
    def tanh(x: Any) -> Any:
        a = absolute(x)
        a = where(a > tanh_limit, tanh_limit, a)
        y = half_expm1(a + a)
        return copysign(y / (y + one), x)

    @kernel
    def sigmoid(x: Any) -> Any:
        y = -absolute(x)
        y = where(y < lowest, lowest, y)
        count = counted(y)
        # exp(y) 2**(mantissa_bits + 1) is normal, so that one more factor rounds once where exp(y) is subnormal.
        lifted = bits(integer(integer(bits(count) << width) + lift_bits))
        power = (one + tail_of(reduced(y, count))) * lifted * unlift
        return where(x < number(0), power, one) / (one + power)

    @kernel
    def cosh(x: Any) -> Any:
        power = half_exp(absolute(x))
        return power + quarter / power

    @kernel
    def sinh(x: Any) -> Any:
        z = x * x
        power = half_exp(absolute(x))
        return where(z < one, fma(x * z, horner(z, sinh_tail), x), copysign(power - quarter / power, x))

    public = {"exp": exp, "exp2": exp2, "expm1": expm1, "tanh": tanh, "sigmoid": sigmoid, "cosh": cosh, "sinh": sinh}
    return public | {"tail_of": tail_of, "reduced": reduced, "counted": counted, "scaled": scaled, "clamped": clamped}


def tanh_single() -> Any:
    """tanh of float32: a rational function, odd, clamped where tanh rounds to 1."""
    one = np.float32(1)

    @kernel
    def tanh(x: Any) -> Any:
        x = where(x > TANH_LIMIT, TANH_LIMIT, x)
        x = where(x < -TANH_LIMIT, -TANH_LIMIT, x)
        z = x * x
        y = fma(x * z, horner(z, TANH_NUMERATOR), x) / horner(z, TANH_DENOMINATOR)
        y = where(y > one, one, y)
        return where(y < -one, -one, y)

    return tanh


def _log_rest(f: Format) -> Any:
    """log1p(v) - v for a reduced v."""
    half, two = f.dtype(0.5), f.dtype(2)

    @kernel
    def single(v: Any) -> Any:
        return v * v * fma(v, horner(v, LOG_TAIL_SINGLE), -half)

    @kernel
    def double(v: Any) -> Any:
        s = v / (two + v)
        z = s * s
        square = half * v * v
        return s * fma(z, horner(z, LOG_TAIL_DOUBLE), square) - square

    return single if f is SINGLE else double


def logarithms(f: Format) -> Kernels:
    """log, log2, log10, log1p, arctanh, arcsinh and arccosh, and with them the parts that `powers` takes."""
    number, integer, width, magic = f.dtype, f.integer, f.mantissa_bits, f.magic
    zero, half, one, two = (number(v) for v in (0, 0.5, 1, 2))
    infinity, nan = number(math.inf), number(math.nan)
    magic_bits, one_bits = (integer(v.view(integer)) for v in (magic, one))
    root_bits = integer(number(math.sqrt(0.5)).view(integer))
    normal, lift = np.finfo(number).tiny, number(2.0 ** (int(width) + 1))
    lifted = number(int(width) + 1)
    ln2, ln2_rest = f.ln2
    log2_e, log10_e = number(1 / math.log(2)), number(1 / math.log(10))
    log10_2, log10_2_rest = f.log10_2
    large = number(2.0 ** (int(width) + 4))
    rest = _log_rest(f)

    @kernel
    def exponent_bits(x: Any) -> Any:
        """n for a positive normal x = 2**n (1 + f)."""
        return integer(integer(bits(x) - root_bits) >> width)

    @kernel
    def as_float(n: Any) -> Any:
        return bits(integer(n + magic_bits)) - magic

    @kernel
    def mantissa(x: Any, n: Any) -> Any:
        """1 + f."""
        return bits(integer(bits(x) - integer(n << width)))

    @kernel
    def bounded(x: Any, y: Any) -> Any:
        """y, the logarithm of a finite x > 0, or what the logarithm of any other x is."""
        return where(x > zero, where(x < infinity, y, infinity), where(x == zero, -infinity, nan))

    @kernel
    def normalised(x: Any) -> Any:
        return where(x < normal, x * lift, x)

    @kernel
    def lifting(x: Any) -> Any:
        return where(x < normal, lifted, zero)

    @kernel
    def log(x: Any) -> Any:
        y = normalised(x)
        bit_count = exponent_bits(y)
        n = as_float(bit_count) - lifting(x)
        v = mantissa(y, bit_count) - one
        return bounded(x, fma(n, ln2, v + fma(n, ln2_rest, rest(v))))

    @kernel
    def log2(x: Any) -> Any:
        y = normalised(x)
        bit_count = exponent_bits(y)
        v = mantissa(y, bit_count) - one
        return bounded(x, fma(v + rest(v), log2_e, as_float(bit_count) - lifting(x)))

    @kernel
    def log10(x: Any) -> Any:
        y = normalised(x)
        bit_count = exponent_bits(y)
        n = as_float(bit_count) - lifting(x)
        v = mantissa(y, bit_count) - one
        return bounded(x, fma(n, log10_2, fma(v + rest(v), log10_e, n * log10_2_rest)))

    @kernel
    def log1p(x: Any) -> Any:
        """As log of u = 1 + x, with what that sum rounded away (D. E. Knuth's two-sum) added to f."""
        u = one + x
        back = u - one
        lost = (one - (u - back)) + (x - back)
        bit_count = exponent_bits(u)
        n = as_float(bit_count)
        unscaled = where(u < large, bits(integer(one_bits - integer(bit_count << width))), zero)
        v = where(bit_count == integer(0), x, fma(lost, unscaled, mantissa(u, bit_count) - one))
        return copysign(bounded(u, fma(n, ln2, v + fma(n, ln2_rest, rest(v)))), x)

    @kernel
    def arctanh(x: Any) -> Any:
        a = absolute(x)
        return copysign(half * log1p((a + a) / (one - a)), x)

    @kernel
    def arcsinh(x: Any) -> Any:
        a = absolute(x)
        z = a * a
        y = log1p(where(a > large, a, a + z / (one + square_root(one + z))))
        return copysign(y + where(a > large, ln2, zero), x)

    @kernel
    def arccosh(x: Any) -> Any:
        t = x - one
        y = log1p(where(x > large, x, t + square_root(t * (t + two))))
        return where(x < one, nan, y + where(x > large, ln2, zero))

    public = {"log": log, "log2": log2, "log10": log10, "log1p": log1p}
    public |= {"arctanh": arctanh, "arcsinh": arcsinh, "arccosh": arccosh}
    return public | {"exponent_bits": exponent_bits, "as_float": as_float, "mantissa": mantissa}


def powers(log_double: Kernels, exp_double: Kernels) -> Kernels:
    """power of both formats: y log x in float64, with as many extra bits as the exponential then uses up."""
    zero, half, one, two = (np.float64(v) for v in (0, 0.5, 1, 2))
    infinity, nan = np.float64(math.inf), np.float64(math.nan)
    normal, lift, lifted = np.finfo(np.float64).tiny, np.float64(2.0**53), np.float64(53)
    ln2, ln2_rest = DOUBLE.ln2
    third, third_rest = TWO_THIRDS
    exponent_bits, as_float, mantissa = (log_double[k] for k in ("exponent_bits", "as_float", "mantissa"))
    lowest, highest = DOUBLE.exp_range
    tail_of, reduced, counted, scaled, clamped = (
        exp_double[k] for k in ("tail_of", "reduced", "counted", "scaled", "clamped")
    )
    log, exp = log_double["log"], exp_double["exp"]

    @kernel
    def with_sign_and_limits(x: Any, y: Any, magnitude: Any) -> Any:
        """IEEE 754's `pow`, given abs(x)**y where abs(x) != 1."""
        odd = (floor(y) == y) & (two * floor(half * y) != y)
        r = where((absolute(x) == one) & (y == y), one, magnitude)
        r = where(odd, copysign(r, x), r)
        r = where((x < zero) & (x > -infinity) & (floor(y) != y), nan, r)
        return where((y == zero) | (x == one), one, r)

    @kernel
    def single(x: Any, y: Any) -> Any:
        p, q = np.float64(x), np.float64(y)
        return np.float32(with_sign_and_limits(p, q, exp(q * log(absolute(p)))))

    @kernel
    def log_pair(x: Any) -> Any:
        """log of a positive finite x, as a sum of two: relative error about 2**-64.

        With s = f / (2 + f), log(1 + f) = 2 s + s**3 (2/3 + s**2 P(s**2)); all but P in pairs of float64 (T. J. Dekker,
        1971; products by fma).
        """
        y = where(x < normal, x * lift, x)
        bit_count = exponent_bits(y)
        n = as_float(bit_count) - where(x < normal, lifted, zero)
        v = mantissa(y, bit_count) - one
        d = two + v
        s = v / d
        s_rest = (fma(-s, d, v) - s * (v - (d - two))) / d
        z = s * s
        z_rest = fma(s, s, -z) + two * s * s_rest
        w = z * horner(z, LOG_TAIL_EXTENDED)
        t = third + w
        t_rest = (third - t) + w + third_rest
        c = s * z
        c_rest = fma(s, z, -c) + s * z_rest + s_rest * z
        u = c * t
        u_rest = fma(c, t, -u) + c * t_rest + c_rest * t
        m = two * s + u
        m_rest = (two * s - m) + u + (two * s_rest + u_rest)
        e = n * ln2
        e_rest = fma(n, ln2, -e) + n * ln2_rest
        high = e + m
        return high, ((e - high) + m) + (e_rest + m_rest)

    @kernel
    def double(x: Any, y: Any) -> Any:
        a = absolute(x)
        inside = (a > zero) & (a < infinity) & (absolute(y) < infinity)
        high, low = log_pair(where(inside, a, two))
        product = y * high
        product_rest = fma(y, high, -product) + y * low
        limited = clamped(product, lowest, highest)
        count = counted(limited)
        r = reduced(limited, count) + where(limited == product, product_rest, zero)
        outside = where((a > one) ^ (y > zero), zero, infinity)
        outside = where((a == a) & (y == y), outside, nan)
        return with_sign_and_limits(x, y, where(inside, scaled(one + tail_of(r), count), outside))

    return {"float32": single, "float64": double}
