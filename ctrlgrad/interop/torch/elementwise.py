"""Elementwise operators. At kinks they have the derivatives that PyTorch chooses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad import lax
from ctrlgrad.frontend.apply import cast
from ctrlgrad.interop.torch.operators import PROMOTED, TABLE, entry, is_array
from ctrlgrad.scipy import special
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
