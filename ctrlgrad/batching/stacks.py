"""Stacks of many rows: turning one kind of lane into another (see `lanes`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ctrlgrad.batching.lanes import Fresh, Lane, Ragged, Rows, Same, Uniform, greatest
from ctrlgrad.ir import Builder, StackType, TensorType, Value
from ctrlgrad.ir.attributes import DYNAMIC, Key
from ctrlgrad.ops.term import Term, broadcast_to, emit, transpose, zeros

# Slots that a stack without a size starts with.
FIRST_CAPACITY = 8


# Kinds.


def plain(lane: Lane) -> Value:
    """A lane that all rows share, as its value."""
    if isinstance(lane, Same):
        return lane.value
    assert isinstance(lane, Fresh)
    if "plain" not in lane.forms:
        size = [] if lane.size is None else [lane.size]
        lane.forms["plain"] = Same(lane.builder, lane.builder.emit("stack_new", size, lane.attrs))
    form = lane.forms["plain"]
    assert isinstance(form, Same)
    return form.value


def element_of(lane: Lane) -> TensorType:
    """The element of one row's stack."""
    if isinstance(lane, Fresh | Uniform | Ragged):
        return lane.element
    assert isinstance(lane.value.type, StackType)
    return lane.value.type.element


def as_uniform(lane: Lane, rows: Rows) -> Uniform:
    """A stack that all rows share, as one of its own for each row."""
    if isinstance(lane, Uniform):
        return lane
    assert isinstance(lane, Same | Fresh)
    if "uniform" not in lane.forms:
        lane.forms["uniform"] = _make_uniform(lane, rows)
    form = lane.forms["uniform"]
    assert isinstance(form, Uniform)
    return form


def _make_uniform(lane: Same | Fresh, rows: Rows) -> Uniform:
    builder = lane.builder
    if isinstance(lane, Fresh):
        attrs = replace(lane.attrs, element=rows.of(lane.element))
        form = builder.emit("stack_new", [] if lane.size is None else [lane.size], attrs)
        return Uniform(builder, form, marked=True)
    table = Term(builder, builder.emit("stack_to_tensor", [lane.value], {"size": None}))
    count, *rest = table.dims
    spread = broadcast_to(emit("expand_dims", table, axes=(1,)), [count, rows.count(builder), *rest])
    return Uniform(builder, builder.emit("stack_from_tensor", [spread.value]))


def table(lane: Same | Fresh) -> Term:
    """The slots of a stack that all rows share, as a tensor."""
    if "table" not in lane.forms:
        form = lane.builder.emit("stack_to_tensor", [plain(lane)], {"size": None})
        lane.forms["table"] = Same(lane.builder, form)
    kept = lane.forms["table"]
    assert isinstance(kept, Same)
    return Term(lane.builder, kept.value)


def as_ragged(lane: Lane, rows: Rows) -> Ragged:
    """Any stack as one with a length for each row."""
    if isinstance(lane, Ragged):
        return lane
    assert isinstance(lane, Same | Fresh | Uniform)
    if "ragged" not in lane.forms:
        lane.forms["ragged"] = _make_ragged(lane, rows)
    form = lane.forms["ragged"]
    assert isinstance(form, Ragged)
    return form


def _make_ragged(lane: Same | Fresh | Uniform, rows: Rows) -> Ragged:
    builder = lane.builder
    if isinstance(lane, Fresh):
        size = Term(builder, builder.constant(0) if lane.size is None else lane.size)
        return new_ragged(builder, rows, rows.spread(size), lane.element)
    if isinstance(lane, Same):
        slots = rows.spread(table(lane))
        length = builder.emit("stack_length", [lane.value])
    else:
        sizes = uniform_sizes(lane, rows, ())
        slots = Term(builder, builder.emit("stack_to_tensor", [lane.value, *sizes], {"size": None}))
        slots = transpose(slots, (1, 0, *range(2, slots.rank)))
        length = builder.emit("stack_length", [lane.value])
    count, _, *rest = slots.dims
    slots = emit("concat", slots, zeros(builder, slots.dtype, [count, 1, *rest]), axis=1)
    lengths = rows.spread(Term(builder, length))
    guard = lane.guard if isinstance(lane, Uniform) else None
    return Ragged(builder, slots.value, lengths.value, element_of(lane), guard)


def uniform_sizes(lane: Uniform, rows: Rows, sizes: Sequence[Term]) -> list[Value]:
    """The size operands for a slot that may never have been written: all of the element's unknown ones or none."""
    unknown = sum(d is None for d in lane.element.shape)
    if unknown != len(sizes):
        return []
    count = rows.count(lane.builder)
    return [x.value for x in (count, *sizes) if isinstance(x, Term)]


def new_ragged(builder: Builder, rows: Rows, lengths: Term, element: TensorType) -> Ragged:
    """Stacks of zeros of the given lengths."""
    count = rows.count(builder)
    if None in element.shape:
        # The first value that is stored tells the sizes.
        buffer = zeros(builder, element.dtype, [count, 0, *(0 if d is None else d for d in element.shape)])
    else:
        shape = [d for d in element.shape if d is not None]
        buffer = zeros(builder, element.dtype, [count, greatest(lengths) + FIRST_CAPACITY, *shape])
    return Ragged(builder, buffer.value, lengths.value, element)


def unguarded(r: Ragged, builder: Builder) -> Ragged:
    """Give ghosts copies of the rows that they follow, and drop the guard."""
    if r.guard is None:
        return r
    source = Term(builder, r.guard.source)
    buffer = emit("getitem", Term(builder, r.buffer), source, key=_rows_key(Term(builder, r.buffer).rank))
    lengths = emit("getitem", Term(builder, r.lengths), source, key=(DYNAMIC,))
    return Ragged(builder, buffer.value, lengths.value, r.element)


def _rows_key(rank: int) -> Key:
    return (DYNAMIC, *[slice(None)] * (rank - 1))
