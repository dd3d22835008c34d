"""A prepared body as data: operands, launches, carries and memory.

A launch reads and writes views of memory, host integers, and words on the card. Each time that a region of the body (a
side of a branch, the body of an inner loop) is gone through is a *pass*. The rows of a stack lie one behind the other:
by the counter of iterations where each iteration has the same number of rows, else by a counter that each pass moves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from ctrlgrad.engines.cuda.kernel import KernelLaunch
from ctrlgrad.engines.cuda.program import Program
from ctrlgrad.engines.cuda.sites import Site

Shape = tuple[int, ...]
INT64, BOOL = np.dtype(np.int64), np.dtype(np.bool_)
# More than a loop ever goes on, or a stack has rows.
ENDLESS = 1 << 62


@dataclass(frozen=True)
class Given:
    """Content of a program's slot that stays while a loop runs: a capture, a number or a constant.

    `region` is the program's number: 0 is the body's, and inner regions have higher numbers. A table (`ops`) has
    two entries: its rows, and the marks that say which rows were written.
    """

    slot: int
    region: int = 0
    is_marks: bool = False


@dataclass(frozen=True)
class Buffer:
    """Memory of the loop's own, by number."""

    number: int


@dataclass(frozen=True)
class Carried:
    """The array that an iteration is given as a carry, and leaves as one, by its position in `PreparedBody.carries`."""

    position: int


@dataclass(frozen=True)
class Rows:
    """The rows of a carried stack from the first that the run pushes, or the first behind those that it pops."""

    position: int


@dataclass(frozen=True)
class Flag:
    """The words of the run in which kernels note an index that is out of range (`ctrlgrad.engines.cuda.sites`)."""


Source = Given | Buffer | Carried | Rows | Flag


@dataclass(frozen=True)
class Affine:
    """An integer of the host: a constant, multiples of integers in slots, and multiples of counters on the card.
    Counter 0 is that of iterations."""

    constant: int
    terms: tuple[tuple[int, int], ...] = ()
    steps: tuple[tuple[int, int], ...] = ()
    dtype: ClassVar[np.dtype] = INT64

    def plus(self, other: Affine, factor: int = 1) -> Affine:
        constant = self.constant + factor * other.constant
        return Affine(constant, _sum(self.terms, other.terms, factor), _sum(self.steps, other.steps, factor))

    @property
    def is_moving(self) -> bool:
        """Return true if the value is known only when a run of iterations begins."""
        return bool(self.terms or self.steps)

    @property
    def step(self) -> int:
        """Amount that an iteration adds."""
        return dict(self.steps).get(0, 0)

    def times(self, factor: int) -> Affine:
        return Affine(0).plus(self, factor)

    def value(self, integers: Mapping[int, int]) -> int:
        """In the first iteration of a run, by the integers in the slots then."""
        return self.constant + sum(count * integers[slot] for slot, count in self.terms)


def wrapped(number: int) -> int:
    """A whole number as 64 bits have it: sums of integers go round.

    >>> wrapped(1 << 63) == -(1 << 63), wrapped(-1)
    (True, -1)
    """
    half = 1 << 63
    return (number + half) % (2 * half) - half


def _sum(a: tuple[tuple[int, int], ...], b: tuple[tuple[int, int], ...], factor: int) -> tuple[tuple[int, int], ...]:
    found = dict(a)
    for key, count in b:
        found[key] = found.get(key, 0) + factor * count
    return tuple(sorted((key, count) for key, count in found.items() if count))


@dataclass(frozen=True)
class Converted:
    """Affine number converted to another dtype by the card."""

    number: Affine
    dtype: np.dtype


@dataclass(frozen=True)
class Fixed:
    """A number of the host that stays as it is: a value, or what is in a slot."""

    dtype: np.dtype
    value: Any = None
    slot: int | None = None


@dataclass(frozen=True)
class View:
    """Elements in memory: strides and offset in bytes. `moved` is what is added to the address, in bytes."""

    source: Source
    dtype: np.dtype
    shape: Shape
    strides: Shape
    offset: int = 0
    moved: Affine = Affine(0)

    @property
    def is_moving(self) -> bool:
        """Return true if the address is known only when a run of iterations begins."""
        return isinstance(self.source, Rows) or self.moved != Affine(0)

    @staticmethod
    def whole(source: Source, dtype: np.dtype, shape: Shape) -> View:
        """The first elements of a memory, one behind the other."""
        return View(source, dtype, shape, contiguous(shape, dtype))

    @property
    def is_contiguous(self) -> bool:
        steps = zip(self.shape, self.strides, contiguous(self.shape, self.dtype), strict=True)
        return all(step == in_order for size, step, in_order in steps if size != 1)

    @property
    def size(self) -> int:
        return math.prod(self.shape)


Operand = View | Fixed | Affine | Converted | Site


# Words.


@dataclass(frozen=True)
class Register:
    """An integer on the card, by its role, and the number of a counter or the position of a carried stack.

    counter    number of iterations in a run (0); or another integer that kernels write: iterations since a loop began,
               a popped number, or, below 0, the `count` or the `slot` of a stack
    limit      the iterations of a run
    goes_on    1 if there is another iteration
    capacity   number of rows that a run may push on a stack, or pop off it
    last_slot  of a stack on which as many rows are pushed as the data says, or off which as many are popped, the last
               row where a pass may begin: there is memory for its rows
    most       the most rows that an iteration has pushed on such a stack, or popped off it, so far
    before     the rows on such a stack before the iteration
    began      the number of the moment at which a run began (`ctrlgrad.engines.cuda.sites`)
    run        run id; CUDA graphs stop when it equals the stop word
    short      1 once a pass has begun for which too few rows are left to pop: the run's results are meaningless then
    """

    what: Literal["counter", "limit", "goes_on", "capacity", "last_slot", "most", "before", "began", "run", "short"]
    number: int = 0


# As it is when a run begins: the address of a view of rows, a displacement in bytes, an integer.
Word = View | Affine | Register


def count(position: int) -> int:
    """Counter of the rows that a run has pushed on a stack, or popped off it, where iterations differ in that."""
    return -1 - 2 * position


def slot(position: int) -> int:
    """Counter by which the rows lie of a stack where the data decides about pushes, or where only the card knows how
    many rows are popped. No pass begins behind the last slot: rows without memory are written there, each over the one
    before, and a pass that pops more rows than there are reads wrong ones."""
    return -2 - 2 * position


def contiguous(shape: Shape, dtype: np.dtype) -> Shape:
    """The strides of an array whose elements lie in their order."""
    return tuple(dtype.itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def word_view(number: int) -> View:
    """A word on the card, by its number."""
    return View(Buffer(0), INT64, (), (), number * INT64.itemsize)


# Launches.


@dataclass(frozen=True)
class ProductLaunch:
    """`out = a @ b`, or that added to it; matrices of one dtype, whose addresses stay, `out` by rows.

    With a first axis, of one size in all three, that many products.
    """

    a: View
    b: View
    out: View
    adds: bool

    @property
    def reads(self) -> tuple[View, ...]:
        return self.a, self.b, *[self.out] * self.adds

    @property
    def writes(self) -> tuple[View, ...]:
        return (self.out,)


Launch = KernelLaunch | ProductLaunch


@dataclass(frozen=True)
class Branching:
    """Lists of which one is gone through: that of the number which a kernel has written."""

    chosen: View
    sides: tuple[tuple[Item, ...], ...]


@dataclass(frozen=True)
class Repeating:
    """A list that is gone through as long as a number on the card is 1: launches before it have written it for the
    first time, and the last ones of the list write it again.

    Attributes:
        counter: that of its iterations since it began.
        trips: how often that is, where the host knows, or the number on the card that says it; never below 0. None
            where the card must be asked before each.
    """

    goes_on: View
    items: tuple[Item, ...]
    counter: int
    trips: Affine | View | None


@dataclass(frozen=True)
class Become:
    """The value of a view has another name from now on: an update makes a value of another one, a side yields its
    result, an iteration leaves its carry.

    Placement decides: either both names have one memory, and nothing is launched; or the value is copied by `copy`.
    """

    before: View
    after: View
    copy: tuple[Item, ...] = ()


Item = Launch | Branching | Repeating | Become


def lists_in(item: Item) -> tuple[tuple[Item, ...], ...]:
    """The lists that an item has inside."""
    if isinstance(item, Branching):
        return item.sides
    return (item.items,) if isinstance(item, Repeating) else ()


def items_in_order(items: Sequence[Item]) -> Iterator[Item]:
    """Every item, those of the lists inside it right after it."""
    for item in items:
        yield item
        for inside in lists_in(item):
            yield from items_in_order(inside)


def all_launches(items: Sequence[Item]) -> list[Launch]:
    """All launches in order, with those of the lists inside."""
    return [item for item in items_in_order(items) if isinstance(item, Launch)]


def loops_in(items: Sequence[Item]) -> list[Repeating]:
    """All loops, with nested ones."""
    return [item for item in items_in_order(items) if isinstance(item, Repeating)]


# Carries.


@dataclass(frozen=True)
class CarriedArray:
    """An array with a buffer, in which each iteration leaves the next value."""

    dtype: np.dtype
    shape: Shape


@dataclass(frozen=True)
class CarriedNumber:
    """A number of the host and what an iteration adds to it."""

    step: int


@dataclass(frozen=True)
class CarriedRows:
    """A stack that an iteration pushes rows on, or pops rows off.

    Attributes:
        total: rows of an iteration, where the host knows them in each; a number where it knows how many they are at
            most; None where they have no known bound: the data decides about pushes, or only the card counts pops.
        passes: fewest and most rows of a pass, of the passes with rows.
        is_on_host: true of a stack of numbers there, which a run has rows on the card for.
    """

    pushes: bool
    total: Affine | int | None
    passes: tuple[int, int]
    shape: Shape
    dtype: np.dtype
    is_on_host: bool = False

    @property
    def is_known(self) -> bool:
        """Return true if the host knows the number of rows of each iteration."""
        return isinstance(self.total, Affine)

    @property
    def is_endless(self) -> bool:
        """Return true if the rows of an iteration have no known bound."""
        return self.total is None

    @property
    def least(self) -> int:
        """Fewest rows of a pass, of the passes with rows."""
        return self.passes[0]

    @property
    def at_least(self) -> int:
        """Rows that must fit in memory before an iteration: the known maximum, or else those of the largest pass."""
        return self.total if isinstance(self.total, int) else self.passes[1]

    def needed(self, iterations: int, integers: Mapping[int, int]) -> np.ndarray:
        """Rows of each of the next iterations, where the host knows them."""
        assert isinstance(self.total, Affine)
        return self.total.value(integers) + self.total.step * np.arange(iterations)

    def usable(self, capacity: int) -> int:
        """Number of rows that may be pushed, or popped, within `capacity` rows of memory: no pass begins behind the
        last slot."""
        return capacity - self.at_least + self.least if self.is_endless else capacity

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Unchanged:
    """Anything that goes through an iteration as it is."""


Carry = CarriedArray | CarriedNumber | CarriedRows | Unchanged


def carried_arrays(carries: Sequence[Carry]) -> list[tuple[Carried, CarriedArray]]:
    """Carried arrays, each with its name."""
    return [(Carried(position), its) for position, its in enumerate(carries) if isinstance(its, CarriedArray)]


@dataclass(frozen=True)
class Placement:
    """Place of each buffer: the buffer of a carried array, or an offset in bytes in the loop's own memory (buffer 0);
    None where no launch names it. And the bytes of the loop's own memory."""

    places: tuple[tuple[Source, int] | None, ...]
    nbytes: int


@dataclass(frozen=True, eq=False)
class PreparedBody:
    """An iteration."""

    items: tuple[Item, ...]
    # The words that the card has, in buffer 0. The first is the counter of iterations.
    words: tuple[Word, ...]
    placement: Placement
    # Those of the loop; of a table its rows. Behind them are the marks of tables.
    carries: tuple[Carry, ...]
    # The programs of its regions, whose constants are `Given`; the first is the body.
    programs: tuple[Program, ...]
    # Indices that must stay below a size, and not fall below zero.
    bounds: tuple[tuple[Affine, int], ...] = ()
    # True if the loop's predicate is computed after each iteration: the last of the loop's carries.
    is_asked: bool = False
    # Position of each table's marks, by that of its rows.
    marks: Mapping[int, int] = field(default_factory=dict)

    @property
    def launches(self) -> list[Launch]:
        """Launches of all lists."""
        return all_launches(self.items)

    @property
    def asks(self) -> bool:
        """Return true if only the card knows an inner loop's trip count."""
        return any(not isinstance(loop.trips, Affine) for loop in loops_in(self.items))

    def passes(self, iterations: int, integers: Mapping[int, int]) -> int:
        """Number of passes of the next iterations, with those of inner loops where the host knows trip counts."""

        def inside(items: Sequence[Item]) -> int:
            found = 0
            for item in items:
                trips = item.trips if isinstance(item, Repeating) else None
                known = trips.value(integers) + trips.step * iterations // 2 if isinstance(trips, Affine) else 1
                found += known * sum(isinstance(item, Repeating) + inside(its) for its in lists_in(item))
            return found

        return iterations * (1 + inside(self.items))

    @property
    def endless(self) -> dict[int, CarriedRows]:
        """The stacks on which as many rows are pushed as the data says, or off which as many are popped, by their
        positions."""
        found = enumerate(self.carries)
        return {position: its for position, its in found if isinstance(its, CarriedRows) and its.is_endless}

    @property
    def products(self) -> int:
        return sum(isinstance(launch, ProductLaunch) for launch in self.launches)

    @property
    def is_known(self) -> bool:
        """Return true if the host knows the number of iterations of a run: neither data nor the card's row counts end
        it."""
        return not self.is_asked and all(its.is_known for its in self.carries if isinstance(its, CarriedRows))

    @property
    def loop(self) -> Repeating:
        """The iterations of a run."""
        return Repeating(self.word(Register("goes_on")), self.items, 0, Affine(0) if self.is_known else None)

    def word(self, its: Word) -> View:
        """A word as an array on the card."""
        return word_view(self.words.index(its))


class CannotPrepare(Exception):
    """Why a body is run step by step."""


class IndexDoesNotFit(CannotPrepare, IndexError):
    """An index of the program is out of range: step by step that is raised where it happens."""


class SizesDoNotFit(CannotPrepare, ValueError):
    """Sizes of the program do not fit: step by step that is raised where it happens."""
