"""Products made of tiles: the rows of one panel, a block of panels, and the routine that takes any operands.

The loops are those of Goto and van de Geijn ("Anatomy of High-Performance Matrix Multiplication"): the depth is cut so
that a panel of B stays in the first cache while the rows of A pass, the rows so that their part of A stays in the
second.
A small product reads B where it lies; a large one, or one whose B does not lie in rows, packs parts of B first.
"""

from __future__ import annotations

from ctrlgrad.engines.native.products import times
from ctrlgrad.engines.native.products.function import Function, Number, parameters
from ctrlgrad.engines.native.products.kernels import call as call_kernel
from ctrlgrad.engines.native.products.pack import SLACK, pack_name
from ctrlgrad.engines.native.products.real import Real
from ctrlgrad.engines.native.products.tiles import ADDED, IN_ORDER, heights, tile_name, widths
from ctrlgrad.engines.native.products.tiles import PARAMETERS as TILE
from ctrlgrad.engines.native.products.vector import by_vectors_name
from ctrlgrad.engines.native.products.whole import GEMM, given, without_depth

DEPTH_BYTES = 1024
"""A panel of B is cut to so many bytes per column: with its columns that is half of a first cache of 32 KiB."""
BLOCK_BYTES = 192 << 10
"""What a block of A's rows takes of the second cache."""
PACKED_COLUMNS = 1024
"""How many columns of B are packed at a time at most."""
HELD_COLUMNS = 256
"""How many, where A need not be packed again for each time: then they stay in the second cache."""
PACK_A_COLUMNS = 128
"""Columns of B from which packing A pays."""
READ_WHERE_IT_LIES = 1 << 15
"""Bytes of B up to which packing does not pay, whatever the number of rows."""
FEW_LONG_ROWS = 3
"""Rows up to which each is multiplied with a B that lies in columns on its own."""
FEW_ROWS = 16
"""Rows up to which packing B (that lies in rows) does not pay."""

STRIP = [("ptr", "a"), ("i64", "sa"), ("i64", "ra"), ("i64", "ca"), *TILE[3:], ("i64", "m")]
BLOCK = parameters("a* sa ra ca b* panel rb m n k c* rc more")


def depth_of_panel(real: Real) -> int:
    return DEPTH_BYTES // real.bytes


def strip_name(real: Real, vectors: int, tail: bool) -> str:
    return f"strip_{real.name}_{vectors}{'t' if tail else ''}"


def strip(real: Real, vectors: int, tail: bool) -> str:
    """All rows of one panel: tiles of the full height, and one of what is left."""
    f = Function(strip_name(real, vectors, tail), STRIP, prefix="internal")
    left = f.rest("%m", real.rows)
    whole = f.sub("%m", left)

    in_order = f.test("ne", f.op(f"and i64 %more, {IN_ORDER}"), 0)

    def call(rows: int, a: str, i: str) -> None:
        arguments = given(TILE, a=a, c=real.at(f, "%c", f.mul(i, "%rc")))
        names = [tile_name(real, rows, vectors, tail, single) for single in (False, True)]
        call_kernel(f, real, names[0], arguments, (in_order, names[1]) if names[0] != names[1] else None)

    with f.loop(0, whole, real.rows) as i:
        call(real.rows, real.at(f, "%a", f.mul(i, "%sa")), i)
    # The remaining rows lie in one panel, where A is packed.
    a, done = real.at(f, "%a", f.mul(whole, "%sa")), whole
    for rows in reversed(heights(real)[:-1]):
        bit = f.op(f"and i64 {left}, {rows}")
        with f.when(f.test("ne", bit, 0)):
            call(rows, a, done)
        a, done = real.at(f, a, f.mul(bit, "%ra")), f.add(done, bit)
    f.leave()
    return f.text()


def panels(real: Real) -> str:
    """Panels of B by rows of A, at the whole depth: `panel` is from one panel to the next, `rb` from row to row."""
    f = Function(f"panels_{real.name}", BLOCK, prefix="internal")
    whole = f.sub("%n", f.rest("%n", real.columns))
    start = f.variable("ptr", "%b")

    def call(vectors: int, tail: bool, j: str, columns: Number) -> None:
        arguments = given(STRIP, b=f.get(start), c=real.at(f, "%c", j), columns=columns)
        f.line(f"call void @{strip_name(real, vectors, tail)}({arguments})")

    with f.loop(0, whole, real.columns) as j:
        call(real.vectors, False, j, real.columns)
        f.set(start, real.at(f, f.get(start), "%panel"))
    left = f.sub("%n", whole)
    with f.leaving_when(f.test("eq", left, 0)):
        f.leave()
    for vectors in range(1, real.vectors + 1):
        lanes = f.sub(left, (vectors - 1) * real.lanes)
        with f.leaving_when(f.test("sle", lanes, real.lanes)):
            call(vectors, True, whole, lanes)
            f.leave()
    f.line("unreachable")
    return f.text()


def block(real: Real) -> str:
    """Panels of B, packed or as they lie, by rows of A, cut to what the caches hold.

    Where more than a block of A serves many columns, its blocks are packed into `scratch`.
    """
    f = Function(f"block_{real.name}", [*BLOCK, ("ptr", "scratch")], prefix="internal")
    depth, most = depth_of_panel(real), BLOCK_BYTES // real.bytes
    fits = f.both(f.test("sle", "%k", depth), f.test("sle", f.mul("%m", "%k"), most))
    with f.leaving_when(fits):
        f.line(f"call void @panels_{real.name}({given(BLOCK)})")
        f.leave()
    deepest = f.smaller("%k", depth)
    height = f.larger(f.mul(f.div(most // real.rows, deepest), real.rows), real.rows)
    packs = f.both(f.test("sge", "%n", PACK_A_COLUMNS), f.test("sgt", f.mul("%m", deepest), most))
    with f.loop(0, "%k", depth) as p, f.loop(0, "%m", height) as i:
        k, m = f.smaller(f.sub("%k", p), depth), f.smaller(f.sub("%m", i), height)
        more = _added_behind(f, "%more", p)
        a = real.at(f, "%a", f.add(f.mul(p, "%ca"), f.mul(i, "%ra")))
        with f.when(packs):
            given_a = f"ptr %scratch, ptr {a}, i64 %ca, i64 %ra, i64 {k}, i64 {m}"
            call_kernel(f, real, pack_name(real, "a"), given_a)
        packed: dict[str, Number] = {"a": "%scratch", "sa": k, "ra": 1, "ca": real.rows}
        lying: dict[str, Number] = {"a": a, "sa": "%sa", "ra": "%ra", "ca": "%ca"}
        kinds = {name: kind for kind, name in BLOCK}
        left = {name: f.select(packs, kinds[name], packed[name], lying[name]) for name in packed}
        b, c = real.at(f, "%b", f.mul(p, "%rb")), real.at(f, "%c", f.mul(i, "%rc"))
        f.line(f"call void @panels_{real.name}({given(BLOCK, **left, b=b, m=m, k=k, c=c, more=more)})")
    f.leave()
    return f.text()


def _is_added(f: Function) -> str:
    return f.test("ne", f.op(f"and i64 %accumulate, {ADDED}"), 0)


def _added_behind(f: Function, more: str, p: str) -> str:
    """`more` of the part of a product that begins at depth p: all parts but the first are added."""
    return f.op(f"or i64 {more}, {f.select(f.test('ne', p, 0), 'i64', ADDED, 0)}")


def gemm(real: Real) -> str:
    """C = A B, or C += A B, by one thread; see `scratch` for the memory that it wants.

    `accumulate` is `more` of a tile.
    """
    f = Function(f"gemm_{real.name}", GEMM, prefix="internal")
    lies_in_columns = f.both(f.test("eq", "%rb", 1), f.test("ne", "%cb", 1))
    few = f.both(f.test("sle", "%m", FEW_LONG_ROWS), lies_in_columns)
    any_order = f.test("ult", "%accumulate", IN_ORDER)
    is_flat = f.op(f"or i1 {f.test('eq', f.smaller('%m', '%n'), 1)}, {few}")
    with f.leaving_when(f.both(any_order, is_flat)):
        call_kernel(f, real, by_vectors_name(real), given(GEMM))
        f.leave()
    without_depth(f, real, _is_added(f))
    small = f.test("sle", f.mul("%k", "%n"), READ_WHERE_IT_LIES // real.bytes)
    small = f.op(f"or i1 {small}, {f.test('sle', '%m', FEW_ROWS)}")
    with f.leaving_when(f.both(small, f.test("eq", "%cb", 1))):
        arguments = given(BLOCK, sa="%ra", panel=real.columns, more="%accumulate")
        f.line(f"call void @block_{real.name}({arguments}, ptr %scratch)")
        f.leave()
    depth = depth_of_panel(real)
    one_block = f.test("sle", f.mul("%m", f.smaller("%k", depth)), BLOCK_BYTES // real.bytes)
    width = f.select(one_block, "i64", HELD_COLUMNS, PACKED_COLUMNS)
    with f.loop(0, "%n", width) as j, f.loop(0, "%k", depth) as p:
        n, k = f.smaller(f.sub("%n", j), width), f.smaller(f.sub("%k", p), depth)
        b = real.at(f, "%b", f.add(f.mul(p, "%rb"), f.mul(j, "%cb")))
        given_b = f"ptr %scratch, ptr {b}, i64 %rb, i64 %cb, i64 {k}, i64 {n}"
        call_kernel(f, real, pack_name(real, "b"), given_b)
        rest = real.at(f, "%scratch", f.add(f.mul(f.rounded_up(n, real.columns), k), SLACK // real.bytes))
        a, c = real.at(f, "%a", f.mul(p, "%ca")), real.at(f, "%c", j)
        again = _added_behind(f, "%accumulate", p)
        right: dict[str, Number] = {"b": "%scratch", "panel": f.mul(k, real.columns), "rb": real.columns}
        arguments = given(BLOCK, a=a, sa="%ra", **right, n=n, k=k, c=c, more=again)
        f.line(f"call void @block_{real.name}({arguments}, ptr {rest})")
    f.leave()
    return f.text()


def packed(real: Real) -> str:
    """C = A B, or C += A B, for a B packed before: `b` is its first panel; `rb` and `cb` say nothing."""
    f = Function(f"packed_{real.name}", GEMM, prefix="internal")
    without_depth(f, real, _is_added(f))
    arguments = given(BLOCK, sa="%ra", panel=f.mul("%k", real.columns), rb=real.columns, more="%accumulate")
    f.line(f"call void @block_{real.name}({arguments}, ptr %scratch)")
    f.leave()
    return f.text()


def most_scratch(real: Real) -> int:
    """The bytes that are enough for every product."""
    depth = depth_of_panel(real)
    elements = depth * (PACKED_COLUMNS + real.columns) + BLOCK_BYTES // real.bytes + real.rows * depth
    return elements * real.bytes + 2 * SLACK


def scratch(real: Real) -> str:
    """The bytes of scratch that a product of some size wants, whatever the strides."""
    f = Function(f"cg_gemm_scratch_{real.name}", parameters("m n k"), "i64")
    depth = f.smaller("%k", depth_of_panel(real))
    b = f.mul(f.rounded_up(f.smaller("%n", PACKED_COLUMNS), real.columns), depth)
    a = f.smaller(
        f.mul(f.rounded_up("%m", real.rows), depth), BLOCK_BYTES // real.bytes + real.rows * depth_of_panel(real)
    )
    f.leave(f"i64 {f.add(f.mul(f.add(a, b), real.bytes), 2 * SLACK)}")
    return f.text()


def blocks(real: Real) -> list[str]:
    strips = [strip(real, vectors, tail) for vectors, tail in widths(real)]
    return [*strips, panels(real), block(real), gemm(real), packed(real), scratch(real)]


def needed(
    real: Real, m: int | None, n: int | None, packed: bool, rows_of_b: bool = False, in_order: bool = False
) -> list[str]:
    """The kernels that a product of so many rows and columns (None: not known) calls, whatever its depth.

    `packed`: B was packed before. `rows_of_b`: the elements of a row of B are known to lie side by side.
    """
    found = [
        tile_name(real, rows, vectors, tail, in_order)
        for rows in heights(real)
        for vectors, tail in widths(real)
        if (m is None or (m >= rows if rows == real.rows else m % real.rows & rows))
        and (n is None or (-(-(n % real.columns) // real.lanes) == vectors if tail else n >= real.columns))
    ]
    is_high = m is None or m * depth_of_panel(real) > BLOCK_BYTES // real.bytes
    if is_high and (n is None or n >= PACK_A_COLUMNS):
        found.append(pack_name(real, "a"))
    if not packed:
        if m is None or m > FEW_ROWS or not rows_of_b:
            found.append(pack_name(real, "b"))
        if not in_order and (m is None or n is None or m <= FEW_LONG_ROWS or n == 1):
            # Few rows and some columns: B lies in columns then, which are the rows that are multiplied.
            found += [by_vectors_name(real), *(times.names(real) if {m, n} & {1, None} else [times.rows_name(real)])]
    return found
