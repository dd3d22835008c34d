"""Elementwise operators, reductions and products. At kinks they have the derivatives that PyTorch chooses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad import lax
from ctrlgrad.frontend.apply import cast
from ctrlgrad.interop.torch.arranging import axes_of, axis_of
from ctrlgrad.interop.torch.operators import PROMOTED, TABLE, entry, is_array
from ctrlgrad.scipy import special
from ctrlgrad.scipy.linalg import expm
from ctrlgrad.transforms.grad import stop_gradient


def _kind(x: Any) -> str:
    return np.dtype(x.dtype).kind if is_array(x) else np.asarray(x).dtype.kind


def _float(x: Any) -> Any:
    """An integer or a boolean as PyTorch's default float."""
    return cast(x, np.dtype(np.float32)) if is_array(x) and _kind(x) in "biu" else x


def _of_floats(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, *more: fn(_float(x), *map(_float, more))


def _scaled(fn: Callable[..., Any]) -> Callable[..., Any]:
    """An operator whose second operand is multiplied by `alpha`."""
    return lambda x, y, alpha=1: fn(x, y if _is_one(alpha) else y * alpha)


def _is_one(x: Any) -> bool:
    return isinstance(x, int | float) and x == 1


def _divide(x: Any, y: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        return _float(x) / _float(y)
    if rounding_mode == "floor":
        return cnp.floor_divide(x, y)
    if _kind(x) in "iu" and _kind(y) in "iu":
        rest = cnp.fmod(x, y)
        return cnp.floor_divide(x - rest, y)
    return cnp.trunc(_float(x) / _float(y))


def _round(x: Any, decimals: int = 0) -> Any:
    return cnp.rint(x) if not decimals else cnp.round(x, decimals)


@entry("clamp")
def clamp(x: Any, min: Any = None, max: Any = None) -> Any:
    """x between two bounds; a number that lies on a bound has the slope 1."""
    lo, hi = (None if b is None else b if is_array(b) else np.asarray(b, _joint(x, b)) for b in (min, max))
    x = x if lo is None else cnp.where(x < lo, lo, x)
    return x if hi is None else cnp.where(x > hi, hi, x)


def _joint(x: Any, bound: Any) -> Any:
    return np.float32 if _kind(x) in "biu" and isinstance(bound, float) else x.dtype


def _hardtanh(x: Any, lo: Any = -1.0, hi: Any = 1.0) -> Any:
    x = cnp.where(x <= lo, np.asarray(lo, x.dtype), x)
    return cnp.where(x >= hi, np.asarray(hi, x.dtype), x)


def _elu(x: Any, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Any:
    below = cnp.where(x > 0, cnp.zeros_like(x), x)
    return cnp.where(x > 0, x * scale, alpha * scale * cnp.expm1(input_scale * below))


def _gelu(x: Any, approximate: str = "none") -> Any:
    if approximate == "tanh":
        return 0.5 * x * (1 + cnp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1 + special.erf(x * math.sqrt(0.5)))


def _softplus(x: Any, beta: float = 1, threshold: float = 20) -> Any:
    small = cnp.where(x * beta > threshold, cnp.zeros_like(x), x)
    return cnp.where(x * beta > threshold, x, cnp.log1p(cnp.exp(small * beta)) / beta)


def _log_sigmoid(x: Any) -> tuple[Any, Any]:
    least = cnp.where(x > 0, cnp.zeros_like(x), x)
    return least - cnp.log1p(cnp.exp(-cnp.abs(x))), cnp.zeros((0,), x.dtype)


def _pow(x: Any, y: Any) -> Any:
    if not is_array(y):
        if y == 2:
            return x * x
        if y == 0.5 and _kind(x) in "fc":
            return cnp.sqrt(x)
    if _kind(x) in "biu" and _kind(y) == "f":
        x = _float(x)
    return cnp.power(x, y)


def _xlogy(x: Any, y: Any) -> Any:
    x, y = _float(x), _float(y)
    zero = x == 0
    kept = cnp.where(zero, cnp.ones_like(y) if is_array(y) else 1.0, y)
    found = cnp.where(zero, 0.0 * x, x * cnp.log(kept))
    return cnp.where(cnp.isnan(y), y, found)


# Functions of one argument that NumPy has by the same meaning; whole numbers become floats first.
_UNARY = (
    "acos acosh asin asinh atan atanh cos cosh exp exp2 expm1 log log10 log1p log2 reciprocal sin sinh sqrt tan tanh"
)
for _name in _UNARY.split():
    TABLE[_name] = _of_floats(getattr(cnp, _name))

TABLE |= {
    "erf": _of_floats(special.erf),
    "erfc": _of_floats(special.erfc),
    "erfinv": _of_floats(special.erfinv),
    "digamma": _of_floats(special.digamma),
    "lgamma": _of_floats(special.gammaln),
    "polygamma": lambda n, x: special.digamma(x) if n == 0 else special.polygamma(n, x),
    "special_i0e": _of_floats(special.i0e),
    "special_i1e": _of_floats(special.i1e),
    "special_ndtri": _of_floats(special.ndtri),
    "i0": _of_floats(special.i0),
    "sinc": _of_floats(cnp.sinc),
    "rsqrt": _of_floats(lambda x: 1 / cnp.sqrt(x)),
    "sigmoid": _of_floats(cnp.sigmoid),
    "silu": lambda x: x * cnp.sigmoid(x),
    "abs": cnp.abs,
    "neg": cnp.negative,
    "sign": cnp.sign,
    "sgn": lambda x: (
        cnp.sign(x) if _kind(x) != "c" else cnp.where(x == 0, x * 0, x / cnp.abs(cnp.where(x == 0, x * 0 + 1, x)))
    ),
    "ceil": lambda x: x if _kind(x) in "iu" else cnp.ceil(x),
    "floor": lambda x: x if _kind(x) in "iu" else cnp.floor(x),
    "trunc": lambda x: x if _kind(x) in "iu" else cnp.trunc(x),
    "round": _round,
    "round.decimals": lambda x, *, decimals: _round(x, decimals),
    "frac": lambda x: x - cnp.trunc(x),
    "square": lambda x: x * x,
    "isnan": cnp.isnan,
    "isinf": cnp.isinf,
    "isfinite": cnp.isfinite,
    "signbit": cnp.signbit,
    "deg2rad": lambda x: _float(x) * (math.pi / 180),
    "rad2deg": lambda x: _float(x) * (180 / math.pi),
    "logical_not": lambda x: cnp.logical_not(x),
    "bitwise_not": cnp.bitwise_invert,
    "nan_to_num": lambda x, nan=None, posinf=None, neginf=None: cnp.nan_to_num(
        x, nan=nan or 0.0, posinf=posinf, neginf=neginf
    ),
    "real": cnp.real,
    "imag": cnp.imag,
    "angle": cnp.angle,
    "conj": cnp.conj,
    "_conj": cnp.conj,
    "conj_physical": cnp.conj,
    "_neg_view": cnp.negative,
    "resolve_conj": lambda x: x,
    "resolve_neg": lambda x: x,
    "complex": cnp.make_complex,
    "view_as_real": lambda x: cnp.stack([cnp.real(x), cnp.imag(x)], -1),
    "view_as_complex": lambda x: cnp.make_complex(x[..., 0], x[..., 1]),
    "polar": lambda r, a: cnp.make_complex(r * cnp.cos(a), r * cnp.sin(a)),
    "relu": lambda x: cnp.where(x <= 0, cnp.zeros_like(x), x),
    "relu6": lambda x: _hardtanh(x, 0.0, 6.0),
    "hardtanh": _hardtanh,
    "elu": _elu,
    "gelu": _gelu,
    "leaky_relu": lambda x, slope=0.01: cnp.where(x > 0, x, x * slope),
    "softplus": _softplus,
    "log_sigmoid_forward": _log_sigmoid,
    "log_sigmoid": lambda x: _log_sigmoid(x)[0],
    "add": _scaled(lambda x, y: cnp.logical_or(x, y) if _kind(x) == _kind(y) == "b" else x + y),
    "sub": _scaled(lambda x, y: x - y),
    "rsub": lambda x, y, alpha=1: y - (x if _is_one(alpha) else x * alpha),
    "mul": lambda x, y: cnp.logical_and(x, y) if _kind(x) == _kind(y) == "b" else x * y,
    "div": _divide,
    "floor_divide": cnp.floor_divide,
    "true_divide": _divide,
    "remainder": cnp.remainder,
    "fmod": cnp.fmod,
    "pow": _pow,
    "float_power": lambda x, y: cnp.power(cast(x, np.dtype(np.float64)) if is_array(x) else x, y),
    "maximum": cnp.maximum,
    "minimum": cnp.minimum,
    "fmax": cnp.fmax,
    "fmin": cnp.fmin,
    "atan2": lambda x, y: cnp.arctan2(_float(x), _float(y)),
    "hypot": cnp.hypot,
    "copysign": lambda x, y: cnp.copysign(_float(x), _float(y)),
    "nextafter": cnp.nextafter,
    "logaddexp": cnp.logaddexp,
    "logaddexp2": lambda x, y: cnp.logaddexp(x * math.log(2), y * math.log(2)) / math.log(2),
    "xlogy": _xlogy,
    "special_xlog1py": lambda x, y: _xlogy(x, 1 + _float(y)),
    "heaviside": cnp.heaviside,
    "gcd": cnp.gcd,
    "lcm": cnp.lcm,
    "lerp": lambda x, end, weight: x + weight * (end - x),
    "where": cnp.where,
    "eq": cnp.equal,
    "ne": cnp.not_equal,
    "lt": cnp.less,
    "le": cnp.less_equal,
    "gt": cnp.greater,
    "ge": cnp.greater_equal,
    "logical_and": cnp.logical_and,
    "logical_or": cnp.logical_or,
    "logical_xor": cnp.logical_xor,
    "bitwise_and": cnp.bitwise_and,
    "bitwise_or": cnp.bitwise_or,
    "bitwise_xor": cnp.bitwise_xor,
    "bitwise_left_shift": cnp.bitwise_left_shift,
    "bitwise_right_shift": cnp.bitwise_right_shift,
    "__lshift__": cnp.bitwise_left_shift,
    "__rshift__": cnp.bitwise_right_shift,
    "clamp_min": lambda x, lo: clamp(x, lo),
    "clamp_max": lambda x, hi: clamp(x, None, hi),
    "addcmul": lambda x, a, b, value=1: x + value * a * b,
    "addcdiv": lambda x, a, b, value=1: x + value * (a / b),
    "masked_fill": lambda x, mask, value: cnp.where(mask, cast(value, x.dtype) if is_array(value) else value, x),
    "detach": stop_gradient,
    "alias": lambda x: x,
    "clone": lambda x: x,
    "contiguous": lambda x: x,
    "lift_fresh_copy": lambda x: x,
    "lift_fresh": lambda x: x,
    "_to_copy": lambda x, dtype=None: x if dtype is None else _converted(x, dtype),
    "to": lambda x, *more: x,
    "copy": lambda x, y: cnp.broadcast_to(cast(y, x.dtype), x.shape),
    "fill": lambda x, value: cnp.broadcast_to(cast(value, x.dtype), x.shape),
    "view.dtype": lambda x, dtype: x if x.dtype == dtype else lax.bitcast_convert_type(x, dtype),
}

_COMBINED = """add sub mul div maximum minimum pow where lerp addcmul addcdiv atan2 hypot logaddexp fmod
remainder fmax fmin copysign xlogy clamp"""
PROMOTED.update(_COMBINED.split())


def _converted(x: Any, dtype: np.dtype) -> Any:
    if _kind(x) == "c" and dtype.kind != "c":
        x = cnp.real(x)
    return cast(x, dtype)


# Reductions, running reductions, sorting, products of matrices and their factors.


_WHOLE = np.dtype(np.int64)


def _summable(x: Any, dtype: Any) -> Any:
    if dtype is not None:
        return cast(x, dtype)
    return cast(x, _WHOLE) if np.dtype(x.dtype).kind in "biu" else x


def _sum(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    return cnp.sum(_summable(x, dtype), axes_of(x, dim), keepdims=keepdim)


def _mean(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    return cnp.mean(x if dtype is None else cast(x, dtype), axes_of(x, dim), keepdims=keepdim)


def _over(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, dim=None, keepdim=False: fn(x, axes_of(x, dim), keepdims=keepdim)


def _var(x: Any, dim: Any = None, correction: Any = None, keepdim: bool = False) -> Any:
    if isinstance(dim, bool):  # var(x, unbiased)
        dim, correction = None, int(dim)
    elif isinstance(correction, bool):
        correction = int(correction)
    axes = axes_of(x, dim)
    count: Any = 1
    for axis in axes:
        count = count * x.shape[axis] if x.ndim else 1
    off = x - cnp.mean(x, axes, keepdims=True)
    squares = off * off if np.dtype(x.dtype).kind != "c" else cnp.real(off * cnp.conj(off))
    left = count - (1 if correction is None else correction)
    if not is_array(left):
        left = np.asarray(max(left, 0), squares.dtype)
    return cnp.sum(squares, axes, keepdims=keepdim) / cast(left, squares.dtype)


@entry("var_mean")
def _var_mean(x: Any, dim: Any = None, correction: Any = None, keepdim: bool = False) -> Any:
    if isinstance(dim, bool):
        return _var(x, dim), _mean(x)
    return _var(x, dim, correction, keepdim), _mean(x, dim, keepdim)


def _place(pick: Callable[..., Any]) -> Callable[..., Any]:
    def fn(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
        x = cast(x, np.dtype(np.uint8)) if x.dtype == bool else x
        if dim is None:
            found = pick(cnp.ravel(x))
            return cnp.reshape(found, [1] * x.ndim) if keepdim else found
        if not x.ndim:
            return np.int64(0)
        return pick(x, axis=dim, keepdims=keepdim)

    return fn


def _extreme(pick: Callable[..., Any]) -> Callable[..., Any]:
    """The largest or smallest along one axis, and its place; the slope belongs to that place alone."""
    place = _place(pick)

    def fn(x: Any, dim: int, keepdim: bool = False) -> Any:
        if not x.ndim:
            return x, np.int64(0)
        where = place(x, dim, True)
        found = cnp.take_along_axis(x, where, axis=dim)
        return (found, where) if keepdim else (cnp.squeeze(found, dim), cnp.squeeze(where, dim))

    return fn


def _running_extreme(reduce: Callable[..., Any]) -> Callable[..., Any]:
    """The running maximum or minimum along one axis and its place, the last one of equals."""

    def fn(x: Any, dim: int) -> Any:
        if not x.ndim:
            return x, np.int64(0)
        axis = axis_of(x, dim)
        best = reduce(x, axis)
        own = cnp.reshape(np.arange(x.shape[axis]), (*[1] * axis, -1, *[1] * (x.ndim - axis - 1)))
        hit = cnp.where((x == best) | cnp.isnan(x), own, 0)
        where = lax.cummax(cnp.broadcast_to(hit, x.shape), axis)
        return cnp.take_along_axis(x, where, axis=axis), where

    return fn


def _cumulative(fn: Callable[..., Any]) -> Callable[..., Any]:
    def run(x: Any, dim: int, *, dtype: Any = None) -> Any:
        x = _summable(x, dtype)
        return fn(x, axis_of(x, dim)) if x.ndim else x

    return run


@entry("sort")
def _sort(x: Any, dim: int = -1, descending: bool = False, *, stable: Any = None) -> Any:
    if not x.ndim:
        return x, np.int64(0)
    order = cnp.argsort(x, axis=dim, descending=descending, stable=True)
    return cnp.take_along_axis(x, order, axis=dim), order


@entry("topk")
def _topk(x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    if not x.ndim:
        return x, np.int64(0)
    order = cnp.argsort(x, axis=dim, descending=largest, stable=True)
    order = order[(*[slice(None)] * axis_of(x, dim), slice(0, k))]
    return cnp.take_along_axis(x, order, axis=dim), order


@entry("kthvalue")
def _kthvalue(x: Any, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    if not x.ndim:
        return x, np.int64(0)
    values, order = _sort(x, dim)
    key = (*[slice(None)] * axis_of(x, dim), slice(k - 1, k))
    found = values[key], order[key]
    return found if keepdim else tuple(cnp.squeeze(y, dim) for y in found)


@entry("median.dim")
def _median(x: Any, dim: int, keepdim: bool = False) -> Any:
    return _kthvalue(x, (x.shape[dim] + 1) // 2 if x.ndim else 1, dim, keepdim)


@entry("searchsorted")
def _searchsorted(
    rows: Any, x: Any, *, out_int32: bool = False, right: bool = False, side: Any = None, sorter: Any = None
) -> Any:
    right = right or side == "right"
    if sorter is not None:
        rows = cnp.take_along_axis(rows, sorter, axis=-1)
    if rows.ndim == 1:
        return cnp.searchsorted(rows, x, side="right" if right else "left")
    before = rows[..., None, :] <= x[..., None] if right else rows[..., None, :] < x[..., None]
    return cnp.sum(cast(before, _WHOLE), -1)


def softmax(x: Any, dim: int, half_to_float: bool = False, *, dtype: Any = None) -> Any:
    x = x if dtype is None else cast(x, dtype)
    return cnp.softmax(x, axis=dim) if x.ndim else cnp.ones_like(x)


def log_softmax(x: Any, dim: int, half_to_float: bool = False, *, dtype: Any = None) -> Any:
    x = x if dtype is None else cast(x, dtype)
    return cnp.log_softmax(x, axis=dim) if x.ndim else x * 0


def _norm(x: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    x, axes = x if dtype is None else cast(x, dtype), axes_of(x, dim)
    size = cnp.abs(x)
    if ord == np.inf or ord == -np.inf:
        return (cnp.max if ord > 0 else cnp.min)(size, axes, keepdims=keepdim)
    if ord == 0:
        return cast(cnp.sum(x != 0, axes, keepdims=keepdim), size.dtype)
    if ord == 1:
        return cnp.sum(size, axes, keepdims=keepdim)
    total = cnp.sum(size * size if ord == 2 else size ** np.asarray(ord, size.dtype), axes, keepdims=keepdim)
    # The slope at zero is zero.
    zero = total == 0
    kept = cnp.where(zero, cnp.ones_like(total), total)
    root = cnp.sqrt(kept) if ord == 2 else kept ** np.asarray(1 / ord, size.dtype)
    return cnp.where(zero, total * 0, root)


@entry("_pdist_forward")
def _pdist(x: Any, p: float = 2.0) -> Any:
    rows, columns = np.triu_indices(x.shape[0], 1)
    return _norm(x[rows] - x[columns], p, [-1])


# Transforms of Fourier. `how`: 0 leaves sums as they are, 1 divides by the root of the count, 2 by the count.


def _fourier(x: Any, dims: Any, how: int, forward: bool) -> Any:
    for dim in dims:
        x = cnp.fft.fft(x, axis=dim) if forward else cnp.fft.ifft(x, axis=dim) * x.shape[dim]
    return x


def _divided(x: Any, sizes: Any, how: int) -> Any:
    count = 1.0
    for n in sizes:
        count *= n
    return x if how == 0 else x * (count ** (-0.5 if how == 1 else -1.0))


@entry("_fft_r2c")
def _fft_r2c(x: Any, dims: Any, how: int, onesided: bool) -> Any:
    found = cnp.fft.rfft(x, axis=dims[-1]) if onesided else cnp.fft.fft(x, axis=dims[-1])
    return _divided(_fourier(found, dims[:-1], how, True), [x.shape[d] for d in dims], how)


@entry("_fft_c2r")
def _fft_c2r(x: Any, dims: Any, how: int, size: int) -> Any:
    found = _fourier(x, dims[:-1], how, False)
    found = cnp.fft.irfft(found, size, axis=dims[-1]) * size
    return _divided(found, [*(x.shape[d] for d in dims[:-1]), size], how)


# Products of matrices.


@entry("addmm", "addmv")
def _addmm(x: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    found = cnp.matmul(a, b)
    found = found if alpha == 1 else found * alpha
    return found if beta == 0 else (x if beta == 1 else x * beta) + found


TABLE["baddbmm"] = _addmm


@entry("_trilinear")
def _trilinear(a: Any, b: Any, c: Any, one: Any, two: Any, three: Any, summed: Any, unroll: int = 1) -> Any:
    def spread(x: Any, axes: Any) -> Any:
        for axis in sorted(axes):
            x = cnp.expand_dims(x, axis)
        return x

    a, b, c = spread(a, one), spread(b, two), spread(c, three)
    return cnp.sum(a * b * c, tuple(summed))


@entry("linear")
def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    found = cnp.matmul(x, cnp.transpose(weight))
    return found if bias is None else found + bias


@entry("_linalg_solve_ex")
def _solve(a: Any, b: Any, *, left: bool = True, check_errors: bool = False) -> Any:
    is_vector = b.ndim == 1 or (a.ndim - 1 == b.ndim and tuple(b.shape) == tuple(a.shape[:-1]))
    if not left:
        found = cnp.matrix_transpose(cnp.linalg.solve(cnp.matrix_transpose(a), cnp.matrix_transpose(b)))
        return found, a, np.zeros(a.shape[:-1], np.int32), np.zeros(a.shape[:-2], np.int32)
    found = cnp.linalg.solve(a, b[..., None])[..., 0] if is_vector else cnp.linalg.solve(a, b)
    return found, a, np.zeros(a.shape[:-1], np.int32), np.zeros(a.shape[:-2], np.int32)


def _cholesky(a: Any, *, upper: bool = False, check_errors: bool = False) -> Any:
    return cnp.linalg.cholesky(a, upper=upper), np.zeros(a.shape[:-2], np.int32)


TABLE |= {
    "sum": _sum,
    "mean": _mean,
    "prod": lambda x, dim=None, keepdim=False, *, dtype=None: cnp.prod(
        _summable(x, dtype), axes_of(x, dim), keepdims=keepdim
    ),
    "amax": _over(cnp.max),
    "amin": _over(cnp.min),
    "max": lambda x: cnp.max(x),
    "min": lambda x: cnp.min(x),
    "max.other": cnp.maximum,
    "min.other": cnp.minimum,
    "max.dim": _extreme(cnp.argmax),
    "min.dim": _extreme(cnp.argmin),
    "any": _over(cnp.any),
    "all": _over(cnp.all),
    "var": _var,
    "std": lambda *args, **named: cnp.sqrt(_var(*args, **named)),
    "argmax": _place(cnp.argmax),
    "argmin": _place(cnp.argmin),
    "argsort": lambda x, dim=-1, descending=False: cnp.argsort(x, axis=dim, descending=descending),
    "count_nonzero": lambda x, dim=None: cnp.sum(cast(x != 0, _WHOLE), axes_of(x, dim)),
    "cumsum": _cumulative(cnp.cumsum),
    "cumprod": _cumulative(cnp.cumprod),
    "cummax": _running_extreme(lax.cummax),
    "cummin": _running_extreme(lax.cummin),
    "logcumsumexp": lambda x, dim: lax.cumlogsumexp(x, axis_of(x, dim)) if x.ndim else x,
    "logsumexp": lambda x, dim, keepdim=False: (
        special.logsumexp(x, axis=axes_of(x, dim), keepdims=keepdim) if x.ndim else x
    ),
    "_softmax": softmax,
    "_log_softmax": log_softmax,
    "softmax": softmax,
    "log_softmax": log_softmax,
    "linalg_vector_norm": _norm,
    "mm": cnp.matmul,
    "bmm": cnp.matmul,
    "mv": cnp.matmul,
    "dot": cnp.matmul,
    "vdot": lambda x, y: cnp.matmul(cnp.conj(x), y),
    "matmul": cnp.matmul,
    "outer": lambda x, y: x[:, None] * y,
    "linalg_matrix_exp": expm,
    "linalg_inv_ex": lambda a, *, check_errors=False: (cnp.linalg.inv(a), np.zeros(a.shape[:-2], np.int32)),
    "linalg_cholesky_ex": _cholesky,
    "triangular_solve": lambda b, a, upper=True, transpose=False, unitriangular=False: (
        _triangular(a, b, upper, transpose, unitriangular),
        a,
    ),
    "linalg_solve_triangular": lambda a, b, *, upper, left=True, unitriangular=False: (
        _triangular(a, b, upper, False, unitriangular)
        if left
        else cnp.matrix_transpose(
            _triangular(cnp.matrix_transpose(a), cnp.matrix_transpose(b), not upper, False, unitriangular)
        )
    ),
    "_linalg_det": lambda a: (cnp.linalg.det(a), a, np.zeros(a.shape[:-1], np.int32)),
    "_linalg_slogdet": lambda a: (*cnp.linalg.slogdet(a), a, np.zeros(a.shape[:-1], np.int32)),
    "linalg_qr": lambda a, mode="reduced": tuple(cnp.linalg.qr(a, mode=mode)),
    "_linalg_eigh": lambda a, uplo="L", compute_v=True: tuple(cnp.linalg.eigh(a, UPLO=uplo)),
    "_linalg_svd": lambda a, full=False, compute_uv=True, driver=None: tuple(cnp.linalg.svd(a, full_matrices=full)),
    "sort.stable": lambda x, *, stable=None, dim=-1, descending=False: _sort(x, dim, descending),
    "median": lambda x: _median(cnp.ravel(x), 0)[0],
    "bucketize": lambda x, boundaries, *, out_int32=False, right=False: cnp.searchsorted(
        boundaries, x, side="right" if right else "left"
    ),
    "bincount": lambda x, weights=None, minlength=0: cnp.bincount(x, weights, minlength),
    "norm": lambda x, p=2, dim=None, keepdim=False, *, dtype=None: _norm(
        x, 2 if p is None else p, dim, keepdim, dtype=dtype
    ),
    "_cdist_forward": lambda x, y, p=2.0, mode=None: _norm(x[..., :, None, :] - y[..., None, :, :], p, [-1]),
    "_fft_c2c": lambda x, dims, how, forward: _divided(
        _fourier(x, dims, how, forward), [x.shape[d] for d in dims], how
    ),
    "addr": lambda x, a, b, *, beta=1, alpha=1: _addmm(x, a[:, None], b[None, :], beta=beta, alpha=alpha),
}


def _triangular(a: Any, b: Any, upper: bool, transpose: bool, unit: bool) -> Any:
    return lax.linalg.triangular_solve(a, b, left_side=True, lower=not upper, transpose_a=transpose, unit_diagonal=unit)
