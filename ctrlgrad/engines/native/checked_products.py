"""Matrix products on checked memory: every element that BLAS would read or write is checked first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctrlgrad.engines.native.checked_memory import AccessError, Pointer


@dataclass(frozen=True)
class Matrix:
    """A matrix or vector in a buffer: `places` are its elements."""

    name: str
    pointer: Pointer
    places: np.ndarray

    def __post_init__(self) -> None:
        """Its ends lie in the buffer."""
        for end in (self.places.min(), self.places.max()) if self.places.size else ():
            self.pointer.place(int(end) - self.pointer.start, self.name)

    def values(self) -> np.ndarray:
        """Its elements, which must have been written."""
        missing = [place for place in self.places.flat if not self.pointer.written[place]]
        if missing:
            raise AccessError(f"{self.name}: element {missing[0]} of {self.pointer.buffer.name} was never written")
        return np.asarray(self.pointer.flat[self.places])


def _matrix(name: str, pointer: Pointer, rows: int, columns: int, leading: int) -> Matrix:
    if leading < max(1, rows):
        raise AccessError(f"matrix {name} of a product has the leading dimension {leading}, and {rows} rows")
    places = pointer.start + np.arange(rows)[:, None] + leading * np.arange(columns)
    return Matrix(f"matrix {name} of a product", pointer, places)


def _vector(name: str, pointer: Pointer, length: int, step: int) -> Matrix:
    if step < 1:
        raise AccessError(f"vector {name} of a product has the step {step}")
    return Matrix(f"vector {name} of a product", pointer, pointer.start + step * np.arange(length))


def gemm(
    routine: Any,
    transpose_a: int,
    transpose_b: int,
    m: int,
    n: int,
    k: int,
    alpha: Any,
    a: Pointer,
    lda: int,
    b: Pointer,
    ldb: int,
    beta: Any,
    c: Pointer,
    ldc: int,
) -> None:
    """As `machine.gemm`, on elements that are all checked first."""
    plain_a, plain_b = transpose_a == ord("N"), transpose_b == ord("N")
    left = _matrix("A", a, *((m, k) if plain_a else (k, m)), int(lda))
    right = _matrix("B", b, *((k, n) if plain_b else (n, k)), int(ldb))
    result = _matrix("C", c, m, n, int(ldc))
    if m and n:
        a_, b_ = left.values(), right.values()
        _update(result, (left, right), alpha * ((a_ if plain_a else a_.T) @ (b_ if plain_b else b_.T)), beta)


def gemv(
    routine: Any,
    transpose: int,
    m: int,
    n: int,
    alpha: Any,
    a: Pointer,
    lda: int,
    x: Pointer,
    step_x: int,
    beta: Any,
    y: Pointer,
    step_y: int,
) -> None:
    """As `machine.gemv`. BLAS leaves y as it is where m or n is 0."""
    plain = transpose == ord("N")
    length_x, length_y = (n, m) if plain else (m, n)
    matrix = _matrix("A", a, m, n, int(lda))
    vector, result = (_vector(*v) for v in (("x", x, length_x, int(step_x)), ("y", y, length_y, int(step_y))))
    if m and n:
        values = matrix.values()
        _update(result, (matrix, vector), alpha * ((values if plain else values.T) @ vector.values()), beta)


def _update(result: Matrix, operands: Sequence[Matrix], product: Any, beta: Any) -> None:
    """Write a product into a matrix that may not overlap its operands."""
    pointer = result.pointer
    for operand in operands:
        if operand.pointer.buffer is pointer.buffer and np.intersect1d(operand.places, result.places).size:
            raise AccessError(f"{operand.name} and {result.name} overlap in {pointer.buffer.name}")
    if not pointer.buffer.writable:
        raise AccessError(f"{result.name}: {pointer.buffer.name} may only be read")
    pointer.flat[result.places] = product if beta == 0 else product + beta * result.values()
    for place in result.places.flat:
        pointer.written[place] = 1


__all__ = ["gemm", "gemv"]
