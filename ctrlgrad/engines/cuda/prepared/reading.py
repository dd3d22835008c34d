"""One reading of a loop's body, or of a region in it: the value of each slot of its program, and what it launches.

`Launches` lists kernels and products of the region that is being read, with their views, words and buffers. `Listing`
has what the readings of a body and of its regions share: launches, counters, rows, bounds. The regions are the body,
sides of branches and bodies of loops. A `Reading` has the values at one step of a region. A body is prepared from the
values that its inputs have when an iteration begins (`binding.inputs_of`). NumPy computes views of views, on memory
that is never looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ctrlgrad.engines.cuda.indexing import Surroundings
from ctrlgrad.engines.cuda.kernel import Access, KernelText, Parameter, TextBuilder, copy_text
from ctrlgrad.engines.cuda.prepared.model import (
    INT64,
    Affine,
    Become,
    Buffer,
    CannotPrepare,
    CarriedRows,
    Converted,
    Fixed,
    Flag,
    Given,
    IndexDoesNotFit,
    Item,
    Operand,
    ProductLaunch,
    Register,
    Rows,
    Shape,
    SizesDoNotFit,
    Source,
    View,
    Word,
    contiguous,
    count,
    slot,
    word_view,
)
from ctrlgrad.engines.cuda.program import Program
from ctrlgrad.engines.cuda.reductions import ReductionText, elementwise, stages
from ctrlgrad.engines.cuda.sites import FLAG_WORDS, MOST_NOTED, Site
from ctrlgrad.ir import Node
from ctrlgrad.plan.elementwise import Operand as Element


def moved_by(x: Operand) -> list[tuple[Word, int]]:
    """Words on the card that an operand moves by, each with a factor: one from the beginning of a run, and counters."""
    word: View | Affine
    if isinstance(x, View):
        # However the elements of rows lie, one word tells where they begin.
        word, moved = replace(x, shape=(), strides=()) if isinstance(x.source, Rows) else x.moved, x.moved
    else:
        word = moved = x.number if isinstance(x, Converted) else x if isinstance(x, Affine) else Affine(0)
    is_moving = x.is_moving if isinstance(x, View) else moved.is_moving
    counted = [(Register("counter", counter), step) for counter, step in moved.steps]
    return [(word, 1), *counted] if is_moving else []


def viewed(view: View, of: Callable[[np.ndarray], np.ndarray]) -> View:
    """Apply a NumPy function that copies nothing to a view."""
    if not view.size:
        # An array without elements has no address that could be compared.
        part = of(np.empty(view.shape, view.dtype))
        return replace(view, shape=part.shape, strides=part.strides)
    whole = as_strided(np.zeros(1, view.dtype), view.shape, view.strides)
    part = of(whole)
    assert isinstance(part, np.ndarray)
    offset = part.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    return replace(view, shape=part.shape, strides=part.strides, offset=view.offset + offset)


def part(view: View, key: Sequence[Any]) -> tuple[View, list[tuple[Affine, int]]]:
    """A part of a view by a key of slices, Nones and numbers; and what moving numbers must be below.

    Raises `IndexError` for a number that is out of range.
    """
    moved, bounds, items, axis = view.moved, [], list[Any](), 0
    for item in key:
        if isinstance(item, Affine) and item.is_moving:
            bounds.append((item, view.shape[axis]))
            moved = moved.plus(item, view.strides[axis])
            items.append(0)
        else:
            item = item.constant if isinstance(item, Affine) else item
            if isinstance(item, int) and not -view.shape[axis] <= item < view.shape[axis]:
                raise IndexDoesNotFit(f"index {item} is out of bounds for axis {axis} with size {view.shape[axis]}")
            items.append(item)
        axis += item is not None
    return viewed(replace(view, moved=moved), lambda x: np.asarray(x[(*items, ...)])), bounds


def reshaped(view: View, shape: Shape) -> View | None:
    """A view that is seen with another shape, in which one size may be -1; None where its elements lie otherwise."""
    rest = math.prod(size for size in shape if size != -1)
    sizes = tuple(view.size // rest if size == -1 else size for size in shape)
    if math.prod(sizes) != view.size:
        raise SizesDoNotFit(f"{view.size} elements in a shape {sizes}")
    if not view.size:
        return replace(view, shape=sizes, strides=contiguous(sizes, view.dtype))
    try:
        return viewed(view, lambda x: np.reshape(x, sizes, copy=False))
    except ValueError:
        return None


def broadcast(view: View, shape: Shape) -> View:
    """A view that is seen with a shape that it broadcasts to."""
    try:
        return viewed(view, lambda x: np.broadcast_to(x, shape))
    except ValueError as error:
        raise SizesDoNotFit(str(error)) from error


def broadcast_shape(*shapes: Shape) -> Shape:
    """The shape that some shapes broadcast to."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError as error:
        raise SizesDoNotFit(str(error)) from error


FLAG = View.whole(Flag(), INT64, (FLAG_WORDS,))


class Launches:
    """In the order of execution. Buffer 0 is that of the words."""

    def __init__(self) -> None:
        # Items of the region that is being read.
        self.items: list[Item] = []
        self.words: dict[Word, int] = {Register("counter"): 0}
        self.buffers: list[tuple[Shape, np.dtype]] = [((1,), INT64)]
        # The name of the value that each was an update of.
        self._updated: dict[Source, Source] = {}
        # The loops around the region that is read now, the outermost first.
        self.loops: list[tuple[Node, int]] = []

    @contextmanager
    def listing(self, items: list[Item]) -> Iterator[list[Item]]:
        """Go on with another list, which is a region's."""
        outside, self.items = self.items, items
        try:
            yield self.items
        finally:
            self.items = outside

    def buffer(self, shape: Shape, dtype: np.dtype) -> View:
        """A buffer of its own."""
        self.buffers.append((shape, dtype))
        return View.whole(Buffer(len(self.buffers) - 1), dtype, shape)

    # Values that become others.

    def may_lie_in(self, source: Source) -> Source:
        """The first of the names whose values were updated to that of a source: all may have one memory."""
        while source in self._updated:
            source = self._updated[source]
        return source

    def updated(self, view: View) -> View:
        """The value that the next launches make of another one, in its place if nothing reads that later."""
        after = self.buffer(view.shape, view.dtype)
        self._updated[after.source] = view.source
        self.become(view, after)
        return after

    def become(self, value: Operand, target: View) -> None:
        """A value is that of a whole buffer or carried array from now on: it lies there already, or is copied."""
        if not isinstance(value, View):
            self.copied(value, target)
            return
        with self.listing([]) as copy:
            self.copied(value, target)
        self.items.append(Become(value, target, tuple(copy)))

    def kernel(self, text: KernelText, shape: Shape, inputs: Sequence[Operand], outputs: Sequence[View]) -> None:
        """Nothing is launched where there is nothing to compute."""
        if 0 in shape:
            return
        seen = [broadcast(x, shape) if isinstance(x, View) else x for x in inputs]
        self.items += elementwise(text, shape, seen, outputs, self.access)

    def around(self, node: Node) -> Surroundings:
        """Of a node of the region that is read now. Noted are when the run began, and the iterations in it and in loops
        inside."""
        loops = tuple(loop for loop, _ in self.loops)
        words: list[Word] = [
            Register("began"),
            Register("counter"),
            *(Register("counter", since) for _, since in self.loops),
        ]
        noted = [self.word(word) for word in words]
        if len(noted) > MOST_NOTED:
            raise CannotPrepare("loops inside lie too deep for an error to name them")
        return Surroundings(self.access, self.buffer, FLAG, Site(node, loops), tuple(noted))

    @contextmanager
    def inside(self, loop: Node, since: int) -> Iterator[None]:
        """In a loop, which has a counter of its iterations since it began."""
        self.loops.append((loop, since))
        try:
            yield
        finally:
            self.loops.pop()

    def reduction(
        self,
        text: ReductionText,
        shape: Shape,
        axes: Sequence[int],
        inputs: Sequence[Operand],
        stored: Sequence[View],
        results: Sequence[View],
    ) -> None:
        """See `ctrlgrad.engines.cuda.reductions`."""
        self.items += stages(text, shape, axes, inputs, stored, results, self.access, self.buffer)

    def access(self, x: Operand) -> Access:
        moved = moved_by(x)
        for word, _ in moved:
            self.word(word)
        has_parameter = not moved or (isinstance(x, View) and not isinstance(x.source, Rows))
        return Access(not isinstance(x, View), has_parameter, len(moved))

    def word(self, its: Word) -> int:
        """The number of a word."""
        return self.words.setdefault(its, len(self.words))

    def number(self, its: Word) -> View:
        """A word as an array on the card."""
        return word_view(self.word(its))

    def counter(self, number: int) -> View:
        """A counter as an array on the card."""
        return self.number(Register("counter", number))

    def copied(self, x: Operand, target: View) -> None:
        assert x.dtype == target.dtype
        self.kernel(copy_text(x.dtype), target.shape, [x], [target])

    def copy(self, x: Operand, shape: Shape | None = None) -> View:
        """A buffer with the same elements."""
        found = shape if shape is not None else x.shape if isinstance(x, View) else ()
        target = self.buffer(found, x.dtype)
        self.copied(x, target)
        return target

    def reshaped(self, view: View, shape: Shape) -> View:
        """The same elements with another shape: the view, or a copy."""
        found = reshaped(view, shape)
        if found is None:
            found = reshaped(self.copy(view), shape)
        assert found is not None
        return found

    def product(self, a: View, b: View, out: View, adds: bool) -> None:
        self.items.append(ProductLaunch(a, b, out, adds))

    def enter(self, popped: Sequence[int]) -> None:
        """A pass begins that pops rows off stacks without a known end: it is noted where there are none."""
        numbers, found, ends = Numbers(self), dict[Register | View, str](), list[str]()
        for position in popped:
            row, end = Register("counter", slot(position)), numbers.read(Register("last_slot", position))
            at = numbers.read(row)
            found[row] = f"np_select({at} < {end}, {at}, {end})"
            ends.append(f"({at} > {end})")
        if found:
            short = Register("short")
            found[short] = f"np_select({' | '.join(ends)}, int64(1), {numbers.read(short)})"
        numbers.write(found)

    def move(self, rows: Mapping[int, int], endless: Collection[int]) -> None:
        """So many rows have been pushed on stacks, or popped off them (below 0), by their positions."""
        numbers, found = Numbers(self), dict[Register | View, str]()
        for position, moved in rows.items():
            for counter in (count(position), *[slot(position)] * (position in endless)):
                its = Register("counter", counter)
                found[its] = after = f"({numbers.read(its)} + int64({abs(moved)}))"
            # Of those that are popped it is seen when the next pass begins.
            if position in endless and moved > 0:
                end = numbers.read(Register("last_slot", position))
                found[its] = f"np_select({after} < {end}, {after}, {end})"
        numbers.write(found)

    def check(self, stacks: Mapping[int, CarriedRows], asked: View | None = None) -> None:
        """Behind an iteration: the counter counts, and whether there is another one, for which there is memory on these
        stacks.

        Args:
            asked: where the loop's end depends on data, its predicate.
        """
        numbers, counter = Numbers(self), Register("counter")
        after = f"{numbers.read(counter)} + int64(1)"
        found: dict[Register | View, str] = {counter: after}
        conditions = [f"({after} < {numbers.read(Register('limit'))})"]
        for position, its in stacks.items():
            rows, most = numbers.read(Register("counter", count(position))), f"int64({its.total})"
            if its.is_endless:
                # As many as any iteration so far.
                before, largest = Register("before", position), Register("most", position)
                pushed, most = f"({rows} - {numbers.read(before)})", numbers.read(largest)
                most = f"np_select({most} < {pushed}, {pushed}, {most})"
                found |= {largest: most, before: rows}
            conditions.append(f"({rows} + {most} <= {numbers.read(Register('capacity', position))})")
        if any(its.is_endless and not its.pushes for its in stacks.values()):
            conditions.append(f"({numbers.read(Register('short'))} == int64(0))")
        if asked is not None:
            conditions.append(numbers.read(asked))
        found[Register("goes_on")] = f"np_select({' & '.join(conditions)}, int64(1), int64(0))"
        numbers.write(found)


class Numbers:
    """A kernel of numbers while it is written: all of them are read before one changes."""

    def __init__(self, launches: Launches) -> None:
        self._launches, self._read = launches, dict[Operand, str]()

    def read(self, x: Operand | Register) -> str:
        """The name of a number in the kernel's text."""
        operand = self._launches.number(x) if isinstance(x, Register) else x
        return self._read.setdefault(operand, f"a{len(self._read)}")

    def write(self, found: Mapping[Register | View, str]) -> None:
        """Launch the kernel that changes int64s, if it changes any, by their expressions."""
        if not found:
            return
        changed = [self._launches.number(x) if isinstance(x, Register) else x for x in found]
        inputs = tuple(Parameter(x.dtype.name, name) for x, name in self._read.items())
        outputs = tuple(Parameter("int64", f"o{k}") for k in range(len(found)))
        operation = "\n".join(f"o{k} = {x};" for k, x in enumerate(found.values()))
        self._launches.kernel(KernelText(inputs, outputs, operation), (), list(self._read), changed)


@dataclass
class Rates:
    """Facts about an iteration that one reading of the body finds and the next reading uses.

    Attributes:
        numbers: amount added to each integer on the host, or to the rows of a stack, by the counter of iterations since
            the loop began and the carry's position.
        counted: carried stacks whose rows lie by a counter, since iterations or passes differ in them: 1 where rows are
            pushed, -1 where they are popped.
        endless: those of them with rows that have no known bound.
        lengths: final number of rows of each new local stack.
    """

    numbers: dict[tuple[int, int], int] = field(default_factory=dict)
    counted: dict[int, int] = field(default_factory=dict)
    endless: frozenset[int] = frozenset()
    lengths: dict[int, int] = field(default_factory=dict)

    def length(self, position: int) -> Affine:
        """Rows of a carried stack that a counter counts."""
        counter = slot(position) if position in self.endless else count(position)
        return Affine(0, (), ((counter, self.counted[position]),)) if position in self.counted else Affine(0)

    @property
    def may_be_short(self) -> bool:
        """Return true if only the card knows how many rows are popped: a run may have fewer."""
        return any(self.counted[position] < 0 for position in self.endless)


class Listing:
    """Shared record of the readings of a body and of the regions in it."""

    def __init__(self, rates: Rates, program: Program) -> None:
        # Rates that the previous reading found.
        self.rates = rates
        self.launches = Launches()
        self.programs = [program]
        self.bounds: list[tuple[Affine, int]] = []
        self.row_types: dict[int, tuple[Shape, np.dtype]] = {}
        # As in `Rates`.
        self.numbers: dict[tuple[int, int], int] = {}
        self.counted = dict(rates.counted)
        self.lengths: dict[int, int] = {}
        self.counters = self.stacks = 0
        # The counters by which a number goes that only the card has; those with a number that is never below 0.
        self.endless: set[int] = set()
        self.clipped: set[int] = set()
        # Numbers of rows of the passes with rows, by the stack's position.
        self.passes: dict[int, set[int]] = {}
        self._pushes: dict[int, bool] = {}

    def new_counter(self) -> int:
        self.counters += 1
        return self.counters

    def number(self) -> int:
        """A new counter, in which the card has a number."""
        counter = self.new_counter()
        self.endless.add(counter)
        return counter

    def row_type(self, position: int, its: tuple[Shape, np.dtype], pushes: bool) -> None:
        """Have all rows of a stack be alike, and none popped off where some are pushed."""
        if self.row_types.setdefault(position, its) != its:
            raise CannotPrepare("rows of one stack differ in shape")
        if self._pushes.setdefault(position, pushes) != pushes:
            raise CannotPrepare("a stack is pushed on and popped off")

    def count_rows(self, position: int) -> None:
        """Have the rows of a stack lie by a counter, from the next reading on."""
        self.counted[position] = 1 if self._pushes[position] else -1

    def pushes(self, position: int) -> bool:
        return self._pushes[position]


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
            for read in program.steps[position].reads:
                self.last.setdefault(read, position)

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
        # Rows of the region around it, in the same pass, before its own.
        around: dict[int, int] = {}
        for before, after in stacks:
            if after.position != before.position:
                raise CannotPrepare("stacks change places")
            changes[before.position] = after.length.plus(before.length, -1)
            around[before.position] = abs(before.length.constant)
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
            listing.passes.setdefault(position, set()).update((abs(moved), around[position] + abs(moved)))
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
    for position, x in enumerate(inputs):
        step = rates.numbers.get((0, position - captures), 0)
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
