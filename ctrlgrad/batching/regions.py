"""Lanes at the borders of regions: the values that carry them, and how a region that not all rows enter sees them."""

from __future__ import annotations

from collections.abc import Sequence

from ctrlgrad.batching.batcher import Batcher
from ctrlgrad.batching.lanes import Batched, Fresh, Guard, Lane, Ragged, Rows, Same, Uniform
from ctrlgrad.batching.stacks import as_ragged, as_uniform, plain, unguarded
from ctrlgrad.ir import INDEX, Builder, StackType, TensorType, Type, Value
from ctrlgrad.ops.term import Term, emit

# How a value crosses a border: shared by all rows; a stack with a batch axis that knows which slots were written; with
# a batch axis; a stack with a length for each row. Each can become one that comes after it.
SHARED, MARKED, ROWS, RAGGED = range(4)


def kind_of(lane: Lane) -> int:
    if isinstance(lane, Same | Fresh):
        return SHARED
    if isinstance(lane, Ragged) or (isinstance(lane, Uniform) and lane.guard is not None):
        return RAGGED
    return MARKED if isinstance(lane, Uniform) and lane.marked else ROWS


def joined_kind(lanes: Sequence[Lane]) -> int:
    """How a value crosses a border that is any of these lanes."""
    kind = max(map(kind_of, lanes))
    # A stack that all rows share has forgotten which slots were written once it has rows.
    return ROWS if kind == MARKED and any(isinstance(lane, Same) for lane in lanes) else kind


def entering(builder: Builder, rows: Rows, kind: int, t: Type, hint: str | None, guard: Guard | None) -> Lane:
    """New inputs of a region for a value of type `t` (of one row), as a lane."""
    if kind == SHARED:
        return Same(builder, builder.input(t, hint))
    if isinstance(t, TensorType):
        return Batched(builder, builder.input(rows.of(t), hint), guard)
    if kind in (MARKED, ROWS):
        return Uniform(builder, builder.input(StackType(rows.of(t.element)), hint), marked=kind == MARKED)
    buffer = TensorType(t.element.dtype, (rows.static, None, *t.element.shape))
    lengths = TensorType(INDEX.dtype, (rows.static,))
    return Ragged(builder, builder.input(buffer, hint), builder.input(lengths, "lengths"), t.element, guard)


def leaving(batcher: Batcher, lane: Lane, kind: int, t: Type, guard: Guard | None) -> list[Value]:
    """The values that carry a lane out of the region that `batcher` makes, or into one, as a lane of that kind."""
    if kind == SHARED:
        return [plain(lane)]
    if isinstance(t, TensorType):
        if guard is not None:
            assert isinstance(lane, Batched) and lane.guard is guard, "an array that is updated in place"
            return [lane.value]
        return [batcher.seen(lane, t).value]
    if kind in (MARKED, ROWS):
        return [as_uniform(lane, batcher.rows).value]
    ragged = guarded_by(batcher, as_ragged(lane, batcher.rows), guard)
    return [ragged.buffer, ragged.lengths]


def guarded_by(batcher: Batcher, lane: Ragged, guard: Guard | None) -> Ragged:
    """The stack under that guard. One that every row has its own of may pass for a guarded one."""
    if lane.guard is not None and lane.guard is not guard:
        lane = unguarded(lane, batcher.builder)
    return Ragged(batcher.builder, lane.buffer, lane.lengths, lane.element, guard)


def arriving(builder: Builder, kind: int, t: Type, values: list[Value], guard: Guard | None) -> Lane:
    """The lane that results of a region's node carry; takes them off the list."""
    first = values.pop(0)
    if kind == SHARED:
        return Same(builder, first)
    if isinstance(t, TensorType):
        return Batched(builder, first)
    if kind in (MARKED, ROWS):
        return Uniform(builder, first, marked=kind == MARKED)
    return Ragged(builder, first, values.pop(0), t.element, guard)


def following(before: Lane | None, lane: Lane) -> Lane:
    """A result that is an array from before with elements updated, where there is one; else the lane as it is."""
    if before is None:
        return lane
    assert isinstance(before, Batched) and isinstance(lane, Batched)
    return before.followed_by(lane.builder, lane.value)


def guard_of(lane: Lane) -> Guard | None:
    return lane.guard if isinstance(lane, Ragged | Uniform) else None


def taking_part(mask: Term, rows: Rows) -> Guard:
    """The guard of the rows in `mask`, of which there is one at least: the others follow the first of them."""
    builder = mask.builder
    first = emit("argmax", mask, axes=(0,), keepdims=False)
    return Guard(mask.value, emit("where", mask, rows.iota(builder), first).value, first.value)


def guarded(lane: Lane, guard: Guard, builder: Builder) -> Lane:
    """A lane of the graph around, as the guarded region that `builder` makes sees it."""
    if isinstance(lane, Batched):
        return Batched(builder, lane.value, guard.inside(builder, lane.guard))
    if isinstance(lane, Uniform):
        return Uniform(builder, lane.value, guard.inside(builder, lane.guard), lane.marked)
    if isinstance(lane, Ragged):
        inner = guard.inside(builder, lane.guard)
        return Ragged(builder, lane.buffer, lane.lengths, lane.element, inner)
    return lane
