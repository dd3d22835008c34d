"""Compile the steps of a loop body, for given input shapes, to a `PreparedBody`, or raise `CannotPrepare`.

A branch is a launch list for each side; the card decides which list runs. A kernel writes the number of the side, from
the selector as the op defines it: 0 for a selector below 0, the last side for one that is too large. A result that all
sides share (an array that one of them updates in place, say) is used itself; else there is a buffer, which each side
writes. A side that pushes or pops counts its passes, since only the card knows their number; the rows of its stacks
lie by these counters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ctrlgrad.engines.cuda.compile import GroupStep
from ctrlgrad.engines.cuda.kernel import KernelText, Parameter
from ctrlgrad.engines.cuda.prepared.launches import Listing, Rates
from ctrlgrad.engines.cuda.prepared.loops import repeated
from ctrlgrad.engines.cuda.prepared.model import (
    INT64,
    Affine,
    Branching,
    CannotPrepare,
    Carried,
    CarriedArray,
    CarriedNumber,
    CarriedRows,
    CarriedTable,
    Carry,
    Converted,
    Ending,
    Fixed,
    Item,
    Operand,
    PreparedBody,
    Register,
    Unchanged,
    View,
    contiguous,
)
from ctrlgrad.engines.cuda.prepared.ops import (
    DEVICE,
    IDENTITIES,
    NUMBERS,
    TABLES,
    as_table,
    computed,
    marks_of,
    product_sum,
    pushed,
)
from ctrlgrad.engines.cuda.prepared.placement import Sharing, placed
from ctrlgrad.engines.cuda.prepared.reading import (
    Computed,
    Input,
    LocalStack,
    Reading,
    StackValue,
    TableValue,
    Unusable,
    body_inputs,
)
from ctrlgrad.engines.cuda.program import NodeStep, Program, Regions
from ctrlgrad.ir.control import is_loop

# Reads the steps of a region.
Read = Callable[[Reading], None]


@dataclass(frozen=True)
class _Side:
    reading: Reading
    items: list[Item]


def branches(reading: Reading, step: NodeStep, programs: Sequence[Program], read: Read) -> tuple[object, ...]:
    """The results of a `cond`, whose sides are these."""
    selector, *operands = step.operands
    chosen = _chosen(reading, reading.operand(selector), len(programs))
    given = [reading.values[slot] for slot in operands]
    sides = [_read_side(reading, program, given, read) for program in programs]
    stacks = {x.position: x for x in given if isinstance(x, StackValue)}
    results = zip(*(side.reading.results for side in sides), strict=True)
    joined = tuple(_joined_sides(reading, sides, values, stacks) for values in results)
    for side in sides:
        _count(side, stacks)
    for position in {position for side in sides for position in side.reading.most}:
        most = [side.reading.most.get(position, 0) for side in sides]
        reading.add_most(position, None if None in most else max(rows for rows in most if rows is not None))
    reading.launches.items.append(Branching(chosen, tuple(tuple(side.items) for side in sides)))
    return joined


def _chosen(reading: Reading, selector: Operand, count: int) -> View:
    dtype = INT64 if isinstance(selector, Affine) else selector.dtype
    chosen = reading.launches.buffer((), INT64)
    number, last = "int64(a0)", f"int64({count - 1})"
    operation = f"o0 = np_select({number} < int64(0), int64(0), np_select({number} > {last}, {last}, {number}));"
    text = KernelText((Parameter(dtype.name, "a0"),), (Parameter("int64", "o0"),), operation)
    reading.launches.kernel(text, (), [selector], [chosen])
    return chosen


def _read_side(reading: Reading, program: Program, given: Sequence[object], read: Read) -> _Side:
    with reading.launches.listing([]) as items:
        side = _Side(reading.inside(program, given), items)
        reading.launches.enter(reading.listing.slots(side.reading.counter))
        read(side.reading)
    return side


def _joined_sides(
    reading: Reading, sides: Sequence[_Side], values: Sequence[Any], stacks: dict[int, StackValue]
) -> object:
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
            _joined_sides(reading, sides, its, stacks)
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
        with reading.launches.listing(side.items):
            reading.launches.become(x, result)
    return result


def _operand(side: _Side, value: object) -> Operand:
    if isinstance(value, Computed):
        with side.reading.launches.listing(side.items):
            return side.reading.computed(value)
    if not isinstance(value, View | Fixed | Affine | Converted):
        raise CannotPrepare("branches yield a stack and something else")
    return value


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


def prepared(program: Program, inputs: Sequence[Input], captures: int, ending: Ending | None = None) -> PreparedBody:
    """Prepare an iteration of a body. The first `captures` inputs are captures; the remaining ones are carried.

    Raises `CannotPrepare`.
    """
    rates = Rates()
    while True:
        listing = Listing(rates, program, ending is not None and ending.is_masked)
        reading = Reading(program, list(body_inputs(inputs, captures, program, rates)), listing)
        _read(reading)
        for after in reading.results:
            if isinstance(after, StackValue):
                listing.added(after.position, 0, after.rows)
        listing.settle()
        carries = _leave(reading, captures)
        endless = frozenset(n for n, its in enumerate(carries) if isinstance(its, CarriedRows) and its.is_endless)
        found = Rates(listing.numbers, listing.rows, listing.lengths, endless)
        if found == rates:
            break
        # Addresses go by what an iteration has turned out to add.
        rates = found
    launches = listing.launches
    for index, _ in listing.bounds:
        _require(all(counter == 0 for counter, _ in index.steps), "an index goes by what only the card counts")
    _require(len(listing.lengths) == listing.stacks, "a stack that is made inside is not read as an array")
    _require(bool(launches.items), "nothing is computed on the device")
    launches.advance(0, listing.slots(0))
    stacks = {position: its for position, its in enumerate(carries) if isinstance(its, CarriedRows)}
    unknown = {position: its for position, its in stacks.items() if not its.is_known}
    asked = None if ending is None or ending.is_masked else _after(carries, ending.position)
    if unknown or asked is not None:
        launches.check(unknown, asked)
    launches.word(Register("limit"))
    launches.word(Register("run"))
    words = tuple(launches.words)
    launches.buffers[0] = ((len(words),), INT64)
    sharing = Sharing(launches.items, launches.buffers, carries)
    items, carries = sharing.resolved(launches.items), sharing.left(carries)
    return PreparedBody(
        tuple(items),
        words,
        placed(items, launches.buffers, carries, sharing.memory_of),
        carries,
        tuple(listing.programs),
        tuple(listing.bounds),
        tuple(listing.transfers),
        ending,
        listing.regions,
    )


def _after(carries: Sequence[Carry], position: int) -> View:
    """View of a carried array after an iteration."""
    its = carries[position]
    assert isinstance(its, CarriedArray)
    return View(Carried(position, its.is_double), its.dtype, its.shape, contiguous(its.shape, its.dtype))


def _require(holds: bool, reason: str) -> None:
    if not holds:
        raise CannotPrepare(reason)


# Steps.


def _read(reading: Reading) -> None:
    for position, step in enumerate(reading.program.steps):
        reading.position = position
        if isinstance(step, GroupStep):
            step.listed(reading, partial(pushed, reading))
        else:
            assert isinstance(step, NodeStep)
            _read_node(reading, step)
    reading.position = len(reading.program.steps)


def _read_node(reading: Reading, step: NodeStep) -> None:
    name = step.node.op.name
    if isinstance(step.kernel, Regions):
        results = branches(reading, step, step.kernel.programs, _read)
        reading.values.update(zip(step.results, results, strict=True))
        return
    if is_loop(step.node):
        reading.values.update(zip(step.results, repeated(reading, step, _read), strict=True))
        return
    _require(not step.node.regions, f"{name} inside")
    op = product_sum if step.is_sum else IDENTITIES.get(name)
    if op is None and step.where != "through the host":
        op = TABLES.get(name) or (NUMBERS.get(name, computed) if step.where == "host" else DEVICE.get(name))
    if op is None:
        raise CannotPrepare(
            f"{name} {'is called in the library' if step.where == 'device' else 'goes through the host'}"
        )
    reading.values.update(zip(step.results, op(reading, step), strict=True))


# The carry after an iteration.


def _leave(reading: Reading, captures: int) -> tuple[Carry, ...]:
    return tuple(
        _left(reading, position, reading.values[captures + position], after)
        for position, after in enumerate(reading.results)
    )


def _left(reading: Reading, position: int, before: object, after: object) -> Carry:
    listing = reading.listing
    if isinstance(after, StackValue):
        _require(isinstance(before, StackValue) and after.position == position, "stacks change places")
        if position not in listing.rows:
            return Unchanged()
        rows = tuple(sorted(listing.rows[position].items()))
        reading.add_most(position, abs(after.rows))
        is_known, is_bounded = (
            all(its(counter) for counter, _ in rows) for its in (listing.regions.is_known, listing.regions.is_bounded)
        )
        most, row = reading.most[position], listing.row_types[position]
        return CarriedRows(rows, most, *row, is_known, is_bounded, after.is_on_host)
    if isinstance(before, TableValue):
        after = as_table(reading, after)
        assert before.marks is not None
        return CarriedTable(
            _left_array(reading, before.rows, after.rows),
            _left_array(reading, before.marks, marks_of(after)),
        )
    _require(not isinstance(after, LocalStack | TableValue), "a stack that is made inside is carried")
    if before is after and not isinstance(after, View):
        return Unchanged()
    if isinstance(after, Unusable):
        raise CannotPrepare(after.reason)
    if isinstance(before, View):
        if isinstance(after, Computed):
            after = reading.computed(after)
        assert isinstance(after, View | Fixed | Affine | Converted)
        return _left_array(reading, before, after)
    step = after.plus(before, -1) if isinstance(after, Affine) and isinstance(before, Affine) else None
    if step is None or step != Affine(step.constant):
        raise CannotPrepare("a number of the host does not go by whole steps")
    if step.constant:
        listing.numbers[0, position] = step.constant
    return CarriedNumber(step.constant)


def _left_array(reading: Reading, before: View, after: Operand) -> CarriedArray:
    assert isinstance(before.source, Carried)
    if isinstance(after, View):
        _require(after.shape == before.shape, "what it carries changes its shape")
    if after != before:
        reading.launches.become(after, replace(before, source=replace(before.source, is_next=True)))
    return CarriedArray(before.dtype, before.shape, after != before)
