"""sin, cos, tan and the inverse circular functions, for each floating-point format.

sin and cos: abs(x) = n pi / 2 + r with pi / 2 as a sum of three, subtracted by fma (W. J. Cody and W. Waite,
"Software Manual for the Elementary Functions", 1980, chapter 8), then both polynomials; n says which of them, and its
sign. The first subtraction is exact, so the relative error of r stays near half an ULP up to
`Format.trigonometric_limit`; beyond it these forms are not valid. The inverses reduce to polynomials on [0, 1] or
[0, 1/2] by their identities.
"""

from __future__ import annotations

import math

from ctrlgrad.plan.elementary.constants import Format
from ctrlgrad.plan.elementary.exponential import Functions
from ctrlgrad.plan.elementary.notation import absolute, bits, copysign, horner, paired, square_root
from ctrlgrad.plan.expression import Number, fma, select
from ctrlgrad.records import record


@record
class Angle:
    """An angle r up to pi / 4, the same but for the last term of its reduction, and the square of that.

    Where r is large enough for its square to matter, its last term is too small to. Only the linear term of a sine
    needs it, and the others need not wait for it.
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
