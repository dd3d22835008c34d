"""Elementwise operators, and what brings values to other dtypes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad import lax
from ctrlgrad.dtypes import computed_dtype, dtype_kind
from ctrlgrad.frontend.apply import cast
from ctrlgrad.interop.onnx.operators import TABLE, Node, entry, known_shape, plain
from ctrlgrad.interop.onnx.protos import dtype_of

_NUMPY: dict[str, Callable[..., Any]] = {
    "Abs": cnp.abs,
    "Acos": cnp.arccos,
    "Acosh": cnp.arccosh,
    "And": cnp.logical_and,
    "Asin": cnp.arcsin,
    "Asinh": cnp.arcsinh,
    "Atan": cnp.arctan,
    "Atanh": cnp.arctanh,
    "BitwiseAnd": cnp.bitwise_and,
    "BitwiseNot": cnp.bitwise_not,
    "BitwiseOr": cnp.bitwise_or,
    "BitwiseXor": cnp.bitwise_xor,
    "Ceil": cnp.ceil,
    "Cos": cnp.cos,
    "Cosh": cnp.cosh,
    "Equal": cnp.equal,
    "Erf": lax.erf,
    "Exp": cnp.exp,
    "Floor": cnp.floor,
    "Greater": cnp.greater,
    "GreaterOrEqual": cnp.greater_equal,
    "IsNaN": cnp.isnan,
    "Less": cnp.less,
    "LessOrEqual": cnp.less_equal,
    "Log": cnp.log,
    "Mul": cnp.multiply,
    "Neg": cnp.negative,
    "Not": cnp.logical_not,
    "Or": cnp.logical_or,
    "Relu": cnp.relu,
    "Round": cnp.rint,
    "Sigmoid": lambda x: cast(cnp.sigmoid(_wide(x)), x.dtype),
    "Sign": cnp.sign,
    "Sin": cnp.sin,
    "Sinh": cnp.sinh,
    "Softplus": lambda x: cast(cnp.logaddexp(_wide(x), _like(0, _wide(x))), x.dtype),
    "Softsign": lambda x: x / (1 + cnp.abs(x)),
    "Sqrt": cnp.sqrt,
    "Tan": cnp.tan,
    "Tanh": cnp.tanh,
    "Where": cnp.where,
    "Xor": cnp.logical_xor,
}

TABLE |= {("", name): plain(fn) for name, fn in _NUMPY.items()}
TABLE |= {
    ("", "Elu"): lambda node, x: cnp.where(x > 0, x, node.get("alpha") * cnp.expm1(cnp.minimum(x, _like(0, x)))),
    ("", "LeakyRelu"): lambda node, x: cnp.where(x >= 0, x, _like(node.get("alpha"), x) * x),
    ("", "Reciprocal"): lambda node, x: _like(1, x) / x,
}


def _wide(x: Any) -> Any:
    """What several steps of arithmetic are done in: half precision would be rounded at each."""
    return cast(x, computed_dtype(x.dtype))


def _like(number: Any, x: Any) -> Any:
    return np.asarray(number, x.dtype)


def _with_axis(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Operators of the first versions align the second operand by `axis`, and do so only where `broadcast` is set."""

    def call(node: Node, x: Any, y: Any) -> Any:
        axis = node.get("axis")
        if node.version < 7 and axis is not None and node.get("broadcast"):
            y = cnp.reshape(y, (*y.shape, *[1] * (x.ndim - axis % x.ndim - y.ndim)))
        return fn(x, y)

    return call


def _divide(x: Any, y: Any) -> Any:
    """Integers are divided towards zero."""
    if dtype_kind(np.dtype(x.dtype)) in "fc":
        return cnp.divide(x, y)
    quotient = cnp.floor_divide(x, y)
    return quotient + ((quotient < 0) & (quotient * y != x)).astype(x.dtype)


TABLE |= {
    ("", name): _with_axis(fn)
    for name, fn in {"Add": cnp.add, "Sub": cnp.subtract, "Mul": cnp.multiply, "Div": _divide}.items()
}


def _variadic(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda node, *xs: functools.reduce(fn, xs)


TABLE |= {
    ("", "Max"): _variadic(cnp.maximum),
    ("", "Mean"): lambda node, *xs: functools.reduce(cnp.add, xs) / _like(len(xs), xs[0]),
    ("", "Min"): _variadic(cnp.minimum),
    ("", "Sum"): _variadic(cnp.add),
}


@entry("Pow")
def _power(node: Node, x: Any, y: Any) -> Any:
    dtype = np.dtype(x.dtype)
    if dtype_kind(dtype) == "f" and dtype_kind(np.dtype(y.dtype)) in "iu":
        # The derivative of x**n exists where that of x**y does not.
        known = node.known(1)
        if known is not None and known.ndim == 0:
            return lax.integer_pow(x, int(known))
    if dtype_kind(dtype) != "f":
        y = cast(y, np.float64 if dtype_kind(np.dtype(y.dtype)) == "f" else dtype)
        return cast(cnp.power(cast(x, y.dtype), y), dtype)
    return cnp.power(x, cast(y, dtype))


@entry("Mod")
def _mod(node: Node, x: Any, y: Any) -> Any:
    return cnp.fmod(x, y) if node.get("fmod") else cnp.remainder(x, y)


@entry("Clip")
def _clip(node: Node, x: Any, low: Any = None, high: Any = None) -> Any:
    # Bounds are attributes up to version 10.
    low = _like(node.get("min"), x) if node.get("min") is not None else low
    high = _like(node.get("max"), x) if node.get("max") is not None else high
    x = x if low is None else cnp.maximum(x, low)
    return x if high is None else cnp.minimum(x, high)


@entry("IsInf")
def _is_inf(node: Node, x: Any) -> Any:
    found = cnp.isinf(x)
    found = found if node.get("detect_positive", 1) else found & (x < 0)
    return found if node.get("detect_negative", 1) else found & (x > 0)


@entry("BitShift")
def _bit_shift(node: Node, x: Any, distance: Any) -> Any:
    bits = 8 * np.dtype(x.dtype).itemsize
    # All bits are shifted out by a distance of the width and more; a negative one counts as such, as it does without
    # a sign.
    wide = (distance < 0) | (distance >= bits)
    if node.get("direction") == "LEFT":
        return cnp.where(wide, _like(0, x), cnp.left_shift(x, cnp.where(wide, _like(0, x), distance)))
    # Signed numbers keep their sign.
    last = cnp.right_shift(x, _like(bits - 1, x)) if dtype_kind(np.dtype(x.dtype)) == "i" else _like(0, x)
    return cnp.where(wide, last, cnp.right_shift(x, cnp.where(wide, _like(0, x), distance)))


@entry("Cast", "CastLike")
def _cast(node: Node, x: Any, like: Any = None) -> Any:
    dtype = np.dtype(like.dtype) if node.name == "CastLike" else dtype_of(node.get("to"))
    if (
        dtype_kind(np.dtype(x.dtype)) in "fc"
        and dtype_kind(dtype) in "iu"
        and not isinstance(x, np.ndarray | np.generic)
    ):
        return cast(cnp.trunc(x), dtype)
    return cast(x, dtype)


@entry("BitCast")
def _bit_cast(node: Node, x: Any) -> Any:
    dtype, bits = dtype_of(node.get("to")), x
    if np.dtype(x.dtype) == np.bool_:
        bits = cast(x, np.uint8)
    if dtype == np.bool_:
        return cast(lax.bitcast_convert_type(bits, np.dtype(np.uint8)), dtype)
    return lax.bitcast_convert_type(bits, dtype)


@entry("Dropout")
def _dropout(node: Node, x: Any, ratio: Any = None, training: Any = None) -> Any:
    """In training mode elements are zero by NumPy's numbers for the node's seed, as ONNX's reference has it."""
    share = node.known(1)
    if training is None or not bool(node.value(2)) or (share is not None and share == 0):
        return x, cnp.ones(x.shape, np.float32 if node.version < 7 else np.bool_)
    seed = node.get("seed")
    if seed is None or None in known_shape(x):
        raise node.unsupported(
            "in training mode its random numbers have no state that a function could be given: give the node a seed, "
            "and its input a shape"
        )
    dropped: Any = np.float32(0.5) if ratio is None else ratio
    kept = np.random.RandomState(seed).uniform(0, 1, x.shape) >= cast(dropped, np.float64)
    scale = cast(1 / (1 - dropped), x.dtype)
    return cnp.where(kept, x * scale, cnp.zeros_like(x)), kept


@entry("Gelu")
def _gelu(node: Node, x: Any) -> Any:
    half = _like(0.5, x)
    if node.get("approximate", "none") == "tanh":
        return half * x * (1 + cnp.tanh(_like(np.sqrt(2 / np.pi), x) * (x + _like(0.044715, x) * x * x * x)))
    return half * x * (1 + lax.erf(x * _like(np.sqrt(0.5), x)))


@entry("Shrink")
def _shrink(node: Node, x: Any) -> Any:
    edge, bias = _like(node.get("lambd", 0.5), x), _like(node.get("bias", 0.0), x)
    return cnp.where(x < -edge, x + bias, cnp.where(x > edge, x - bias, _like(0, x)))


@entry("PRelu")
def _prelu(node: Node, x: Any, slope: Any) -> Any:
    if node.version < 7 and slope.ndim == 1 and x.ndim > 1:
        slope = cnp.reshape(slope, (*slope.shape, *[1] * (x.ndim - 2)))
    return cnp.where(x < 0, slope * x, x)
