"""A tile of a product: up to `rows` rows and `vectors` vectors of C, over the whole depth, in registers.

    tile(A, row stride, column stride, B, row stride, depth, C, row stride, more, columns)

A is read element by element, so its strides are free (its rows may be the columns of something). B is read in vectors
along its rows: a packed panel, or rows of the matrix itself. `columns` is how many lanes of the last vector there are:
only the kernels whose name ends in `t` look at it. Few rows leave registers free, and would wait for each other's
multiplications: they take several steps of the depth at once, in accumulators of their own.

`more` has two bits. `ADDED`: the product is added to C. `IN_ORDER`: each element is one chain of fused multiply-adds in
the order of the depth, which goes on from C where the product is added to it. Then an element has the same bits
wherever the depth or the rows are cut. Kernels whose names end in `s` have no more than one chain.
"""

from __future__ import annotations

from ctrlgrad.engines.native.products.function import Function, Variable, parameters
from ctrlgrad.engines.native.products.real import Real

PARAMETERS = parameters("a* ra ca b* rb k c* rc more columns")
ADDED, IN_ORDER = 1, 2


def how(accumulate: bool, in_order: bool) -> int:
    """`more` of a product."""
    return ADDED * accumulate | IN_ORDER * in_order


def steps_at_once(real: Real, rows: int, vectors: int) -> int:
    """Number of chains of multiplications that a tile with free registers has for each element."""
    return max(1, min(4, (8 if real.rows <= 6 else 16) // (rows * vectors)))


def tile_name(real: Real, rows: int, vectors: int, tail: bool, in_order: bool = False) -> str:
    single = in_order and steps_at_once(real, rows, vectors) > 1
    return f"cg_tile_{real.name}_{rows}x{vectors}{'t' if tail else ''}{'s' if single else ''}"


def tile(real: Real, rows: int, vectors: int, tail: bool, in_order: bool = False) -> str:
    """The text of one kernel."""
    f = Function(tile_name(real, rows, vectors, tail, in_order), PARAMETERS)
    mask = real.mask(f, "%columns") if tail else None
    at_once = 1 if in_order else steps_at_once(real, rows, vectors)
    row_starts = [real.at(f, "%a", f.mul("%ra", row)) if row else "%a" for row in range(rows)]
    sums = [
        [[f.variable(real.vector, "zeroinitializer") for _ in range(vectors)] for _ in range(rows)]
        for _ in range(at_once)
    ]
    goes_on = f.test("eq", "%more", ADDED | IN_ORDER)
    if rows == real.rows:
        # C comes from far while the depth is worked through: that of the next tile, where this one begins with its own.
        first = real.at(f, "%c", f.select(goes_on, "i64", f.mul("%rc", rows), 0))
        for row in range(rows):
            address = real.at(f, first, f.mul("%rc", row)) if row else first
            f.line(f"call void @llvm.prefetch.p0(ptr {address}, i32 1, i32 3, i32 1)")
    if at_once == 1:
        with f.when(goes_on):
            for row in range(rows):
                start = real.at(f, "%c", f.mul("%rc", row)) if row else "%c"
                for v in range(vectors):
                    old = real.read(f, real.at(f, start, v * real.lanes), mask if v == vectors - 1 else None)
                    f.set(sums[0][row][v], old)
    place, b_place = f.variable("i64", 0), f.variable("ptr", "%b")

    def step(chain: int) -> None:
        """One step of the depth, into the accumulators of a chain."""
        offset, b = f.get(place), f.get(b_place)
        right = [
            real.read(f, real.at(f, b, v * real.lanes), mask if v == vectors - 1 else None) for v in range(vectors)
        ]
        for row in range(rows):
            left = real.spread(f, real.element(f, real.at(f, row_starts[row], offset)))
            for v in range(vectors):
                into = sums[chain][row][v]
                f.set(into, real.fma(f, left, right[v], f.get(into)))
        f.set(place, f.add(offset, "%ca"))
        f.set(b_place, real.at(f, b, "%rb"))

    whole = f.sub("%k", f.rest("%k", at_once)) if at_once > 1 else "%k"
    with f.loop(0, whole, at_once):
        for chain in range(at_once):
            step(chain)
    if at_once > 1:
        with f.loop(whole, "%k"):
            step(0)
    _store(f, real, sums, mask)
    return f.text()


def _store(f: Function, real: Real, sums: list[list[list[Variable]]], mask: str | None) -> None:
    """Add up the chains and write the tile, added to what is there unless the chains began with that."""
    results = []
    for row in range(len(sums[0])):
        for v in range(len(sums[0][0])):
            parts = [f.get(chain[row][v]) for chain in sums]
            while len(parts) > 1:
                parts = [real.plus(f, *parts[k : k + 2]) for k in range(0, len(parts) - 1, 2)] + (
                    parts[-1:] if len(parts) % 2 else []
                )
            results.append((row, v, parts[0]))
    last = len(sums[0][0]) - 1
    places = [real.at(f, "%c", f.mul("%rc", row)) if row else "%c" for row in range(len(sums[0]))]
    values = [f.variable(real.vector, value) for _, _, value in results]
    with f.when(f.test("eq", "%more", ADDED)):
        for (row, v, value), total in zip(results, values, strict=True):
            old = real.read(f, real.at(f, places[row], v * real.lanes), mask if v == last else None)
            f.set(total, real.plus(f, old, value))
    for (row, v, _), total in zip(results, values, strict=True):
        address = real.at(f, places[row], v * real.lanes)
        if mask is None or v < last:
            real.write(f, f.get(total), address)
        else:
            real.write_first(f, f.get(total), address, "%columns", mask)
    f.leave()


def heights(real: Real) -> list[int]:
    """Heights of tiles in rows: the full height, and powers of two for the remainder."""
    return [1 << k for k in range(real.rows.bit_length()) if 1 << k < real.rows] + [real.rows]


def widths(real: Real) -> list[tuple[int, bool]]:
    """Widths of tiles in vectors, each with a flag: the last vector may be partial."""
    return [(real.vectors, False), *((vectors, True) for vectors in range(1, real.vectors + 1))]
