"""exp and its kin, for each floating-point format.

x = n log 2 + r with an integer n (W. J. Cody and W. Waite, "Software Manual for the Elementary Functions", 1980,
chapter 6); expm1(r) is a polynomial, and 2**n is written into the exponent bits, in two factors, so that subnormal
results round once. There is no branch and no conversion between floats and integers: adding `Format.magic` rounds a
float to an integer and leaves it in the low bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ctrlgrad.plan.elementary.constants import Format
from ctrlgrad.plan.elementary.notation import absolute, bits, copysign, horner, paired
from ctrlgrad.plan.expression import Number, fma, select
from ctrlgrad.records import record

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
