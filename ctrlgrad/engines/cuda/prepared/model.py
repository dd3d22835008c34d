"""What a prepared body is made of, as data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ctrlgrad.engines.cuda.arguments import Access
from ctrlgrad.engines.cuda.indexing.model import IndexLaunch
from ctrlgrad.engines.cuda.kernel import KernelText
from ctrlgrad.engines.cuda.reductions.model import ReductionLaunch
from ctrlgrad.ir import Node

Shape = tuple[int, ...]
INT64 = np.dtype(np.int64)


@dataclass(frozen=True)
class Given:
    """What is in a slot of a program as long as a loop runs: a capture, a number or a constant.

    `region` is the program's number: 0 is the body's, others are those of regions inside.
    """

    slot: int
    region: int = 0


@dataclass(frozen=True)
class Buffer:
    """Memory of the loop's own, by number."""

    number: int


@dataclass(frozen=True)
class Carried:
    """The array that an iteration is given as a carry, or leaves as one, by the carry's position."""

    position: int
    is_next: bool = False


@dataclass(frozen=True)
class Rows:
    """The rows of a carried stack from the first that the run pushes, or the first behind those that it pops."""

    position: int


@dataclass(frozen=True)
class Flag:
    """The words of the run in which kernels note an index that is out of range."""


Source = Given | Buffer | Carried | Rows | Flag


@dataclass(frozen=True)
class Affine:
    """An integer of the host: a constant, multiples of integers in slots, and so much more each time that a region has
    been gone through, by the region's counter. Counter 0 is that of iterations."""

    constant: int
    terms: tuple[tuple[int, int], ...] = ()
    steps: tuple[tuple[int, int], ...] = ()

    def plus(self, other: Affine, factor: int = 1) -> Affine:
        constant = self.constant + factor * other.constant
        return Affine(constant, _sum(self.terms, other.terms, factor), _sum(self.steps, other.steps, factor))

    @property
    def is_moving(self) -> bool:
        """Whether it is known only when a run of iterations begins."""
        return bool(self.terms or self.steps)

    @property
    def step(self) -> int:
        """What an iteration adds."""
        return dict(self.steps).get(0, 0)

    def times(self, factor: int) -> Affine:
        return Affine(0).plus(self, factor)

    def value(self, integers: Mapping[int, int]) -> int:
        """In the first iteration of a run, by the integers in the slots then."""
        return self.constant + sum(count * integers[slot] for slot, count in self.terms)


def _sum(a: tuple[tuple[int, int], ...], b: tuple[tuple[int, int], ...], factor: int) -> tuple[tuple[int, int], ...]:
    found = dict(a)
    for key, count in b:
        found[key] = found.get(key, 0) + factor * count
    return tuple(sorted((key, count) for key, count in found.items() if count))


@dataclass(frozen=True)
class Converted:
    """Such an integer as a number of another dtype: the card converts it."""

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
        """Whether the address is known only when a run of iterations begins."""
        return isinstance(self.source, Rows) or self.moved != Affine(0)

    @property
    def is_contiguous(self) -> bool:
        steps = zip(self.shape, self.strides, contiguous(self.shape, self.dtype), strict=True)
        return all(step == in_order for size, step, in_order in steps if size != 1)

    @property
    def size(self) -> int:
        return math.prod(self.shape)


Operand = View | Fixed | Affine | Converted


# Words.


@dataclass(frozen=True)
class Counter:
    """How often a region has been gone through in a run: 0 is the body, others are sides of branches."""

    number: int


@dataclass(frozen=True)
class Limit:
    """The iterations of a run."""


@dataclass(frozen=True)
class GoesOn:
    """Whether there is memory for the rows of another iteration, where only the card knows how many rows each has."""


@dataclass(frozen=True)
class Capacity:
    """How many rows a run may push on a carried stack, or pop off it."""

    position: int


# As it is when a run begins: the address of a view of rows, a displacement in bytes, an integer.
Word = View | Affine | Counter | Limit | GoesOn | Capacity


def contiguous(shape: Shape, dtype: np.dtype) -> Shape:
    """The strides of an array whose elements lie in their order."""
    return tuple(dtype.itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


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
        """Whether it reads the counter and words."""
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


Item = Launch | Branching


def all_launches(items: Sequence[Item]) -> Iterator[Launch]:
    """Those of all sides, in their order."""
    for item in items:
        if isinstance(item, Branching):
            for side in item.sides:
                yield from all_launches(side)
        else:
            yield item


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

    `rows` has, by the counter, how many a region does each time, and `most` how many an iteration does at most.
    """

    rows: tuple[tuple[int, int], ...]
    most: int
    shape: Shape = ()
    dtype: np.dtype | None = None

    @property
    def pushes(self) -> bool:
        return any(count > 0 for _, count in self.rows)

    @property
    def is_known(self) -> bool:
        """Whether each iteration has as many."""
        return all(counter == 0 for counter, _ in self.rows)

    @property
    def row_bytes(self) -> int:
        assert self.dtype is not None
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Unchanged:
    """Anything that goes through an iteration as it is."""


Carry = CarriedArray | CarriedNumber | CarriedRows | Unchanged


@dataclass(frozen=True)
class Placement:
    """Where each buffer lies: in which carried array's buffer, or in the loop's own memory (buffer 0), and how many
    bytes from its beginning; None where nothing names it. And the bytes of the loop's own memory."""

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


def word_view(number: int) -> View:
    """A word on the card, by its number."""
    return View(Buffer(0), INT64, (), (), number * INT64.itemsize)


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

    @property
    def launches(self) -> tuple[Launch, ...]:
        """Those of all sides."""
        return tuple(all_launches(self.items))

    @property
    def products(self) -> int:
        return sum(isinstance(launch, ProductLaunch) for launch in self.launches)

    @property
    def is_known(self) -> bool:
        """Whether each iteration pushes and pops as many rows as the others."""
        return GoesOn() not in self.words

    def word(self, its: Word) -> View:
        """A word as an array on the card."""
        return word_view(self.words.index(its))


class CannotPrepare(Exception):
    """Why a body is run step by step."""


__all__ = [
    "INT64",
    "Affine",
    "Branching",
    "Buffer",
    "CannotPrepare",
    "Capacity",
    "Carried",
    "CarriedArray",
    "CarriedNumber",
    "CarriedRows",
    "Carry",
    "Converted",
    "Counter",
    "Fixed",
    "Flag",
    "Given",
    "GoesOn",
    "Item",
    "KernelLaunch",
    "KernelSpec",
    "Launch",
    "Limit",
    "Operand",
    "Placement",
    "PreparedBody",
    "ProductLaunch",
    "Rows",
    "Shape",
    "Source",
    "Transfer",
    "Unchanged",
    "View",
    "Word",
    "all_launches",
    "contiguous",
    "word_view",
]
