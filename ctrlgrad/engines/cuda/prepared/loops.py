"""Inner loops in a prepared body: the launch list of an iteration, which repeats while a number on the card says so.

The list is the same for all iterations, so each carry has one form:

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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, cast

import numpy as np

from ctrlgrad.engines.cuda.placement import HOST, Places
from ctrlgrad.engines.cuda.prepared.launches import whole
from ctrlgrad.engines.cuda.prepared.model import (
    ENDLESS,
    INT64,
    Affine,
    CannotPrepare,
    Operand,
    Repeating,
    View,
)
from ctrlgrad.engines.cuda.prepared.ops import as_popped, as_table, marks_of, own_table
from ctrlgrad.engines.cuda.prepared.reading import (
    Computed,
    LocalStack,
    Reading,
    StackValue,
    TableValue,
    Unusable,
)
from ctrlgrad.engines.cuda.program import NodeStep, Program
from ctrlgrad.ir import StackType, TensorType, Use, Value, walk
from ctrlgrad.ir.control import Counting, Loop


class HasTables(Protocol):
    """A body (`ctrlgrad.engines.cuda.prepared.runner.Body`): which of its inputs are stacks that are read and written
    by index."""

    tables: Mapping[int, TensorType]


class Looping(Protocol):
    """Interface of the kernel of a `while` node (`ctrlgrad.engines.cuda.loops.Loop`) that this module needs."""

    parts: Loop
    places: Places
    cond: Program
    counting: tuple[Counting, ...]
    maximum: int | None

    @property
    def body(self) -> HasTables:
        """Of which this is asked."""

    @property
    def iteration(self) -> Program:
        """The body, none of whose iterations are past the end."""


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


# Reads the steps of a region.
Read = Callable[[Reading], None]


def repeated(reading: Reading, step: NodeStep, read: Read) -> tuple[object, ...]:
    """The results of a `while`."""
    return _Listed(reading, step, cast("Looping", step.kernel), read).results()


class _Listed:
    """A loop as it is listed.

    Attributes:
        counter, since: the numbers of the counters of iterations: in a run, and since the loop began.
        given: what the captures and the carries are in an iteration, and when the loop is over.
    """

    def __init__(self, reading: Reading, step: NodeStep, loop: Looping, read: Read) -> None:
        self.reading, self.launches, self.listing = reading, reading.launches, reading.listing
        self.node = step.node
        self.loop, self.read = loop, read
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
        if loop.maximum is not None and not is_at_most(self.trips, loop.maximum):
            raise CannotPrepare("a loop inside may go on too often, which is an error")
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
                self.read(inside)
                self._leave(inside)
                self._go_on(any(transfer.counter == self.counter for transfer in inside.transfers))
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
        if self.captures + position in self.loop.body.tables:
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
            counter = self.listing.new_counter()
            self.listing.endless.add(counter)
            return self.reading.stored(value, counter)
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

    def _go_on(self, is_counted: bool) -> None:
        """At the end of an iteration: counters count, and the predicate is asked again."""
        counters = [self.since] * self._has_counter + [self.counter] * is_counted
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
        self.read(asked)
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
