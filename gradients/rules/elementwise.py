"""Derivatives of elementwise ops: `map(t, z, x, ...)` takes a tangent t of one operand to that of the result z.

Where a function has a kink the derivative is the mean of both sides (maximum, minimum, abs), as in JAX.
"""

from __future__ import annotations

import math

from ctrlgrad.gradients.table import elementwise, not_differentiable
from ctrlgrad.ops.term import Term, emit, where

not_differentiable("""sign floor ceil trunc rint isnan isinf isfinite logical_not logical_and logical_or logical_xor
equal not_equal less less_equal greater greater_equal floor_divide stop_gradient signbit nextafter integer_power
bitwise_and bitwise_or bitwise_xor bitwise_invert bitwise_left_shift bitwise_right_shift""")

elementwise("negative", lambda t, z, x: -t)
elementwise("square", lambda t, z, x: t * (2 * x))
elementwise("exp", lambda t, z, x: t * z)
elementwise("expm1", lambda t, z, x: t * (z + 1))
elementwise("log", lambda t, z, x: t / x)
elementwise("log1p", lambda t, z, x: t / (x + 1))
elementwise("log2", lambda t, z, x: t / (x * math.log(2)))
elementwise("log10", lambda t, z, x: t / (x * math.log(10)))
elementwise("exp2", lambda t, z, x: t * (z * math.log(2)))
elementwise("sqrt", lambda t, z, x: t * 0.5 / z)
elementwise("reciprocal", lambda t, z, x: -t * (z * z))
elementwise("sin", lambda t, z, x: t * emit("cos", x))
elementwise("cos", lambda t, z, x: -t * emit("sin", x))
elementwise("tan", lambda t, z, x: t * (1 + z * z))
elementwise("tanh", lambda t, z, x: t * (1 - z * z))
elementwise("sinh", lambda t, z, x: t * emit("cosh", x))
elementwise("cosh", lambda t, z, x: t * emit("sinh", x))
elementwise("arcsin", lambda t, z, x: t / emit("sqrt", 1 - x * x))
elementwise("arccos", lambda t, z, x: -t / emit("sqrt", 1 - x * x))
elementwise("arctan", lambda t, z, x: t / (1 + x * x))
elementwise("sigmoid", lambda t, z, x: t * (z * (1 - z)))
elementwise("arcsinh", lambda t, z, x: t / emit("sqrt", 1 + x * x))
elementwise("arccosh", lambda t, z, x: t / (emit("sqrt", x - 1) * emit("sqrt", x + 1)))
elementwise("arctanh", lambda t, z, x: t / (1 - x * x))

elementwise("add", lambda t, z, x, y: t, lambda t, z, x, y: t)
elementwise("subtract", lambda t, z, x, y: t, lambda t, z, x, y: -t)
elementwise("multiply", lambda t, z, x, y: t * y, lambda t, z, x, y: t * x)
elementwise("divide", lambda t, z, x, y: t / y, lambda t, z, x, y: -(t / y) * z)


def _power_base(t: Term, z: Term, x: Term, y: Term) -> Term:
    """y x^(y-1), and 0 for y = 0 at x = 0. For y = 0 elsewhere x^-1 stays: further derivatives need it."""
    base = where(y.equals(0), where(x.equals(0), 1, x), x)
    return t * (y * base ** (y - 1))


def _power_exponent(t: Term, z: Term, x: Term, y: Term) -> Term:
    """x^y log x, and 0 at x = 0."""
    return t * (z * emit("log", where(x.equals(0), 1, x)))


elementwise("power", _power_base, _power_exponent)


def _share(x: Term, y: Term, chosen: Term) -> Term:
    """1 where x is chosen, 0 where y is, 1/2 where they are equal."""
    like = x.equals(y)
    return where(like, 0.5, emit("cast", chosen, dtype=x.dtype))


elementwise("maximum", lambda t, z, x, y: t * _share(x, y, x > y), lambda t, z, x, y: t * _share(y, x, y > x))
elementwise("minimum", lambda t, z, x, y: t * _share(x, y, x < y), lambda t, z, x, y: t * _share(y, x, y < x))
# x - y * floor(x / y)
elementwise("remainder", lambda t, z, x, y: t, lambda t, z, x, y: -t * emit("floor", x / y))
elementwise(
    "arctan2",
    lambda t, z, y, x: t * (x / (x * x + y * y)),
    lambda t, z, y, x: -t * (y / (x * x + y * y)),
)


def _part_of_hypot(t: Term, z: Term, x: Term) -> Term:
    """x / z, and 0 at the tip of the cone."""
    return t * (x / where(z.equals(0), 1, z))


elementwise("hypot", lambda t, z, x, y: _part_of_hypot(t, z, x), lambda t, z, x, y: _part_of_hypot(t, z, y))
# The second operand counts by its sign alone.
elementwise("copysign", lambda t, z, x, y: t * (emit("copysign", 1, x) * emit("copysign", 1, y)), None)


def _softmax_of_two(t: Term, z: Term, x: Term) -> Term:
    """exp(x - z), 0 where both operands are -inf, and 1 where x is inf."""
    return t * emit("exp", where(x.equals(math.inf), 0, x - where(z.equals(-math.inf), 0, z)))


elementwise("logaddexp", lambda t, z, x, y: _softmax_of_two(t, z, x), lambda t, z, x, y: _softmax_of_two(t, z, y))

elementwise("where", None, lambda t, z, c, x, y: where(c, t, 0), lambda t, z, c, x, y: where(c, 0, t))
