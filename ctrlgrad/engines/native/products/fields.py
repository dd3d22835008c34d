"""The four types of triangular systems: real numbers, and complex ones as planes of their real and imaginary parts.

A matrix that a routine works on lies in planes of real numbers, row after row. Of complex numbers there
are three: the real parts, the imaginary ones, and these with the other sign: then a sum of complex products is made of
products that are added.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ctrlgrad.engines.native.products.function import Function, Number
from ctrlgrad.engines.native.products.real import Real
from ctrlgrad.records import record

COPIED_AT_ONCE = 16
"""A copy between rows and columns goes by squares of so many, so that each line of memory is met while it is near."""


@record
class Field:
    """A type by its name (f32, f64, c64, c128): the real numbers that it is made of, and how many parts it has."""

    name: str
    real: Real
    parts: int

    @property
    def planes(self) -> int:
        return 1 if self.parts == 1 else 3

    @property
    def bytes(self) -> int:
        return self.real.bytes * self.parts

    def at(self, f: Function, pointer: str, index: Number) -> str:
        """The address of an element of a matrix of the caller's."""
        return self.real.at(f, pointer, f.mul(index, self.parts))


def fields(real: Real) -> tuple[Field, Field]:
    """The real and the complex numbers of one precision."""
    return Field(real.name, real, 1), Field({"f32": "c64", "f64": "c128"}[real.name], real, 2)


@record
class Planes:
    """A matrix in planes: those of its parts that count, their distances from row to row and from column to column."""

    pointers: tuple[str, ...]
    row: Number
    column: Number

    def moved(self, f: Function, real: Real, row: Number, column: Number) -> Planes:
        """The part of it from a row and a column on."""
        by = f.add(f.mul(row, self.row), f.mul(column, self.column))
        return Planes(tuple(real.at(f, pointer, by) for pointer in self.pointers), self.row, self.column)

    def transposed(self) -> Planes:
        return Planes(self.pointers, self.column, self.row)


def add_product(
    f: Function, kind: Field, to: Planes, a: Planes, b: Planes, sizes: tuple[Number, Number, Number], scratch: str
) -> None:
    """to += a b, of so many rows, columns and terms. `a` has the parts that a number has, `b` all planes."""
    (m, n, k), name = sizes, f"cg_gemm_{kind.real.name}"
    pairs = [(0, 0, 0)] if kind.parts == 1 else [(0, 0, 0), (0, 1, 2), (1, 0, 1), (1, 1, 0)]
    for out, left, right in pairs:
        f.line(
            f"call void @{name}(ptr {to.pointers[out]}, i64 {to.row}, "
            f"ptr {a.pointers[left]}, i64 {a.row}, i64 {a.column}, "
            f"ptr {b.pointers[right]}, i64 {b.row}, i64 {b.column}, i64 {m}, i64 {n}, i64 {k}, i64 1, ptr {scratch})"
        )


def copy(
    f: Function, real: Real, to: Planes, source: Planes, sizes: tuple[Number, Number], signs: Sequence[int]
) -> None:
    """Rows and columns from plane to plane, with the sign of each: at once by vectors where both lie in rows."""
    for target, given, sign in zip(to.pointers, source.pointers, signs, strict=True):
        one = Planes((target,), to.row, to.column), Planes((given,), source.row, source.column)
        both = [f.test("eq", planes.column, 1) for planes in one]
        dense = f.both(*both)
        with f.when(dense):
            _by_vectors(f, real, *one, sizes, sign)
        with f.when(f.op(f"xor i1 {dense}, true")):
            for i, j in squares(f, *sizes):
                here, there = (planes.moved(f, real, i, j).pointers[0] for planes in one)
                _one(f, real, here, there, sign)


def _by_vectors(f: Function, real: Real, to: Planes, source: Planes, sizes: tuple[Number, Number], sign: int) -> None:
    m, n = sizes
    whole = f.sub(n, f.rest(n, real.lanes))
    with f.loop(0, m) as i:
        here, there = (real.at(f, planes.pointers[0], f.mul(i, planes.row)) for planes in (to, source))
        with f.loop(0, whole, real.lanes) as j:
            value = real.read(f, real.at(f, there, j))
            real.write(f, f.op(f"fneg {real.vector} {value}") if sign < 0 else value, real.at(f, here, j))
        with f.loop(whole, n) as j:
            _one(f, real, real.at(f, here, j), real.at(f, there, j), sign)


def squares(f: Function, m: Number, n: Number, from_diagonal: bool = False) -> Iterator[tuple[str, str]]:
    """Loop over all rows and columns, square by square; with `from_diagonal`, without squares below the diagonal."""
    side = COPIED_AT_ONCE
    with f.loop(0, m, side) as top, f.loop(top if from_diagonal else 0, n, side) as left:
        bottom, right = f.smaller(f.add(top, side), m), f.smaller(f.add(left, side), n)
        with f.loop(top, bottom) as i, f.loop(left, right) as j:
            yield i, j


def _one(f: Function, real: Real, to: str, source: str, sign: int) -> None:
    value = real.element(f, source)
    real.put(f, f.op(f"fneg {real.scalar} {value}") if sign < 0 else value, to)


def declarations(real: Real) -> list[str]:
    """The routines of products that are called."""
    product = "ptr, i64, ptr, i64, i64, ptr, i64, i64, i64, i64, i64, i64, ptr"
    return [f"declare void @cg_gemm_{real.name}({product})", f"declare i64 @cg_gemm_scratch_{real.name}(i64, i64, i64)"]
