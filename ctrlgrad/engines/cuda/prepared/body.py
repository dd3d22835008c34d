"""Compile the steps of a loop body, for given input shapes, to a `PreparedBody`, or raise `CannotPrepare`.

A branch is a launch list for each side; the card decides which list runs. A kernel writes the number of the side, from
the selector as the op defines it: 0 for a selector below 0, the last side for one that is too large. A result that all
sides share (an array that one of them updates in place, say) is used itself; else there is a buffer, which each side
writes. Where sides differ in the rows that they push or pop, each pass counts its own, and the rows of such a stack lie
by that counter.

An inner loop is the launch list of an iteration, which repeats while a number on the card says so. The list is the
same for all iterations, so each carry has one form:

- an array: one buffer, with the value before an iteration when the list begins and the value after it when the list
  ends. The first value is copied in, or lies there already if nothing else needs it. An iteration writes its value
  there at once if all launches that read the value before come earlier; else the value is copied at the end;
- an integer of the host that goes by steps: its first value, and a step for each count of the loop's own counter, which
  counts from the loop's beginning. The counter keeps its value after the loop, until the loop begins again, so the
  integer's last value follows from it;
- a table: its rows and its marks, each as an array;
- a stack: the number of its rows is such an integer, or is counted as in sides of branches;
- a value that no iteration changes: no carry at all.

Where the loop counts to a bound that goes by steps, a run only has iterations in which the trip count is not below
0; indices that go by the loop's counter are checked at its first and its last iteration. Where only the card has the
trip count (it was popped, say), the loop may push more rows than there is memory for, or pop more than a run has: such
a run is repeated (`binding.RowMemory`). An index that goes by a counter with an end that only the card knows is one of
the card.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, cast

import numpy as np

from ctrlgrad.engines.cuda.compile import GroupStep
from ctrlgrad.engines.cuda.placement import HOST, Places
from ctrlgrad.engines.cuda.prepared.model import (
    BOOL,
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
    Fixed,
    Item,
    Operand,
    PreparedBody,
    Register,
    Repeating,
    Rows,
    Source,
    Unchanged,
    View,
)
from ctrlgrad.engines.cuda.prepared.ops import (
    OPS,
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
    Launches,
    Listing,
    LocalStack,
    Numbers,
    Rates,
    Reading,
    StackValue,
    TableValue,
    Total,
    Unusable,
    at_most,
    body_inputs,
    sources_of,
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
    for position in {position for side in sides for position in side.reading.totals}:
        totals = [side.reading.totals.get(position, Affine(0)) for side in sides]
        bounds = [at_most(rows) for rows in totals]
        most = None if None in bounds else max(rows for rows in bounds if rows is not None)
        reading.add_total(position, totals[0] if totals.count(totals[0]) == len(totals) else most)
    reading.launches.items.append(Branching(chosen, tuple(tuple(side.items) for side in sides)))
    return joined


def _chosen(reading: Reading, selector: Operand, count: int) -> View:
    chosen = reading.launches.buffer((), INT64)
    numbers = Numbers(reading.launches)
    number, last = f"int64({numbers.read(selector)})", f"int64({count - 1})"
    clipped = f"np_select({number} < int64(0), int64(0), np_select({number} > {last}, {last}, {number}))"
    numbers.write({chosen: clipped})
    return chosen


def _read_side(reading: Reading, program: Program, given: Sequence[object]) -> _Side:
    with reading.launches.listing([]) as items:
        side = _Side(reading.inside(program, given), items)
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
        if all(x == first for x in values) and first.position not in reading.listing.rates.counted:
            return first
        # Rows that sides push are counted.
        reading.listing.count_rows(first.position)
        return stacks[first.position]
    is_in_rows = not _counted(reading, stacks.values()).isdisjoint(sources_of(first))
    # The row in which each side has its value is another one behind the branch.
    if all(x is first or x == first for x in values) and not is_in_rows:
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
    """Have the rows counted that a side has pushed or popped."""
    after = [x for x in side.reading.results if isinstance(x, StackValue)]
    with side.reading.launches.listing(side.items):
        side.reading.passed((stacks[x.position], x) for x in after if x.position in stacks)


def prepared(program: Program, inputs: Sequence[Input], captures: int, is_asked: bool = False) -> PreparedBody:
    """Prepare an iteration of a body. The first `captures` inputs are captures; the remaining ones are carried.

    Args:
        is_asked: true if the last carry is the predicate, which the body computes.

    Raises `CannotPrepare`.
    """
    rates = Rates()
    while True:
        listing = Listing(rates, program)
        given = body_inputs(inputs, captures, rates)
        reading = Reading(program, given, listing)
        _read(reading)
        carried = given[len(given) - len(program.outputs) :]
        _leave(reading, 0, carried)
        carries = _carries(reading, carried)
        endless = frozenset(n for n, its in enumerate(carries) if isinstance(its, CarriedRows) and its.is_endless)
        found = Rates(listing.numbers, listing.counted, endless, listing.lengths)
        if found == rates:
            break
        # Addresses go by what an iteration has turned out to add.
        rates = found
    launches = listing.launches
    for index, _ in listing.bounds:
        _require(all(counter == 0 for counter, _ in index.steps), "an index goes by what only the card counts")
    _require(len(listing.lengths) == listing.stacks, "a stack that is made inside is not read as an array")
    _require(bool(launches.items), "nothing is computed on the device")
    stacks = {position: its for position, its in enumerate(carries) if isinstance(its, CarriedRows)}
    unknown = {position: its for position, its in stacks.items() if not its.is_known}
    asked = View.whole(Carried(len(inputs) - captures - 1), BOOL, ()) if is_asked else None
    launches.check(unknown, asked)
    launches.word(Register("run"))
    words = tuple(launches.words)
    launches.buffers[0] = ((len(words),), INT64)
    sharing = Sharing(launches.items, launches.buffers, carries)
    items = sharing.resolved(launches.items)
    tables = [i - captures for i, x in enumerate(inputs) if i >= captures and isinstance(x, TableValue)]
    return PreparedBody(
        tuple(items),
        words,
        placed(items, launches.buffers, sharing.memory_of),
        carries,
        tuple(listing.programs),
        tuple(listing.bounds),
        is_asked,
        dict(zip(tables, itertools.count(len(inputs) - captures))),
    )


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
    if step.node.regions:
        _keep_rows(reading, step)
    if isinstance(step.kernel, Regions):
        results = branches(reading, step, step.kernel.programs)
    elif is_loop(step.node):
        results = _Listed(reading, step, cast("Looping", step.kernel)).results()
    else:
        _require(not step.node.regions, f"{name} inside")
        op = product_sum if step.is_sum else OPS.get(name, computed if step.where == "host" else None)
        if op is None:
            where = "is called in the library" if step.where == "device" else "goes through the host"
            raise CannotPrepare(f"{name} {where}")
        results = op(reading, step)
    reading.values.update(zip(step.results, results, strict=True))


def _keep_rows(reading: Reading, step: NodeStep) -> None:
    """Copy values that lie in rows of stacks which a region pushes on or pops off: the counters by which these rows lie
    move inside of it."""
    counted = _counted(reading, [reading.values[slot] for slot in step.operands])
    copies: dict[View, View] = {}

    def copied(view: View) -> View:
        if view not in copies:
            copies[view] = reading.launches.copy(view)
        return copies[view]

    for slot, x in reading.values.items() if counted else ():
        if reading.last.get(slot, -1) < reading.position or counted.isdisjoint(sources_of(x)):
            continue
        if isinstance(x, Computed):
            reading.values[slot] = reading.computed(x)
        elif isinstance(x, LocalStack | TableValue):
            reading.values[slot] = replace(x, rows=copied(x.rows))
        else:
            reading.values[slot] = copied(x)


def _counted(reading: Reading, values: Iterable[object]) -> set[Source]:
    """Rows of the stacks among some values that lie by a counter."""
    counted = reading.listing.rates.counted
    return {Rows(x.position) for x in values if isinstance(x, StackValue) and x.position in counted}


# The carry after an iteration.


def _leave(inside: Reading, since: int, before: Sequence[Any], is_counted: bool = True) -> None:
    """Have the carries be what an iteration leaves.

    Args:
        since: the counter of iterations, by which integers and numbers of rows go.
        is_counted: false if only the card knows how often it counts.
    """
    listing, captures = inside.listing, inside.program.inputs - len(before)
    arrays, stacks = list[tuple[View, Operand]](), list[tuple[StackValue, StackValue]]()
    for position, (x, slot) in enumerate(zip(before, inside.program.outputs, strict=True)):
        if slot == captures + position or inside.values[slot] is x:
            continue
        after = inside.value(slot)
        if isinstance(x, View):
            arrays.append((x, inside.operand(slot)))
            continue
        if isinstance(x, TableValue):
            table = as_table(inside, after)
            assert x.marks is not None
            arrays += [(x.rows, table.rows), (x.marks, marks_of(table))]
            continue
        if isinstance(x, StackValue | LocalStack):
            _require(isinstance(after, type(x)) and after == replace(x, length=after.length), "stacks change places")
            step = after.length.plus(x.length, -1)
        else:
            _require(isinstance(x, Affine) and isinstance(after, Affine), _STEPS)
            step = after.plus(x, -1)
        if isinstance(x, StackValue):
            stacks.append((x, after))
            if x.position in listing.rates.counted:
                continue
            if step.is_moving or (step.constant and not is_counted):
                listing.count_rows(x.position)
                continue
        _require(not step.is_moving, _STEPS)
        if step.constant:
            listing.numbers[since, position] = step.constant
    left_behind(inside.launches, arrays)
    inside.passed(stacks)


_STEPS = "a number of the host does not go by whole steps"


def _carries(reading: Reading, before: Sequence[Any]) -> tuple[Carry, ...]:
    """The carries of the loop, behind which are the marks of tables."""
    listing, found, marks = reading.listing, list[Carry](), list[Carry]()
    for position, x in enumerate(before):
        its: Carry = Unchanged()
        if isinstance(x, Affine):
            its = CarriedNumber(listing.numbers.get((0, position), 0))
        elif isinstance(x, View):
            its = CarriedArray(x.dtype, x.shape)
        elif isinstance(x, TableValue):
            its = CarriedArray(x.rows.dtype, x.rows.shape)
            marks.append(CarriedArray(BOOL, x.rows.shape[:1]))
        elif isinstance(x, StackValue) and position in listing.row_types:
            its = _carried_rows(reading, position, reading.results[position].length.plus(x.length, -1), x.is_on_host)
        found.append(its)
    return *found, *marks


def _carried_rows(reading: Reading, position: int, rows: Affine, is_on_host: bool) -> CarriedRows:
    """A stack with so many more rows, but for those that are counted."""
    listing = reading.listing
    pushes = listing.pushes(position)
    exact: Total = rows.times(1 if pushes else -1)
    passes = listing.passes.get(position) or {abs(rows.constant)}
    if position in listing.rates.counted:
        exact = reading.totals.get(position, Affine(0))
        if isinstance(exact, Affine) and any(counter for counter, _ in exact.steps):
            exact = None
    return CarriedRows(pushes, exact, (min(passes), max(passes)), *listing.row_types[position], is_on_host)


def left_behind(launches: Launches, arrays: Sequence[tuple[View, Operand]]) -> None:
    """Have carried arrays be what an iteration leaves, all at once: what is read of one is read before another is
    written."""
    carried = {before.source for before, _ in arrays}
    left = []
    for before, after in arrays:
        if isinstance(after, View) and after.shape != before.shape:
            raise CannotPrepare("what a loop carries changes its shape")
        if after != before:
            is_read = isinstance(after, View) and after.source in carried
            left.append((before, launches.copy(after, before.shape) if is_read else after))
    for before, after in left:
        launches.become(after, before)


# Inner loops.


class Looping(Protocol):
    """Interface of the kernel of a `while` node (`ctrlgrad.engines.cuda.control.Loop`) that this module needs.

    `tables` are the places, among the body's inputs, of stacks that are read and written by index; `iteration` is the
    body without the predicate.
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


class _Listed:
    """A loop as it is listed.

    Attributes:
        since: the number of the counter of iterations since the loop began.
        carried: what the carries are in an iteration, and when the loop is over.
        given: the same behind the captures.
    """

    def __init__(self, reading: Reading, step: NodeStep, loop: Looping) -> None:
        self.reading, self.launches, self.listing = reading, reading.launches, reading.listing
        self.node = step.node
        self.loop = loop
        self.since = self.listing.new_counter()
        self.captured, self.entering = loop.parts.split(step.operands)
        self.captures = len(self.captured)
        self.trips = trips_of(reading, loop, [reading.values[slot] for slot in step.operands], self.captures)
        # True if only the card has the trip count, in a counter.
        self.is_on_card = self.trips is not None and reading.is_endless(self.trips)
        if self.trips is not None and self.is_on_card:
            self.trips = reading.clipped(self.trips)
        if self.trips is None or self.is_on_card:
            self.listing.endless.add(self.since)
        most = self.trips.constant if self.trips is not None and not self.trips.is_moving else ENDLESS
        _require(loop.maximum is None or most <= loop.maximum, "a loop inside may go on too often, which is an error")
        self.goes_on = self.launches.buffer((), INT64)
        captured = [_captured(reading, reading.values[slot]) for slot in self.captured]
        self.carried = [self._carried(position) for position in range(len(loop.parts.carries))]
        self.given = [*captured, *self.carried]

    def results(self) -> tuple[object, ...]:
        bounds = len(self.reading.bounds)
        with self.launches.inside(self.node, self.since):
            self._go_on(is_first=True)
            with self.launches.listing([]) as items:
                inside = self.reading.inside(self.loop.iteration, self.given)
                _read(inside)
                _leave(inside, self.since, self.carried, self.trips is not None and not self.is_on_card)
                self._go_on()
        self.launches.items.append(Repeating(self.goes_on, tuple(items), self.since, self._listed_trips()))
        self._limit(bounds)
        for position, rows in inside.totals.items():
            self.reading.add_total(position, self._times(rows))
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
        if self._stays(position):
            return value
        if isinstance(value, StackValue):
            return replace(value, length=value.length.plus(moved))
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
            raise CannotPrepare(_STEPS)
        return value

    # Predicate and counters.

    def _go_on(self, is_first: bool = False) -> None:
        """Before an iteration the counter counts, from 0, and the predicate is asked."""
        numbers, counter, found = Numbers(self.launches), Register("counter", self.since), dict[Register | View, str]()
        if self._has_counter:
            found[counter] = "int64(0)" if is_first else f"({numbers.read(counter)} + int64(1))"
        if self.trips is not None:
            found[self.goes_on] = f"np_select({found[counter]} < {numbers.read(self.trips)}, int64(1), int64(0))"
        numbers.write(found)
        if self.trips is None:
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
        asked = self.reading.inside(self.loop.cond, self.given)
        _read(asked)
        numbers = Numbers(self.launches)
        condition = asked.unless_short(numbers, numbers.read(asked.operand(self.loop.cond.outputs[0])))
        numbers.write({self.goes_on: f"np_select({condition}, int64(1), int64(0))"})

    def _stays(self, position: int) -> bool:
        """Return true if an iteration leaves a carry unchanged."""
        return self.loop.iteration.outputs[position] == self.captures + position

    # When it is over.

    def _result(self, position: int) -> object:
        value = self.carried[position]
        if isinstance(value, LocalStack | StackValue):
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

    def _times(self, rows: Total) -> Total:
        """The rows of all iterations together."""
        if self.trips is None or rows is None:
            return None
        if isinstance(rows, Affine) and not rows.is_moving and not self.is_on_card:
            return self.trips.times(rows.constant)
        if self.trips.is_moving:
            return None
        if isinstance(rows, int):
            return rows * self.trips.constant
        return None if dict(rows.steps).get(self.since) else rows.times(self.trips.constant)


def _captured(reading: Reading, value: object) -> object:
    """Value of a capture as all iterations see it: a local stack as a table."""
    if not isinstance(value, LocalStack):
        return value
    try:
        return as_table(reading, value)
    except CannotPrepare as reason:
        return Unusable(str(reason))
