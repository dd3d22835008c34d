"""Branches in a prepared body: a launch list for each side; the card decides which list runs.

A kernel writes the number of the side, from the selector as the op defines it: 0 for a selector below 0, the last
side for one that is too large. A result that all sides share (an array that one of them updates in place, say) is
used itself; else there is a buffer, which each side writes. A side that pushes or pops counts its passes, since
only the card knows their number; the rows of its stacks lie by these counters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ctrlgrad.engines.cuda.kernel import KernelText, Parameter
from ctrlgrad.engines.cuda.prepared.model import Branching, CannotPrepare, Item
from ctrlgrad.engines.cuda.prepared.operands import INT64, Affine, Buffer, Converted, Fixed, Operand, Source, View
from ctrlgrad.engines.cuda.prepared.reading import Computed, Reading, StackValue, TableValue, Unusable
from ctrlgrad.engines.cuda.prepared.stack_forms import as_table, marks_of
from ctrlgrad.engines.cuda.program import NodeStep, Program

# Reads the steps of a region.
Read = Callable[[Reading], None]


@dataclass(frozen=True)
class _Side:
    reading: Reading
    items: list[Item]
    # Buffers from this number on are its own.
    first: int
    # Its buffers that have become buffers of the results.
    renamed: dict[Source, Source] = field(default_factory=dict)

    def is_own(self, source: Source) -> bool:
        """Return true if `source` is a buffer of this side that no other result has taken yet."""
        is_first = source not in self.renamed.values()
        return is_first and isinstance(source, Buffer) and source.number >= self.first


def branches(reading: Reading, step: NodeStep, programs: Sequence[Program], read: Read) -> tuple[object, ...]:
    """The results of a `cond`, whose sides are these."""
    selector, *operands = step.operands
    chosen = _chosen(reading, reading.operand(selector), len(programs))
    given = [reading.values[slot] for slot in operands]
    sides = [_read(reading, program, given, read) for program in programs]
    stacks = {x.position: x for x in given if isinstance(x, StackValue)}
    results = zip(*(side.reading.results for side in sides), strict=True)
    joined = tuple(_joined(reading, sides, values, stacks) for values in results)
    for side in sides:
        _count(side, stacks)
    for position in {position for side in sides for position in side.reading.most}:
        most = [side.reading.most.get(position, 0) for side in sides]
        reading.add_most(position, None if None in most else max(rows for rows in most if rows is not None))
    reading.launches.items.append(Branching(chosen, tuple(tuple(side.items) for side in sides)))
    return joined


def called(reading: Reading, step: NodeStep, program: Program, read: Read) -> tuple[object, ...]:
    """The results of a `call`, whose launches are among those around it."""
    inside = reading.inside(program, [reading.values[slot] for slot in step.operands], is_counted=False)
    read(inside)
    for position, most in inside.most.items():
        reading.add_most(position, most)
    return tuple(inside.results)


def _chosen(reading: Reading, selector: Operand, count: int) -> View:
    dtype = INT64 if isinstance(selector, Affine) else selector.dtype
    chosen = reading.launches.buffer((), INT64)
    number, last = "int64(a0)", f"int64({count - 1})"
    operation = f"o0 = np_select({number} < int64(0), int64(0), np_select({number} > {last}, {last}, {number}));"
    text = KernelText((Parameter(dtype.name, "a0"),), (Parameter("int64", "o0"),), operation)
    reading.launches.kernel(text, (), [selector], [chosen])
    return chosen


def _read(reading: Reading, program: Program, given: Sequence[object], read: Read) -> _Side:
    with reading.launches.listing([]) as items:
        side = _Side(reading.inside(program, given), items, len(reading.launches.buffers))
        reading.launches.enter(reading.listing.slots(side.reading.counter))
        read(side.reading)
    return side


def _joined(reading: Reading, sides: Sequence[_Side], values: Sequence[Any], stacks: dict[int, StackValue]) -> object:
    """Join the sides' values of one result."""
    first = values[0]
    if isinstance(first, StackValue):
        if any(not isinstance(x, StackValue) or x.position != first.position for x in values):
            raise CannotPrepare("stacks change places")
        # Rows that sides push are counted.
        return stacks[first.position]
    if all(x is first or x == first for x in values):
        return first
    if any(isinstance(x, TableValue) for x in values):
        tables = [as_table(side.reading, x) for side, x in zip(sides, values, strict=True)]
        rows, marks = (
            _joined(reading, sides, its, stacks)
            for its in ([table.rows for table in tables], [marks_of(table) for table in tables])
        )
        assert isinstance(rows, View)
        return TableValue(rows, marks if isinstance(marks, View) else None)
    for x in values:
        if isinstance(x, Unusable):
            return x
    found = [_operand(side, x) for side, x in zip(sides, values, strict=True)]
    shapes = {x.shape if isinstance(x, View) else () for x in found}
    dtypes = {INT64 if isinstance(x, Affine) else x.dtype for x in found}
    if len(shapes) != 1 or len(dtypes) != 1:
        raise CannotPrepare("what branches yield differs in shape")
    result = reading.launches.buffer(shapes.pop(), dtypes.pop())
    for side, x in zip(sides, found, strict=True):
        _write(side, x, result)
    return result


def _operand(side: _Side, value: object) -> Operand:
    if isinstance(value, Computed):
        with side.reading.launches.listing(side.items):
            return side.reading.computed(value)
    if not isinstance(value, View | Fixed | Affine | Converted):
        raise CannotPrepare("branches yield a stack and something else")
    if isinstance(value, View) and value.source in side.renamed:
        return replace(value, source=side.renamed[value.source])
    return value


def _write(side: _Side, value: Operand, result: View) -> None:
    """A buffer of the side's own becomes the result's; all else is copied."""
    launches = side.reading.launches
    with launches.listing(side.items):
        if isinstance(value, View) and side.is_own(value.source) and side.reading.is_whole(value):
            launches.renamed(value.source, result.source)
            side.renamed[value.source] = result.source
        else:
            launches.copied(value, result)


def _count(side: _Side, stacks: dict[int, StackValue]) -> None:
    """Note what a side has added to stacks, and have its counter count, if it has pushed or popped anything."""
    reading = side.reading
    for x in reading.results:
        if isinstance(x, StackValue):
            rows = x.rows - stacks[x.position].rows
            reading.listing.added(x.position, reading.counter, rows)
            reading.add_most(x.position, abs(rows))
    if any(transfer.counter == reading.counter for transfer in reading.transfers):
        with reading.launches.listing(side.items):
            reading.launches.advance(reading.counter, reading.listing.slots(reading.counter))
