"""Elementwise primitives."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad import lax
from ctrlgrad.ad_checkpoint import checkpoint_name
from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.frontend.apply import cast
from ctrlgrad.interop.avals import dtype_of
from ctrlgrad.interop.primitives import TABLE, Equation, by_keyword, entry, plain
from ctrlgrad.transforms.custom_jvp import custom_jvp

_SAME_NAME = (
    "abs",
    "acos",
    "acosh",
    "add",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "bessel_i0e",
    "bessel_i1e",
    "cbrt",
    "ceil",
    "clamp",
    "clz",
    "complex",
    "conj",
    "cos",
    "cosh",
    "digamma",
    "eq",
    "erf",
    "erf_inv",
    "erfc",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "ge",
    "gt",
    "igamma",
    "igamma_grad_a",
    "igammac",
    "imag",
    "is_finite",
    "le",
    "lgamma",
    "log",
    "log1p",
    "logistic",
    "lt",
    "max",
    "min",
    "mul",
    "ne",
    "neg",
    "nextafter",
    "polygamma",
    "population_count",
    "real",
    "rsqrt",
    "select_n",
    "shift_right_logical",
    "sign",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "sub",
    "tan",
    "tanh",
    "zeta",
)

TABLE |= {name: plain(getattr(lax, name)) for name in _SAME_NAME}
TABLE |= {
    "add_any": plain(cnp.add),
    "and": plain(cnp.bitwise_and),
    "not": plain(cnp.bitwise_not),
    "or": plain(cnp.bitwise_or),
    "xor": plain(cnp.bitwise_xor),
    "bitcast_convert_type": by_keyword(lax.bitcast_convert_type, "new_dtype"),
    "regularized_incomplete_beta": plain(lax.betainc),
    "reduce_precision": by_keyword(lax.reduce_precision, "exponent_bits", "mantissa_bits"),
    "integer_pow": by_keyword(lax.integer_pow, "y"),
    "round": by_keyword(lax.round, "rounding_method"),
    "stop_gradient": plain(lax.stop_gradient),
    "log2": plain(cnp.log2),
}

# Identities on values, which change only their device, compilation or call.
for _identity in ("copy", "copy_p", "device_put", "optimization_barrier", "sharding_constraint"):
    TABLE[_identity] = lambda equation, *operands: list(operands)


@custom_jvp
def _one_minus_square(x: Any) -> Any:
    # Right to a rounding near 1, where `1 - x * x` is not.
    return (1 - x) * (1 + x)


_one_minus_square.defjvps(lambda t, out, x: -2 * x * t)
TABLE["one_minus_square"] = plain(_one_minus_square)


@entry("polynomial")
def _polynomial(equation: Equation, x: Any, *coefficients: Any) -> Any:
    """The lowest coefficient first, by Horner's rule."""
    return reduce(lambda total, coefficient: total * x + coefficient, reversed(coefficients))


@entry("name")
def _name(equation: Equation, x: Any) -> Any:
    return checkpoint_name(x, equation.params["name"])


@entry("pow")
def _pow(equation: Equation, x: Any, y: Any) -> Any:
    # A float to an integer: NumPy would widen both.
    return cnp.power(x, y if dtype_kind(x.dtype) not in "fc" else y.astype(x.dtype))


@entry("convert_element_type")
def _convert(equation: Equation, x: Any) -> Any:
    dtype = dtype_of(equation.outputs[0])
    # By `cast`, since the method of a known array, NumPy's, wraps where JAX saturates.
    return cast(cnp.real(x) if dtype_kind(x.dtype) == "c" and dtype_kind(dtype) not in "bc" else x, dtype)


def _divided(fn: Any, by_zero: Any) -> Any:
    """A division that has a meaning for integers and the divisor 0."""

    def divide(equation: Equation, x: Any, y: Any) -> Any:
        if dtype_kind(x.dtype) not in "iu" or (isinstance(y, np.ndarray) and y.all()):
            return fn(x, y)
        is_zero = y == 0
        return cnp.where(is_zero, by_zero(x), fn(x, cnp.where(is_zero, cnp.ones_like(y), y)))

    return divide


# All bits are set in -1 and in the largest number without a sign.
TABLE["div"] = _divided(lax.div, lambda x: cnp.bitwise_not(cnp.zeros_like(x)))
TABLE["rem"] = _divided(lax.rem, lambda x: x)


def _shift(fn: Any, overflow: Any) -> Any:
    """A shift that has a meaning for distances of the operand's width and more."""

    def shift(equation: Equation, x: Any, distance: Any) -> Any:
        bits = 8 * x.dtype.itemsize
        wide = (distance < 0) | (distance >= bits)
        return cnp.where(wide, overflow(x, bits), fn(x, cnp.where(wide, cnp.zeros_like(distance), distance)))

    return shift


TABLE["shift_left"] = _shift(cnp.left_shift, lambda x, bits: cnp.zeros_like(x))
TABLE["shift_right_logical"] = _shift(lax.shift_right_logical, lambda x, bits: cnp.zeros_like(x))
TABLE["shift_right_arithmetic"] = _shift(cnp.right_shift, lambda x, bits: cnp.right_shift(x, x.dtype.type(bits - 1)))


def _ordered(x: Any) -> Any:
    """Integers in the total order of floats: -NaN, -inf, ..., -0, +0, ..., inf, NaN."""
    if dtype_kind(x.dtype) != "f":
        return x
    signed = np.dtype(f"int{8 * x.dtype.itemsize}")
    bits = lax.bitcast_convert_type(x, signed)
    return cnp.where(bits < 0, bits ^ np.iinfo(signed).max, bits)


TABLE |= {
    "eq_to": plain(lambda x, y: cnp.equal(_ordered(x), _ordered(y))),
    "le_to": plain(lambda x, y: cnp.less_equal(_ordered(x), _ordered(y))),
    "lt_to": plain(lambda x, y: cnp.less(_ordered(x), _ordered(y))),
}
