"""Where values live in generated code: sizes, and references to elements of a buffer.

A size is a number or the product of a number and names of sizes that are not known when code is generated. Two sizes
are taken for equal only if they are written alike, so code holds for every run it is used for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np


class NotNative(Exception):
    """Why a loop has no native form."""


@dataclass(frozen=True)
class Size:
    """`factor` times the product of `names`."""

    factor: int
    names: tuple[str, ...] = ()

    def __mul__(self, other: Size) -> Size:
        if self.factor * other.factor == 0:
            return ZERO
        return Size(self.factor * other.factor, tuple(sorted(self.names + other.names)))

    def __neg__(self) -> Size:
        return Size(-self.factor, self.names)

    @property
    def text(self) -> str:
        if not self.names:
            return str(self.factor)
        product = " * ".join(self.names)
        return product if self.factor == 1 else f"{self.factor} * {product}"

    def __str__(self) -> str:
        return self.text


ZERO, ONE = Size(0), Size(1)
Sizes = tuple[Size, ...]


def product(sizes: Iterable[Size]) -> Size:
    total = ONE
    for size in sizes:
        total = total * size
    return total


def row_major(shape: Sequence[Size]) -> Sizes:
    """The strides of a contiguous array, in elements."""
    return tuple(product(shape[axis + 1 :]) for axis in range(len(shape)))


class Dims:
    """The sizes that are not known when code is generated: one name for all that are equal in a run."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}

    def size(self, declared: int | None, found: int) -> Size:
        """The size of an axis, declared or found at run time. 0 and 1 are always written out."""
        if declared is not None or found < 2:
            return Size(found)
        return Size(1, (self.names.setdefault(found, f"d{len(self.names)}"),))


@dataclass(frozen=True)
class Scalar:
    """A value of rank 0: an expression, a name or a literal, of the dtype."""

    text: str
    dtype: np.dtype


@dataclass(frozen=True)
class Ref:
    """A tensor in memory: element (i, j, ...) is `base[offset + i * strides[0] + j * strides[1] + ...]`."""

    base: str
    offset: str
    shape: Sizes
    strides: Sizes
    dtype: np.dtype

    @property
    def is_contiguous(self) -> bool:
        expected = row_major(self.shape)
        return all(a == b or n == ONE for a, b, n in zip(self.strides, expected, self.shape, strict=True))


@dataclass(frozen=True)
class Splat:
    """A tensor all of whose elements are one scalar."""

    scalar: Scalar
    shape: Sizes

    @property
    def dtype(self) -> np.dtype:
        return self.scalar.dtype


def plus(a: str, b: str) -> str:
    """A sum as text."""
    return b if a == "0" else a if b == "0" else f"{a} + {b}"


def times(index: str, size: Size) -> str:
    """A product as text."""
    if size == ZERO or index == "0":
        return "0"
    if size == ONE:
        return index
    return f"{index} * {size}" if index.isidentifier() or index.isdigit() else f"({index}) * {size}"
