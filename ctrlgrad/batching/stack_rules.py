"""Batching of stack ops, by the kind of stack that the rows have (see `lanes`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ctrlgrad.batching.lanes import Fresh, Lane, Ragged, Same, Uniform, redirect
from ctrlgrad.batching.ragged import RaggedOps
from ctrlgrad.batching.stacks import as_ragged, as_uniform, element_of, new_ragged, plain, table, uniform_sizes
from ctrlgrad.batching.table import batches
from ctrlgrad.batching.walk import Walk
from ctrlgrad.ir import Node, TensorType, Value
from ctrlgrad.ops.indexing import DYNAMIC
from ctrlgrad.ops.term import Term, emit, transpose


def _sizes(walk: Walk, element: TensorType, given: Sequence[Value]) -> list[int | Term] | None:
    """All sizes of an element, or None where they are not known."""
    if None in element.shape and not given:
        return None
    rest = iter(given)
    return [walk.same(next(rest)) if d is None else d for d in element.shape]


def _is_ragged(walk: Walk, lane: Lane, *indices: Value) -> bool:
    """Whether an update makes the rows' stacks differ in how far they are."""
    if isinstance(lane, Ragged) or not all(walk.is_same(v) for v in indices):
        return True
    return isinstance(lane, Uniform) and lane.guard is not None


def _ragged(walk: Walk, lane: Lane) -> RaggedOps:
    return RaggedOps(walk.builder, walk.rows, as_ragged(lane, walk.rows))


def _uniform(walk: Walk, op: str, s: Uniform, operands: Sequence[Term], attrs: Mapping[str, Any]) -> Uniform:
    values = [s.value, *(x.value for x in operands)]
    return Uniform(walk.builder, walk.builder.emit(op, values, attrs), marked=s.marked)


def _seen(walk: Walk, s: Uniform, read: Term) -> Lane:
    return walk.lane(read if s.guard is None else redirect(read, s.guard))


@batches("stack_new")
def _new(walk: Walk, node: Node) -> Sequence[Lane]:
    return [new_ragged(walk.builder, walk.rows, walk.term(node.operands[0]), node.attrs["element"])]


@batches("stack_push")
def _push(walk: Walk, node: Node) -> Sequence[Lane]:
    s, value = node.operands
    lane = walk.lanes[s]
    if _is_ragged(walk, lane):
        return [_ragged(walk, lane).push(walk.batched(value)).stack]
    return [_uniform(walk, "stack_push", as_uniform(lane, walk.rows), [walk.batched(value)], {})]


@batches("stack_pop")
def _pop(walk: Walk, node: Node) -> Sequence[Lane]:
    s, *given = node.operands
    lane = walk.lanes[s]
    if _is_ragged(walk, lane):
        stack, value = _ragged(walk, lane).pop(_sizes(walk, element_of(lane), given))
        return [stack.stack, walk.lane(value)]
    uniform = as_uniform(lane, walk.rows)
    sizes = uniform_sizes(uniform, walk.rows, [walk.same(v) for v in given])
    rest, popped = walk.builder.emit_all("stack_pop", [uniform.value, *sizes], node.attrs)
    return [Uniform(walk.builder, rest, marked=uniform.marked), walk.lane(Term(walk.builder, popped))]


@batches("stack_read")
def _read(walk: Walk, node: Node) -> Sequence[Lane]:
    s, index, *given = node.operands
    lane = walk.lanes[s]
    if isinstance(lane, Same | Fresh):
        if walk.is_same(index):
            sizes = [walk.same(v).value for v in given]
            read = walk.builder.emit("stack_read", [plain(lane), walk.term(index).value, *sizes], node.attrs)
            return [walk.lane_same(Term(walk.builder, read))]
        slots = Term(walk.builder, table(lane).value)
        key = (DYNAMIC, *[slice(None)] * (slots.rank - 1))
        return [walk.lane(emit("getitem", slots, walk.term(index), key=key))]
    if isinstance(lane, Uniform) and walk.is_same(index):
        unknown = uniform_sizes(lane, walk.rows, [walk.same(v) for v in given])
        operands = [lane.value, walk.term(index).value, *unknown]
        return [_seen(walk, lane, Term(walk.builder, walk.builder.emit("stack_read", operands, node.attrs)))]
    return [walk.lane(_ragged(walk, lane).read(walk.batched(index), _sizes(walk, element_of(lane), given)))]


@batches("stack_write")
def _write(walk: Walk, node: Node) -> Sequence[Lane]:
    s, index, value = node.operands
    lane = walk.lanes[s]
    if _is_ragged(walk, lane, index):
        stack = _ragged(walk, lane).write(walk.batched(index), walk.batched(value), node.attrs["grow"])
        return [stack.stack]
    operands = [walk.term(index), walk.batched(value)]
    uniform = as_uniform(lane, walk.rows)
    attrs = node.attrs if uniform.marked else {"grow": node.attrs["grow"]}
    return [_uniform(walk, "stack_write", uniform, operands, attrs)]


@batches("stack_add")
def _add(walk: Walk, node: Node) -> Sequence[Lane]:
    s, index, value = node.operands
    lane = walk.lanes[s]
    if _is_ragged(walk, lane, index):
        return [_ragged(walk, lane).add(walk.batched(index), walk.batched(value)).stack]
    return [_uniform(walk, "stack_add", as_uniform(lane, walk.rows), [walk.term(index), walk.batched(value)], {})]


@batches("stack_clear")
def _clear(walk: Walk, node: Node) -> Sequence[Lane]:
    s, index = node.operands
    lane = walk.lanes[s]
    if _is_ragged(walk, lane, index):
        return [_ragged(walk, lane).clear(walk.batched(index)).stack]
    return [_uniform(walk, "stack_clear", as_uniform(lane, walk.rows), [walk.term(index)], {})]


@batches("stack_resize")
def _resize(walk: Walk, node: Node) -> Sequence[Lane]:
    s, length = node.operands
    lane = walk.lanes[s]
    if _is_ragged(walk, lane, length):
        return [_ragged(walk, lane).resize(walk.batched(length)).stack]
    return [_uniform(walk, "stack_resize", as_uniform(lane, walk.rows), [walk.term(length)], {})]


@batches("stack_sum")
def _sum(walk: Walk, node: Node) -> Sequence[Lane]:
    a, b = (walk.lanes[v] for v in node.operands)
    if _is_ragged(walk, a) or _is_ragged(walk, b):
        return [_ragged(walk, a).total(_ragged(walk, b)).stack]
    left, right = as_uniform(a, walk.rows), as_uniform(b, walk.rows)
    return [_uniform(walk, "stack_sum", left, [Term(walk.builder, right.value)], {})]


@batches("stack_length")
def _length(walk: Walk, node: Node) -> Sequence[Lane]:
    lane = walk.lanes[node.operands[0]]
    if isinstance(lane, Ragged):
        return [walk.lane(_ragged(walk, lane).length())]
    assert isinstance(lane, Uniform)
    return [walk.lane_same(Term(walk.builder, walk.builder.emit("stack_length", [lane.value])))]


@batches("stack_to_tensor")
def _to_tensor(walk: Walk, node: Node) -> Sequence[Lane]:
    s, *given = node.operands
    lane = walk.lanes[s]
    if isinstance(lane, Ragged):
        return [walk.lane(_ragged(walk, lane).to_tensor(node.attrs["size"], _sizes(walk, lane.element, given)))]
    if isinstance(lane, Same | Fresh):
        sizes = [walk.same(v).value for v in given]
        whole = walk.builder.emit("stack_to_tensor", [plain(lane), *sizes], node.attrs)
        return [walk.lane_same(Term(walk.builder, whole))]
    assert isinstance(lane, Uniform)
    unknown = uniform_sizes(lane, walk.rows, [walk.same(v) for v in given])
    slots = Term(walk.builder, walk.builder.emit("stack_to_tensor", [lane.value, *unknown], node.attrs))
    return [_seen(walk, lane, transpose(slots, (1, 0, *range(2, slots.rank))))]


@batches("stack_from_tensor")
def _from_tensor(walk: Walk, node: Node) -> Sequence[Lane]:
    x = walk.term(node.operands[0])
    slots = transpose(x, (1, 0, *range(2, x.rank)))
    return [Uniform(walk.builder, walk.builder.emit("stack_from_tensor", [slots.value]), marked=True)]
