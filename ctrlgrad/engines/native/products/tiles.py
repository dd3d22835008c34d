"""A tile of a product: up to `rows` rows and `vectors` vectors of C, over the whole depth, in registers.

    tile(A, row stride, column stride, B, row stride, depth, C, row stride, accumulate, columns)

A is read element by element, so its strides are free (its rows may be the columns of something). B is read in vectors
along its rows: a packed panel, or rows of the matrix itself. `columns` is how many lanes of the last vector there are:
only the kernels whose name ends in `t` look at it. Few rows leave registers free, and would wait for each other's
multiplications: they take several steps of the depth at once, in accumulators of their own.
"""

from __future__ import annotations

from ctrlgrad.engines.native.products.function import Function, Variable
from ctrlgrad.engines.native.products.real import Real

PARAMETERS = [
    ("ptr", "a"),
    ("i64", "ra"),
    ("i64", "ca"),
    ("ptr", "b"),
    ("i64", "rb"),
    ("i64", "k"),
    ("ptr", "c"),
    ("i64", "rc"),
    ("i1", "more"),
    ("i64", "columns"),
]


def tile_name(real: Real, rows: int, vectors: int, tail: bool) -> str:
    return f"cg_tile_{real.name}_{rows}x{vectors}{'t' if tail else ''}"


def tile(real: Real, rows: int, vectors: int, tail: bool) -> str:
    """The text of one kernel."""
    f = Function(tile_name(real, rows, vectors, tail), PARAMETERS)
    mask = real.mask(f, "%columns") if tail else None
    at_once = max(1, min(4, (8 if real.rows <= 6 else 16) // (rows * vectors)))
    row_starts = [real.at(f, "%a", f.mul("%ra", row)) if row else "%a" for row in range(rows)]
    sums = [
        [[f.variable(real.vector, "zeroinitializer") for _ in range(vectors)] for _ in range(rows)]
        for _ in range(at_once)
    ]
    if rows == real.rows:
        # C comes from far while the depth is worked through.
        for row in range(rows):
            address = real.at(f, "%c", f.mul("%rc", row)) if row else "%c"
            f.line(f"call void @llvm.prefetch.p0(ptr {address}, i32 1, i32 3, i32 1)")
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
    """Add up the chains and write the tile, or add it to what is there."""
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
    with f.when("%more"):
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
