"""JAX's primitives on arrays: elementwise, arranging, reductions, products, windows, linear algebra, random numbers."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import jax
import jax.extend.core.primitives as primitives
import numpy as np
import scipy.linalg

import ctrlgrad.numpy as cnp
from ctrlgrad import lax
from ctrlgrad.ad_checkpoint import checkpoint_name
from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.frontend.apply import cast, value_in
from ctrlgrad.frontend.array.decompositions import adjoint, applied, column_at, reduced
from ctrlgrad.frontend.host_calls import host_call
from ctrlgrad.frontend.loops import fori_loop
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.frontend.trace import recorder
from ctrlgrad.interop.avals import dtype_of, is_key, key_words, tensor_type
from ctrlgrad.interop.primitives import TABLE, Entry, Equation, by_keyword, by_position, entry, plain, unsupported
from ctrlgrad.options import options
from ctrlgrad.random.distributions import differentiable, gamma, loggamma
from ctrlgrad.random.keys import threefry2x32
from ctrlgrad.transforms.custom_calls import custom_jvp
from ctrlgrad.transforms.vmap import vmap

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


# JAX's primitives of linear algebra: decompositions, equations, spectra, and Householder reflectors.


# JAX's primitives of LAPACK's reductions by Householder reflectors, and the order of columns of a pivoted one.


def pivots(a: Any) -> Any:
    """Pivots of the columns, int32 [..., n]: each is the longest after projection on the complement of those before."""
    rows, columns = a.shape[-2:]
    places = np.arange(columns)
    order = cnp.broadcast_to(recorded(places.astype(np.int32)), (*a.shape[:-2], columns))

    def step(i: Any, state: Any) -> Any:
        rest, order = state
        square = cnp.sum(cnp.abs(rest) ** 2, -2)
        longest = cnp.argmax(cnp.where(places < i, -1, square), axis=-1)[..., None]
        swapped = cnp.where(places == i, longest, cnp.where(places == longest, i, places))
        rest = cnp.take_along_axis(rest, swapped[..., None, :], -1)
        column = column_at(rest, i)[..., None]
        norm = cnp.sum(cnp.abs(column) ** 2, -2, keepdims=True)
        along = adjoint(column) @ rest / cnp.where(norm == 0, 1, norm)
        return rest - column * along, cnp.take_along_axis(order, swapped, -1)

    return fori_loop(0, min(rows, columns), step, (recorded(cnp.stop_gradient(a)), order))[1]


@entry("householder_product")
def _householder_product(equation: Equation, a: Any, taus: Any) -> Any:
    eye = np.eye(*a.shape[-2:], dtype=a.dtype)
    return applied(recorded(a), recorded(taus), cnp.broadcast_to(recorded(eye), a.shape), False)


@entry("ormqr")
def _ormqr(equation: Equation, a: Any, taus: Any, x: Any) -> Any:
    a, taus, is_adjoint = recorded(a), recorded(taus), equation.params["transpose"]
    if equation.params["left"]:
        return applied(a, taus, x, is_adjoint)
    return adjoint(applied(a, taus, adjoint(x), not is_adjoint))


@entry("tridiagonal")
def _tridiagonal(equation: Equation, a: Any) -> Any:
    lower, size = equation.params["lower"], a.shape[-1]
    given = a if lower else cnp.flip(a, (-1, -2))
    below = cnp.tril(given, -1)
    whole = below + adjoint(below) + np.eye(size, dtype=a.dtype) * cnp.real(given)
    found, taus = reduced(recorded(whole), max(size - 1, 0), 1, True)
    diagonals = [cnp.real(cnp.diagonal(found, -k, -2, -1)) for k in (0, 1)]
    # LAPACK leaves the other triangle alone.
    found = cnp.tril(found) + cnp.triu(given, 1)
    if not lower:
        found, taus, diagonals = cnp.flip(found, (-1, -2)), cnp.flip(taus, -1), [cnp.flip(d, -1) for d in diagonals]
    return found, *diagonals, taus


def _or_nan(fn: Entry) -> Entry:
    """An entry in which matrices without an answer have NaN."""

    @functools.wraps(fn)
    def answered(equation: Equation, *operands: Any) -> Any:
        with options(no_answer="nan"):
            return fn(equation, *operands)

    return answered


TABLE |= {
    "cholesky": lambda equation, a: lax.linalg.cholesky(
        a, symmetrize_input=equation.params.get("symmetrize_input", False)
    ),
    "lu": plain(lax.linalg.lu),
    "lu_pivots_to_permutation": by_keyword(lax.linalg.lu_pivots_to_permutation, "permutation_size"),
    "triangular_solve": by_keyword(
        lax.linalg.triangular_solve, "left_side", "lower", "transpose_a", "conjugate_a", "unit_diagonal"
    ),
    "tridiagonal_solve": plain(lax.linalg.tridiagonal_solve),
    "geqrf": lambda equation, a: reduced(recorded(a), min(a.shape[-2:]), 0, False),
    "hessenberg": lambda equation, a: reduced(recorded(a), max(a.shape[-1] - 1, 0), 1, True),
}
TABLE |= {name: _or_nan(TABLE[name]) for name in ("cholesky", "triangular_solve", "tridiagonal_solve")}


@entry("qr")
def _qr(equation: Equation, a: Any) -> Any:
    if equation.params.get("use_magma"):
        raise unsupported(equation, "it is to be computed on a card, by MAGMA", "leave use_magma out")
    order = pivots(a) if equation.params.get("pivoting") else None
    a = a if order is None else cnp.take_along_axis(a, order[..., None, :], -1)
    q, r = cnp.linalg.qr(a, mode="complete" if equation.params["full_matrices"] else "reduced")
    return (q, r) if order is None else (q, r, order)


@entry("eigh")
def _eigh(equation: Equation, a: Any) -> Any:
    if equation.params.get("subset_by_index") not in (None, (0, a.shape[-1])):
        raise unsupported(equation, "it asks for some of the eigenvalues", "take a part of all of them")
    return lax.linalg.eigh(a, lower=equation.params["lower"], symmetrize_input=False)


@entry("eig")
@_or_nan
def _eig(equation: Equation, a: Any) -> Any:
    found, vectors = cnp.linalg.eig(a)
    results = [found]
    if equation.params["compute_left_eigenvectors"]:
        # The rows of the inverse, each up to its scale.
        # Columns of norm 1 whose largest component is real.
        columns = adjoint(cnp.linalg.inv(vectors))
        size = cnp.abs(columns)
        largest = cnp.take_along_axis(columns, cnp.argmax(size, axis=-2, keepdims=True), -2)
        norm = cnp.sqrt(cnp.sum(size * size, -2, keepdims=True))
        results.append(columns * (cnp.conj(largest) / (cnp.abs(largest) * norm)))
    if equation.params["compute_right_eigenvectors"]:
        results.append(vectors)
    return results


@entry("schur")
def _schur(equation: Equation, a: Any) -> Any:
    """As LAPACK has it, by SciPy, which comes with JAX; like JAX without a derivative."""
    types = [tensor_type(aval) for aval in equation.outputs]
    fn = lambda x: _schur_factors(np.asarray(x))[: len(types)]
    return host_call(fn, [a], types, "Schur's decomposition", "broadcast_all")


def _schur_factors(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The triangular matrices and the vectors of matrices [..., n, n]; NaN for one that is not finite."""
    both = np.full((2, *x.shape), np.nan, x.dtype)
    for place in np.ndindex(x.shape[:-2]):
        if np.isfinite(x[place]).all():
            both[(slice(None), *place)] = scipy.linalg.schur(x[place])
    return both[0], both[1]


@entry("svd")
def _svd(equation: Equation, a: Any) -> Any:
    if not equation.params["compute_uv"]:
        return cnp.linalg.svdvals(a)
    u, s, vh = cnp.linalg.svd(a, full_matrices=equation.params["full_matrices"])
    return s, u, vh


@entry("fft")
def _fft(equation: Equation, x: Any) -> Any:
    kind = equation.params["fft_type"]
    lengths = tuple(equation.params["fft_lengths"])
    name = {0: "fftn", 1: "ifftn", 2: "rfftn", 3: "irfftn"}[int(kind)]
    axes = tuple(range(-len(lengths), 0))
    return getattr(cnp.fft, name)(x, s=lengths, axes=axes)


# Keys and bits of `jax.random`, the same bits for the same key, and XLA's generators of bits.


_U32 = np.uint32


def _is_threefry(aval: Any) -> bool:
    return str(aval.dtype) == "key<fry>"


def _is_native(equation: Equation) -> bool:
    """True if an equation's keys are Threefry's, with counters numbered as JAX does by default since 0.5."""
    avals = [aval for aval in (*equation.inputs, *equation.outputs) if is_key(aval)]
    return all(map(_is_threefry, avals)) and _is_partitionable(equation)


def _is_partitionable(equation: Equation) -> bool:
    return bool(getattr(equation.jax.ctx, "threefry_partitionable", True))


def _read(equation: Equation, fn: Callable[..., Any], *operands: Any) -> Any:
    """Apply a function of JAX on arrays of words in place of an equation."""
    struct: Any = jax.ShapeDtypeStruct
    avals = [struct((*aval.shape, *key_words(aval)), dtype_of(aval)) for aval in equation.inputs]
    with jax.threefry_partitionable(_is_partitionable(equation)):
        traced = equation.implementation(fn, *avals)
    (found,) = equation.read(traced, *operands)
    return found


def _mapped(fn: Callable[..., Any], rank: int) -> Callable[..., Any]:
    """A function of one key for arrays of keys, as JAX maps it: of some generators that draws other bits."""
    for _ in range(rank):
        fn = jax.vmap(fn)
    return fn


def _generator(aval: Any) -> Any:
    """The functions of words that a generator is in JAX."""
    return aval.dtype._impl


def _counters(shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    numbers = np.arange(int(np.prod(shape)), dtype=np.uint64).reshape(shape)
    return (numbers >> np.uint64(32)).astype(_U32), numbers.astype(_U32)


def _encrypted(key: Any, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """For each key of an array, words[..., 2], the ciphers of the counters of a shape."""
    one = key.shape[:-1] + (1,) * len(shape)
    first, second = (cnp.reshape(key[..., i], one) for i in (0, 1))
    high, low = _counters(shape)
    lead = (1,) * (len(key.shape) - 1)
    return threefry2x32(first, second, high.reshape(lead + shape), low.reshape(lead + shape))


@entry("random_wrap", "random_unwrap", "random_clone")
def _same_words(equation: Equation, key: Any) -> Any:
    return key


@entry("random_seed")
def _seed(equation: Equation, seed: Any) -> Any:
    (made,) = equation.outputs
    if not _is_threefry(made):
        return _read(equation, _mapped(_generator(made).seed, made.ndim), seed)
    wide = seed.dtype.itemsize > 4
    # Smaller integers fill the low word; JAX extends none of them.
    high = (seed >> seed.dtype.type(32)).astype(_U32) if wide else cnp.zeros_like(seed).astype(_U32)
    return cnp.stack([high, seed.astype(_U32)], axis=-1)


@entry("random_split")
def _split(equation: Equation, key: Any) -> Any:
    (keys,), shape = equation.inputs, tuple(equation.params["shape"])
    if not _is_native(equation):
        return _read(equation, _mapped(lambda k: _generator(keys).split(k, shape), keys.ndim), key)
    return cnp.stack(_encrypted(key, shape), axis=-1)


@entry("random_fold_in")
def _fold_in(equation: Equation, key: Any, data: Any) -> Any:
    keys, numbers = equation.inputs
    if not _is_threefry(keys):
        fold = _generator(keys).fold_in
        shape = np.broadcast_shapes(keys.shape, numbers.shape)

        def fold_in(key: Any, data: Any) -> Any:
            key = jax.numpy.broadcast_to(key, shape + key_words(keys))
            return _mapped(fold, len(shape))(key, jax.numpy.broadcast_to(data, shape))

        return _read(equation, fold_in, key, data)
    low = cnp.asarray(data).astype(_U32)
    return cnp.stack(threefry2x32(key[..., 0], key[..., 1], cnp.zeros_like(low), low), axis=-1)


@entry("random_bits")
def _random_bits(equation: Equation, key: Any) -> Any:
    (keys,), width, shape = equation.inputs, equation.params["bit_width"], tuple(equation.params["shape"])
    if not _is_native(equation):
        return _read(equation, _mapped(lambda k: _generator(keys).random_bits(k, width, shape), keys.ndim), key)
    high, low = _encrypted(key, shape)
    if width == 64:
        return (high.astype(np.uint64) << np.uint64(32)) | low.astype(np.uint64)
    return (high ^ low).astype(np.dtype(f"uint{width}"))


@entry("random_gamma")
def _gamma(equation: Equation, key: Any, alpha: Any) -> Any:
    """For each key of an array the numbers of as many parameters as there are for it."""
    log_space = equation.params["log_space"]
    if not _is_native(equation):

        def of_words(words: Any, alpha: Any) -> Any:
            keys = jax.random.wrap_key_data(words, impl=_generator(equation.inputs[0]).name)
            return equation.jax.primitive.impl(keys, alpha, **equation.params)

        return differentiable(lambda key, alpha: _read(equation, of_words, key, alpha), log_space)(key, alpha)
    draw = loggamma if log_space else gamma
    if len(key.shape) == 1:
        return draw(key, alpha, dtype=alpha.dtype)
    rows = int(np.prod(key.shape[:-1]))
    drawn = vmap(lambda key, a: draw(key, a, dtype=a.dtype))(
        cnp.reshape(key, (rows, 2)), cnp.reshape(alpha, (rows, *alpha.shape[len(key.shape) - 1 :]))
    )
    return cnp.reshape(drawn, alpha.shape)


@entry("threefry2x32")
def _threefry(equation: Equation, *operands: Any) -> Any:
    return threefry2x32(*operands)


@entry("iota_2x32_shape")
def _iota_2x32(equation: Equation) -> Any:
    return tuple(map(recorded, _counters(tuple(equation.params["shape"]))))


# XLA's generators of bits, as JAX's `rng_bit_generator` has them on the processor.
#
# The state is four words, or two of 64 bits, low half first: a key and a counter. Which is the default is the
# platform's choice; on processors and on NVIDIA's cards it is Philox.


_U64 = np.uint64
_THREE_FRY = 1

# Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011), section 3.3, and the authors' Random123.
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def _halves(x: Any) -> tuple[Any, Any]:
    """The low and the high half of 64 bits."""
    return x.astype(_U32), (x >> _U64(32)).astype(_U32)


def _joined(low: Any, high: Any) -> Any:
    return low.astype(_U64) | (high.astype(_U64) << _U64(32))


def philox4x32(counter: tuple[Any, Any, Any, Any], key: tuple[Any, Any]) -> tuple[Any, Any, Any, Any]:
    """Counters of four words, the lowest first, encrypted with a key of two."""
    a, b, c, d = counter
    first, second = key
    for _ in range(_ROUNDS):
        low0, high0 = _halves(a.astype(_U64) * _U64(_MULTIPLIERS[0]))
        low1, high1 = _halves(c.astype(_U64) * _U64(_MULTIPLIERS[1]))
        a, b, c, d = high1 ^ b ^ first, low1, high0 ^ d ^ second, low0
        first, second = first + _U32(_KEY_STEPS[0]), second + _U32(_KEY_STEPS[1])
    return a, b, c, d


def _philox(key: Any, counter: Any, shape: tuple[int, ...], wide: bool) -> tuple[Any, int]:
    """Bits of a shape, and by how much the counter grows; each number of it makes four words."""
    size = math.prod(shape)
    count = -(-size * (1 + wide) // 4)
    low = counter + np.arange(count, dtype=_U64)
    # The state has no place for the upper half of the counter: XLA takes the key for it.
    high = key + (low < counter).astype(_U64)
    a, b, c, d = philox4x32((*_halves(low), *_halves(high)), _halves(key))
    words = [_joined(a, b), _joined(c, d)] if wide else [a, b, c, d]
    return cnp.reshape(cnp.ravel(cnp.stack(words, axis=1))[:size], shape), count


def _threefry_bits(key: Any, counter: Any, shape: tuple[int, ...], wide: bool) -> tuple[Any, int]:
    """As `_philox`; each number of the counter makes two words, which become neighbours along one axis."""
    sizes = shape or (1,)
    even = [a for a, n in enumerate(sizes) if n % 2 == 0]
    axis = even[0] if even else sizes.index(max(sizes))
    half = sizes if wide else tuple((n + 1) // 2 if a == axis else n for a, n in enumerate(sizes))
    count = math.prod(half)
    words = threefry2x32(*_halves(key), *_halves(counter + np.arange(count, dtype=_U64)))
    if wide:
        return cnp.reshape(_joined(*words), shape), count
    pairs = cnp.stack([cnp.reshape(word, half) for word in words], axis=axis + 1)
    both = cnp.reshape(pairs, tuple(2 * n if a == axis else n for a, n in enumerate(half)))
    return cnp.reshape(both[tuple(map(slice, sizes))], shape), count


@entry("rng_bit_generator")
def _rng_bit_generator(equation: Equation, state: Any) -> Any:
    state, dtype = recorded(state), np.dtype(equation.params["dtype"])
    # Arrays of one element: integers wrap in arrays, where NumPy's scalars would warn.
    parts = [state[i : i + 1] for i in range(state.shape[0])]
    has_words = len(parts) == 4
    key, counter = (_joined(*parts[:2]), _joined(*parts[2:])) if has_words else parts
    draw = _threefry_bits if int(equation.params["algorithm"]) == _THREE_FRY else _philox
    bits, count = draw(key, counter, tuple(equation.params["shape"]), dtype == _U64)
    after = counter + _U64(count)
    return cnp.concatenate([*_halves(key), *_halves(after)] if has_words else [key, after]), bits.astype(dtype)
