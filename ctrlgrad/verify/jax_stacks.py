"""Translation of each op on stacks to JAX, in two forms with one table each.

`BOUNDED`: a buffer with room for the most rows that the recorded run had, and a length: arrays of fixed
shape, fit to be carried by a scan. Rows at and above the length are zeros, always.

`LISTS`: a Python list, None for a slot never written: for a translation that runs step by step, where
elements may have any shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp

from ctrlgrad.ir import Node, StackType, TensorType, attributes
from ctrlgrad.verify.recording import Sizes


class BoundedStack(NamedTuple):
    """`buffer[capacity, *element]` and the number of rows in use; a pytree."""

    buffer: Any
    length: Any


class NotStaticError(Exception):
    """A size differs between executions of one node: the program has no form with fixed shapes."""


Entry = Callable[..., Any]

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


def _push(node: Node, sizes: Sizes | None, s: BoundedStack, value: Any) -> BoundedStack:
    return BoundedStack(s.buffer.at[s.length].set(_row(s, value)), s.length + 1)


def _pop(node: Node, sizes: Sizes | None, s: BoundedStack, *dims: Any) -> tuple[BoundedStack, Any]:
    last = s.length - 1
    return BoundedStack(s.buffer.at[last].set(jnp.zeros((), s.buffer.dtype)), last), s.buffer[last]


def _write(node: Node, sizes: Sizes | None, s: BoundedStack, index: Any, value: Any) -> BoundedStack:
    buffer = s.buffer.at[_slot(s, index)].set(_row(s, value))
    return BoundedStack(buffer, jnp.maximum(s.length, index.astype(jnp.int64) + 1))


def _add(node: Node, sizes: Sizes | None, s: BoundedStack, index: Any, value: Any) -> BoundedStack:
    return BoundedStack(s.buffer.at[_slot(s, index)].add(_row(s, value)), s.length)


def _clear(node: Node, sizes: Sizes | None, s: BoundedStack, index: Any) -> BoundedStack:
    return BoundedStack(s.buffer.at[_slot(s, index)].set(0), s.length)


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


def _split(node: Node, sizes: Sizes | None, x: Any, rows: Any) -> BoundedStack:
    assert sizes is not None
    axis = attributes.Axis.of(node).axis
    parts = x.reshape(*x.shape[:axis], rows.shape[0], sizes[1 + axis], *x.shape[axis + 1 :])
    return _from_tensor(node, sizes, jnp.moveaxis(parts, axis, 0))


BOUNDED["stack_new"] = _new
BOUNDED["stack_from_tensor"] = _from_tensor
BOUNDED["stack_push"] = _push
BOUNDED["stack_pop"] = _pop
BOUNDED["stack_read"] = lambda node, sizes, s, index, *dims: s.buffer[_slot(s, index)]
BOUNDED["stack_write"] = _write
BOUNDED["stack_add"] = _add
BOUNDED["stack_clear"] = _clear
BOUNDED["stack_resize"] = _resize
BOUNDED["stack_sum"] = lambda node, sizes, a, b: BoundedStack(a.buffer + b.buffer, jnp.maximum(a.length, b.length))
BOUNDED["stack_length"] = lambda node, sizes, s: s.length
BOUNDED["stack_to_tensor"] = _to_tensor
BOUNDED["stack_rows"] = _rows
BOUNDED["stack_concat"] = _concat
BOUNDED["stack_split"] = _split


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


def _list_rows(node: Node, sizes: Sizes | None, s: list[Any]) -> Any:
    return jnp.asarray([_filled(node, v, ()).shape[attributes.Axis.of(node).axis] for v in s], jnp.int64)


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
LISTS["stack_rows"] = _list_rows
LISTS["stack_concat"] = _list_concat
LISTS["stack_split"] = _list_split
