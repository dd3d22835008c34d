"""A forward graph as a JAX function, so that JAX's own derivatives can judge ours.

JAX cannot differentiate a `while_loop` in reverse. Two forms that it can:

- `scan`: a loop is a `lax.scan` over as many steps as the recorded run took at most; each step runs the body
  under `lax.cond` where the loop is still going and keeps the carry where it has ended, so an ended loop
  computes nothing (and leaks no NaN into a gradient). Branches are `lax.switch`, stacks are buffers. The whole
  is compiled.
- `unrolled`: JAX runs op by op on concrete numbers, and Python's own `while` and `if` follow them. It takes
  programs whose sizes differ from iteration to iteration, which no scan can hold, and is slow.

`translate` chooses the first where it exists, and says in `Translation.form` what it chose. This path shares
no derivative rule with the library: it reads the forward graph alone.
"""

from __future__ import annotations

import importlib
import operator
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.nn
import jax.numpy as jnp
import jax.scipy.special
import numpy as np
from jax import lax

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.errors import UserInputError
from ctrlgrad.ir import (
    Call,
    Graph,
    Loop,
    Node,
    StackType,
    TensorType,
    Value,
    attributes,
    is_branch,
    is_call,
    is_loop,
    walk,
)
from ctrlgrad.ir.attributes import Key
from ctrlgrad.ir.flow import begins
from ctrlgrad.ops.arrays import fill
from ctrlgrad.ops.elementwise import FACTS
from ctrlgrad.verify.originals import original_of, originals
from ctrlgrad.verify.recording import Recording, Sizes, choice, is_dynamic, record, sizes_of

# Translation of each op on tensors to JAX: one table, an entry per op.
#
# An entry is called with the node, the sizes that the node takes from its operands' values (see
# `recording.sizes_of`; None where it takes none) and the operands as JAX arrays. It holds the op's meaning and
# nothing about derivatives: those are JAX's own.


Entry = Callable[..., Any]

TENSOR_OPS: dict[str, Entry] = {}


def jax_dtype(dtype: Any) -> Any:
    """The dtype that JAX has for one: of 32 bits while its 64-bit types are off."""
    return jax.dtypes.canonicalize_dtype(dtype)


def _elementwise(fn: Callable[..., Any]) -> Entry:
    return lambda node, sizes, *operands: fn(*operands)


for _name, _facts in FACTS.items():
    _function = operator.attrgetter(_facts.jax)(jax)
    if _facts.jax.startswith("lax."):
        # Functions of `lax` do not broadcast.
        _function = lambda *operands, fn=_function: fn(*jnp.broadcast_arrays(*operands))
    TENSOR_OPS[_name] = _elementwise(_function)
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


# Translation of each op on stacks to JAX, in two forms with one table each.
#
# `BOUNDED`: a buffer with room for the most rows that the recorded run had, and a length: arrays of fixed
# shape, fit to be carried by a scan. Rows at and above the length are zeros, always.
#
# `LISTS`: a Python list, None for a slot never written: for a translation that runs step by step, where
# elements may have any shape.


class BoundedStack(NamedTuple):
    """`buffer[capacity, *element]` and the number of rows in use; a pytree."""

    buffer: Any
    length: Any


class NotStaticError(Exception):
    """A size differs between executions of one node: the program has no form with fixed shapes."""


class NotInJaxError(Exception):
    """An op has no entry: it calls the host, or belongs to derivatives."""


BOUNDED: dict[str, Entry] = {}
LISTS: dict[str, Entry] = {}


def element_of(node: Node) -> TensorType:
    stack = next(v.type for v in (*node.operands, *node.results) if isinstance(v.type, StackType))
    return stack.element


# Bounded. For the ops that make a stack, `sizes` holds the capacity and the shape of an element.


def _new(node: Node, sizes: Sizes | None, rows: Any = 0) -> BoundedStack:
    assert sizes is not None
    return BoundedStack(jnp.zeros(sizes, element_of(node).dtype), jnp.asarray(rows, jnp.int64))


def _from_tensor(node: Node, sizes: Sizes | None, x: Any) -> BoundedStack:
    assert sizes is not None
    room = jnp.zeros((sizes[0] - x.shape[0], *x.shape[1:]), x.dtype)
    return BoundedStack(jnp.concatenate([x, room]), jnp.asarray(x.shape[0], jnp.int64))


def _row(s: BoundedStack, value: Any) -> Any:
    if jnp.shape(value) != s.buffer.shape[1:]:
        raise NotStaticError(f"elements of one stack have shapes {s.buffer.shape[1:]} and {jnp.shape(value)}")
    return value


def _slot(s: BoundedStack, index: Any) -> Any:
    return jnp.where(index < 0, index + s.length, index)


def _pop(node: Node, sizes: Sizes | None, s: BoundedStack, *dims: Any) -> tuple[BoundedStack, Any]:
    last = s.length - 1
    return BoundedStack(s.buffer.at[last].set(jnp.zeros((), s.buffer.dtype)), last), s.buffer[last]


def _write(node: Node, sizes: Sizes | None, s: BoundedStack, index: Any, value: Any) -> BoundedStack:
    buffer = s.buffer.at[_slot(s, index)].set(_row(s, value))
    return BoundedStack(buffer, jnp.maximum(s.length, index.astype(jnp.int64) + 1))


def _resize(node: Node, sizes: Sizes | None, s: BoundedStack, length: Any) -> BoundedStack:
    kept = jnp.arange(s.buffer.shape[0]) < length
    blank = jnp.zeros((), s.buffer.dtype)
    buffer = jnp.where(kept.reshape(-1, *[1] * (s.buffer.ndim - 1)), s.buffer, blank)
    return BoundedStack(buffer, jnp.asarray(length, jnp.int64))


def _to_tensor(node: Node, sizes: Sizes | None, s: BoundedStack, *dims: Any) -> Any:
    assert sizes is not None
    return s.buffer[: sizes[0]]


# Elements of one shape have as many rows in each slot.


def _rows(node: Node, sizes: Sizes | None, s: BoundedStack) -> Any:
    assert sizes is not None
    return jnp.full(sizes, s.buffer.shape[1 + attributes.Axis.of(node).axis], jnp.int64)


def _concat(node: Node, sizes: Sizes | None, s: BoundedStack, rows: Any, *dims: Any) -> Any:
    assert sizes is not None
    axis = attributes.Axis.of(node).axis
    parts = jnp.moveaxis(s.buffer[: sizes[0]], 0, axis)
    shape = parts.shape
    return parts.reshape(*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])


def _split_stack(node: Node, sizes: Sizes | None, x: Any, rows: Any) -> BoundedStack:
    assert sizes is not None
    axis = attributes.Axis.of(node).axis
    parts = x.reshape(*x.shape[:axis], rows.shape[0], sizes[1 + axis], *x.shape[axis + 1 :])
    return _from_tensor(node, sizes, jnp.moveaxis(parts, axis, 0))


BOUNDED["stack_new"] = _new
BOUNDED["stack_from_tensor"] = _from_tensor
BOUNDED["stack_push"] = lambda node, sizes, s, x: BoundedStack(s.buffer.at[s.length].set(_row(s, x)), s.length + 1)
BOUNDED["stack_pop"] = _pop
BOUNDED["stack_read"] = lambda node, sizes, s, index, *dims: s.buffer[_slot(s, index)]
BOUNDED["stack_write"] = _write
BOUNDED["stack_add"] = lambda node, sizes, s, i, x: BoundedStack(s.buffer.at[_slot(s, i)].add(_row(s, x)), s.length)
BOUNDED["stack_clear"] = lambda node, sizes, s, i: BoundedStack(s.buffer.at[_slot(s, i)].set(0), s.length)
BOUNDED["stack_resize"] = _resize
BOUNDED["stack_sum"] = lambda node, sizes, a, b: BoundedStack(a.buffer + b.buffer, jnp.maximum(a.length, b.length))
BOUNDED["stack_length"] = lambda node, sizes, s: s.length
BOUNDED["stack_to_tensor"] = _to_tensor
BOUNDED["stack_rows"] = _rows
BOUNDED["stack_concat"] = _concat
BOUNDED["stack_split"] = _split_stack


# Lists. A list is never changed, so that earlier values of a stack stay what they are.


def _zeros(node: Node, dims: Sequence[Any]) -> Any:
    element = element_of(node)
    rest = iter(dims)
    return jnp.zeros(tuple(int(next(rest)) if d is None else d for d in element.shape), element.dtype)


def _filled(node: Node, value: Any, dims: Sequence[Any]) -> Any:
    return _zeros(node, dims) if value is None else value


def _replaced(s: list[Any], index: Any, value: Any) -> list[Any]:
    position = int(index) if int(index) >= 0 else int(index) + len(s)
    return [*s[:position], value, *s[position + 1 :]]


def _list_add(node: Node, sizes: Sizes | None, s: list[Any], index: Any, value: Any) -> list[Any]:
    old = s[int(index)]
    return _replaced(s, index, value if old is None else old + value)


def _list_sum(node: Node, sizes: Sizes | None, a: list[Any], b: list[Any]) -> list[Any]:
    longer, shorter = (a, b) if len(a) >= len(b) else (b, a)
    both = [y if x is None else x if y is None else x + y for x, y in zip(longer, shorter, strict=False)]
    return both + longer[len(shorter) :]


def _list_to_tensor(node: Node, sizes: Sizes | None, s: list[Any], *dims: Any) -> Any:
    known = next((jnp.zeros_like(v) for v in s if v is not None), None)
    blank = _zeros(node, dims) if known is None else known
    rows = [blank if v is None else v for v in s]
    return jnp.stack(rows) if rows else jnp.zeros((0, *blank.shape), blank.dtype)


def _list_concat(node: Node, sizes: Sizes | None, s: list[Any], rows: Any, *dims: Any) -> Any:
    element, axis = element_of(node), attributes.Axis.of(node).axis
    known = next((v.shape for v in s if v is not None), None)
    if known is None:
        rest = iter(dims)
        known = [0 if i == axis else int(next(rest)) if d is None else d for i, d in enumerate(element.shape)]

    def blank(n: Any) -> Any:
        return jnp.zeros((*known[:axis], int(n), *known[axis + 1 :]), element.dtype)

    parts = [blank(n) if v is None else v for v, n in zip(s, rows, strict=True)]
    return jnp.concatenate(parts, axis) if parts else blank(0)


def _list_split(node: Node, sizes: Sizes | None, x: Any, rows: Any) -> list[Any]:
    ends = [int(end) for end in jnp.cumsum(rows)]
    return jnp.split(x, ends[:-1], attributes.Axis.of(node).axis) if ends else []


LISTS["stack_new"] = lambda node, sizes, size=0: [None] * int(size)
LISTS["stack_from_tensor"] = lambda node, sizes, x: [x[row] for row in range(x.shape[0])]
LISTS["stack_push"] = lambda node, sizes, s, value: [*s, value]
LISTS["stack_pop"] = lambda node, sizes, s, *dims: (s[:-1], _filled(node, s[-1], dims))
LISTS["stack_read"] = lambda node, sizes, s, index, *dims: _filled(node, s[int(index)], dims)
LISTS["stack_write"] = lambda node, sizes, s, index, value: _replaced(s, index, value)
LISTS["stack_add"] = _list_add
LISTS["stack_clear"] = lambda node, sizes, s, index: _replaced(s, index, None)
LISTS["stack_resize"] = lambda node, sizes, s, length: [*s[: int(length)], *[None] * (int(length) - len(s))]
LISTS["stack_sum"] = _list_sum
LISTS["stack_length"] = lambda node, sizes, s: jnp.asarray(len(s), jnp.int64)
LISTS["stack_to_tensor"] = _list_to_tensor
LISTS["stack_rows"] = lambda node, sizes, s: jnp.asarray(
    [_filled(node, v, ()).shape[attributes.Axis.of(node).axis] for v in s], jnp.int64
)
LISTS["stack_concat"] = _list_concat
LISTS["stack_split"] = _list_split

# Translation of ops on complex numbers, orders, matrices and spectra: further entries of `jax_ops.TENSOR_OPS`.


_FIRST = frozenset(TENSOR_OPS)


def _argsort(node: Node, sizes: Sizes | None, x: Any) -> Any:
    order = jnp.argsort(
        x, axis=attributes.Axis.of(node).axis, descending=attributes.Order.of(node).descending, stable=True
    )
    return order.astype(jnp.int64)


def _top_k(node: Node, sizes: Sizes | None, x: Any) -> Any:
    axis, count = attributes.Axis.of(node).axis, attributes.Selection.of(node).count
    places = lax.top_k(jnp.moveaxis(x, axis, -1), count)[1]
    return jnp.moveaxis(places, -1, axis).astype(jnp.int64)


def _nonzero(node: Node, sizes: Sizes | None, x: Any) -> Any:
    try:
        return jnp.stack(jnp.nonzero(x)).astype(jnp.int64)
    except jax.errors.ConcretizationTypeError as error:
        raise NotStaticError(f"the number of results of nonzero{_at(node)} depends on data") from error


def _solve(a: Any, b: Any) -> Any:
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return jnp.linalg.solve(*(jnp.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (a, b)))


def _triangular_solve(node: Node, sizes: Sizes | None, a: Any, b: Any) -> Any:
    given = attributes.Triangle.of(node)
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (jnp.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (a, b))
    return lax.linalg.triangular_solve(a, b, left_side=True, lower=given.lower, unit_diagonal=given.unit_diagonal)


def _singular_vectors(a: Any) -> Any:
    u, _, vh = jnp.linalg.svd(a, full_matrices=False)
    return jnp.concatenate([u, jnp.conj(jnp.swapaxes(vh, -1, -2))], axis=-2)


def _pinv(a: Any, rtol: Any) -> Any:
    # JAX's own takes a bound that is known while it traces.
    u, s, vh = jnp.linalg.svd(a, full_matrices=False)
    counts = s > jnp.asarray(rtol)[..., None] * s[..., :1]
    inverse = jnp.where(counts, 1 / jnp.where(counts, s, 1), 0)
    return (jnp.conj(jnp.swapaxes(vh, -1, -2)) * inverse[..., None, :]) @ jnp.conj(jnp.swapaxes(u, -1, -2))


def _fft(node: Node, sizes: Sizes | None, x: Any) -> Any:
    if attributes.Transform.of(node).inverse:
        return jnp.fft.ifft(x, axis=attributes.Axis.of(node).axis, norm="forward")
    return jnp.fft.fft(x, axis=attributes.Axis.of(node).axis)


def _irfft(node: Node, sizes: Sizes | None, z: Any) -> Any:
    given = attributes.RealTransform.of(node)
    return jnp.fft.irfft(z, given.size, given.axis, norm="forward")


_MATRICES: dict[str, Entry] = {
    "solve": _elementwise(_solve),
    "triangular_solve": _triangular_solve,
    "cholesky": _elementwise(lambda a: jnp.linalg.cholesky(a, symmetrize_input=False)),
    "det": _elementwise(jnp.linalg.det),
    "adjugate": _elementwise(lambda a: jnp.linalg.det(a)[..., None, None] * jnp.linalg.inv(a)),
    "logabsdet": _elementwise(lambda a: jnp.linalg.slogdet(a)[1]),
    "det_sign": _elementwise(lambda a: jnp.linalg.slogdet(a)[0]),
    "orthonormal": _elementwise(lambda a: jnp.linalg.qr(a)[0]),
    "eigenvalues": _elementwise(lambda a: jnp.linalg.eigh(a, symmetrize_input=False)[0]),
    "eigenvectors": _elementwise(lambda a: jnp.linalg.eigh(a, symmetrize_input=False)[1]),
    "general_eigenvalues": _elementwise(jnp.linalg.eigvals),
    "general_eigenvectors": _elementwise(lambda a: jnp.linalg.eig(a)[1]),
    "singular_values": _elementwise(lambda a: jnp.linalg.svd(a, full_matrices=False)[1]),
    "singular_vectors": _elementwise(_singular_vectors),
    "pinv": _elementwise(_pinv),
}

TENSOR_OPS |= _MATRICES
TENSOR_OPS |= {
    "argsort": _argsort,
    "top_k": _top_k,
    "nonzero": _nonzero,
    "searchsorted": lambda node, sizes, row, values: jnp.searchsorted(
        row, values, side=attributes.Search.of(node).side
    ).astype(jnp.int64),
    "fft": _fft,
    "rfft": lambda node, sizes, x: jnp.fft.rfft(x, axis=attributes.Axis.of(node).axis),
    "irfft": _irfft,
}

# Ops that only the judge translates; `to_jax` has those of the first table.
ADDED = frozenset(TENSOR_OPS) - _FIRST

# In `jax` itself since JAX 0.8.
_enable_x64: Any = (jax if hasattr(jax, "enable_x64") else importlib.import_module("jax.experimental")).enable_x64

_LEVEL = "xla_backend_optimization_level"
_UNKNOWN_OPTION = "No such compile option"


def _quick() -> dict[str, Any]:
    """Options for programs that run once or twice: compiling them is the larger part of the time.

    Level 0 would be quicker still, and gives NaN for some gradients of loops (jaxlib 0.10.2). Where `XLA_FLAGS` names a
    level, it is that one.
    """
    quick: dict[str, Any] = {"xla_llvm_disable_expensive_passes": True}
    return quick if _LEVEL in os.environ.get("XLA_FLAGS", "") else {_LEVEL: 1, **quick}


Form = Literal["scan", "unrolled"]
Arrays = tuple[Any, ...]


def x64(on: bool = True) -> AbstractContextManager[Any]:
    """Enable or disable 64-bit types in JAX for a block; the user's setting is restored."""
    return _enable_x64(on)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Translation:
    """A JAX function of a graph's inputs, valid for all arguments on the path of those it was made for."""

    graph: Graph
    form: Form
    recording: Recording
    function: Callable[..., Arrays]

    def settings(self) -> AbstractContextManager[Any]:
        """JAX's setting for its calls: 64-bit types, unless a JAX function that it calls was traced without them."""
        return x64(all(original.x64 for original in originals(self.graph)))

    def __call__(self, *arguments: Any) -> tuple[np.ndarray, ...]:
        """The outputs as NumPy arrays."""
        with self.settings():
            given = [jax.device_put(np.asarray(x)) for x in arguments]
            return tuple(np.asarray(x) for x in self.run(self.function, *given))

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call `function`, which is this translation's or a derivative of it: compiled, or op by op if unrolled."""
        config: Any = jax.config
        if self.form == "unrolled" or config.jax_disable_jit:
            return function(*arguments)
        lowered = jax.jit(function).lower(*arguments)
        try:
            return lowered.compile(compiler_options=_quick())(*arguments)
        except jax.errors.JaxRuntimeError as error:
            # Versions of XLA differ in their options.
            if _UNKNOWN_OPTION not in str(error):
                raise
            return lowered.compile()(*arguments)


def translate(graph: Graph, arguments: Sequence[Any], form: Form | None = None) -> Translation:
    """Translate a graph for given arguments, by the form asked for or, if None, by `scan` where it exists.

    Raises `UserInputError` where a graph takes or returns a stack, or has no `scan` form and that was asked for, and
    `NotInJaxError`.
    """
    for node in walk(graph):
        if not (is_loop(node) or is_branch(node) or is_call(node) or node.op.name in TENSOR_OPS | BOUNDED):
            raise NotInJaxError(f"JAX has no form of {node.op.name}{_at(node)}")
    for value in (*graph.inputs, *graph.outputs):
        if isinstance(value.type, StackType):
            raise UserInputError(
                "check against JAX: a TensorArray is an argument or a result of the function",
                got=str(value.type),
                hint="return array.stack() instead, and make TensorArrays inside the function",
            )
    arguments = [np.asarray(x) for x in arguments]
    recording = record(graph, arguments)
    if form == "unrolled":
        return Translation(graph, "unrolled", recording, _Unrolled().function(graph))
    # Compiled as a whole: JAX then walks the graph once, and not again for each derivative.
    function = jax.jit(_Scan(recording).function(graph))
    found = Translation(graph, "scan", recording, function)
    try:
        with found.settings():
            jax.eval_shape(function, *arguments)
    except NotStaticError as error:
        if form == "scan":
            raise UserInputError(
                "check against JAX: the program has no form with fixed sizes", got=str(error), hint='form="unrolled"'
            ) from error
        return Translation(graph, "unrolled", recording, _Unrolled().function(graph))
    return found


class Translator(ABC):
    """Runs a graph's nodes on JAX values; the subclasses say what control flow, stacks and sizes are."""

    stacks: ClassVar[dict[str, Callable[..., Any]]]

    def function(self, graph: Graph) -> Callable[..., Arrays]:
        return lambda *arguments: self.run(graph, tuple(jnp.asarray(x) for x in arguments))

    def run(self, graph: Graph, arguments: Arrays) -> Arrays:
        values: dict[Value, Any] = dict(zip(graph.inputs, arguments, strict=True))
        for node in graph.nodes:
            results = self.node(node, tuple(values[v] for v in node.operands))
            values.update(zip(node.results, results, strict=True))
        return tuple(values[v] for v in graph.outputs)

    def node(self, node: Node, operands: Arrays) -> Arrays:
        if is_loop(node):
            return self.loop(node, operands)
        if is_branch(node):
            return self.branch(node, operands)
        if is_call(node):
            # Only calls that keep a JAX function are left.
            original = original_of(Call.of(node))
            assert original is not None
            return tuple(original.function(*operands))
        entry = TENSOR_OPS.get(node.op.name) or self.stacks[node.op.name]
        results = entry(node, self.sizes(node, operands), *operands)
        return results if len(node.results) != 1 else (results,)

    @abstractmethod
    def loop(self, node: Node, operands: Arrays) -> Arrays: ...

    @abstractmethod
    def branch(self, node: Node, operands: Arrays) -> Arrays: ...

    @abstractmethod
    def sizes(self, node: Node, operands: Arrays) -> Sizes | None: ...


class _Scan(Translator):
    stacks = BOUNDED

    def __init__(self, recording: Recording) -> None:
        self.recording = recording

    def sizes(self, node: Node, operands: Arrays) -> Sizes | None:
        if begins(node):
            return self.room(node.result)
        sizes = self.recording.sizes.get(node, ())
        if sizes is None:
            raise NotStaticError(f"{node.op.name}{_at(node)} has another size at each execution")
        return sizes or None

    def room(self, stack: Value) -> Sizes:
        shape = self.recording.element_shape[stack]
        if shape is None:
            raise NotStaticError(f"the elements of a {stack.type} differ in shape")
        return (self.recording.capacity[stack], *shape)

    def loop(self, node: Node, operands: Arrays) -> Arrays:
        loop = Loop.of(node)
        captures, start = map(tuple, loop.split(operands))
        trips = self.recording.trips(node)
        if trips == 0:
            return start

        def advance(carry: Arrays) -> Arrays:
            after = self.run(loop.body, captures + carry)
            _same_shapes(f"the carry of the loop{_at(node)}", carry, after)
            return after

        def going(carry: Arrays) -> Any:
            return self.run(loop.cond, captures + carry)[0]

        def step(state: tuple[Arrays, Any], _: None) -> tuple[tuple[Arrays, Any], None]:
            carry, alive = state

            def proceed(carry: Arrays) -> tuple[Arrays, Any]:
                after = advance(carry)
                return after, going(after)

            return lax.cond(alive, proceed, lambda carry: (carry, jnp.asarray(False)), carry), None

        if self.recording.always_takes_all_trips(node):
            # No execution ends before another: the mask would always be true.
            return lax.scan(lambda carry, _: (advance(carry), None), start, None, length=trips)[0]
        return lax.scan(step, (start, going(start)), None, length=trips)[0][0]

    def branch(self, node: Node, operands: Arrays) -> Arrays:
        selector, *rest = operands
        executed = sorted(self.recording.branches.get(node, ()))
        assert executed, "a node that never ran stands in a loop or branch that is not translated"
        if len(executed) == 1:
            return self.run(node.regions[executed[0]], tuple(rest))
        first: list[Arrays] = []

        def function(region: Graph) -> Callable[..., Arrays]:
            def call(*arguments: Any) -> Arrays:
                results = self.run(region, arguments)
                _same_shapes(f"the results of the branch{_at(node)}", first[0] if first else results, results)
                first.append(results)
                return results

            return call

        # A branch that the recorded run never took is not translated: its place is held by one that it took.
        chosen = [number if number in executed else executed[0] for number in range(len(node.regions))]
        functions = {number: function(node.regions[number]) for number in executed}
        result: Arrays = lax.switch(selector.astype(jnp.int32), [functions[number] for number in chosen], *rest)
        return result


class _Unrolled(Translator):
    stacks = LISTS

    def sizes(self, node: Node, operands: Arrays) -> Sizes | None:
        return sizes_of(node, operands)

    def loop(self, node: Node, operands: Arrays) -> Arrays:
        loop = Loop.of(node)
        captures, carry = map(tuple, loop.split(operands))
        while bool(self.run(loop.cond, captures + carry)[0]):
            carry = self.run(loop.body, captures + carry)
        return carry

    def branch(self, node: Node, operands: Arrays) -> Arrays:
        selector, *rest = operands
        return self.run(node.regions[choice(node, selector)], tuple(rest))


def _same_shapes(what: str, before: Arrays, after: Arrays) -> None:
    one, other = ([jnp.shape(x) for x in jax.tree.leaves(values)] for values in (before, after))
    if one != other:
        raise NotStaticError(f"{what} changes its shapes from {one} to {other}")


def _at(node: Node) -> str:
    return f" at {node.source}" if node.source else ""
