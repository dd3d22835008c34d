"""ONNX operators on numbers: elementwise, reductions, products, quantisation."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad import lax
from ctrlgrad.dtypes import computed_dtype, dtype_kind, finfo
from ctrlgrad.frontend.apply import cast
from ctrlgrad.frontend.array.sorting import places_of_largest
from ctrlgrad.interop.onnx.arrays import axes_of
from ctrlgrad.interop.onnx.layers import conv_integer
from ctrlgrad.interop.onnx.operators import TABLE, Node, dtype_of, entry, known_shape, plain
from ctrlgrad.records import pairs

# Quantisation of floats to integers of 8 and 16 bits, and back.


def _spread(node: Node, parameter: Any, x: Any) -> Any:
    """A scale or zero point so that it broadcasts with x: one number, one for each place of an axis, or of a block."""
    if parameter.ndim == 0 or parameter.size == 1:
        return cnp.reshape(parameter, ())
    axis, block = node.get("axis", 1) % x.ndim, node.get("block_size", 0)
    if block:
        return cnp.repeat(parameter, block, axis=axis)[tuple(slice(0, n) for n in x.shape)]
    return cnp.reshape(parameter, [-1 if a == axis else 1 for a in range(x.ndim)])


@entry("DequantizeLinear")
def _dequantize(node: Node, x: Any, scale: Any, zero: Any = None) -> Any:
    number = node.get("output_dtype", 0)
    dtype = dtype_of(number) if number else scale.dtype
    found = cast(x, np.float32)
    if zero is not None:
        found = found - cast(_spread(node, zero, x), np.float32)
    return cast(found * cast(_spread(node, scale, x), np.float32), dtype)


@entry("QuantizeLinear")
def _quantize(node: Node, x: Any, scale: Any, zero: Any = None) -> Any:
    number = node.get("output_dtype", 0)
    dtype = dtype_of(number) if number else np.dtype(np.uint8) if zero is None else np.dtype(zero.dtype)
    number = node.get("precision", 0)
    scale = cast(_spread(node, scale, x), dtype_of(number) if number else scale.dtype)
    rounded = cnp.rint(cast(x, scale.dtype) / scale)
    if zero is not None:
        rounded = rounded + cast(_spread(node, zero, x), rounded.dtype)
    return _saturated(rounded, dtype)


def _saturated(x: Any, dtype: Any) -> Any:
    limits = np.iinfo(dtype)
    return cast(cnp.clip(x, np.asarray(limits.min, x.dtype), np.asarray(limits.max, x.dtype)), dtype)


def _requantized(whole: Any, factor: Any, zero: Any, dtype: Any) -> Any:
    """Whole numbers times a factor, rounded into the range of a dtype."""
    # Products of numbers of 32 bits and of float32 are exact in float64.
    found = cast(whole, np.float64) * cast(factor, np.float64)
    return _saturated(cnp.rint(found if zero is None else found + cast(zero, np.float64)), dtype)


@entry("QLinearMatMul")
def _qlinear_matmul(node: Node, *inputs: Any) -> Any:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = inputs
    factor = by_row(a_scale) * b_scale / y_scale
    return _requantized(matmul_integer(node, a, b, a_zero, b_zero), factor, y_zero, y_zero.dtype)


@entry("QLinearConv")
def _qlinear_conv(node: Node, *inputs: Any) -> Any:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, *bias = inputs
    whole = conv_integer(node, x, w, x_zero, w_zero)
    by_channel = (-1, *[1] * (x.ndim - 2))
    if bias and bias[0] is not None:
        whole = whole + cnp.reshape(bias[0], by_channel)
    return _requantized(whole, cnp.reshape(x_scale * w_scale / y_scale, by_channel), y_zero, y_zero.dtype)


# Reductions, running sums, positions, sorts, and compositions of them.


def _reduce(fn: Callable[..., Any]) -> Callable[..., Any]:
    def reduce(node: Node, x: Any, axes: Any = None) -> Any:
        chosen = axes_of(node, max(x.ndim, 1))
        if chosen is None or not chosen:
            chosen = () if node.get("noop_with_empty_axes", 0) else tuple(range(x.ndim))
        chosen = tuple(axis for axis in chosen if axis < x.ndim)
        return fn(x, chosen, bool(node.get("keepdims", 1)))

    return reduce


def _log_sum_exp(x: Any, axes: Any, keep: bool) -> Any:
    if 0 in known_shape(x):
        return cnp.log(cnp.sum(cnp.exp(x), axes, keepdims=keep))
    return cnp.logsumexp(x, axes, keepdims=keep)


def _extreme(fn: Callable[..., Any], logical: Callable[..., Any]) -> Callable[..., Any]:
    def extreme(x: Any, axes: Any, keep: bool) -> Any:
        if x.dtype == np.bool_:
            return logical(x, axes, keepdims=keep)
        info: Any = finfo(x.dtype) if dtype_kind(x.dtype) == "f" else np.iinfo(x.dtype)
        # The neutral element, for no elements at all.
        least, most = (-np.inf, np.inf) if dtype_kind(x.dtype) == "f" else (info.min, info.max)
        if 0 in known_shape(x):
            return fn(x, axes, keepdims=keep, initial=np.asarray(least if fn is cnp.max else most, x.dtype)[()])
        return fn(x, axes, keepdims=keep)

    return extreme


TABLE |= {
    ("", "ReduceL1"): _reduce(lambda x, a, k: cnp.sum(cnp.abs(x), a, keepdims=k, dtype=x.dtype)),
    ("", "ReduceL2"): _reduce(lambda x, a, k: cnp.sqrt(cnp.sum(x * x, a, keepdims=k, dtype=x.dtype)).astype(x.dtype)),
    ("", "ReduceLogSum"): _reduce(lambda x, a, k: cnp.log(cnp.sum(x, a, keepdims=k, dtype=x.dtype))),
    ("", "ReduceLogSumExp"): _reduce(_log_sum_exp),
    ("", "ReduceMax"): _reduce(_extreme(cnp.max, cnp.any)),
    ("", "ReduceMean"): _reduce(lambda x, axes, keep: cnp.mean(x, axes, keepdims=keep).astype(x.dtype)),
    ("", "ReduceMin"): _reduce(_extreme(cnp.min, cnp.all)),
    ("", "ReduceProd"): _reduce(lambda x, a, k: cnp.prod(x, a, keepdims=k, dtype=x.dtype)),
    ("", "ReduceSum"): _reduce(lambda x, a, k: cnp.sum(x, a, keepdims=k, dtype=x.dtype)),
    ("", "ReduceSumSquare"): _reduce(lambda x, a, k: cnp.sum(x * x, a, keepdims=k, dtype=x.dtype)),
}


@entry("ArgMax", "ArgMin")
def _position(node: Node, x: Any) -> Any:
    axis, fn = node.get("axis", 0) % x.ndim, cnp.argmax if node.name == "ArgMax" else cnp.argmin
    last = node.get("select_last_index", 0)
    found = (x.shape[axis] - 1 - fn(cnp.flip(x, axis), axis) if last else fn(x, axis)).astype(np.int64)
    return cnp.expand_dims(found, axis) if node.get("keepdims", 1) else found


def _running(fn: Callable[..., Any], neutral: int) -> Callable[..., Any]:
    def running(node: Node, x: Any, axis: Any) -> Any:
        at = int(node.value(1)) % x.ndim
        if node.get("reverse", 0):
            x = cnp.flip(x, at)
        found = fn(x, at, dtype=x.dtype)
        if node.get("exclusive", 0):
            first: list[Any] = [slice(None)] * x.ndim
            first[at] = slice(0, -1)
            widths = [(0, 0)] * x.ndim
            widths[at] = (1, 0)
            found = cnp.pad(found[tuple(first)], widths, constant_values=np.asarray(neutral, x.dtype))
        return cnp.flip(found, at) if node.get("reverse", 0) else found

    return running


TABLE["", "CumSum"] = _running(cnp.cumsum, 0)
TABLE["", "CumProd"] = _running(cnp.cumprod, 1)


@entry("TopK")
def _top_k(node: Node, x: Any, k: Any = None) -> Any:
    axis = node.get("axis", -1) % x.ndim
    count = node.get("k") if k is None else int(node.value(1).reshape(()))
    if node.get("largest", 1):
        # Ties: the first element comes first.
        places = places_of_largest("TopK", x, count, axis)
    else:
        places = cnp.argsort(x, axis)[(*[slice(None)] * axis, slice(0, count))]
    return cnp.take_along_axis(x, places, axis=axis), places


def _over_matrix(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Up to version 12 an array counts as a matrix: the axes before `axis`, and those from it on."""

    def over(node: Node, x: Any) -> Any:
        if node.version >= 13:
            return fn(x, node.get("axis", -1))
        axis = node.get("axis", 1) % max(x.ndim, 1)
        flat = cnp.reshape(x, (int(np.prod(x.shape[:axis])), -1))
        return cnp.reshape(fn(flat, 1), x.shape)

    return over


def _hardmax(x: Any, axis: int) -> Any:
    places = cnp.expand_dims(cnp.argmax(x, axis), axis)
    size = [1] * x.ndim
    size[axis] = x.shape[axis]
    return (np.arange(x.shape[axis]).reshape(size) == places).astype(x.dtype)


TABLE["", "Softmax"] = _over_matrix(cnp.softmax)
TABLE["", "LogSoftmax"] = _over_matrix(cnp.log_softmax)
TABLE["", "Hardmax"] = _over_matrix(_hardmax)


@entry("NonZero")
def _non_zero(node: Node, x: Any) -> Any:
    known = node.inputs[0]
    if isinstance(known, np.ndarray | np.generic):
        return np.array(np.nonzero(np.atleast_1d(known)), np.int64).reshape(max(known.ndim, 1), -1)
    return cnp.transpose(cnp.argwhere(x)).astype(np.int64)


@entry("Unique")
def _unique(node: Node, x: Any) -> Any:
    x = node.value(0)
    axis = node.get("axis")
    values, first, inverse, counts = np.unique(x, True, True, True, axis=axis)
    inverse = inverse.reshape(-1)
    if not node.get("sorted", 1):
        order = np.argsort(first)
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        values = values[order] if axis is None else np.take(values, order, axis)
        first, inverse, counts = first[order], place[inverse], counts[order]
    return values, first.astype(np.int64), inverse.astype(np.int64), counts.astype(np.int64)


@entry("LpNormalization")
def _lp_normalization(node: Node, x: Any) -> Any:
    axis, p = node.get("axis", -1), node.get("p", 2)
    size = cnp.sum(cnp.abs(x), axis, keepdims=True) if p == 1 else cnp.sqrt(cnp.sum(x * x, axis, keepdims=True))
    nothing = size == 0
    one = np.asarray(1, x.dtype)
    return cnp.where(nothing, np.asarray(0, x.dtype), x / cnp.where(nothing, one, size))


# Products of matrices.


TABLE["", "MatMul"] = plain(cnp.matmul)


@entry("Gemm")
def _gemm(node: Node, a: Any, b: Any, c: Any = None) -> Any:
    a = cnp.transpose(a) if node.get("transA", 0) else a
    b = cnp.transpose(b) if node.get("transB", 0) else b
    product = cnp.matmul(a, b)
    alpha, beta = node.get("alpha", 1.0), node.get("beta", 1.0)
    product = product if alpha == 1 else np.asarray(alpha, product.dtype) * product
    if c is None:
        return product
    return product + (c if beta == 1 else np.asarray(beta, product.dtype) * c)


@entry("MatMulInteger")
def matmul_integer(node: Node, a: Any, b: Any, a_zero: Any = None, b_zero: Any = None) -> Any:
    """The product of whole numbers without their zero points: int32."""
    wide_a, wide_b = cast(a, np.int32), cast(b, np.int32)
    if a_zero is not None:
        wide_a = wide_a - by_row(cast(a_zero, np.int32))
    if b_zero is not None:
        wide_b = wide_b - cast(b_zero, np.int32)
    return cnp.matmul(wide_a, wide_b)


def by_row(parameter: Any) -> Any:
    """A scale or zero point of a left operand, one number or one for each row, so that it broadcasts with it."""
    return cnp.expand_dims(parameter, -1) if parameter.ndim == 1 and parameter.shape[0] > 1 else parameter


# Elementwise operators, and what brings values to other dtypes.


# Operators that `ctrlgrad.numpy` has by their names in lower case.
_LOWER_CASE = (
    "Abs Acos Acosh Asin Asinh Atan Atanh Ceil Cos Cosh Equal Exp Floor Greater IsNaN Less Log Relu Sign Sin Sinh Sqrt "
    "Tan Tanh Where"
)
_NUMPY: dict[str, Callable[..., Any]] = {name: getattr(cnp, name.lower()) for name in _LOWER_CASE.split()}
_NUMPY |= {
    name: getattr(cnp, function)
    for name, function in pairs(
        "And:logical_and BitwiseAnd:bitwise_and BitwiseNot:bitwise_not BitwiseOr:bitwise_or BitwiseXor:bitwise_xor "
        "GreaterOrEqual:greater_equal LessOrEqual:less_equal Mul:multiply Neg:negative Not:logical_not Or:logical_or "
        "Round:rint Xor:logical_xor"
    ).items()
}
_NUMPY |= {
    "Erf": lax.erf,
    "Sigmoid": lambda x: cast(cnp.sigmoid(_wide(x)), x.dtype),
    "Softplus": lambda x: cast(cnp.logaddexp(_wide(x), _like(0, _wide(x))), x.dtype),
    "Softsign": lambda x: x / (1 + cnp.abs(x)),
}

TABLE |= {("", name): plain(fn) for name, fn in _NUMPY.items()}
TABLE |= {
    ("", "Elu"): lambda node, x: cnp.where(x > 0, x, node.get("alpha") * cnp.expm1(cnp.minimum(x, _like(0, x)))),
    ("", "LeakyRelu"): lambda node, x: cnp.where(x >= 0, x, _like(node.get("alpha"), x) * x),
    ("", "Reciprocal"): lambda node, x: _like(1, x) / x,
    ("", "Det"): lambda node, x: cnp.linalg.det(x),
    ("", "Einsum"): lambda node, *xs: cnp.einsum(node.get("equation"), *xs),
}


def _wide(x: Any) -> Any:
    """Cast to the dtype for several steps of arithmetic: half precision would be rounded at each."""
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
    ("", "Mod"): lambda node, x, y: cnp.fmod(x, y) if node.get("fmod") else cnp.remainder(x, y),
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


@entry("PRelu")
def _prelu(node: Node, x: Any, slope: Any) -> Any:
    if node.version < 7 and slope.ndim == 1 and x.ndim > 1:
        slope = cnp.reshape(slope, (*slope.shape, *[1] * (x.ndim - 2)))
    return cnp.where(x < 0, slope * x, x)
