"""Translation of each op on tensors to JAX: one table, an entry per op.

An entry is called with the node, the sizes that the node takes from its operands' values (see
`recording.sizes_of`; None where it takes none) and the operands as JAX arrays. It holds the op's meaning and
nothing about derivatives: those are JAX's own.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.nn
import jax.numpy as jnp
import jax.scipy.special
import numpy as np
from jax import lax

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.ir import Node, attributes
from ctrlgrad.ir.attributes import Key
from ctrlgrad.ops.arrays import fill
from ctrlgrad.ops.elementwise import FACTS
from ctrlgrad.verify.recording import Sizes, is_dynamic

Entry = Callable[..., Any]

TENSOR_OPS: dict[str, Entry] = {}


def jax_dtype(dtype: Any) -> Any:
    """The dtype that JAX has for one: of 32 bits while its 64-bit types are off."""
    return jax.dtypes.canonicalize_dtype(dtype)


def _elementwise(fn: Callable[..., Any]) -> Entry:
    return lambda node, sizes, *operands: fn(*operands)


def _on_one_shape(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Functions of `lax` do not broadcast."""
    return lambda *operands: fn(*jnp.broadcast_arrays(*operands))


for _name, _facts in FACTS.items():
    _function = operator.attrgetter(_facts.jax)(jax)
    TENSOR_OPS[_name] = _elementwise(_on_one_shape(_function) if _facts.jax.startswith("lax.") else _function)
for _name in ("float_to_bits", "bits_to_float", "bits_to_bfloat16"):
    TENSOR_OPS[_name] = lambda node, sizes, x: lax.bitcast_convert_type(x, node.result.tensor.dtype)


@jax.custom_jvp
def _strong_product(x: Any, y: Any) -> Any:
    return jnp.where(x == 0, 0, x * y)


@_strong_product.defjvp
def _push_strong_product(primals: Any, tangents: Any) -> Any:
    (x, y), (dx, dy) = primals, tangents
    # Linear in the tangents, so that JAX can transpose it: an infinite y is left out where x is zero.
    return _strong_product(x, y), dx * jnp.where((x == 0) & ~jnp.isfinite(y), 0, y) + dy * x


TENSOR_OPS["strong_multiply"] = _elementwise(_strong_product)

TENSOR_OPS["barrier"] = TENSOR_OPS["forget_sizes"] = TENSOR_OPS["watch"] = lambda node, sizes, x: x
TENSOR_OPS["callback"] = lambda node, sizes, *operands: ()
TENSOR_OPS["stop_gradient"] = lambda node, sizes, x: lax.stop_gradient(x)
TENSOR_OPS["matmul"] = lambda node, sizes, a, b: jnp.matmul(a, b, precision="highest")


def _cast(node: Node, sizes: Sizes | None, x: Any) -> Any:
    dtype = jax_dtype(attributes.Cast.of(node).dtype)
    # NumPy drops the imaginary part; JAX would too, with a warning.
    return (x.real if dtype_kind(x.dtype) == "c" and dtype_kind(dtype) not in "bc" else x).astype(dtype)


TENSOR_OPS["cast"] = _cast


def _reduction(fn: Callable[..., Any], *, keeps_dtype: bool = False) -> Entry:
    def entry(node: Node, sizes: Sizes | None, x: Any) -> Any:
        more = {"dtype": x.dtype} if keeps_dtype else {}
        return fn(x, axis=attributes.Axes.of(node).axes, keepdims=attributes.Reduction.of(node).keepdims, **more)

    return entry


TENSOR_OPS |= {"sum": _reduction(jnp.sum, keeps_dtype=True), "prod": _reduction(jnp.prod, keeps_dtype=True)}
TENSOR_OPS |= {name: _reduction(getattr(jnp, name)) for name in ("max", "min", "any", "all")}


def _position(fn: Callable[..., Any]) -> Entry:
    def entry(node: Node, sizes: Sizes | None, x: Any) -> Any:
        (axis,) = attributes.Axes.of(node).axes
        return fn(x, axis=axis, keepdims=attributes.Reduction.of(node).keepdims).astype(jax_dtype(np.int64))

    return entry


TENSOR_OPS |= {"argmax": _position(jnp.argmax), "argmin": _position(jnp.argmin)}


def _accumulation(fn: Callable[..., Any]) -> Entry:
    def entry(node: Node, sizes: Sizes | None, x: Any) -> Any:
        axis = attributes.Axis.of(node).axis
        if attributes.Scan.of(node).reverse:
            return jnp.flip(fn(jnp.flip(x, axis), axis=axis, dtype=x.dtype), axis)
        return fn(x, axis=axis, dtype=x.dtype)

    return entry


TENSOR_OPS |= {"cumsum": _accumulation(jnp.cumsum), "cumprod": _accumulation(jnp.cumprod)}


def _shape(node: Node, sizes: Sizes | None) -> Sizes:
    rest = iter(sizes or ())
    return tuple(next(rest) if d is None else d for d in attributes.Shape.of(node).shape)


def _sum_to(node: Node, sizes: Sizes | None, x: Any, *dims: Any) -> Any:
    shape = _shape(node, sizes)
    lead = x.ndim - len(shape)
    stretched = [lead + axis for axis, d in enumerate(shape) if d == 1 and x.shape[lead + axis] != 1]
    return jnp.sum(x, axis=(*range(lead), *stretched), dtype=x.dtype).reshape(shape)


def _ensure_sizes(node: Node, sizes: Sizes | None, x: Any, *dims: Any) -> Any:
    given = attributes.Required.of(node)
    found, wanted = tuple(x.shape[a] for a in given.axes), tuple(map(int, _shape(node, sizes)))
    if found != wanted:
        raise ValueError(f"{given.problem}: {found}, not {wanted}")
    return x


TENSOR_OPS["constant"] = lambda node, sizes: jnp.asarray(attributes.Constant.of(node).value)
TENSOR_OPS["dim"] = lambda node, sizes, x: jnp.asarray(x.shape[attributes.Axis.of(node).axis], jax_dtype(np.int64))
TENSOR_OPS["common_size"] = lambda node, sizes, x: jnp.max(x, initial=0)
TENSOR_OPS["iota"] = lambda node, sizes, *dims: jnp.arange(_shape(node, sizes)[0], dtype=jax_dtype(np.int64))
TENSOR_OPS["reshape"] = lambda node, sizes, x, *dims: jnp.reshape(x, _shape(node, sizes))
TENSOR_OPS["ensure_sizes"] = _ensure_sizes
TENSOR_OPS["broadcast_to"] = lambda node, sizes, x, *dims: jnp.broadcast_to(x, _shape(node, sizes))
TENSOR_OPS["sum_to"] = _sum_to
TENSOR_OPS["transpose"] = lambda node, sizes, x: jnp.transpose(x, attributes.Axes.of(node).axes)
TENSOR_OPS["expand_dims"] = lambda node, sizes, x: jnp.expand_dims(x, attributes.Axes.of(node).axes)
TENSOR_OPS["squeeze"] = lambda node, sizes, x: jnp.squeeze(x, attributes.Axes.of(node).axes)
TENSOR_OPS["flip"] = lambda node, sizes, x: jnp.flip(x, attributes.Axes.of(node).axes)
TENSOR_OPS["concat"] = lambda node, sizes, *xs: jnp.concatenate(xs, axis=attributes.Axis.of(node).axis)


# Indexing. A slice whose bounds are operands has a known length and a traced start: it is taken along its
# axis as an array of positions first, and stands as a full slice in what remains of the key.


def _getitem(node: Node, sizes: Sizes | None, x: Any, *indices: Any) -> Any:
    key, positions = _split(attributes.Index.of(node).key, indices, x.shape, sizes)
    for axis, where in positions:
        x = jnp.take(x, where, axis=axis, mode="clip") if where.size else lax.slice_in_dim(x, 0, 0, axis=axis)
    return x[key]


def _update(replace: Callable[[Any, Any, Any], Any]) -> Entry:
    def entry(node: Node, sizes: Sizes | None, x: Any, value: Any, *indices: Any) -> Any:
        key, positions = _split(attributes.Index.of(node).key, indices, x.shape, sizes)
        return nested(x, value, key, positions)

    def nested(x: Any, value: Any, key: Any, positions: Sequence[tuple[int, Any]]) -> Any:
        if not positions:
            return replace(x, key, value)
        (axis, where), *rest = positions
        if not where.size:
            return x
        part = nested(jnp.take(x, where, axis=axis, mode="clip"), value, key, rest)
        return x.at[(slice(None),) * axis + (where,)].set(part)

    return entry


def _split(
    key: Key, indices: Sequence[Any], shape: Sequence[int], sizes: Sizes | None
) -> tuple[tuple[Any, ...], list[tuple[int, Any]]]:
    """The filled key with full slices for the dynamic ones, and (axis, positions) for each of these."""
    lengths = iter(sizes or ())
    rest: list[Any] = []
    positions: list[tuple[int, Any]] = []
    axis = 0
    for item, filled in zip(key, fill(key, indices), strict=True):
        if is_dynamic(item):
            positions.append((axis, _positions(filled, shape[axis], next(lengths))))
            filled = slice(None)
        rest.append(filled)
        axis += item is not None
    return tuple(rest), positions


def _positions(item: slice, dim: int, length: int) -> Any:
    """The positions that a slice selects, by Python's rule for negative and too large bounds."""
    step = jnp.asarray(1 if item.step is None else item.step, jax_dtype(np.int64))
    low, high = jnp.where(step > 0, 0, -1), jnp.where(step > 0, dim, dim - 1)
    if item.start is None:
        start = jnp.where(step > 0, low, high)
    else:
        start = jnp.asarray(item.start, jax_dtype(np.int64))
        start = jnp.clip(jnp.where(start < 0, start + dim, start), low, high)
    return start + step * jnp.arange(length, dtype=jax_dtype(np.int64))


TENSOR_OPS["getitem"] = _getitem
TENSOR_OPS["setitem"] = _update(lambda x, key, value: x.at[key].set(value))
TENSOR_OPS["additem"] = _update(lambda x, key, value: x.at[key].add(value))
