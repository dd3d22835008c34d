"""sin, cos, tan and the inverse circular functions as branch-free kernels, for each floating-point format.

sin and cos: abs(x) = n pi / 2 + r with pi / 2 as a sum of three, subtracted by fma (W. J. Cody and W. Waite,
"Software Manual for the Elementary Functions", 1980, chapter 8), then both polynomials; n says which of them, and its
sign. The first subtraction is exact, so the relative error of r stays near half an ULP up to
`Format.trigonometric_limit`; beyond it the kernels are not valid. The inverses reduce to polynomials on [0, 1] or
[0, 1/2] by their identities.
"""

from __future__ import annotations

import math
from typing import Any

from ctrlgrad.engines.native.elementary_constants import Format
from ctrlgrad.engines.native.elementary_exponential import Kernels, kernel
from ctrlgrad.engines.native.intrinsics import absolute, bits, copysign, fma, horner, square_root, where


def circular(f: Format) -> Kernels:
    """sin, cos and tan, for abs(x) up to `f.trigonometric_limit`."""
    number, integer, magic = f.dtype, f.integer, f.magic
    half, one = number(0.5), number(1)
    two_over_pi = number(2 / math.pi)
    first, second, third = (-part for part in f.pi_half)
    sin_tail, cos_tail = f.sin_tail, f.cos_tail
    top_bit = integer(f.dtype(0).itemsize * 8 - 1)
    above_one = integer(int(top_bit) - 1)
    bit = integer(1)

    @kernel
    def counted(a: Any) -> Any:
        return fma(a, two_over_pi, magic)

    @kernel
    def reduced(a: Any, count: Any) -> Any:
        n = count - magic
        return fma(n, third, fma(n, second, fma(n, first, a)))

    @kernel
    def sin_of(r: Any) -> Any:
        z = r * r
        return fma(r * z, horner(z, sin_tail), r)

    @kernel
    def cos_of(r: Any) -> Any:
        z = r * r
        return fma(z * z, horner(z, cos_tail), fma(z, -half, one))

    @kernel
    def with_sign(y: Any, sign_bits: Any) -> Any:
        """y, negated where the top bit of the integer is set."""
        return bits(integer(bits(y) ^ integer(integer(sign_bits >> top_bit) << top_bit)))

    @kernel
    def sin(x: Any) -> Any:
        a = absolute(x)
        count = counted(a)
        r = reduced(a, count)
        n = bits(count)
        y = where(integer(n & bit) == bit, cos_of(r), sin_of(r))
        return with_sign(y, integer(integer(n << above_one) ^ bits(x)))

    @kernel
    def cos(x: Any) -> Any:
        a = absolute(x)
        count = counted(a)
        r = reduced(a, count)
        n = integer(bits(count) + bit)
        y = where(integer(n & bit) == bit, cos_of(r), sin_of(r))
        return with_sign(y, integer(n << above_one))

    @kernel
    def tan(x: Any) -> Any:
        a = absolute(x)
        count = counted(a)
        r = reduced(a, count)
        n = bits(count)
        s, c = sin_of(r), cos_of(r)
        turned = integer(n & bit) == bit
        return with_sign(where(turned, c, s) / where(turned, s, c), integer(integer(n << top_bit) ^ bits(x)))

    return {"sin": sin, "cos": cos, "tan": tan}


def inverses(f: Format) -> Kernels:
    """arcsin, arccos, arctan and arctan2."""
    number = f.dtype
    zero, half, one, two = (number(v) for v in (0, 0.5, 1, 2))
    pi_half, pi_half_rest = f.pi_half[0], f.pi_half[1]
    pi, pi_rest = two * pi_half, two * pi_half_rest
    arctan_tail, arcsin_tail = f.arctan_tail, f.arcsin_tail

    @kernel
    def arctan_of(t: Any) -> Any:
        """arctan(t) for t from 0 to 1."""
        z = t * t
        return fma(t * z, horner(z, arctan_tail), t)

    @kernel
    def arctan(x: Any) -> Any:
        a = absolute(x)
        y = arctan_of(where(a > one, one / a, a))
        return copysign(where(a > one, (pi_half - y) + pi_half_rest, y), x)

    @kernel
    def arctan2(y: Any, x: Any) -> Any:
        p, q = absolute(y), absolute(x)
        steep = p > q
        t = where(steep, q, p) / where(steep, p, q)
        t = where(p == q, where(p == zero, zero, one), t)
        r = arctan_of(t)
        r = where(steep, (pi_half - r) + pi_half_rest, r)
        r = where(copysign(one, x) < zero, (pi - r) + pi_rest, r)
        return copysign(r, y)

    @kernel
    def arcsin_reduced(a: Any) -> Any:
        """arcsin(a) up to 1/2; above, arcsin(sqrt((1 - a) / 2)) = (pi / 2 - arcsin(a)) / 2."""
        z = where(a > half, (one - a) * half, a * a)
        s = where(a > half, square_root(z), a)
        return fma(s * z, horner(z, arcsin_tail), s)

    @kernel
    def arcsin(x: Any) -> Any:
        a = absolute(x)
        y = arcsin_reduced(a)
        return copysign(where(a > half, (pi_half - two * y) + pi_half_rest, y), x)

    @kernel
    def arccos(x: Any) -> Any:
        a = absolute(x)
        y = arcsin_reduced(a)
        small = pi_half - (copysign(y, x) - pi_half_rest)
        return where(a > half, where(x > zero, two * y, (pi - two * y) + pi_rest), small)

    return {"arctan": arctan, "arctan2": arctan2, "arcsin": arcsin, "arccos": arccos}
