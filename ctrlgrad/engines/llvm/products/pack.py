"""The right operand copied into panels: `columns` columns each, row after row, the last one filled up with zeros.

    pack(to, B, row stride, column stride, depth, width)

A panel is what a tile reads, in the order in which it reads it: one stream, aligned in pages and cache lines however
long the rows of the matrix are. Rows in memory are copied by vectors, columns in memory are transposed in registers.
"""

from __future__ import annotations

from ctrlgrad.engines.llvm.products.real import Real
from ctrlgrad.engines.llvm.products.text import Function

PARAMETERS = [("ptr", "to"), ("ptr", "b"), ("i64", "rb"), ("i64", "cb"), ("i64", "k"), ("i64", "n")]


def pack(real: Real) -> str:
    f = Function(f"cg_pack_b_{real.name}", PARAMETERS)
    width = real.columns
    with f.loop(0, "%n", width) as j:
        to = real.at(f, "%to", f.mul(j, "%k"))
        b = real.at(f, "%b", f.mul(j, "%cb"))
        count = f.smaller(f.sub("%n", j), width)
        names = {way: f.name(way) for way in ("rows", "columns", "any", "done")}
        full = f.test("eq", count, width)
        f.branch(f.test("eq", "%cb", 1), names["rows"], names["columns"])
        f.label(names["rows"])
        _rows(f, real, to, b, count)
        f.jump(names["done"])
        f.label(names["columns"])
        transposes = f.name("transposes")
        f.branch(f.both(full, f.test("eq", "%rb", 1)), transposes, names["any"])
        f.label(transposes)
        whole = f.sub("%k", f.rest("%k", real.lanes))
        _transposed(f, real, to, b, whole)
        _any(f, real, to, b, count, whole)
        f.jump(names["done"])
        f.label(names["any"])
        _any(f, real, to, b, count, 0)
        f.jump(names["done"])
        f.label(names["done"])
    f.leave()
    return f.text()


def _rows(f: Function, real: Real, to: str, b: str, count: str) -> None:
    """Every row's elements lie side by side."""
    masks = [real.mask(f, f.sub(count, v * real.lanes)) for v in range(real.vectors)]
    with f.loop(0, "%k") as p:
        source, target = real.at(f, b, f.mul(p, "%rb")), real.at(f, to, f.mul(p, real.columns))
        for v, mask in enumerate(masks):
            value = real.read(f, real.at(f, source, v * real.lanes), mask)
            real.write(f, value, real.at(f, target, v * real.lanes))


def _transposed(f: Function, real: Real, to: str, b: str, end: str) -> None:
    """Every column's elements lie side by side: squares of vectors are transposed in registers."""
    lanes = real.lanes
    with f.loop(0, end, lanes) as p:
        for v in range(real.vectors):
            columns = [
                real.read(f, real.at(f, b, f.add(f.mul("%cb", v * lanes + c), p))) for c in range(lanes)
            ]
            for row, value in enumerate(transposed(f, real, columns)):
                target = real.at(f, to, f.mul(f.add(p, row), real.columns))
                real.write(f, value, real.at(f, target, v * lanes))


def transposed(f: Function, real: Real, columns: list[str]) -> list[str]:
    """A square of vectors, transposed: in step s, halves of pairs that lie s apart change places."""
    lanes, apart, now = real.lanes, 1, list(columns)
    while apart < lanes:
        for k in range(lanes):
            if not k & apart:
                one, two = now[k], now[k + apart]
                low = [c if not c & apart else lanes + c - apart for c in range(lanes)]
                high = [c + apart if not c & apart else lanes + c for c in range(lanes)]
                now[k], now[k + apart] = (real.shuffled(f, one, two, order) for order in (low, high))
        apart *= 2
    return now


def _any(f: Function, real: Real, to: str, b: str, count: str, first: str | int) -> None:
    """Element by element, from a row on."""
    with f.loop(first, "%k") as p:
        source, target = real.at(f, b, f.mul(p, "%rb")), real.at(f, to, f.mul(p, real.columns))
        with f.loop(0, count) as c:
            real.put(f, real.element(f, real.at(f, source, f.mul(c, "%cb"))), real.at(f, target, c))
        with f.loop(count, real.columns) as c:
            real.put(f, "0.0", real.at(f, target, c))
