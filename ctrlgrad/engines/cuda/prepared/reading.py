"""One reading of a loop's body, or of a region in it: the value of each slot of its program at one of its steps.

A body is prepared from the values that its inputs have when an iteration begins (`binding.inputs_of`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctrlgrad.engines.cuda.kernel import KernelText, TextBuilder
from ctrlgrad.engines.cuda.prepared.launches import Launches, Listing, Rates, whole
from ctrlgrad.engines.cuda.prepared.model import (
    INT64,
    Affine,
    CannotPrepare,
    Clipped,
    Converted,
    Fixed,
    Given,
    Operand,
    Region,
    Register,
    Source,
    View,
)
from ctrlgrad.engines.cuda.program import Program
from ctrlgrad.ir import Node
from ctrlgrad.plan.elementwise import Operand as Element


@dataclass(frozen=True)
class StackValue:
    """A carried stack, with the rows that were pushed so far, or popped (below 0), since what is gone through began.

    What regions inside did is not among them: their counters count it.
    """

    position: int
    rows: int = 0
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
        counter: int = 0,
        outside: Reading | None = None,
    ) -> None:
        self.program, self.listing, self.counter, self.outside = program, listing, counter, outside
        super().__init__(dict(enumerate(values)), listing.launches)
        self.bounds = listing.bounds
        # Upper bound of the rows that inner regions add to a stack in one pass; None where it is unknown.
        self.most: dict[int, int | None] = {}
        self._numbers: dict[Computed, View] = {} if outside is None else dict(outside._numbers)
        self.values.update((slot, _constant(Given(slot, region), x)) for slot, x in program.constants.items())
        # The step that is read now, and where each slot is read last.
        self.position = 0
        self.last = dict.fromkeys(program.outputs, len(program.steps))
        for position in reversed(range(len(program.steps))):
            for slot in program.steps[position].reads:
                self.last.setdefault(slot, position)

    def inside(self, program: Program, values: Sequence[Any], is_counted: bool = True) -> Reading:
        """The reading of a region of the step that is read now, with a counter of its own if it has one."""
        counter = self.counter
        if is_counted:
            counter = self.listing.new_counter()
            self.listing.regions.found[counter] = Region(self.counter, Affine(1), is_side=True)
        return self.repeated(program, values, counter)

    def repeated(self, program: Program, values: Sequence[Any], counter: int) -> Reading:
        """Reading of an inner region that is repeated, with this counter."""
        self.listing.programs.append(program)
        region = len(self.listing.programs) - 1
        return Reading(program, values, self.listing, region, counter, self)

    def add_most(self, position: int, rows: int | None) -> None:
        """Add to the upper bound of the rows that inner regions push on a stack, or pop off it."""
        before = self.most.get(position, 0)
        self.most[position] = None if rows is None or before is None else before + rows

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
        if number.steps and number == Affine(0, (), number.steps[:1]) and self.listing.is_clipped(number.steps[0]):
            return number
        counter = self.listing.number(Clipped(number, self.counter))
        condition, given = self.unless_short("a0 > int64(0)", [number])
        text = whole(len(given), [f"np_select({condition}, a0, int64(0))"])
        self.launches.kernel(text, (), given, [self.launches.counter(counter)])
        return Affine(0, (), ((counter, 1),))

    def unless_short(self, condition: str, given: Sequence[Operand]) -> tuple[str, list[Operand]]:
        """Extend a condition on numbers `a0`, `a1`, ...: it is false once rows are missing, since meaningless rows
        must not keep a loop going for ever. Returns its text and its operands."""
        if not self.listing.may_be_short:
            return condition, list(given)
        return f"({condition}) & (a{len(given)} == int64(0))", [*given, self.launches.number(Register("short"))]

    def view(self, slot: int) -> View:
        found = super().view(slot)
        if not found.size:
            raise CannotPrepare("an array without elements")
        return found

    def index(self, slot: int) -> Affine | View:
        """Operand of an index: an `Affine` where it goes by whole steps; else a view on the card, where the kernel
        checks its bounds.

        Past the end of a masked loop an index may have any value, so an index that only the host computes is refused
        there.
        """
        found = self.value(slot)
        if not isinstance(found, Affine | View) and self.listing.is_masked:
            raise CannotPrepare("an index of the host does not go by whole steps")
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
    """Values of a body's inputs in any iteration: integers on the host go by steps."""
    steps = [rates.numbers.get((0, slot - captures), 0) for slot in range(len(inputs))]
    moved = [Affine(0, (), ((0, step),)) for step in steps]
    return [x.plus(its) if isinstance(x, Affine) else x for x, its in zip(inputs, moved, strict=True)]


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
