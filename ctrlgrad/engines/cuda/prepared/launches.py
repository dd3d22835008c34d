"""The launches of an iteration while they are listed, with their views, words and buffers.

`Launches` lists kernels and products of the region that is being read. `Listing` has what the readings of a body and
of its regions share: launches, counters, rows, bounds. The regions are the body (0), sides of branches and bodies of
loops; their numbers are those of their counters. The host knows a trip count beforehand if it follows from integers
that go by steps, or from numbers that are popped off a stack of the host: the loops of a gradient take their trip
counts from such a stack. NumPy computes views of views, on memory that is never looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ctrlgrad.engines.cuda.indexing import Chosen, Surroundings, gather, scatter
from ctrlgrad.engines.cuda.kernel import ADVANCE, Access, KernelText, Parameter, copy_text
from ctrlgrad.engines.cuda.prepared.model import (
    INT64,
    Affine,
    Become,
    Buffer,
    CannotPrepare,
    CarriedRows,
    Clipped,
    Converted,
    Flag,
    Item,
    Operand,
    Popped,
    ProductLaunch,
    Region,
    Regions,
    Register,
    Rows,
    Shape,
    Since,
    Source,
    View,
    Word,
    contiguous,
    slot,
    word_view,
)
from ctrlgrad.engines.cuda.program import Program
from ctrlgrad.engines.cuda.reduction_kernels import ReductionText
from ctrlgrad.engines.cuda.reductions import elementwise, scan, stages
from ctrlgrad.engines.cuda.sites import FLAG_WORDS, MOST_NOTED, Site
from ctrlgrad.ir import Node


@dataclass(frozen=True)
class Movement:
    """The word by which an address or a number moves, what each iteration adds, and by other counters what these do."""

    word: View | Affine
    step: int
    others: tuple[tuple[int, int], ...]


def movement(x: Operand) -> Movement | None:
    """Movement of an operand; None where it does not move."""
    if isinstance(x, View):
        # However the elements of rows lie, one word tells where they begin.
        word = replace(x, shape=(), strides=()) if isinstance(x.source, Rows) else x.moved
        return _by(word, x.moved) if x.is_moving else None
    number = x.number if isinstance(x, Converted) else x
    return _by(number, number) if isinstance(number, Affine) and number.is_moving else None


def _by(word: View | Affine, moved: Affine) -> Movement:
    return Movement(word, moved.step, tuple((counter, step) for counter, step in moved.steps if counter))


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
                raise IndexError(f"index {item} is out of bounds for axis {axis} with size {view.shape[axis]}")
            items.append(item)
        axis += item is not None
    return viewed(replace(view, moved=moved), lambda x: np.asarray(x[(*items, ...)])), bounds


def reshaped(view: View, shape: Shape) -> View | None:
    """A view that is seen with another shape, in which one size may be -1; None where its elements lie otherwise."""
    rest = math.prod(size for size in shape if size != -1)
    sizes = tuple(view.size // rest if size == -1 else size for size in shape)
    if math.prod(sizes) != view.size:
        raise ValueError(f"{view.size} elements in a shape {sizes}")
    if not view.size:
        return replace(view, shape=sizes, strides=contiguous(sizes, view.dtype))
    # Elements that are equally far apart, from the last axis: how many, and how far.
    runs: list[tuple[int, int]] = []
    for size, step in zip(reversed(view.shape), reversed(view.strides), strict=True):
        if runs and step == runs[-1][0] * runs[-1][1]:
            runs[-1] = runs[-1][0] * size, runs[-1][1]
        elif size != 1:
            runs.append((size, step))
    ahead, left, step, strides = iter(runs), 1, view.dtype.itemsize, list[int]()
    for size in reversed(sizes):
        if left == 1 and size != 1:
            left, step = next(ahead)
        if left % size:
            return None
        strides.append(step)
        left, step = left // size, step * size
    return replace(view, shape=sizes, strides=tuple(reversed(strides)))


def broadcast(view: View, shape: Shape) -> View:
    """A view that is seen with a shape that it broadcasts to."""
    return viewed(view, lambda x: np.broadcast_to(x, shape))


def whole(inputs: int | Sequence[str], outputs: Sequence[str]) -> KernelText:
    """Kernel of int64 results over operands named `a0`, `a1`, ...; `inputs` is their number, or their dtypes."""
    dtypes = ["int64"] * inputs if isinstance(inputs, int) else inputs
    read = tuple(Parameter(dtype, f"a{k}") for k, dtype in enumerate(dtypes))
    written = tuple(Parameter("int64", f"o{k}") for k in range(len(outputs)))
    return KernelText(read, written, "\n".join(f"o{k} = {x};" for k, x in enumerate(outputs)))


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
        self.items += elementwise(text, shape, seen, outputs, self._access)

    def gather(self, its: Chosen, node: Node) -> View:
        """A buffer with what indices choose; see `ctrlgrad.engines.cuda.indexing`."""
        found = self.buffer(its.shape, its.whole.dtype)
        self.items += gather(its, found, self.around(node))
        return found

    def scatter(self, its: Chosen, value: View, text: KernelText | None, node: Node) -> None:
        """See `ctrlgrad.engines.cuda.indexing`."""
        self.items += scatter(its, value, text, self.around(node))

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
        return Surroundings(self._access, self.buffer, FLAG, Site(node, loops), tuple(noted))

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
        self.items += stages(text, shape, axes, inputs, stored, results, self._access, self.buffer)

    def scan(self, text: ReductionText, axis: int, x: View, result: View) -> None:
        """See `ctrlgrad.engines.cuda.reductions`."""
        self.items += scan(text, x.shape, axis, [x], [result], self._access, self.buffer)

    def _access(self, x: Operand) -> Access:
        moved = movement(x)
        if moved is not None:
            for word in (moved.word, *(Register("counter", number) for number, _ in moved.others)):
                self.word(word)
        has_parameter = moved is None or (isinstance(x, View) and not isinstance(x.source, Rows))
        others = 0 if moved is None else len(moved.others)
        return Access(not isinstance(x, View), has_parameter, moved is not None, others)

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

    def advance(self, number: int, slots: Mapping[int, int]) -> None:
        """A region has been gone through: its counter counts. Where slots are counted it has so many rows."""
        counter = self.counter(number)
        self.kernel(ADVANCE, (), [counter], [counter])
        self.move(slots)

    def enter(self, slots: Mapping[int, int]) -> None:
        """A pass begins of a region that pops so many rows (below 0) off stacks: it is noted where there are none."""
        popped = [position for position, rows in slots.items() if rows < 0]
        if not popped:
            return
        ends = [self.number(Register("last_slot", position)) for position in popped]
        changed = [*(self.counter(slot(position)) for position in popped), self.number(Register("short"))]
        last = [(f"a{k}", f"a{len(changed) + k}") for k in range(len(popped))]
        found = [f"np_select({x} < {end}, {x}, {end})" for x, end in last]
        is_short = " | ".join(f"({x} > {end})" for x, end in last)
        found.append(f"np_select({is_short}, int64(1), a{len(popped)})")
        self.kernel(whole(len(changed) + len(ends), found), (), [*changed, *ends], changed)

    def move(self, slots: Mapping[int, int]) -> None:
        """So many rows have been pushed on stacks, or popped off them (below 0), by their positions."""
        if not slots:
            return
        words = [self.counter(slot(position)) for position in slots]
        ends = {position: self.number(Register("last_slot", position)) for position, rows in slots.items() if rows > 0}
        last = {position: f"a{len(words) + k}" for k, position in enumerate(ends)}
        moved = {position: f"(a{k} + int64({abs(rows)}))" for k, (position, rows) in enumerate(slots.items())}
        # Of those that are popped it is seen when the next pass begins.
        found = [f"np_select({x} < {last[n]}, {x}, {last[n]})" if n in last else x for n, x in moved.items()]
        self.kernel(whole(len(words) + len(ends), found), (), [*words, *ends.values()], words)

    def check(self, stacks: Mapping[int, CarriedRows], asked: View | None = None) -> None:
        """Behind an iteration: whether there is another one, for which there is memory on these stacks.

        Args:
            asked: where the loop's end depends on data, its predicate.
        """
        words: dict[Register, int] = {}

        def read(*its: Any) -> str:
            return f"a{words.setdefault(Register(*its), len(words))}"

        conditions, found = [f"({read('counter')} < {read('limit')})"], dict[Register, str]()
        for position, its in stacks.items():
            if its.most is None and not its.is_endless:
                # The host knows of enough.
                continue
            rows = " + ".join(f"{read('counter', counter)} * int64({abs(count)})" for counter, count in its.rows)
            most = f"int64({its.most})"
            if its.is_endless:
                # As many as any iteration so far.
                pushed, most = f"({rows} - {read('before', position)})", read("most", position)
                most = f"np_select({most} < {pushed}, {pushed}, {most})"
                found |= {Register("most", position): most, Register("before", position): rows}
            conditions.append(f"({rows} + {most} <= {read('capacity', position)})")
        if any(its.is_endless and not its.pushes for its in stacks.values()):
            conditions.append(f"({read('short')} == int64(0))")
        given = [word_view(self.word(x)) for x in words]
        dtypes = ["int64"] * len(words)
        if asked is not None:
            conditions.append(f"a{len(words)}")
            dtypes.append(asked.dtype.name)
            given.append(asked)
        found[Register("goes_on")] = f"np_select({' & '.join(conditions)}, int64(1), int64(0))"
        self.kernel(whole(dtypes, list(found.values())), (), given, [word_view(self.word(x)) for x in found])


@dataclass
class Rates:
    """Amounts that an iteration adds. One reading of the body finds them; the next reading uses them.

    Attributes:
        numbers: amount added to each integer on the host, or to the rows of a local stack, by the counter of iterations
            since the loop began and the carry's position.
        rows: rows that each region adds to a carried stack, by the stack's position and the region's counter.
        lengths: final number of rows of each new local stack.
        endless: carried stacks with a number of pushed rows that depends on the data, or of popped rows that only the
            card knows.
    """

    numbers: dict[tuple[int, int], int] = field(default_factory=dict)
    rows: dict[int, dict[int, int]] = field(default_factory=dict)
    lengths: dict[int, int] = field(default_factory=dict)
    endless: frozenset[int] = frozenset()


class Listing:
    """Shared record of the readings of a body and of the regions in it."""

    def __init__(self, rates: Rates, program: Program, is_masked: bool) -> None:
        # Rates that the previous reading found.
        self.rates = rates
        # True if iterations may run past the loop's end.
        self.is_masked = is_masked
        self.launches = Launches()
        self.programs = [program]
        self.bounds: list[tuple[Affine, int]] = []
        self.row_types: dict[int, tuple[Shape, np.dtype]] = {}
        # As in `Rates`.
        self.rows: dict[int, dict[int, int]] = {}
        self.numbers: dict[tuple[int, int], int] = {}
        self.lengths: dict[int, int] = {}
        self.counters = self.stacks = 0
        # The counters by which a number goes that only the card has.
        self.endless: set[int] = set()
        self.regions = Regions()
        self._pushes: dict[int, bool] = {}

    def new_counter(self) -> int:
        self.counters += 1
        return self.counters

    def new_stack(self) -> int:
        self.stacks += 1
        return self.stacks

    def number(self, its: Popped | Clipped | None = None) -> int:
        """A new counter, in which the card has a number: what the host knows of it."""
        counter = self.new_counter()
        self.endless.add(counter)
        if its is not None:
            self.regions.numbers[counter] = its
        return counter

    def settle(self) -> None:
        """All has been read: the host knows a number that is popped where each pass of a region takes the next one."""
        for counter, its in list(self.regions.numbers.items()):
            if isinstance(its, Popped) and self.rows.get(its.position) != {its.region: -1}:
                del self.regions.numbers[counter]

    def is_clipped(self, step: tuple[int, int]) -> bool:
        """Return true if a step is a clipped number: its counter, once."""
        counter, factor = step
        return factor == 1 and isinstance(self.regions.numbers.get(counter), Clipped)

    def repeats(self, counter: int, since: int, outside: int, trips: Affine | None) -> None:
        """A loop goes on so often each time that the region around it is gone through."""
        self.regions.found[counter] = Region(outside, trips)
        self.regions.numbers[since] = Since(counter)

    def added(self, position: int, counter: int, rows: int) -> None:
        """A region adds rows to a stack."""
        if rows:
            self.rows.setdefault(position, {})[counter] = rows

    def has_rows(self, counter: int) -> bool:
        """Return true if a region has added rows to a stack, which lie by its counter."""
        return any(counter in regions for regions in self.rows.values())

    def slots(self, counter: int) -> dict[int, int]:
        """Rows that a region pushes, or pops (below 0), by the positions of the stacks whose number of rows only the
        card knows."""
        found = {position: self.rates.rows[position].get(counter, 0) for position in sorted(self.rates.endless)}
        return {position: rows for position, rows in found.items() if rows}

    @property
    def may_be_short(self) -> bool:
        """Return true if only the card knows how many rows are popped: a run may have fewer."""
        return any(rows < 0 for position in self.rates.endless for rows in self.rates.rows[position].values())

    def row_type(self, position: int, its: tuple[Shape, np.dtype], pushes: bool) -> None:
        """Have all rows of a stack be alike, and none popped off where some are pushed."""
        if self.row_types.setdefault(position, its) != its:
            raise CannotPrepare("rows of one stack differ in shape")
        if self._pushes.setdefault(position, pushes) != pushes:
            raise CannotPrepare("a stack is pushed on and popped off")
