"""A matrix by a vector where its rows or its columns lie in memory: kernels that are objects of their own.

    cg_times_rows_TYPE, cg_times_columns_TYPE(out, step of out, M, row stride, column stride, x, step of x, rows, depth,
                                              accumulate)

out[i] = sum over p of M[i, p] x[p]. Where rows lie in memory, as many rows as a vector has lanes are multiplied with x
at once, each in an accumulator, which are then added up across: one vector of results. Where columns lie in memory,
eight vectors of results are held while the columns go by, or, where M is larger than a cache, eight columns are read
from end to end and added to the results in memory.

A table in memory has their addresses. A module that calls a product also declares the kernels that its strides need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ctrlgrad.engines.native.products.function import Function, Variable, parameters
from ctrlgrad.engines.native.products.real import Real
from ctrlgrad.engines.native.sum_blocks import InMemory, InRegister, in_blocks

PARAMETERS = parameters("out* so m* rm cm x* sx rows k more?")

LONGEST = 8
"""Vectors of results that are held at once, and columns that are read at once."""
HELD_BYTES = 32 << 10
"""Bytes of M from which its columns are read from end to end."""
STREAM_BYTES = 8 << 10
"""Bytes of results that stay in the first cache meanwhile."""


def rows_name(real: Real) -> str:
    return f"cg_times_rows_{real.name}"


def columns_name(real: Real) -> str:
    return f"cg_times_columns_{real.name}"


def names(real: Real) -> list[str]:
    """In the order of the table."""
    return [rows_name(real), columns_name(real)]


def needed(
    real: Real, row_stride: int | None, column_stride: int | None, x: int | None, out: int | None
) -> tuple[list[str], bool]:
    """The kernels for a matrix of such strides and such steps of x and out (None: not known), of which a product calls
    one; and whether it surely does."""
    are_rows, may_be_rows = column_stride == x == 1, {column_stride, x} <= {1, None}
    are_columns, may_be_columns = row_stride == out == 1, {row_stride, out} <= {1, None}
    found = [rows_name(real)] if may_be_rows else []
    if may_be_columns and not are_rows:
        found.append(columns_name(real))
    return found, are_rows or (are_columns and not may_be_rows)


def table_name(real: Real) -> str:
    return f"cg_times_{real.name}"


def table(real: Real) -> str:
    return f"@{table_name(real)} = global [2 x ptr] zeroinitializer, align 64\n"


def call(f: Function, real: Real, name: str) -> None:
    """Go on in a kernel that the caller's caller has declared, with one's own arguments: they stay where they are."""
    place = f"getelementptr ([2 x ptr], ptr @{table_name(real)}, i64 0, i64 {names(real).index(name)})"
    kernel = f.op(f"load atomic ptr, ptr {place} monotonic, align 8")
    f.line(f"musttail call void {kernel}({', '.join(f'{kind} %{name}' for kind, name in PARAMETERS)})")


def rows(real: Real) -> str:
    """Kernel for contiguous rows of M and contiguous x."""
    f = Function(rows_name(real), PARAMETERS)
    whole = f.sub("%rows", f.rest("%rows", real.lanes))
    with f.loop(0, whole, real.lanes) as i:
        _rows_at_once(f, real, i)
    with f.loop(whole, "%rows") as i:
        _one_row(f, real, i)
    f.leave()
    return f.text()


def columns(real: Real) -> str:
    """Kernel for contiguous columns of M and contiguous results."""
    f = Function(columns_name(real), PARAMETERS)
    with f.leaving_when(f.test("sgt", f.mul("%rows", "%k"), HELD_BYTES // real.bytes)):
        _streams(f, real)
        f.leave()
    start = f.variable("i64", 0)
    for vectors in (LONGEST, LONGEST // 2, 1):
        width = vectors * real.lanes
        first = f.get(start)
        end = f.sub("%rows", f.rest(f.sub("%rows", first), width))
        with f.loop(first, end, width) as i:
            _columns(f, real, i, vectors, None)
        f.set(start, end)
    first = f.get(start)
    count = f.sub("%rows", first)
    with f.leaving_when(f.test("sgt", count, 0)):
        _columns(f, real, first, 1, count)
        f.leave()
    f.leave()
    return f.text()


def put(f: Function, real: Real, value: str, address: str) -> None:
    old = f.variable(real.scalar, "-0.0")
    with f.when("%more"):
        f.set(old, real.element(f, address))
    real.put(f, f.op(f"fadd {real.scalar} {value}, {f.get(old)}"), address)


# Rows in memory.


def _rows_at_once(f: Function, real: Real, i: str) -> None:
    rows = [real.at(f, "%m", f.mul(f.add(i, r), "%rm")) for r in range(real.lanes)]
    sums = [f.variable(real.vector, "zeroinitializer") for _ in rows]

    def step(p: str, mask: str | None) -> None:
        x = real.read(f, real.at(f, "%x", p), mask)
        for row, total in zip(rows, sums, strict=True):
            f.set(total, real.fma(f, real.read(f, real.at(f, row, p), mask), x, f.get(total)))

    _along(f, real, 1, sums, lambda p, mask, chain: step(p, mask))
    result = across(f, real, [f.get(total) for total in sums])
    out = real.at(f, "%out", f.mul(i, "%so"))
    dense, gaps, done = f.new_label("dense"), f.new_label("gaps"), f.new_label("done")
    f.branch_if(f.test("eq", "%so", 1), dense, gaps)
    f.label(dense)
    old = f.variable(real.vector, "zeroinitializer")
    with f.when("%more"):
        f.set(old, real.read(f, out))
    real.write(f, real.plus(f, result, f.get(old)), out)
    f.branch(done)
    f.label(gaps)
    for lane in range(real.lanes):
        value = f.op(f"extractelement {real.vector} {result}, i32 {lane}")
        put(f, real, value, real.at(f, out, f.mul("%so", lane)) if lane else out)
    f.branch(done)
    f.label(done)


def _one_row(f: Function, real: Real, i: str) -> None:
    row = real.at(f, "%m", f.mul(i, "%rm"))
    sums = [f.variable(real.vector, "zeroinitializer") for _ in range(4)]

    def step(p: str, mask: str | None, chain: int) -> None:
        a, x = (real.read(f, real.at(f, start, p), mask) for start in (row, "%x"))
        f.set(sums[chain], real.fma(f, a, x, f.get(sums[chain])))

    _along(f, real, len(sums), sums, step)
    one, two, three, four = (f.get(total) for total in sums)
    result = real.total(f, real.plus(f, real.plus(f, one, two), real.plus(f, three, four)))
    put(f, real, result, real.at(f, "%out", f.mul(i, "%so")))


def _along(
    f: Function, real: Real, chains: int, sums: list[Variable], step: Callable[[str, str | None, int], None]
) -> None:
    """Along the depth: `chains` vectors at a time, then one, then what is left, by a mask; a step adds to `sums`."""
    start: str | int = 0
    for at_once in sorted({chains, 1}, reverse=True):
        width = at_once * real.lanes
        end = f.sub("%k", f.rest(f.sub("%k", start), width))
        held = [InRegister(f, total.slot, real.dtype, real.lanes) for total in sums]
        for first, last in in_blocks(f, held if at_once == chains else [], str(start), end, width):
            with f.loop(first, last, width) as p:
                for chain in range(at_once):
                    step(f.add(p, chain * real.lanes), None, chain)
        start = end
    left = f.sub("%k", start)
    with f.when(f.test("sgt", left, 0)):
        step(str(start), real.mask(f, left), 0)


def across(f: Function, real: Real, vectors: list[str]) -> str:
    """The vector of the sums of as many vectors as there are lanes.

    In each level the even and the odd elements of two vectors are added up, those of the first before those of the
    second: by single elements within quarters of 16 bytes, where shuffling is cheap, then by whole quarters.
    """
    quarter = 16 // real.bytes
    now = list(vectors)
    while len(now) > 1:
        single = len(now) > real.lanes // quarter
        unit, span = (1, quarter) if single else (quarter, real.lanes)
        now = [_evens_and_odds(f, real, one, two, unit, span) for one, two in zip(now[::2], now[1::2], strict=True)]
    return now[0]


def _evens_and_odds(f: Function, real: Real, one: str, two: str, unit: int, span: int) -> str:
    """In every span: the first vector's even units plus its odd ones, then the second's."""
    even, odd = (
        [
            source + start + first + c
            for start in range(0, real.lanes, span)
            for source in (0, real.lanes)
            for first in range(parity * unit, span, 2 * unit)
            for c in range(unit)
        ]
        for parity in (0, 1)
    )
    return real.plus(f, real.shuffled(f, one, two, even), real.shuffled(f, one, two, odd))


# Columns in memory.


def _columns(f: Function, real: Real, i: str, vectors: int, count: str | None) -> None:
    """Results i to i + vectors * lanes, or the first `count` of one vector."""
    mask = None if count is None else real.mask(f, count)
    sums: list[list[Variable]] = [
        [f.variable(real.vector, "zeroinitializer") for _ in range(vectors)] for _ in range(LONGEST // vectors)
    ]
    start, column, x = real.at(f, "%m", i), f.variable("i64", 0), f.variable("ptr", "%x")

    def step(chain: int) -> None:
        offset, place = f.get(column), f.get(x)
        factor = real.spread(f, real.element(f, place))
        for v, total in enumerate(sums[chain]):
            a = real.read(f, real.at(f, real.at(f, start, offset), v * real.lanes), mask)
            f.set(total, real.fma(f, a, factor, f.get(total)))
        f.set(column, f.add(offset, "%cm"))
        f.set(x, real.at(f, place, "%sx"))

    whole = f.sub("%k", f.rest("%k", len(sums)))
    with f.loop(0, whole, len(sums)):
        for chain in range(len(sums)):
            step(chain)
    with f.loop(whole, "%k"):
        step(0)
    out = real.at(f, "%out", i)
    for v in range(vectors):
        result = f.get(sums[0][v])
        for others in sums[1:]:
            result = real.plus(f, result, f.get(others[v]))
        address = real.at(f, out, v * real.lanes)
        old = f.variable(real.vector, "zeroinitializer")
        with f.when("%more"):
            f.set(old, real.read(f, address, mask))
        whole_value = real.plus(f, result, f.get(old))
        if count is None or mask is None:
            real.write(f, whole_value, address)
        else:
            real.write_first(f, whole_value, address, count, mask)


def _streams(f: Function, real: Real) -> None:
    """Some columns at once, from end to end."""
    chunk = STREAM_BYTES // real.bytes
    with f.loop(0, "%rows", chunk) as start:
        end = f.smaller(f.add(start, chunk), "%rows")
        many = f.sub("%k", f.rest("%k", LONGEST))
        held = _results(f, real, start, end)
        for first, last in in_blocks(f, [held], "0", many, LONGEST):
            with f.loop(first, last, LONGEST) as p:
                _stream(f, real, p, LONGEST, start, end)
        with f.loop(many, "%k") as p:
            _stream(f, real, p, 1, start, end)


def _results(f: Function, real: Real, start: str, end: str) -> InMemory:
    """The results from start to end, to which columns are added."""

    def addresses() -> Iterator[tuple[str, str]]:
        with f.loop(start, end) as i:
            yield f.sub(i, start), real.at(f, "%out", i)

    return InMemory(f, real.dtype, lambda: f.sub(end, start), addresses)


def _stream(f: Function, real: Real, p: str, columns: int, start: str, end: str) -> None:
    """Columns p to p + columns, times their x, added to the results from start to end (the first set them)."""
    numbers = [f.add(p, c) for c in range(columns)]
    factors = [real.spread(f, real.element(f, real.at(f, "%x", f.mul(c, "%sx")))) for c in numbers]
    places = [real.at(f, "%m", f.mul(c, "%cm")) for c in numbers]
    adds = f.op(f"or i1 %more, {f.test('ne', p, 0)}")
    whole = f.sub(end, f.rest(f.sub(end, start), real.lanes))

    def vector(i: str, mask: str | None) -> str:
        old = f.variable(real.vector, "zeroinitializer")
        with f.when(adds):
            f.set(old, real.read(f, real.at(f, "%out", i), mask))
        sums = [f.get(old), "zeroinitializer"]
        for c, (factor, place) in enumerate(zip(factors, places, strict=True)):
            sums[c % 2] = real.fma(f, factor, real.read(f, real.at(f, place, i), mask), sums[c % 2])
        return real.plus(f, *sums)

    with f.loop(start, whole, real.lanes) as i:
        real.write(f, vector(i, None), real.at(f, "%out", i))
    count = f.sub(end, whole)
    with f.when(f.test("sgt", count, 0)):
        mask = real.mask(f, count)
        real.write_first(f, vector(whole, mask), real.at(f, "%out", whole), count, mask)
