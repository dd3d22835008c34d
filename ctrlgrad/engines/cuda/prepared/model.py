"""What a prepared body is made of, as data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctrlgrad.engines.cuda.kernel import KernelText
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


Source = Given | Buffer | Carried | Rows


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
        return self.strides == contiguous(self.shape, self.dtype)

    @property
    def size(self) -> int:
        return math.prod(self.shape)


Operand = View | Fixed | Affine | Converted


def contiguous(shape: Shape, dtype: np.dtype) -> Shape:
    """The strides of an array whose elements lie in their order."""
    return tuple(dtype.itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


# Kernels.


@dataclass(frozen=True)
class Access:
    """How a kernel finds an argument's element: `strides` in bytes by the axes of its shape; None for a number.

    Its address, or the number, is the sum of a parameter (where it has one), and of the word of this number and `step`
    in each iteration (where it moves).
    """

    strides: Shape | None
    has_parameter: bool = True
    word: int | None = None
    step: int = 0


@dataclass(frozen=True)
class KernelSpec:
    """A kernel with all that stays from launch to launch: what it computes, over which elements, in what order.

    The last `reduced` axes of the shape are gone through by one thread; what the text says of an output is said of its
    value so far, which is 0 at first.
    """

    text: KernelText
    shape: Shape
    inputs: tuple[Access, ...]
    outputs: tuple[Access, ...]
    reduced: int = 0

    @property
    def threads(self) -> int:
        return math.prod(self.shape[: len(self.shape) - self.reduced])

    @property
    def accesses(self) -> tuple[Access, ...]:
        return self.inputs + self.outputs

    @property
    def is_moving(self) -> bool:
        """Whether it reads the counter and words."""
        return any(access.word is not None for access in self.accesses)


@dataclass(frozen=True)
class KernelLaunch:
    """One launch: the arguments in the order of the text's inputs and outputs."""

    spec: KernelSpec
    arguments: tuple[Operand, ...]


@dataclass(frozen=True)
class ProductLaunch:
    """`out = a @ b`, or that added to it; matrices of one dtype, whose addresses stay, `out` by rows."""

    a: View
    b: View
    out: View
    adds: bool


Launch = KernelLaunch | ProductLaunch


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
class PreparedBody:
    """An iteration."""

    launches: tuple[Launch, ...]
    # Word 0 of the card's is the counter; these are the others, as they are when a run begins: the address of a view of
    # rows, a displacement in bytes, or a number. Buffer 0 has them all.
    words: tuple[View | Affine, ...]
    buffers: tuple[tuple[Shape, np.dtype], ...]
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
    "Access",
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
    "Given",
    "KernelLaunch",
    "KernelSpec",
    "Launch",
    "Operand",
    "PreparedBody",
    "ProductLaunch",
    "Rows",
    "Shape",
    "Source",
    "Unchanged",
    "View",
    "contiguous",
]
