"""One reading of a loop's body, or of a region in it: the value of each slot of its program at one of its steps.

A body is prepared from the values that its inputs have when an iteration begins (`binding.inputs_of`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ctrlgrad.engines.cuda.kernel import KernelText, TextBuilder
from ctrlgrad.engines.cuda.prepared.launches import Launches, Listing, Numbers, Rates
from ctrlgrad.engines.cuda.prepared.model import (
    INT64,
    Affine,
    CannotPrepare,
    Converted,
    Fixed,
    Given,
    Operand,
    Register,
    Source,
    View,
)
from ctrlgrad.engines.cuda.program import Program
from ctrlgrad.ir import Node
from ctrlgrad.plan.elementwise import Operand as Element


@dataclass(frozen=True)
class StackValue:
    """A carried stack, with the number of rows that were pushed since the run began, or popped (below 0)."""

    position: int
    length: Affine
    is_on_host: bool = False


@dataclass(frozen=True)
class TableValue:
    """A table: its rows, and a mark for each that says whether it was written; None where all were.

    It is one that the loop carries or captures, or begins within an iteration.
    """

    rows: View
    marks: View | None

    def __len__(self) -> int:
        return self.rows.shape[0]


@dataclass(frozen=True)
class LocalStack:
    """A stack that begins and ends within an iteration, as an array of which so many rows are in use.

    `number` is that of a new one; one that was made of an array has none.
    """

    rows: View
    length: Affine
    number: int | None = None


@dataclass(frozen=True)
class Unusable:
    """A value that no prepared launch can read, and why."""

    reason: str


Input = View | Fixed | Affine | StackValue | TableValue | Unusable
# Rows of a pass: so many, at most so many, or without a known bound.
Total = Affine | int | None


def at_most(rows: Total) -> int | None:
    """Upper bound of the rows of a pass; None where it has none."""
    if isinstance(rows, Affine):
        return None if rows.is_moving else rows.constant
    return rows


@dataclass(frozen=True, eq=False)
class Computed:
    """A number that the host would compute: where it is read the card computes it, of numbers that go by steps."""

    node: Node
    operands: tuple[Operand | Computed, ...]


class Values:
    """Values by slot, and the launches that an op lists."""

    def __init__(self, values: Mapping[int, Any], launches: Launches) -> None:
        self.values: dict[int, Any] = dict(values)
        self.launches = launches
        # Indices that must stay below a size.
        self.bounds: list[tuple[Affine, int]] = []

    def value(self, slot: int) -> Any:
        return self.values[slot]

    def operand(self, slot: int) -> Operand:
        """An array or a number."""
        found = self.value(slot)
        if not isinstance(found, View | Fixed | Affine | Converted):
            raise CannotPrepare("a stack is no operand of a kernel")
        return found

    def view(self, slot: int) -> View:
        """An array; a number is written into one."""
        found = self.operand(slot)
        return found if isinstance(found, View) else self.launches.copy(found)

    def index(self, slot: int) -> Affine | View:
        """Operand of an index: a number, or a view on the card, where the kernel checks its bounds."""
        raise NotImplementedError

    def size(self, slot: int) -> int:
        """A number that the host knows."""
        found = self.value(slot)
        if not isinstance(found, Affine) or found.is_moving:
            raise CannotPrepare("a size or a slice's bound is not known")
        return found.constant

    def own(self, slot: int) -> View:
        """The array in a slot as one that the step may overwrite."""
        return self.launches.updated(self.view(slot))

    def is_updated(self, view: View) -> bool:
        """Return true if a step from here on may overwrite a view's memory in place."""
        raise NotImplementedError


class Reading(Values):
    """Values by slot, in the middle of one region.

    Args:
        values: those of the inputs.
        outside: the reading of the region that this one is in, at the step of which it is a part.
    """

    def __init__(
        self,
        program: Program,
        values: Sequence[Any],
        listing: Listing,
        region: int = 0,
        outside: Reading | None = None,
    ) -> None:
        self.program, self.listing, self.outside = program, listing, outside
        super().__init__(dict(enumerate(values)), listing.launches)
        self.bounds = listing.bounds
        # Rows of a pass on each stack whose rows are counted, those of regions inside among them.
        self.totals: dict[int, Total] = {}
        self._numbers: dict[Computed, View] = {} if outside is None else dict(outside._numbers)
        self.values.update((slot, _constant(Given(slot, region), x)) for slot, x in program.constants.items())
        # The step that is read now, and where each slot is read last.
        self.position = 0
        self.last = dict.fromkeys(program.outputs, len(program.steps))
        for position in reversed(range(len(program.steps))):
            for slot in program.steps[position].reads:
                self.last.setdefault(slot, position)

    def inside(self, program: Program, values: Sequence[Any]) -> Reading:
        """The reading of a region of the step that is read now."""
        self.listing.programs.append(program)
        return Reading(program, values, self.listing, len(self.listing.programs) - 1, self)

    def add_total(self, position: int, rows: Total) -> None:
        """A pass has so many more rows on a stack."""
        before = self.totals.get(position, Affine(0))
        if isinstance(rows, Affine) and isinstance(before, Affine):
            self.totals[position] = before.plus(rows)
        else:
            bounds = at_most(before), at_most(rows)
            self.totals[position] = None if None in bounds else sum(x for x in bounds if x is not None)

    def passed(self, stacks: Iterable[tuple[StackValue, StackValue]]) -> None:
        """Behind a pass, have the rows counted that it has added to stacks, which were so before it and behind it."""
        listing, launches, changes = self.listing, self.launches, dict[int, Affine]()
        for before, after in stacks:
            if after.position != before.position:
                raise CannotPrepare("stacks change places")
            changes[before.position] = after.length.plus(before.length, -1)
        rows = {n: x.constant for n, x in changes.items() if n in listing.rates.counted and x != Affine(0)}
        endless = listing.rates.endless
        popped = [position for position in rows if rows[position] < 0 and position in endless]
        if any(position in self.totals for position in popped):
            raise CannotPrepare("a stack is popped off by a loop inside, and outside of it")
        with launches.listing([]) as first:
            launches.enter(popped)
        launches.items[:0] = first
        launches.move(rows, endless)
        for position, moved in rows.items():
            listing.passes.setdefault(position, set()).add(abs(moved))
            self.add_total(position, Affine(abs(moved)))

    @property
    def results(self) -> list[Any]:
        """Values that the region returns."""
        return [self.values[slot] for slot in self.program.outputs]

    # Values.

    def value(self, slot: int) -> Any:
        found = self.values[slot]
        if isinstance(found, Unusable):
            raise CannotPrepare(found.reason)
        return found

    def operand(self, slot: int) -> Operand:
        found = self.value(slot)
        return self.computed(found) if isinstance(found, Computed) else super().operand(slot)

    def computed(self, number: Computed) -> View:
        """A buffer that one kernel writes a number to."""
        if number not in self._numbers:
            text, operands = _text_of(number)
            self._numbers[number] = self.launches.buffer((), number.node.result.tensor.dtype)
            self.launches.kernel(text, (), operands, [self._numbers[number]])
        return self._numbers[number]

    def is_endless(self, number: Affine) -> bool:
        """Return true if a number depends on a counter that only the card has."""
        return any(counter in self.listing.endless for counter, _ in number.steps)

    def stored(self, number: Operand, counter: int) -> Affine:
        """An integer that is in a counter from now on."""
        self.launches.copied(number, self.launches.counter(counter))
        return Affine(0, (), ((counter, 1),))

    def clipped(self, number: Affine) -> Affine:
        """An integer that only the card has, 0 where it is below."""
        if any(number == Affine(0, (), ((counter, 1),)) for counter in self.listing.clipped):
            return number
        counter = self.listing.number()
        self.listing.clipped.add(counter)
        numbers = Numbers(self.launches)
        its = numbers.read(number)
        condition = self.unless_short(numbers, f"{its} > int64(0)")
        numbers.write({Register("counter", counter): f"np_select({condition}, {its}, int64(0))"})
        return Affine(0, (), ((counter, 1),))

    def unless_short(self, numbers: Numbers, condition: str) -> str:
        """Extend a condition: it is false once rows are missing, since meaningless rows must not keep a loop going for
        ever."""
        if not self.listing.rates.may_be_short:
            return condition
        return f"({condition}) & ({numbers.read(Register('short'))} == int64(0))"

    def view(self, slot: int) -> View:
        found = super().view(slot)
        if not found.size:
            raise CannotPrepare("an array without elements")
        return found

    def index(self, slot: int) -> Affine | View:
        """Operand of an index: an `Affine` where it goes by whole steps; else a view on the card, where the kernel
        checks its bounds."""
        found = self.value(slot)
        return found if isinstance(found, Affine) and not self.is_endless(found) else self.view(slot)

    # Updates in place.

    def _sharing(self, view: View) -> set[int]:
        may_lie_in = self.launches.may_lie_in
        return {n for n, x in self.values.items() if may_lie_in(view.source) in map(may_lie_in, sources_of(x))}

    def is_updated(self, view: View) -> bool:
        sharing = self._sharing(view)
        if any(n in sharing for n in self._updated(self.position)):
            return True
        return self.outside is not None and self.outside.is_updated(view)

    def _updated(self, position: int) -> Iterator[int]:
        return (slot for step in self.program.steps[position:] for slot in step.updates)


def sources_of(x: object) -> tuple[Source, ...]:
    """The memory in which a value lies, or in which lies what it will be computed of."""
    if isinstance(x, Computed):
        return tuple(source for operand in x.operands for source in sources_of(operand))
    if isinstance(x, TableValue):
        return x.rows.source, *sources_of(x.marks)
    if isinstance(x, LocalStack):
        return (x.rows.source,)
    return (x.source,) if isinstance(x, View) else ()


def body_inputs(inputs: Sequence[Input], captures: int, rates: Rates) -> list[Input]:
    """Values of a body's inputs in any iteration: integers on the host, and the rows of stacks, go by steps."""
    found: list[Input] = []
    for slot, x in enumerate(inputs):
        step = rates.numbers.get((0, slot - captures), 0)
        moved = Affine(0, (), ((0, step),) if step else ())
        if isinstance(x, StackValue):
            x = replace(x, length=rates.length(x.position).plus(moved))
        found.append(x.plus(moved) if isinstance(x, Affine) else x)
    return found


def _constant(given: Given, x: np.ndarray) -> Any:
    if x.ndim:
        return View.whole(given, x.dtype, x.shape)
    return Affine(int(x)) if x.dtype == INT64 else Fixed(x.dtype, x[()])


def _text_of(number: Computed) -> tuple[KernelText, list[Operand]]:
    """The kernel that computes a number, with all that it is made of, and what it reads."""
    builder, operands = TextBuilder(), list[Operand]()
    found: dict[Computed, Element] = {}

    def element(x: Computed) -> Element:
        if x not in found:
            dtypes = [v.tensor.dtype for v in x.node.operands]
            read = [
                element(y) if isinstance(y, Computed) else leaf(y, dtype)
                for y, dtype in zip(x.operands, dtypes, strict=True)
            ]
            found[x] = builder.elementwise(x.node.op.name, read, dtypes, x.node.result.tensor.dtype)
        return found[x]

    def leaf(operand: Operand, dtype: np.dtype) -> Element:
        operands.append(operand)
        return builder.input(dtype)

    return builder.text(element(number), number.node.result.tensor.dtype), operands
