"""A prepared body as data: operands, launches, carries, memory, and passes of its regions.

A launch reads and writes views of memory, host integers, and words on the card. A region of the body (a side of a
branch, the body of an inner loop) is gone through in passes, which are numbered through all iterations of a run. Each
pass of a loop's body is within one pass of the region around the loop, so a number that the region has is repeated for
all of them: from this the host computes how many passes, and so rows, an iteration has, where it can.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    """The array that an iteration is given as a carry, or leaves as one, by its position in `PreparedBody.carries`."""

    position: int
    is_next: bool = False


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
    """An integer of the host: a constant, multiples of integers in slots, and so much more each time that a region has
    been gone through, by the region's counter. Counter 0 is that of iterations."""

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
    """An integer on the card, by what it is and the number of a region or the position of a carried stack.

    counter    number of passes of a region in a run: 0 is the body, higher numbers are sides of branches and bodies of
               loops; or another integer that kernels write: iterations since a loop began, a popped number, or, below
               0, the `slot` of a stack
    limit      the iterations of a run
    goes_on    1 if there is another iteration: where the loop's end depends on data, or where only the card knows how
               many rows an iteration must have memory for
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


def slot(position: int) -> int:
    """Counter of the rows of a stack where the data decides about pushes, or where only the card knows how many rows
    are popped. No pass begins behind the last slot: rows without memory are written there, each over the one
    before, and a pass that pops more rows than there are reads wrong ones."""
    return -1 - position


def contiguous(shape: Shape, dtype: np.dtype) -> Shape:
    """The strides of an array whose elements lie in their order."""
    return tuple(dtype.itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def word_view(number: int) -> View:
    """A word on the card, by its number."""
    return View(Buffer(0), INT64, (), (), number * INT64.itemsize)


# More passes of one region are not numbered one by one.
MOST_PASSES = 1 << 22

Integers = Mapping[int, int]
# Of a stack of the host's, by its position, the numbers that are popped off first: at least so many, 0 where there are
# no more.
Numbers = Callable[[int, int], np.ndarray]


@dataclass(frozen=True)
class Since:
    """The iterations since a loop began: by the counter of its body."""

    region: int


@dataclass(frozen=True)
class Popped:
    """Number that each pass of a region pops off a stack of the host, by the stack's position."""

    position: int
    region: int


@dataclass(frozen=True)
class Clipped:
    """A number in each pass of a region, 0 where it is below."""

    number: Affine
    region: int


@dataclass(frozen=True)
class Region:
    """The body of a loop inside, or a side of a branch: the region around it, and how often it is gone through there;
    never below 0. A side is gone through once at most: `is_side`."""

    outside: int
    trips: Affine | None
    is_side: bool = False


@dataclass
class Regions:
    """The loops inside, by the counters of their bodies, and what other counters count."""

    found: dict[int, Region] = field(default_factory=dict)
    numbers: dict[int, Since | Popped | Clipped] = field(default_factory=dict)

    def is_known(self, region: int) -> bool:
        """Return true if the host knows the number of passes of a region in each iteration."""
        if not region:
            return True
        its = self.found.get(region)
        if its is None or its.trips is None or its.is_side or not self.is_known(its.outside):
            return False
        return all(self._is_counted(counter) for counter, _ in its.trips.steps)

    def is_bounded(self, region: int) -> bool:
        """Return true if the host knows an upper bound of a region's passes in the first iterations of a run.

        Numbers are popped in order. So the first iterations pop no more numbers, and no different ones, than if
        every side of a branch were run each time.
        """
        if self.is_known(region):
            return True
        its = self.found.get(region)
        if its is None or its.trips is None or not self.is_bounded(its.outside):
            return False
        return its.trips.constant >= 0 and not its.trips.terms and all(map(self._is_popped, its.trips.steps))

    def _is_popped(self, step: tuple[int, int]) -> bool:
        """Return true if a step is a sum of popped numbers that grows with them."""
        counter, factor = step
        match self.numbers.get(counter):
            case Popped(_, region):
                return factor > 0 and self.is_bounded(region)
            case Clipped(number, region):
                is_popped = not number.terms and all(map(self._is_popped, number.steps))
                return factor > 0 and is_popped and self.is_bounded(region)
        return False

    def _is_counted(self, counter: int) -> bool:
        match self.numbers.get(counter):
            case Since(region) | Popped(_, region):
                return self.is_known(region)
            case Clipped(number, region):
                return self.is_known(region) and all(self._is_counted(its) for its, _ in number.steps)
        return not counter

    @property
    def known(self) -> list[int]:
        """Regions with a number of passes that the host knows, outer regions first."""
        return [0, *filter(self.is_known, sorted(self.found))]

    @property
    def bounded(self) -> list[int]:
        """Regions with a number of passes that the host can bound, outer regions first."""
        return [0, *filter(self.is_bounded, sorted(self.found))]


class TooManyPasses(Exception):
    """More than are numbered."""


class Passes:
    """Passes of the regions in the first iterations of a run."""

    def __init__(self, regions: Regions, iterations: int, integers: Integers, numbers: Numbers) -> None:
        self.regions, self.iterations, self.integers, self.numbers = regions, iterations, integers, numbers
        self._around: dict[int, np.ndarray] = {0: np.arange(iterations)}

    def each(self, region: int) -> np.ndarray:
        """Number of passes of a region in each iteration, where the host knows it; else numbers whose sum bounds the
        passes in all of these iterations.

        >>> regions = Regions({1: Region(0, Affine(1, (), ((0, 1),))), 2: Region(1, Affine(0, (), ((3, 1),)))})
        >>> regions.numbers[3] = Since(1)
        >>> passes = Passes(regions, 4, {}, lambda position, count: np.zeros(count))
        >>> passes.each(1).tolist(), passes.each(2).tolist()
        ([1, 2, 3, 4], [0, 1, 3, 6])
        """
        if not region:
            return np.ones(self.iterations, np.int64)
        outside, trips = self.regions.found[region].outside, self._trips(region)
        found: np.ndarray = np.bincount(self._iteration(outside), trips, self.iterations)
        return found.astype(np.int64)

    def _trips(self, region: int) -> np.ndarray:
        """Trip counts of a loop, one for each pass of the region around it."""
        its = self.regions.found[region]
        assert its.trips is not None
        found: np.ndarray = np.maximum(self._values(its.trips, its.outside), 0)
        return found

    def _values(self, number: Affine, region: int) -> np.ndarray:
        """An integer in each pass of a region."""
        found: np.ndarray = np.full(len(self._outer(region)), number.value(self.integers))
        for counter, step in number.steps:
            found += step * self._counted(counter, region)
        return found

    def _counted(self, counter: int, region: int) -> np.ndarray:
        """Value of a counter in each pass of a region."""
        if not counter:
            return self._iteration(region)
        match self.regions.numbers[counter]:
            case Since(loop):
                around = self._outer(loop)
                firsts = np.searchsorted(around, around, side="left")
                return self._inside(np.arange(len(around)) - firsts, loop, region)
            case Popped(position, popping):
                count = len(self._outer(popping))
                return self._inside(self.numbers(position, count)[:count], popping, region)
            case Clipped(number, clipping):
                return self._inside(np.maximum(self._values(number, clipping), 0), clipping, region)

    def _inside(self, values: np.ndarray, outer: int, region: int) -> np.ndarray:
        """Repeat values of an outer region's passes for each pass of a region inside it."""
        if region == outer:
            return values
        around = self._inside(values, outer, self.regions.found[region].outside)
        found: np.ndarray = around[self._outer(region)]
        return found

    def _iteration(self, region: int) -> np.ndarray:
        """The iteration of each pass."""
        return self._inside(np.arange(self.iterations), 0, region)

    def _outer(self, region: int) -> np.ndarray:
        """The pass of the region around it that each pass of a region is within; of the body's, their numbers."""
        if region not in self._around:
            trips = self._trips(region)
            if trips.sum(dtype=np.float64) > MOST_PASSES:
                raise TooManyPasses
            self._around[region] = np.repeat(np.arange(len(trips)), trips)
        return self._around[region]


def fitting(needed: np.ndarray, there: int) -> int:
    """For how many iterations there are rows, of which each needs some.

    >>> fitting(np.array([7, 7, 7, 7]), 23), fitting(np.array([0, 1, 2, 3]), 5)
    (3, 3)
    """
    return int(np.searchsorted(np.cumsum(needed), there, side="right"))


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
        counter: that of its iterations in a run.
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
    """An array with two buffers, or one that is updated in place or stays as it is."""

    dtype: np.dtype
    shape: Shape
    is_double: bool


@dataclass(frozen=True)
class CarriedNumber:
    """A number of the host and what an iteration adds to it."""

    step: int


@dataclass(frozen=True)
class CarriedRows:
    """A stack that an iteration pushes so many rows on, or pops so many off (below 0).

    `rows` has, by the counter, how many a region does each time, and `most` how many an iteration does at most, where
    a number says that. `is_known`: the host knows how many each iteration has; `is_bounded`: how many some have at
    most. `is_on_host`: it is a stack of numbers there, which a run has rows on the card for.
    """

    rows: tuple[tuple[int, int], ...]
    most: int | None
    shape: Shape = ()
    dtype: np.dtype | None = None
    is_known: bool = False
    is_bounded: bool = False
    is_on_host: bool = False

    @property
    def pushes(self) -> bool:
        return any(count > 0 for _, count in self.rows)

    @property
    def is_endless(self) -> bool:
        """Return true if the rows of an iteration have no known bound: the data decides about its pushes, or only the
        card counts its pops."""
        return not self.is_known and self.most is None and (self.pushes or not self.is_bounded)

    @property
    def least(self) -> int:
        """Fewest rows of a pass through a region, of the regions with rows."""
        return min(abs(count) for _, count in self.rows)

    @property
    def at_least(self) -> int:
        """Rows that must fit in memory before an iteration: the known maximum, or else the largest pass of a region."""
        return max(abs(count) for _, count in self.rows) if self.most is None else self.most

    def usable(self, capacity: int) -> int:
        """Number of rows that may be pushed, or popped, within `capacity` rows of memory: no pass begins behind the
        last slot."""
        return capacity - self.at_least + self.least if self.is_endless else capacity

    def moved(self, counts: Mapping[int, int]) -> int:
        """Number of rows that are pushed, or popped (below 0), if each region runs as often as `counts` says."""
        return sum(rows * counts[counter] for counter, rows in self.rows)

    @property
    def row_bytes(self) -> int:
        assert self.dtype is not None
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Unchanged:
    """Anything that goes through an iteration as it is."""


Carry = CarriedArray | CarriedNumber | CarriedRows | Unchanged


def carried_arrays(carries: Sequence[Carry]) -> list[tuple[Carried, CarriedArray]]:
    """Carried arrays that lie in buffers, each with its name in an iteration."""
    return [(Carried(position), its) for position, its in enumerate(carries) if isinstance(its, CarriedArray)]


@dataclass(frozen=True)
class Ending:
    """Of a loop whose end depends on data, the carry that says whether another iteration counts.

    Iterations that do not leave everything as it is, where the body is masked; else there are none.
    """

    position: int
    is_masked: bool


@dataclass(frozen=True)
class Placement:
    """Place of each buffer: in a carried array's buffer or in the loop's own memory (buffer 0), with its offset in
    bytes; None where no launch names it. And the bytes of the loop's own memory."""

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
    ending: Ending | None = None
    # How often an iteration goes through regions, where the host knows.
    regions: Regions = field(default_factory=Regions)
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

    @property
    def endless(self) -> dict[int, CarriedRows]:
        """The stacks on which as many rows are pushed as the data says, or off which as many are popped, by their
        positions."""
        found = {position: its for position, its in enumerate(self.carries) if isinstance(its, CarriedRows)}
        return {position: its for position, its in found.items() if its.is_endless}

    @property
    def products(self) -> int:
        return sum(isinstance(launch, ProductLaunch) for launch in self.launches)

    @property
    def is_known(self) -> bool:
        """Return true if the host knows the number of iterations of a run: neither data nor the card's row counts end
        it."""
        return Register("goes_on") not in self.words

    @property
    def is_asked(self) -> bool:
        """Return true if the loop's predicate is computed after each iteration."""
        return self.ending is not None and not self.ending.is_masked

    def word(self, its: Word) -> View:
        """A word as an array on the card."""
        return word_view(self.words.index(its))


class CannotPrepare(Exception):
    """Why a body is run step by step."""
