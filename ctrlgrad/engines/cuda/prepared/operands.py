"""Operands of a prepared body's launches: memory, the host's integers, and words on the card."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctrlgrad.engines.cuda.sites import Site

Shape = tuple[int, ...]
INT64 = np.dtype(np.int64)
# More than a loop ever goes on, or a stack has rows.
ENDLESS = 1 << 62


@dataclass(frozen=True)
class Given:
    """Content of a program's slot that stays while a loop runs: a capture, a number or a constant.

    `region` is the program's number: 0 is the body's, and inner regions have higher numbers. A table (`tables`) has
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
    """The array that an iteration is given as a carry, or leaves as one, by the carry's position; of a table its rows,
    or its marks."""

    position: int
    is_next: bool = False
    is_marks: bool = False


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
        """Return true if the address is known only when a run of iterations begins."""
        return isinstance(self.source, Rows) or self.moved != Affine(0)

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
class Counter:
    """Number of passes of a region in a run: 0 is the body, higher numbers are sides of branches and bodies of loops.
    Or another integer that kernels write: iterations since a loop began, a popped number, or, below 0, the `slot`
    of a stack."""

    number: int


@dataclass(frozen=True)
class Limit:
    """The iterations of a run."""


@dataclass(frozen=True)
class GoesOn:
    """Word that says if there is another iteration. It is needed where the loop's end depends on data, and where only
    the card knows how many rows an iteration must have memory for."""


@dataclass(frozen=True)
class Capacity:
    """Number of rows that a run may push on a carried stack, or pop off it."""

    position: int


@dataclass(frozen=True)
class LastSlot:
    """Of a stack on which as many rows are pushed as the data says, or off which as many are popped, the last row where
    a pass may begin: there is memory for its rows."""

    position: int


@dataclass(frozen=True)
class Most:
    """The most rows that an iteration has pushed on such a stack, or popped off it, so far."""

    position: int


@dataclass(frozen=True)
class Before:
    """The rows on such a stack before the iteration."""

    position: int


@dataclass(frozen=True)
class Began:
    """The number of the moment at which a run began (`ctrlgrad.engines.cuda.sites`)."""


@dataclass(frozen=True)
class RunNumber:
    """By which its graphs are stopped."""


@dataclass(frozen=True)
class Short:
    """Word that is set when a pass begins for which too few rows are left to pop: the run's results are meaningless
    then."""


# As it is when a run begins: the address of a view of rows, a displacement in bytes, an integer.
Word = View | Affine | Counter | Limit | GoesOn | Capacity | LastSlot | Most | Before | Began | RunNumber | Short


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
