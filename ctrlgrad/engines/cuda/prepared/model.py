"""What a prepared body is made of, as data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ctrlgrad.engines.cuda.arguments import Access
from ctrlgrad.engines.cuda.indexing.model import IndexLaunch
from ctrlgrad.engines.cuda.kernel import KernelText
from ctrlgrad.engines.cuda.reductions.model import ReductionLaunch
from ctrlgrad.ir import Node

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Given:
    """The array in a slot of the body's program: a capture or a constant."""

    slot: int


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
    """An integer of the host: a constant and multiples of integers in slots, `step` more in each iteration."""

    constant: int
    terms: tuple[tuple[int, int], ...] = ()
    step: int = 0

    def plus(self, other: Affine, factor: int = 1) -> Affine:
        terms = dict(self.terms)
        for slot, count in other.terms:
            terms[slot] = terms.get(slot, 0) + factor * count
        kept = tuple(sorted((slot, count) for slot, count in terms.items() if count))
        return Affine(self.constant + factor * other.constant, kept, self.step + factor * other.step)

    @property
    def is_moving(self) -> bool:
        """Whether it is known only when a run of iterations begins."""
        return bool(self.terms or self.step)

    def times(self, factor: int) -> Affine:
        return Affine(0).plus(self, factor)

    def value(self, integers: Mapping[int, int]) -> int:
        """In the first iteration of a run, by the integers in the slots then."""
        return self.constant + sum(count * integers[slot] for slot, count in self.terms)


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


def movement(x: Operand) -> tuple[View | Affine, int] | None:
    """Of an address or a number that moves the word, and what each iteration adds to it."""
    if isinstance(x, View):
        # However the elements of rows lie, one word tells where they begin.
        word = replace(x, shape=(), strides=()) if isinstance(x.source, Rows) else x.moved
        return (word, x.moved.step) if x.is_moving else None
    number = x.number if isinstance(x, Converted) else x
    return (number, number.step) if isinstance(number, Affine) and number.is_moving else None


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
    """A stack that an iteration pushes so many rows on, or pops so many off (below 0)."""

    rows: int
    shape: Shape = ()
    dtype: np.dtype | None = None

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


@dataclass(frozen=True, eq=False)
class PreparedBody:
    """An iteration."""

    launches: tuple[Launch, ...]
    # Word 0 of the card's is the counter; these are the others, as they are when a run begins: the address of a view of
    # rows, a displacement in bytes, or a number. Buffer 0 has them all.
    words: tuple[View | Affine, ...]
    placement: Placement
    carries: tuple[Carry, ...]
    # Indices that must stay below a size, and not fall below zero.
    bounds: tuple[tuple[Affine, int], ...] = ()
    pushes: tuple[tuple[Node, int], ...] = ()
    pops: tuple[Node, ...] = ()

    @property
    def products(self) -> int:
        return sum(isinstance(launch, ProductLaunch) for launch in self.launches)


class CannotPrepare(Exception):
    """Why a body is run step by step."""


__all__ = [
    "Affine",
    "Buffer",
    "CannotPrepare",
    "Carried",
    "CarriedArray",
    "CarriedNumber",
    "CarriedRows",
    "Carry",
    "Converted",
    "Fixed",
    "Flag",
    "Given",
    "KernelLaunch",
    "KernelSpec",
    "Launch",
    "Operand",
    "Placement",
    "PreparedBody",
    "ProductLaunch",
    "Rows",
    "Shape",
    "Source",
    "Unchanged",
    "View",
    "contiguous",
    "movement",
]
