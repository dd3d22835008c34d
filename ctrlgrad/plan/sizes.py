"""Sizes that a plan computes with: a number times named run-time sizes.

A dimension of an array is a `Size`; so is a stride, and each term of an offset. Names are those of integer registers,
so that one plan serves all lengths. Two sizes are known to be equal where they are the same monomial.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ctrlgrad.records import record


@record
class Size:
    """`factor` times the registers called `names` (sorted; a name may stand twice)."""

    factor: int
    names: tuple[str, ...] = ()

    def __mul__(self, other: Size) -> Size:
        factor = self.factor * other.factor
        if not factor:
            return Size(0)
        if self.names and other.names:
            return Size(factor, tuple(sorted((*self.names, *other.names))))
        return Size(factor, self.names or other.names)

    @property
    def is_known(self) -> bool:
        return not self.names

    def __str__(self) -> str:
        if not self.names:
            return str(self.factor)
        return "*".join(([] if self.factor == 1 else [str(self.factor)]) + list(self.names))


ZERO, ONE = Size(0), Size(1)
Sizes = tuple[Size, ...]


def product(sizes: Iterable[Size]) -> Size:
    factor = 1
    names: list[str] = []
    for size in sizes:
        factor *= size.factor
        names += size.names
    return Size(factor, tuple(sorted(names))) if factor else ZERO


def row_major(shape: Sequence[Size]) -> Sizes:
    """The strides, in elements, of a dense array in C order."""
    strides: list[Size] = []
    step = ONE
    for size in reversed(shape):
        strides.append(step)
        step = step * size
    return tuple(reversed(strides))


def divided(size: Size, by: Size) -> Size | None:
    """The quotient, where it is a monomial; None where it is not."""
    if by.factor == 0 or size.factor % by.factor:
        return None
    names = list(size.names)
    for name in by.names:
        if name not in names:
            return None
        names.remove(name)
    return Size(size.factor // by.factor, tuple(names))
