"""Small linear systems: LU with partial pivoting, of some tens of rows.

    cg_lu_solve_small_TYPE(X, row stride, A, row stride, column stride, B, row stride, column stride, n, r, scratch)
    cg_pivots_TYPE(P, A, row stride, column stride, n, scratch)
    cg_lu_solve_small_scratch_TYPE(n, r), ...                              bytes

Each gives 0, or k + 1 where it stopped at pivot k, which is 0. Then the result is undefined, but for the pivots, which
are all 0. A and B are not written; A is n by n, B and X are n by r. The pivots are the diagonal of U, the first times
the sign of the permutation: their product is the determinant.

All work is done on rows in `scratch`, filled up to whole vectors, so that no loop has a tail: [A | B] side by side, and
what lies beyond a row's last element, or before its first that still counts, is computed and never looked at.
Source: Golub and Van Loan, "Matrix Computations", algorithm 3.4.1 (outer product form).
"""

from __future__ import annotations

from collections.abc import Iterator

from ctrlgrad.engines.native.products.function import Function, Number, Variable, parameters
from ctrlgrad.engines.native.products.real import Real

MOST_ROWS = 64
"""Up to so many rows they are as fast as those of any size, which are made of products."""

SOLVE = parameters("x* rx a* ra ca b* rb cb n r scratch*")
PIVOTS = parameters("x* a* ra ca n scratch*")


def solves(real: Real) -> list[str]:
    return [_lu_solve(real), _pivots(real), *_scratches(real)]


def symbols(real: Real) -> list[str]:
    names = ("lu_solve_small", "pivots")
    return [f"cg_{name}_{part}{real.name}" for name in names for part in ("", "scratch_")]


def _scratches(real: Real) -> list[str]:
    texts = []
    for name, has_b in (("lu_solve_small", 1), ("pivots", 0)):
        sizes = parameters("n r")[: 1 + has_b]
        f = Function(f"cg_{name}_scratch_{real.name}", sizes, "i64")
        width = f.rounded_up("%n", real.lanes)
        if has_b:
            width = f.add(f.rounded_up("%r", real.lanes), width)
        f.leave(f"i64 {f.mul(f.mul('%n', width), real.bytes)}")
        texts.append(f.text())
    return texts


def _copy(f: Function, real: Real, to: tuple[str, Number], source: tuple[str, Number, Number], m: str, n: str) -> None:
    """Rows of `n` elements: to (pointer, row stride) from (pointer, row stride, column stride)."""
    with f.loop(0, m) as i:
        row, target = real.at(f, source[0], f.mul(i, source[1])), real.at(f, to[0], f.mul(i, to[1]))
        with f.loop(0, n) as j:
            real.put(f, real.element(f, real.at(f, row, f.mul(j, source[2]))), real.at(f, target, j))


def _fill(f: Function, real: Real, start: str, width: str, m: str) -> None:
    """Zeros, so that what is computed beside a row's end is not slow."""
    with f.loop(0, f.mul(m, width), real.lanes) as at:
        real.write(f, "zeroinitializer", real.at(f, start, at))


def _subtract(f: Function, real: Real, row: str, factor: str, other: str, first: Number, end: Number) -> None:
    """row -= factor * other, by vectors from `first` to `end`."""
    factors = real.spread(f, f.op(f"fneg {real.scalar} {factor}"))
    with f.loop(first, end, real.lanes) as j:
        place = real.at(f, row, j)
        real.write(f, real.fma(f, factors, real.read(f, real.at(f, other, j)), real.read(f, place)), place)


def _lu_solve(real: Real) -> str:
    f = Function(f"cg_lu_solve_small_{real.name}", SOLVE, "i64")
    right = f.rounded_up("%n", real.lanes)
    width = f.add(right, f.rounded_up("%r", real.lanes))
    rights = real.at(f, "%scratch", right)
    _fill(f, real, "%scratch", width, "%n")
    _copy(f, real, ("%scratch", width), ("%a", "%ra", "%ca"), "%n", "%n")
    _copy(f, real, (rights, width), ("%b", "%rb", "%cb"), "%n", "%r")
    for k in _eliminated(f, real, width, None):
        f.leave(f"i64 {f.add(k, 1)}")
    with f.loop_down("%n") as k:
        _divide(f, real, real.at(f, rights, f.mul(k, width)), _diagonal(f, real, k, width), f.sub(width, right))
        _eliminate(f, real, k, ("%scratch", width, 1), (rights, width), (0, k), f.sub(width, right))
    _copy(f, real, ("%x", "%rx"), (rights, width, 1), "%n", "%r")
    f.leave("i64 0")
    return f.text()


def _pivots(real: Real) -> str:
    f = Function(f"cg_pivots_{real.name}", PIVOTS, "i64")
    width = f.rounded_up("%n", real.lanes)
    _fill(f, real, "%scratch", width, "%n")
    _copy(f, real, ("%scratch", width), ("%a", "%ra", "%ca"), "%n", "%n")
    sign = f.variable(real.scalar, "1.0")
    for k in _eliminated(f, real, width, sign):
        with f.loop(0, "%n") as i:
            real.put(f, "0.0", real.at(f, "%x", i))
        f.leave(f"i64 {f.add(k, 1)}")
    with f.loop(0, "%n") as k:
        factor = f.select(f.test("eq", k, 0), real.scalar, f.get(sign), "1.0")
        pivot = f.op(f"fmul {real.scalar} {_diagonal(f, real, k, width)}, {factor}")
        real.put(f, pivot, real.at(f, "%x", k))
    f.leave("i64 0")
    return f.text()


def _eliminated(f: Function, real: Real, width: Number, sign: Variable | None) -> Iterator[str]:
    """Rows of `scratch` become those of U, and what stands right of A its right side.

    What is written for the number that it gives, once, runs where that pivot is 0. `sign` changes with each exchange.
    """
    with f.loop(0, "%n") as k:
        here = real.at(f, "%scratch", f.mul(k, width))
        first = f.sub(k, f.rest(k, real.lanes))
        best = largest_below(f, real, ("%scratch",), k, width, "%n")
        with f.when(f.test("ne", best, k)):
            if sign is not None:
                f.set(sign, f.op(f"fneg {real.scalar} {f.get(sign)}"))
            there = real.at(f, "%scratch", f.mul(best, width))
            with f.loop(first, width, real.lanes) as j:
                one, two = real.at(f, here, j), real.at(f, there, j)
                was, now = real.read(f, one), real.read(f, two)
                real.write(f, now, one)
                real.write(f, was, two)
        pivot = real.element(f, real.at(f, here, k))
        with f.leaving_when(f.op(f"fcmp oeq {real.scalar} {pivot}, 0.0")):
            yield k
        with f.loop(f.add(k, 1), "%n") as i:
            row = real.at(f, "%scratch", f.mul(i, width))
            factor = f.op(f"fdiv {real.scalar} {real.element(f, real.at(f, row, k))}, {pivot}")
            _subtract(f, real, row, factor, here, first, width)


def _diagonal(f: Function, real: Real, k: str, width: str) -> str:
    return real.element(f, real.at(f, "%scratch", f.add(f.mul(k, width), k)))


def largest_below(f: Function, real: Real, starts: tuple[str, ...], k: str, width: Number, n: Number) -> str:
    """The row, from k on below n, whose element in column k is largest; of complex numbers by the sum of both parts'
    moduli, as LAPACK has it."""
    best, largest = f.variable("i64", k), f.variable(real.scalar, "0.0")
    columns = [real.at(f, start, k) for start in starts]

    def size(i: str) -> str:
        values = [real.element(f, real.at(f, column, f.mul(i, width))) for column in columns]
        sizes = [f.op(f"call {real.scalar} @llvm.fabs.{real.name}({real.scalar} {value})") for value in values]
        return sizes[0] if len(sizes) == 1 else f.op(f"fadd {real.scalar} {sizes[0]}, {sizes[1]}")

    f.set(largest, size(k))
    with f.loop(f.add(k, 1), n) as i:
        found = size(i)
        larger = f.op(f"fcmp ogt {real.scalar} {found}, {f.get(largest)}")
        f.set(best, f.select(larger, "i64", i, f.get(best)))
        f.set(largest, f.select(larger, real.scalar, found, f.get(largest)))
    return f.get(best)


def _divide(f: Function, real: Real, row: str, by: str, width: str) -> None:
    divisor = real.spread(f, by)
    with f.loop(0, width, real.lanes) as j:
        place = real.at(f, row, j)
        real.write(f, f.op(f"fdiv {real.vector} {real.read(f, place)}, {divisor}"), place)


def _eliminate(
    f: Function,
    real: Real,
    k: str,
    matrix: tuple[str, Number, Number],
    right: tuple[str, Number],
    rows: tuple[Number, Number],
    width: str,
) -> None:
    """Subtract the unknowns of row k, times the matrix's column k, from some rows of the right side."""
    solved = real.at(f, right[0], f.mul(k, right[1]))
    with f.loop(*rows) as i:
        factor = real.element(f, real.at(f, matrix[0], f.add(f.mul(i, matrix[1]), f.mul(k, matrix[2]))))
        _subtract(f, real, real.at(f, right[0], f.mul(i, right[1])), factor, solved, 0, width)
