"""A prepared body as data: launches, carries, and where its memory lies."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ctrlgrad.engines.cuda.arguments import Access
from ctrlgrad.engines.cuda.indexing.model import IndexLaunch
from ctrlgrad.engines.cuda.kernel import KernelText
from ctrlgrad.engines.cuda.prepared.operands import (
    Affine,
    Carried,
    GoesOn,
    Operand,
    Shape,
    Source,
    View,
    Word,
    word_view,
)
from ctrlgrad.engines.cuda.prepared.passes import Regions
from ctrlgrad.engines.cuda.reductions.model import ReductionLaunch
from ctrlgrad.ir import Node

# Kernels.


@dataclass(frozen=True)
class KernelSpec:
    """A kernel with all that stays from launch to launch: what it computes, and over which elements."""

    text: KernelText
    shape: Shape
    inputs: tuple[Access, ...]
    outputs: tuple[Access, ...]

    @property
    def threads(self) -> int:
        return math.prod(self.shape)

    @property
    def accesses(self) -> tuple[Access, ...]:
        return self.inputs + self.outputs

    @property
    def is_moving(self) -> bool:
        """Return true if it reads the iteration counter and words."""
        return any(access.is_moving for access in self.accesses)


@dataclass(frozen=True)
class KernelLaunch:
    """One launch: the arguments in the order of the text's inputs and outputs."""

    spec: KernelSpec
    arguments: tuple[Operand, ...]


@dataclass(frozen=True)
class ProductLaunch:
    """`out = a @ b`, or that added to it; matrices of one dtype, whose addresses stay, `out` by rows.

    With a first axis, of one size in all three, that many products.
    """

    a: View
    b: View
    out: View
    adds: bool


Launch = KernelLaunch | ReductionLaunch | IndexLaunch | ProductLaunch


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


Item = Launch | Branching | Repeating


def lists_in(item: Item) -> tuple[tuple[Item, ...], ...]:
    """The lists that an item has inside."""
    if isinstance(item, Branching):
        return item.sides
    return (item.items,) if isinstance(item, Repeating) else ()


def all_launches(items: Sequence[Item]) -> Iterator[Launch]:
    """All launches in order, with those of the lists inside."""
    for item in items:
        for inside in lists_in(item):
            yield from all_launches(inside)
        if not isinstance(item, Branching | Repeating):
            yield item


def loops_in(items: Sequence[Item]) -> Iterator[Repeating]:
    """All loops, with nested ones."""
    for item in items:
        if isinstance(item, Repeating):
            yield item
        for inside in lists_in(item):
            yield from loops_in(inside)


# Carries.


@dataclass(frozen=True)
class CarriedArray:
    """An array with two buffers, or one that is updated in place or stays as it is."""

    dtype: np.dtype
    shape: Shape
    is_double: bool


@dataclass(frozen=True)
class CarriedTable:
    """A table: the rows, and which of them were written."""

    rows: CarriedArray
    marks: CarriedArray


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


Carry = CarriedArray | CarriedTable | CarriedNumber | CarriedRows | Unchanged


def carried_arrays(carries: Sequence[Carry]) -> Iterator[tuple[Carried, CarriedArray]]:
    """Carried arrays that lie in buffers, each with its name in an iteration."""
    for position, its in enumerate(carries):
        if isinstance(its, CarriedArray):
            yield Carried(position), its
        elif isinstance(its, CarriedTable):
            yield Carried(position), its.rows
            yield Carried(position, is_marks=True), its.marks


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


class HasConstants(Protocol):
    """A program (`ctrlgrad.engines.cuda.program`), of which only this is asked."""

    def held(self, context: Any) -> dict[int, Any]:
        """The constants by slot, as a run has them."""


@dataclass(frozen=True)
class Transfer:
    """A node that pushes a row of so many bytes, or pops one (None), each time that a counter counts."""

    node: Node
    nbytes: int | None
    counter: int


@dataclass(frozen=True, eq=False)
class PreparedBody:
    """An iteration."""

    items: tuple[Item, ...]
    # The words that the card has, in buffer 0. The first is the counter of iterations.
    words: tuple[Word, ...]
    placement: Placement
    carries: tuple[Carry, ...]
    # The programs of its regions, whose constants are `Given`; the first is the body.
    programs: tuple[HasConstants, ...]
    # Indices that must stay below a size, and not fall below zero.
    bounds: tuple[tuple[Affine, int], ...] = ()
    transfers: tuple[Transfer, ...] = ()
    ending: Ending | None = None
    # How often an iteration goes through regions, where the host knows.
    regions: Regions = field(default_factory=Regions)

    @property
    def launches(self) -> tuple[Launch, ...]:
        """Launches of all lists."""
        return tuple(all_launches(self.items))

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
        return GoesOn() not in self.words

    @property
    def is_asked(self) -> bool:
        """Return true if the loop's predicate is computed after each iteration."""
        return self.ending is not None and not self.ending.is_masked

    def word(self, its: Word) -> View:
        """A word as an array on the card."""
        return word_view(self.words.index(its))


class CannotPrepare(Exception):
    """Why a body is run step by step."""
