"""Batching of stack ops, by the kind of stack that the rows have (see `lanes`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ctrlgrad.batching.batcher import Batcher, batches
from ctrlgrad.batching.lanes import Fresh, Lane, Ragged, Same, Uniform, redirect
from ctrlgrad.batching.ragged import RaggedOps
from ctrlgrad.batching.stacks import as_ragged, as_uniform, element_of, new_ragged, plain, table, uniform_sizes
from ctrlgrad.ir import Node, TensorType, Value, attributes
from ctrlgrad.ir.attributes import DYNAMIC, Given
from ctrlgrad.ops.term import Term, emit, transpose


def _sizes(batcher: Batcher, element: TensorType, given: Sequence[Value]) -> list[int | Term] | None:
    """All sizes of an element, or None where they are not known."""
    if None in element.shape and not given:
        return None
    rest = iter(given)
    return [batcher.same(next(rest)) if d is None else d for d in element.shape]


def _is_ragged(batcher: Batcher, lane: Lane, *indices: Value) -> bool:
    """True if an update makes the lengths of the rows' stacks differ."""
    if isinstance(lane, Ragged) or not all(batcher.is_same(v) for v in indices):
        return True
    return isinstance(lane, Uniform) and lane.guard is not None


def _ragged(batcher: Batcher, lane: Lane) -> RaggedOps:
    return RaggedOps(batcher.builder, batcher.rows, as_ragged(lane, batcher.rows))


def _uniform(batcher: Batcher, op: str, s: Uniform, operands: Sequence[Term], attrs: Given) -> Uniform:
    values = [s.value, *(x.value for x in operands)]
    return Uniform(batcher.builder, batcher.builder.emit(op, values, attrs), marked=s.marked)


def _seen(batcher: Batcher, s: Uniform, read: Term) -> Lane:
    return batcher.lane(read if s.guard is None else redirect(read, s.guard))


@batches("stack_new")
def _new(batcher: Batcher, node: Node) -> Sequence[Lane]:
    return [
        new_ragged(batcher.builder, batcher.rows, batcher.term(node.operands[0]), attributes.NewStack.of(node).element)
    ]


# Updates by an index or a length, which a stack that all rows share has in common, and a value.
_UPDATES: dict[str, tuple[Callable[..., RaggedOps], int]] = {
    "stack_push": (RaggedOps.push, 0),
    "stack_add": (RaggedOps.add, 1),
    "stack_clear": (RaggedOps.clear, 1),
    "stack_resize": (RaggedOps.resize, 1),
}


@batches(" ".join(_UPDATES))
def _update(batcher: Batcher, node: Node) -> Sequence[Lane]:
    (update, indices), (s, *operands) = _UPDATES[node.op.name], node.operands
    lane = batcher.lanes[s]
    if _is_ragged(batcher, lane, *operands[:indices]):
        return [update(_ragged(batcher, lane), *map(batcher.batched, operands)).stack]
    same = [*map(batcher.term, operands[:indices]), *map(batcher.batched, operands[indices:])]
    return [_uniform(batcher, node.op.name, as_uniform(lane, batcher.rows), same, {})]


@batches("stack_pop")
def _pop(batcher: Batcher, node: Node) -> Sequence[Lane]:
    s, *given = node.operands
    lane = batcher.lanes[s]
    if _is_ragged(batcher, lane):
        stack, value = _ragged(batcher, lane).pop(_sizes(batcher, element_of(lane), given))
        return [stack.stack, batcher.lane(value)]
    uniform = as_uniform(lane, batcher.rows)
    sizes = uniform_sizes(uniform, batcher.rows, [batcher.same(v) for v in given])
    rest, popped = batcher.builder.emit_all("stack_pop", [uniform.value, *sizes], node.attrs)
    return [Uniform(batcher.builder, rest, marked=uniform.marked), batcher.lane(Term(batcher.builder, popped))]


@batches("stack_read")
def _read(batcher: Batcher, node: Node) -> Sequence[Lane]:
    s, index, *given = node.operands
    lane = batcher.lanes[s]
    if isinstance(lane, Same | Fresh):
        if batcher.is_same(index):
            sizes = [batcher.same(v).value for v in given]
            read = batcher.builder.emit("stack_read", [plain(lane), batcher.term(index).value, *sizes], node.attrs)
            return [batcher.lane_same(Term(batcher.builder, read))]
        slots = Term(batcher.builder, table(lane).value)
        key = (DYNAMIC, *[slice(None)] * (slots.rank - 1))
        return [batcher.lane(emit("getitem", slots, batcher.term(index), key=key))]
    if isinstance(lane, Uniform) and batcher.is_same(index):
        unknown = uniform_sizes(lane, batcher.rows, [batcher.same(v) for v in given])
        operands = [lane.value, batcher.term(index).value, *unknown]
        return [_seen(batcher, lane, Term(batcher.builder, batcher.builder.emit("stack_read", operands, node.attrs)))]
    return [batcher.lane(_ragged(batcher, lane).read(batcher.batched(index), _sizes(batcher, element_of(lane), given)))]


@batches("stack_write")
def _write(batcher: Batcher, node: Node) -> Sequence[Lane]:
    s, index, value = node.operands
    lane = batcher.lanes[s]
    if _is_ragged(batcher, lane, index):
        stack = _ragged(batcher, lane).write(
            batcher.batched(index), batcher.batched(value), attributes.Write.of(node).grow
        )
        return [stack.stack]
    operands = [batcher.term(index), batcher.batched(value)]
    uniform = as_uniform(lane, batcher.rows)
    attrs = attributes.Write.of(node)
    attrs = attrs if uniform.marked else replace(attrs, once=False)
    return [_uniform(batcher, "stack_write", uniform, operands, attrs)]


@batches("stack_sum")
def _sum(batcher: Batcher, node: Node) -> Sequence[Lane]:
    a, b = (batcher.lanes[v] for v in node.operands)
    if _is_ragged(batcher, a) or _is_ragged(batcher, b):
        return [_ragged(batcher, a).total(_ragged(batcher, b)).stack]
    left, right = as_uniform(a, batcher.rows), as_uniform(b, batcher.rows)
    return [_uniform(batcher, "stack_sum", left, [Term(batcher.builder, right.value)], {})]


@batches("stack_length")
def _length(batcher: Batcher, node: Node) -> Sequence[Lane]:
    lane = batcher.lanes[node.operands[0]]
    if isinstance(lane, Ragged):
        return [batcher.lane(_ragged(batcher, lane).length())]
    assert isinstance(lane, Uniform)
    return [batcher.lane_same(Term(batcher.builder, batcher.builder.emit("stack_length", [lane.value])))]


@batches("stack_to_tensor")
def _to_tensor(batcher: Batcher, node: Node) -> Sequence[Lane]:
    s, *given = node.operands
    lane = batcher.lanes[s]
    if isinstance(lane, Ragged):
        return [
            batcher.lane(
                _ragged(batcher, lane).to_tensor(attributes.Rows.of(node).size, _sizes(batcher, lane.element, given))
            )
        ]
    if isinstance(lane, Same | Fresh):
        sizes = [batcher.same(v).value for v in given]
        whole = batcher.builder.emit("stack_to_tensor", [plain(lane), *sizes], node.attrs)
        return [batcher.lane_same(Term(batcher.builder, whole))]
    assert isinstance(lane, Uniform)
    unknown = uniform_sizes(lane, batcher.rows, [batcher.same(v) for v in given])
    slots = Term(batcher.builder, batcher.builder.emit("stack_to_tensor", [lane.value, *unknown], node.attrs))
    return [_seen(batcher, lane, transpose(slots, (1, 0, *range(2, slots.rank))))]


@batches("stack_from_tensor")
def _from_tensor(batcher: Batcher, node: Node) -> Sequence[Lane]:
    x = batcher.term(node.operands[0])
    slots = transpose(x, (1, 0, *range(2, x.rank)))
    return [Uniform(batcher.builder, batcher.builder.emit("stack_from_tensor", [slots.value]), marked=True)]
