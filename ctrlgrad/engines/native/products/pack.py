"""Operands copied into panels, which tiles read in the order in which they lie.

    cg_pack_b_TYPE(to, B, row stride, column stride, depth, width)        panels of a tile's columns
    cg_pack_a_TYPE(to, A, column stride, row stride, depth, height)       panels of a tile's rows

A panel of B holds so many columns, row after row; one of A so many rows, column after column. So both are one routine,
for A is packed as its transpose. The last panel is filled up with zeros. A panel is one stream, aligned in pages and
cache lines however long the rows of the matrix are. Rows in memory are copied by vectors, columns in memory are
transposed in registers. Whole vectors are written, so that `to` needs `slack` bytes behind the last panel.
"""

from __future__ import annotations

from collections.abc import Sequence

from ctrlgrad.engines.native.products.function import Function, Number, parameters
from ctrlgrad.engines.native.products.real import Real
from ctrlgrad.records import record

PARAMETERS = parameters("to* b* rb cb k n")
SLACK = 64
ROWS_AT_ONCE = 8


@record
class Packing:
    """Shape of a panel: its width in elements, and the vectors that a row of it takes."""

    real: Real
    width: int

    @property
    def vectors(self) -> int:
        return -(-self.width // self.real.lanes)


def pack_name(real: Real, operand: str) -> str:
    return f"cg_pack_{operand}_{real.name}"


def pack(name: str, packing: Packing) -> str:
    f, real, width = Function(name, PARAMETERS), packing.real, packing.width
    with f.leaving_when(f.test("eq", "%cb", 1)):
        _rows(f, packing)
        f.leave()
    with f.loop(0, "%n", width) as j:
        to, b = real.at(f, "%to", f.mul(j, "%k")), real.at(f, "%b", f.mul(j, "%cb"))
        count = f.smaller(f.sub("%n", j), width)
        whole = f.variable("i64", 0)
        with f.when(f.both(f.test("eq", count, width), f.test("eq", "%rb", 1))):
            f.set(whole, f.sub("%k", f.rest("%k", real.lanes)))
            _columns(f, packing, to, b, f.get(whole))
        _single(f, packing, to, b, count, f.get(whole))
    f.leave()
    return f.text()


def _rows(f: Function, packing: Packing) -> None:
    """Every row's elements lie side by side: some rows at a time are read from end to end, as memory likes it best."""
    real, width = packing.real, packing.width
    whole = f.sub("%n", f.rest("%n", width))
    exact = width % real.lanes == 0

    def copy(p: str, j: str, masks: Sequence[str | None]) -> None:
        source = real.at(f, "%b", f.add(f.mul(p, "%rb"), j))
        target = real.at(f, "%to", f.add(f.mul(j, "%k"), f.mul(p, width)))
        for v, mask in enumerate(masks):
            value, place = real.read(f, real.at(f, source, v * real.lanes), mask), real.at(f, target, v * real.lanes)
            if exact or v < packing.vectors - 1:
                real.write(f, value, place)
            else:
                real.write_first(f, value, place, str(width % real.lanes), inner)

    inner = real.mask(f, str(width % real.lanes))
    most = [None if exact or v < packing.vectors - 1 else inner for v in range(packing.vectors)]

    def panels(p: str, rows: int) -> None:
        with f.loop(0, whole, width) as j:
            for row in range(rows):
                copy(f.add(p, row), j, most)
        left = f.sub("%n", whole)
        with f.when(f.test("sgt", left, 0)):
            masks: list[str | None] = [real.mask(f, f.sub(left, v * real.lanes)) for v in range(packing.vectors)]
            for row in range(rows):
                copy(f.add(p, row), whole, masks)

    many = f.sub("%k", f.rest("%k", ROWS_AT_ONCE))
    with f.loop(0, many, ROWS_AT_ONCE) as p:
        panels(p, ROWS_AT_ONCE)
    with f.loop(many, "%k") as p:
        panels(p, 1)


def _columns(f: Function, packing: Packing, to: str, b: str, end: str) -> None:
    """Every column's elements lie side by side: squares of vectors are transposed in registers."""
    real, lanes = packing.real, packing.real.lanes
    with f.loop(0, end, lanes) as p:
        squares = []
        for v in range(packing.vectors):
            columns = range(v * lanes, min((v + 1) * lanes, packing.width))
            read = [real.read(f, real.at(f, b, f.add(f.mul("%cb", c), p) if c else p)) for c in columns]
            squares.append(transposed(f, real, read + ["zeroinitializer"] * (lanes - len(read))))
        # In this order: what a vector holds beyond the panel's width is overwritten by the next row.
        for row in range(lanes):
            target = real.at(f, to, f.mul(f.add(p, row), packing.width))
            for v, square in enumerate(squares):
                real.write(f, square[row], real.at(f, target, v * lanes))


def transposed(f: Function, real: Real, columns: list[str]) -> list[str]:
    """A square of vectors, transposed: in step s, halves of pairs that lie s apart change places."""
    lanes, apart, now = real.lanes, 1, list(columns)
    while apart < lanes:
        low = [c if not c & apart else lanes + c - apart for c in range(lanes)]
        high = [c + apart if not c & apart else lanes + c for c in range(lanes)]
        for k in range(lanes):
            if not k & apart:
                pair = now[k], now[k + apart]
                now[k], now[k + apart] = (real.shuffled(f, *pair, order) for order in (low, high))
        apart *= 2
    return now


def _single(f: Function, packing: Packing, to: str, b: str, count: str, first: Number) -> None:
    """Element by element, from a row on."""
    real = packing.real
    with f.loop(first, "%k") as p:
        source, target = real.at(f, b, f.mul(p, "%rb")), real.at(f, to, f.mul(p, packing.width))
        with f.loop(0, count) as c:
            real.put(f, real.element(f, real.at(f, source, f.mul(c, "%cb"))), real.at(f, target, c))
        with f.loop(count, packing.width) as c:
            real.put(f, "0.0", real.at(f, target, c))
