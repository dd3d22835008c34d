"""JAX's primitives on arrays: elementwise, arranging, gathers and scatters, reductions, products, and windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import jax.extend.core.primitives as primitives
import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad import lax
from ctrlgrad.ad_checkpoint import checkpoint_name
from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.frontend.apply import cast, value_in
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.frontend.trace import recorder
from ctrlgrad.interop.avals import dtype_of, key_words
from ctrlgrad.interop.primitives import TABLE, Entry, Equation, by_keyword, by_position, entry, plain, unsupported
from ctrlgrad.transforms.custom_calls import custom_jvp

# Elementwise primitives.


_SAME_NAME = """
    abs acos acosh add asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil clamp clz complex conj cos
    cosh digamma eq erf erf_inv erfc exp exp2 expm1 floor ge gt igamma igamma_grad_a igammac imag is_finite le
    lgamma log log1p logistic lt max min mul ne neg nextafter polygamma population_count real rsqrt select_n
    shift_right_logical sign sin sinh sqrt square sub tan tanh zeta
"""

TABLE |= {name: plain(getattr(lax, name)) for name in _SAME_NAME.split()}
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
for _identity in ("copy", "copy_p", "device_put", "optimization_barrier", "sharding_constraint", "reshard"):
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


# Primitives that make, arrange, index, gather, and scatter arrays.


TABLE |= {
    "rev": by_position(lax.rev, "dimensions"),
    "pad": by_position(lax.pad, "padding_config"),
    "split": by_position(lax.split, "sizes", "axis"),
    "concatenate": lambda equation, *operands: cnp.concatenate(operands, equation.params["dimension"]),
    "stack": lambda equation, *operands: cnp.stack(operands, equation.params["axis"]),
    "expand_dims": by_position(cnp.expand_dims, "dimensions"),
    "tile": by_position(cnp.tile, "reps"),
    "slice": by_position(lax.slice, "start_indices", "limit_indices", "strides"),
    "gather": by_keyword(lax.gather, "dimension_numbers", "slice_sizes", "mode", "fill_value"),
    "squeeze": lambda equation, x: cnp.squeeze(
        x, tuple(axis % equation.inputs[0].ndim for axis in equation.params["dimensions"])
    ),
}
TABLE |= {
    name.replace("_", "-"): by_keyword(getattr(lax, name), "dimension_numbers", "unique_indices", "mode")
    for name in ("scatter", "scatter_add", "scatter_max", "scatter_min", "scatter_mul", "scatter_sub")
}


def recorded(x: Any) -> Tensor:
    """Convert a value to a traced tensor, so that operations on it are recorded and not computed at once."""
    return x if isinstance(x, Tensor) else Tensor(recorder(), value_in(recorder(), x))


def words(equation: Equation) -> tuple[int, ...]:
    """The axes that values of an equation have behind those of JAX: that of the words where they are keys."""
    return next(filter(None, map(key_words, equation.inputs)), ())


@entry("broadcast_in_dim")
def _broadcast_in_dim(equation: Equation, x: Any, *sizes: Any) -> Any:
    shape, places = equation.params["shape"], equation.params["broadcast_dimensions"]
    more = words(equation)
    shape, places = (*shape, *more), (*places, *range(len(shape), len(shape) + len(more)))
    return lax.broadcast_in_dim(recorded(x), shape, places)


@entry("iota")
def _iota(equation: Equation, *sizes: Any) -> Any:
    shape, axis = equation.params["shape"], equation.params["dimension"]
    numbers = recorded(np.arange(shape[axis])).astype(dtype_of(equation.outputs[0]))
    return lax.broadcast_in_dim(numbers, shape, (axis,))


@entry("empty", "empty2")
def _empty(equation: Equation) -> Any:
    aval = equation.outputs[0]
    return cnp.broadcast_to(recorded(np.zeros((), dtype_of(aval))), aval.shape)


@entry("unstack")
def _unstack(equation: Equation, x: Any) -> Any:
    axis, x = equation.params["axis"], recorded(x)
    return [x[(*[slice(None)] * axis, i)] for i in range(equation.inputs[0].shape[axis])]


@entry("reshape")
def _reshape(equation: Equation, x: Any, *sizes: Any) -> Any:
    shape, order = equation.params["new_sizes"], equation.params.get("dimensions")
    more = words(equation)
    order = None if order is None else (*order, *range(len(order), len(order) + len(more)))
    return lax.reshape(x, (*shape, *more), order)


@entry("transpose")
def _transpose(equation: Equation, x: Any) -> Any:
    order = tuple(equation.params["permutation"])
    return cnp.transpose(x, (*order, *range(len(order), len(order) + len(words(equation)))))


def _inside(start: Any, size: int, width: int) -> Any:
    """A start at which a slice lies inside: negative ones do not count from the end."""
    return cnp.clip(cnp.asarray(start).astype(np.int64), 0, size - width)


def _keys(starts: Sequence[Any], sizes: Sequence[int], widths: Sequence[int]) -> tuple[list[Any], list[int]]:
    """An index for each axis, and the axes that it drops: those along which the slice has one element."""
    keys: list[Any] = []
    dropped = []
    for axis, (start, size, width) in enumerate(zip(starts, sizes, widths, strict=True)):
        if width == size:
            keys.append(slice(None))
        elif width == 1:
            keys.append(_inside(start, size, 1))
            dropped.append(axis)
        else:
            keys.append(None)
    return keys, dropped


@entry("dynamic_slice")
def _dynamic_slice(equation: Equation, x: Any, *operands: Any) -> Any:
    # NumPy's arrays take no traced index.
    x, sizes, widths = recorded(x), equation.inputs[0].shape, tuple(equation.params["slice_sizes"])
    starts, more = operands[: len(sizes)], words(equation)
    keys, dropped = _keys(starts, sizes, widths)
    for axis, key in enumerate(keys):
        if key is None:
            places = _inside(starts[axis], sizes[axis], widths[axis]) + np.arange(widths[axis])
            x, keys[axis] = cnp.take(x, places, axis=axis), slice(None)
    if not dropped:
        return x
    return cnp.reshape(x[(*keys, *[slice(None)] * len(more))], (*widths, *more))


@entry("dynamic_update_slice")
def _dynamic_update_slice(equation: Equation, x: Any, update: Any, *starts: Any) -> Any:
    sizes, widths = equation.inputs[0].shape, equation.inputs[1].shape
    keys, dropped = _keys(starts, sizes, widths)
    if not keys or 0 in widths:
        return update if not keys else x
    if any(key is None for key in keys):
        # Positions along all axes, each along its own.
        places = [
            np.reshape(np.arange(width), [width if b == a else 1 for b in range(len(widths))])
            + _inside(start, size, width)
            for a, (start, size, width) in enumerate(zip(starts, sizes, widths, strict=True))
        ]
        return cnp.at(x)[tuple(places)].set(update)
    return cnp.at(x)[tuple(keys)].set(cnp.squeeze(update, tuple(dropped)))


# Reductions, running reductions, sorts and products.


def _extreme(fn: Any, sign: int) -> Entry:
    """Maximum or minimum; of no elements it is the neutral element."""

    def reduce(equation: Equation, x: Any) -> Any:
        axes = tuple(equation.params["axes"])
        if all(equation.inputs[0].shape[axis] for axis in axes):
            return fn(x, axes)
        first = {"b": sign < 0, "f": -sign * np.inf}.get(dtype_kind(x.dtype))
        if first is None:
            first = np.iinfo(x.dtype).min if sign > 0 else np.iinfo(x.dtype).max
        # Has the shape of a sum, also with further axes in front.
        return cnp.full_like(cnp.sum(x, axes), first, dtype=x.dtype)

    return reduce


TABLE |= {"reduce_max": _extreme(lax.reduce_max, 1), "reduce_min": _extreme(lax.reduce_min, -1)}
TABLE |= {name: by_keyword(getattr(lax, name), "axes") for name in ("reduce_prod", "reduce_sum")}
TABLE |= {
    name: by_keyword(getattr(lax, name), "axis", "reverse")
    for name in ("cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum")
}


def _bits(logical: Any, bitwise: Any, neutral: int) -> Any:
    """A reduction of truth values, of integers bit by bit."""

    def reduce(equation: Equation, x: Any) -> Any:
        axes = tuple(equation.params["axes"])
        if x.dtype == np.bool_:
            return logical(x, axes)
        return lax.reduce(x, cnp.asarray(neutral).astype(x.dtype), bitwise, axes)

    return reduce


TABLE |= {
    "reduce_and": _bits(lax.reduce_and, cnp.bitwise_and, -1),
    "reduce_or": _bits(lax.reduce_or, cnp.bitwise_or, 0),
    "reduce_xor": by_keyword(lax.reduce_xor, "axes"),
    "sort": lambda equation, *operands: by_keyword(lax.sort, "dimension", "is_stable", "num_keys")(equation, operands),
    "top_k": lambda equation, x: lax.top_k(x, equation.params["k"], axis=equation.params.get("axis", -1)),
}


@entry("argmax", "argmin")
def _position(equation: Equation, x: Any) -> Any:
    (axis,) = equation.params["axes"]
    return (cnp.argmax if equation.name == "argmax" else cnp.argmin)(x, axis)


@entry("approx_top_k")
def _approx_top_k(equation: Equation, x: Any) -> Any:
    """All of the largest, or of the smallest: a recall of 1, which is what JAX gives on a processor."""
    params = equation.params
    axis, count = params["reduction_dimension"], params["k"]
    if not params["aggregate_to_topk"]:
        raise unsupported(equation, "it does not gather what it finds", "pass aggregate_to_topk=True")
    if params["is_max_k"]:
        return lax.top_k(x, count, axis=axis)
    places = cnp.argsort(x, axis=axis, stable=True)[(*[slice(None)] * (axis % x.ndim), slice(0, count))]
    return cnp.take_along_axis(x, places, axis), places


@entry("dot_general")
def _dot_general(equation: Equation, a: Any, b: Any) -> Any:
    dtype = dtype_of(equation.outputs[0])
    # JAX sums in the dtype of the result.
    return lax.dot_general(a.astype(dtype), b.astype(dtype), equation.params["dimension_numbers"])


# Convolutions, reductions of windows, and reductions by a function.


_WINDOW = ("window_dimensions", "window_strides", "padding")
_DILATED = (*_WINDOW, "base_dilation", "window_dilation")


_CONVOLUTION = (
    "window_strides",
    "padding",
    "lhs_dilation",
    "rhs_dilation",
    "dimension_numbers",
    "feature_group_count",
    "batch_group_count",
)


def _windows(fn: Callable[..., Any], start: Callable[[np.dtype], Any]) -> Entry:
    def reduced(equation: Equation, x: Any) -> Any:
        settings = {name: equation.params[name] for name in _DILATED}
        return lax.reduce_window(x, start(x.dtype), fn, **settings)

    return reduced


def _largest(dtype: np.dtype) -> Any:
    return np.inf if dtype_kind(dtype) == "f" else np.iinfo(dtype).max


TABLE |= {
    "conv_general_dilated": by_keyword(lax.conv_general_dilated, *_CONVOLUTION),
    "select_and_scatter_add": by_keyword(lax.select_and_scatter_add, "select_prim", *_WINDOW),
    "select_and_gather_add": by_keyword(lax.select_and_gather_add, "select_prim", *_DILATED),
    "reduce_window_max": _windows(lax.max, lambda dtype: -np.inf if dtype_kind(dtype) == "f" else np.iinfo(dtype).min),
    "reduce_window_min": _windows(lax.min, _largest),
    "reduce_window_sum": _windows(lax.add, lambda dtype: dtype.type(0)),
}


def _computation(equation: Equation) -> Callable[[Any, Any], Any]:
    """The function of a reduction, which JAX has for numbers, over whole arrays."""
    return lambda a, b: tuple(equation.read_elementwise(equation.params["jaxpr"], *a, *b))


@entry("reduce")
def _reduce(equation: Equation, *operands: Any) -> Any:
    count = len(operands) // 2
    xs, starts = tuple(operands[:count]), tuple(operands[count:])
    return lax.reduce(xs, starts, _computation(equation), tuple(equation.params["dimensions"]))


@entry("reduce_window")
def _reduce_window(equation: Equation, *operands: Any) -> Any:
    count = len(operands) // 2
    xs, starts = tuple(operands[:count]), tuple(operands[count:])
    settings = {name: equation.params[name] for name in _DILATED}
    return lax.reduce_window(xs, starts, _computation(equation), **settings)


@entry("select_and_scatter")
def _select_and_scatter(equation: Equation, x: Any, source: Any, start: Any) -> Any:
    params = equation.params
    names = [[eqn.primitive.name for eqn in params[f"{which}_jaxpr"].eqns] for which in ("select", "scatter")]
    chosen = {"ge": primitives.ge_p, "le": primitives.le_p}
    if len(names[0]) != 1 or names[0][0] not in chosen or names[1] != ["add"]:
        hint = "select by jax.lax.ge or jax.lax.le, and scatter by jax.lax.add"
        raise unsupported(equation, "it does not add at the largest or the smallest of each window", hint)
    settings = {name: params[name] for name in _WINDOW}
    return start + lax.select_and_scatter_add(source, x, chosen[names[0][0]], **settings)
