"""Compile the steps of a loop body, for given input shapes, to a `PreparedBody`, or raise `CannotPrepare`.

A branch is a launch list for each side; the card decides which list runs. A kernel writes the number of the side, from
the selector as the op defines it: 0 for a selector below 0, the last side for one that is too large. A result that all
sides share (an array that one of them updates in place, say) is used itself; else there is a buffer, which each side
writes. A side that pushes or pops counts its passes, since only the card knows their number; the rows of its stacks
lie by these counters.

An inner loop is the launch list of an iteration, which repeats while a number on the card says so. The list is the
same for all iterations, so each carry has one form:

- an array: one buffer, with the value before an iteration when the list begins and the value after it when the list
  ends. The first value is copied in, or lies there already if nothing else needs it. An iteration writes its value
  there at once if all launches that read the value before come earlier; else the value is copied at the end;
- an integer of the host that goes by steps: its first value, and a step for each count of the loop's own counter, which
  counts from the loop's beginning. The counter keeps its value after the loop, until the loop begins again, so the
  integer's last value follows from it;
- a table: its rows and its marks, each as an array;
- a stack: rows lie by a counter that counts from the run's beginning, as in sides of branches;
- a value that no iteration changes: no carry at all.

Where the loop counts to a bound that goes by steps, a run only has iterations in which the trip count is not below
0; indices that go by the loop's counter are checked at its first and its last iteration. Where the loop counts to a
number that only the card has (a trip count that was popped), the card has the trip count, and the host may know it
beforehand too (`model.Passes`). Where the host does not, the loop may push more rows than there is memory for, or pop
more than a run has: such a run is repeated (`binding.RowMemory`). An index that goes by a counter with an end that only
the card knows is an index of the card.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, cast

import numpy as np

from ctrlgrad.engines.cuda.compile import GroupStep
from ctrlgrad.engines.cuda.kernel import KernelText, Parameter
from ctrlgrad.engines.cuda.placement import HOST, Places
from ctrlgrad.engines.cuda.prepared.launches import Listing, Rates, whole
from ctrlgrad.engines.cuda.prepared.model import (
    ENDLESS,
    INT64,
    Affine,
    Branching,
    CannotPrepare,
    Carried,
    CarriedArray,
    CarriedNumber,
    CarriedRows,
    Carry,
    Converted,
    Ending,
    Fixed,
    Item,
    Operand,
    PreparedBody,
    Register,
    Repeating,
    Unchanged,
    View,
)
from ctrlgrad.engines.cuda.prepared.ops import (
    DEVICE,
    IDENTITIES,
    NUMBERS,
    TABLES,
    as_popped,
    as_table,
    computed,
    marks_of,
    own_table,
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
from ctrlgrad.ir import StackType, TensorType, Use, Value, walk
from ctrlgrad.ir.control import Counting, Loop, is_loop


@dataclass(frozen=True)
class _Side:
    reading: Reading
    items: list[Item]


def branches(reading: Reading, step: NodeStep, programs: Sequence[Program]) -> tuple[object, ...]:
    """The results of a `cond`, whose sides are these."""
    selector, *operands = step.operands
    chosen = _chosen(reading, reading.operand(selector), len(programs))
    given = [reading.values[slot] for slot in operands]
    sides = [_read_side(reading, program, given) for program in programs]
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
    chosen = reading.launches.buffer((), INT64)
    number, last = "int64(a0)", f"int64({count - 1})"
    operation = f"o0 = np_select({number} < int64(0), int64(0), np_select({number} > {last}, {last}, {number}));"
    text = KernelText((Parameter(selector.dtype.name, "a0"),), (Parameter("int64", "o0"),), operation)
    reading.launches.kernel(text, (), [selector], [chosen])
    return chosen


def _read_side(reading: Reading, program: Program, given: Sequence[object]) -> _Side:
    with reading.launches.listing([]) as items:
        side = _Side(reading.inside(program, given), items)
        reading.launches.enter(reading.listing.slots(side.reading.counter))
        _read(side.reading)
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
    dtypes = {x.dtype for x in found}
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
    if reading.listing.has_rows(reading.counter):
        with reading.launches.listing(side.items):
            reading.launches.advance(reading.counter, reading.listing.slots(reading.counter))


def prepared(program: Program, inputs: Sequence[Input], captures: int, ending: Ending | None = None) -> PreparedBody:
    """Prepare an iteration of a body. The first `captures` inputs are captures; the remaining ones are carried.

    Raises `CannotPrepare`.
    """
    rates = Rates()
    while True:
        listing = Listing(rates, program, ending is not None and ending.is_masked)
        reading = Reading(program, body_inputs(inputs, captures, rates), listing)
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
    tables = [i - captures for i, x in enumerate(inputs) if i >= captures and isinstance(x, TableValue)]
    return PreparedBody(
        tuple(items),
        words,
        placed(items, launches.buffers, carries, sharing.memory_of),
        carries,
        tuple(listing.programs),
        tuple(listing.bounds),
        ending,
        listing.regions,
        dict(zip(tables, itertools.count(len(inputs) - captures))),
    )


def _after(carries: Sequence[Carry], position: int) -> View:
    """View of a carried array after an iteration."""
    its = carries[position]
    assert isinstance(its, CarriedArray)
    return View.whole(Carried(position, its.is_double), its.dtype, its.shape)


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
        results = branches(reading, step, step.kernel.programs)
    elif is_loop(step.node):
        results = _Listed(reading, step, cast("Looping", step.kernel)).results()
    else:
        _require(not step.node.regions, f"{name} inside")
        op = product_sum if step.is_sum else IDENTITIES.get(name)
        if op is None and step.where != "through the host":
            op = TABLES.get(name) or (NUMBERS.get(name, computed) if step.where == "host" else DEVICE.get(name))
        if op is None:
            where = "is called in the library" if step.where == "device" else "goes through the host"
            raise CannotPrepare(f"{name} {where}")
        results = op(reading, step)
    reading.values.update(zip(step.results, results, strict=True))


# The carry after an iteration.


def _leave(reading: Reading, captures: int) -> tuple[Carry, ...]:
    found, marks = list[Carry](), list[Carry]()
    for position, after in enumerate(reading.results):
        before = reading.values[captures + position]
        if isinstance(before, TableValue):
            table = as_table(reading, after)
            assert before.marks is not None
            found.append(_left_array(reading, before.rows, table.rows))
            marks.append(_left_array(reading, before.marks, marks_of(table)))
        else:
            found.append(_left(reading, position, before, after))
    return *found, *marks


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


# Inner loops.


class Looping(Protocol):
    """Interface of the kernel of a `while` node (`ctrlgrad.engines.cuda.loops.Loop`) that this module needs.

    `tables` are the places, among the body's inputs, of stacks that are read and written by index; `iteration` is the
    body, of whose iterations none is past the end.
    """

    parts: Loop
    places: Places
    cond: Program
    counting: tuple[Counting, ...]
    maximum: int | None
    tables: Mapping[int, TensorType]

    @property
    def iteration(self) -> Program: ...


def at_least(reading: Reading, value: object) -> object:
    """The greater one of two integers as the one that goes by steps, in runs in which it is the greater one."""
    if not isinstance(value, Computed) or value.node.op.name != "maximum":
        return value
    a, b = value.operands
    if not isinstance(a, Affine) or not isinstance(b, Affine) or a.is_moving == b.is_moving:
        return value
    greater, other = (a, b) if a.is_moving else (b, a)
    if reading.is_endless(greater):
        return reading.clipped(greater.plus(other, -1)).plus(other)
    reading.bounds.append((greater.plus(other, -1), ENDLESS))
    return greater


def trips_of(reading: Reading, loop: Looping, given: Sequence[Any], captures: int) -> Affine | None:
    """Trip count of a loop, where the host knows it; below 0 means no iteration."""
    found = [_distance(reading, loop, counting, given, captures) for counting in loop.counting]
    if not found or None in found:
        return None
    known = [x for x in found if x is not None]
    if len(known) > 1 and any(x.is_moving for x in known):
        return None
    trips = min(known, key=lambda x: x.constant)
    return trips if trips.is_moving else Affine(max(trips.constant, 0))


def _distance(
    reading: Reading, loop: Looping, counting: Counting, given: Sequence[Any], captures: int
) -> Affine | None:
    """Number of iterations until a counter reaches its bound."""
    bound: Any = counting.bound
    if isinstance(bound, Value):
        bound = at_least(reading, given[next(n for n, c in enumerate(loop.parts.captures) if c.outer is bound)])
    elif isinstance(bound, np.ndarray):
        bound = Affine(int(bound))
    count = at_least(reading, given[captures + loop.parts.carries.index(counting.carry)])
    if not isinstance(bound, Affine) or not isinstance(count, Affine):
        return None
    ahead = bound.plus(count, -1) if counting.step > 0 else count.plus(bound, -1)
    return ahead.plus(Affine(counting.beyond))


def is_at_most(trips: Affine | None, maximum: int) -> bool:
    return trips is not None and not trips.is_moving and trips.constant <= maximum


class _Listed:
    """A loop as it is listed.

    Attributes:
        counter, since: the numbers of the counters of iterations: in a run, and since the loop began.
        given: what the captures and the carries are in an iteration, and when the loop is over.
    """

    def __init__(self, reading: Reading, step: NodeStep, loop: Looping) -> None:
        self.reading, self.launches, self.listing = reading, reading.launches, reading.listing
        self.node = step.node
        self.loop = loop
        self.counter, self.since = self.listing.new_counter(), self.listing.new_counter()
        self.captured, self.entering = loop.parts.split(step.operands)
        self.captures = len(self.captured)
        self.trips = trips_of(reading, loop, [reading.values[slot] for slot in step.operands], self.captures)
        # True if only the card has the trip count, in a counter.
        self.is_on_card = self.trips is not None and reading.is_endless(self.trips)
        if self.trips is not None and self.is_on_card:
            self.trips = reading.clipped(self.trips)
        if self.trips is None or self.is_on_card:
            self.listing.endless.add(self.since)
        is_in_time = loop.maximum is None or is_at_most(self.trips, loop.maximum)
        _require(is_in_time, "a loop inside may go on too often, which is an error")
        self.goes_on = self.launches.buffer((), INT64)
        self.given = [_captured(reading, reading.values[slot]) for slot in self.captured]
        self.given += [self._carried(position) for position in range(len(loop.parts.carries))]

    def results(self) -> tuple[object, ...]:
        bounds = len(self.reading.bounds)
        with self.launches.inside(self.node, self.since):
            self._begin()
            with self.launches.listing([]) as items:
                self.launches.enter(self.listing.slots(self.counter))
                inside = self.reading.repeated(self.loop.iteration, self.given, self.counter)
                _read(inside)
                self._leave(inside)
                self._go_on()
        self.launches.items.append(Repeating(self.goes_on, tuple(items), self.counter, self._listed_trips()))
        self.listing.repeats(self.counter, self.since, self.reading.counter, self.trips)
        self._limit(bounds)
        for position, most in inside.most.items():
            self.reading.add_most(position, self._times(most))
        return tuple(map(self._result, range(len(self.loop.parts.carries))))

    def _listed_trips(self) -> Affine | View | None:
        """Trip count that the list is given beforehand: a number of the host, or the card's counter; None where it is
        unknown."""
        if self.trips is not None and self.is_on_card:
            return self.launches.counter(self.trips.steps[0][0])
        is_known = self.trips is not None and not any(counter for counter, _ in self.trips.steps)
        return self.trips if is_known else None

    # Carries at the beginning of the loop.

    def _carried(self, position: int) -> object:
        """Value of a carry inside the iterations."""
        slot = self.entering[position]
        value = at_least(self.reading, self.reading.value(slot))
        adds = self.listing.rates.numbers.get((self.since, position), 0)
        moved = Affine(0, (), ((self.since, adds),) if adds else ())
        if isinstance(value, StackValue) or self._stays(position):
            return value
        if self.captures + position in self.loop.tables:
            return own_table(self.reading, slot)
        if isinstance(self.loop.parts.carries[position].result.type, StackType):
            stack = value if isinstance(value, LocalStack) else as_popped(self.reading, value)
            return replace(stack, length=stack.length.plus(moved))
        if self.loop.places[position] is HOST:
            return self._number(value).plus(moved)
        return self.reading.own(slot)

    def _number(self, value: object) -> Affine:
        """An integer of the host's, which the card has in a counter where it does not go by steps."""
        if isinstance(value, Computed):
            value = self.reading.computed(value)
        if isinstance(value, View) and value.dtype == INT64:
            return self.reading.stored(value, self.listing.number())
        if not isinstance(value, Affine):
            raise CannotPrepare("a number of the host's that a loop inside carries does not begin by whole steps")
        return value

    # Predicate and counters.

    def _begin(self) -> None:
        """The counter is 0, and the predicate is asked for the first time."""
        words = [self.launches.counter(self.since)] if self._has_counter else []
        if self.trips is not None:
            text = whole(1, [*["int64(0)"] * len(words), "np_select(a0 > int64(0), int64(1), int64(0))"])
            self.launches.kernel(text, (), [self.trips], [*words, self.goes_on])
            return
        if words:
            self.launches.kernel(whole(0, ["int64(0)"]), (), [], words)
        self._ask()

    def _go_on(self) -> None:
        """At the end of an iteration: counters count, and the predicate is asked again."""
        counters = [self.since] * self._has_counter + [self.counter] * self.listing.has_rows(self.counter)
        words = list(map(self.launches.counter, counters))
        counted = [f"a{k} + int64(1)" for k in range(len(words))]
        self.launches.move(self.listing.slots(self.counter))
        if self.trips is not None:
            goes_on = f"np_select({counted[0]} < a{len(words)}, int64(1), int64(0))"
            text = whole(len(words) + 1, [*counted, goes_on])
            self.launches.kernel(text, (), [*words, self.trips], [*words, self.goes_on])
            return
        if words:
            self.launches.kernel(whole(len(words), counted), (), words, words)
        self._ask()

    @property
    def _has_counter(self) -> bool:
        """Return true if the number of iterations since the loop began is needed."""
        if self.trips is not None or any(since == self.since for since, _ in self.listing.rates.numbers):
            return True
        # An index that is out of range is noted with it.
        return any(node.op.has_use(Use.INDEX) for region in self.node.regions for node in walk(region))

    def _ask(self) -> None:
        """The predicate, of what is carried now."""
        asked = self.reading.inside(self.loop.cond, self.given, is_counted=False)
        _read(asked)
        condition, given = asked.unless_short("a0", [asked.operand(self.loop.cond.outputs[0])])
        text = whole(["bool", *["int64"] * len(given[1:])], [f"np_select({condition}, int64(1), int64(0))"])
        self.launches.kernel(text, (), given, [self.goes_on])

    # End of an iteration.

    def _leave(self, inside: Reading) -> None:
        """Have the carries be what is left, all at once: what is read of one is read before another is written."""
        arrays: list[tuple[View, Operand]] = []
        for position, after in enumerate(inside.results):
            before = self.given[self.captures + position]
            if self._stays(position):
                continue
            if isinstance(before, View):
                arrays.append((before, inside.operand(self.loop.iteration.outputs[position])))
            elif isinstance(before, TableValue):
                table = as_table(inside, after)
                assert before.marks is not None
                arrays += [(before.rows, table.rows), (before.marks, marks_of(table))]
            else:
                self._leave_other(inside, position, before, after)
        carried = {before.source for before, _ in arrays}
        left = []
        for before, after in arrays:
            if isinstance(after, View) and after.shape != before.shape:
                raise CannotPrepare("what a loop inside carries changes its shape")
            if after == before:
                continue
            is_read = isinstance(after, View) and after.source in carried
            left.append((before, self.launches.copy(after, before.shape) if is_read else after))
        for before, after in left:
            self.launches.become(after, before)

    def _leave_other(self, inside: Reading, position: int, before: object, after: object) -> None:
        """A stack that is pushed on or popped off, or a number."""
        if isinstance(before, StackValue):
            if not isinstance(after, StackValue) or after.position != before.position:
                raise CannotPrepare("stacks change places")
            rows = after.rows - before.rows
            self.listing.added(before.position, self.counter, rows)
            inside.add_most(before.position, abs(rows))
        elif isinstance(before, LocalStack):
            is_same = isinstance(after, LocalStack) and (after.number, after.rows) == (before.number, before.rows)
            if not isinstance(after, LocalStack) or not is_same:
                raise CannotPrepare("stacks change places")
            self._goes_by(position, after.length.plus(before.length, -1))
        elif isinstance(before, Affine) and isinstance(after, Affine):
            self._goes_by(position, after.plus(before, -1))
        else:
            raise CannotPrepare("a number of the host's that a loop inside carries does not go by whole steps")

    def _goes_by(self, position: int, step: Affine) -> None:
        """An iteration adds this to an integer."""
        if step != Affine(step.constant):
            raise CannotPrepare("a number of the host's that a loop inside carries does not go by whole steps")
        if step.constant:
            self.listing.numbers[self.since, position] = step.constant

    def _stays(self, position: int) -> bool:
        """Return true if an iteration leaves a carry unchanged."""
        return self.loop.iteration.outputs[position] == self.captures + position

    # When it is over.

    def _result(self, position: int) -> object:
        value = self.given[self.captures + position]
        if isinstance(value, LocalStack):
            return replace(value, length=self._at_last(position, value.length))
        return self._at_last(position, value) if isinstance(value, Affine) else value

    def _at_last(self, position: int, number: Affine) -> Affine:
        """Value of an integer after the loop."""
        adds = self.listing.numbers.get((self.since, position), 0)
        if self.trips is None or not adds:
            return number
        known = self.listing.rates.numbers.get((self.since, position), 0)
        return number.plus(Affine(0, (), ((self.since, known),)), -1).plus(self.trips, adds)

    def _limit(self, first: int) -> None:
        """Replace the bounds that the loop's iterations need by bounds at its first and last iteration, in terms of
        numbers outside of the loop. A trip count that the host knows must not be negative."""
        bounds = self.reading.bounds
        inside, bounds[first:] = bounds[first:], []
        for index, size in inside:
            step = dict(index.steps).get(self.since, 0)
            begin = replace(index, steps=tuple(x for x in index.steps if x[0] != self.since))
            bounds.append((begin, size))
            if step:
                if self.trips is None or self.is_on_card:
                    raise CannotPrepare("an index goes by a loop inside of which only the card knows the end")
                bounds.append((begin.plus(self.trips.plus(Affine(1), -1), step), size))
        if self.trips is not None and self.trips.is_moving and not self.is_on_card:
            bounds.append((self.trips, ENDLESS))

    def _times(self, most: int | None) -> int | None:
        """Upper bound of the rows that all iterations add together; None where it is unknown beforehand."""
        if self.trips is None or self.trips.is_moving or most is None:
            return None
        return most * self.trips.constant


def _captured(reading: Reading, value: object) -> object:
    """Value of a capture as all iterations see it: a local stack as a table."""
    if not isinstance(value, LocalStack):
        return value
    try:
        return as_table(reading, value)
    except CannotPrepare as reason:
        return Unusable(str(reason))
