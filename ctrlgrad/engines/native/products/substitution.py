"""Triangular systems of some tens of rows, in place: the diagonal blocks of larger ones.

    substitute_TYPE(W, plane, row stride, A, imaginary part of A, row stride, column stride, n, r, unit)

W holds the right sides, with the other sign, and becomes the unknowns. A is lower triangular: an upper one is the same
with its rows and columns from the last to the first, its strides negative. So are W's rows then. Rows of W are whole
vectors, of which what lies beyond r is computed and never looked at, or of one element, where r is 1. The diagonal is
not looked at where it is `unit`.

Real rows are solved by tiles: some rows of some columns, in registers, take away what was solved before, then each
other (the form of a product with a triangle at its end). The source of the substitution itself: Golub and Van Loan,
"Matrix Computations", algorithms 3.1.1 and 3.1.3.
"""

from __future__ import annotations

from ctrlgrad.engines.native.products.fields import Field, Planes
from ctrlgrad.engines.native.products.function import Function, Number, parameters
from ctrlgrad.engines.native.products.real import Real

ROWS, VECTORS = 4, 2
"""The tile: eight sums that do not wait for each other fill two units that multiply and add."""

SUBSTITUTE = parameters("w* plane rw a* ai* ra ca n r unit?")


def substitute(kind: Field) -> str:
    f = Function(f"substitute_{kind.name}", SUBSTITUTE, prefix="internal")
    with f.leaving_when(f.test("eq", "%r", 1)):
        _by_columns(f, kind, is_wide=False)
        f.leave()
    if kind.parts == 1:
        _by_tiles(f, kind.real)
    else:
        _by_columns(f, kind, is_wide=True)
    f.leave()
    return f.text()


def _by_tiles(f: Function, real: Real) -> None:
    width = f.rounded_up("%r", real.lanes)
    wide, high = f.sub(width, f.rest(width, VECTORS * real.lanes)), f.sub("%n", f.rest("%n", ROWS))
    for vectors, first, end in ((VECTORS, 0, wide), (1, wide, width)):
        with f.loop(first, end, vectors * real.lanes) as j:
            for rows, start, stop in ((ROWS, 0, high), (1, high, "%n")):
                with f.loop(start, stop, rows) as i:
                    _tile(f, real, i, j, rows, vectors)


def _tile(f: Function, real: Real, i: str, j: str, rows: int, vectors: int) -> None:
    """Solve some rows from i on, of the columns from j on; those before are solved."""
    places = [real.at(f, "%w", f.add(f.mul(f.add(i, row), "%rw"), j)) for row in range(rows)]
    lefts = [real.at(f, "%a", f.mul(f.add(i, row), "%ra")) for row in range(rows)]
    sums = [
        [f.variable(real.vector, real.read(f, real.at(f, place, v * real.lanes))) for v in range(vectors)]
        for place in places
    ]
    above = real.at(f, "%w", j)
    with f.loop(0, i) as k:
        solved = real.at(f, above, f.mul(k, "%rw"))
        right = [real.read(f, real.at(f, solved, v * real.lanes)) for v in range(vectors)]
        for row in range(rows):
            left = real.spread(f, real.element(f, real.at(f, lefts[row], f.mul(k, "%ca"))))
            for v in range(vectors):
                f.set(sums[row][v], real.fma(f, left, right[v], f.get(sums[row][v])))
    for row in range(rows):
        column = f.mul(f.add(i, row), "%ca")
        pivot = real.element(f, real.at(f, lefts[row], column))
        negative = f.op(f"fneg {real.scalar} {f.select('%unit', real.scalar, '1.0', pivot)}")
        divisor = real.spread(f, negative)
        for v in range(vectors):
            found = f.op(f"fdiv {real.vector} {f.get(sums[row][v])}, {divisor}")
            real.write(f, found, real.at(f, places[row], v * real.lanes))
            for later in range(row + 1, rows):
                left = real.spread(f, real.element(f, real.at(f, lefts[later], column)))
                f.set(sums[later][v], real.fma(f, left, found, f.get(sums[later][v])))


def _by_columns(f: Function, kind: Field, is_wide: bool) -> None:
    """Row by row: what is solved is taken away from the rows below it."""
    real, lanes = kind.real, kind.real.lanes if is_wide else 1
    unit, a = "%unit", Planes(("%a", "%ai")[: kind.parts], "%ra", "%ca")
    with f.loop(0, "%n") as k:
        inverse = None
        pivot = [real.element(f, place) for place in a.moved(f, real, k, k).pointers]
        pivot = [f.select(unit, real.scalar, number, x) for number, x in zip(("1.0", "0.0"), pivot, strict=False)]
        if kind.parts == 2:
            inverse = reciprocal(f, real, pivot[0], pivot[1])
        here = f.mul(k, "%rw")
        with f.loop(0, "%r", lanes) as j:
            places = planes_at(f, kind, "%w", "%plane", f.add(here, j))
            _divide(f, real, is_wide, places, pivot, inverse)
        with f.loop(f.add(k, 1), "%n") as i:
            left = [real.element(f, place) for place in a.moved(f, real, i, k).pointers]
            there = f.mul(i, "%rw")
            with f.loop(0, "%r", lanes) as j:
                solved = planes_at(f, kind, "%w", "%plane", f.add(here, j))
                places = planes_at(f, kind, "%w", "%plane", f.add(there, j))
                multiply_add(f, real, is_wide, places, left, [_read(f, real, is_wide, place) for place in solved])


def planes_at(f: Function, kind: Field, start: str, plane: Number, index: Number) -> list[str]:
    """The addresses of one element in all planes."""
    first = kind.real.at(f, start, index)
    return [first, *(kind.real.at(f, first, f.mul(plane, k)) for k in range(1, kind.planes))]


def multiply_add(f: Function, real: Real, is_wide: bool, places: list[str], left: list[str], right: list[str]) -> None:
    """places += left * right: scalars on the left, all planes on the right."""
    pairs = [(0, 0, 0)] if len(left) == 1 else [(0, 0, 0), (0, 1, 2), (1, 0, 1), (1, 1, 0)]
    factors = [real.spread(f, x) for x in left] if is_wide else left
    for out in range(len(left)):
        total = _read(f, real, is_wide, places[out])
        for to, one, other in pairs:
            if to == out:
                make = real.fma if is_wide else real.multiply_add
                total = make(f, factors[one], right[other], total)
        _write(f, real, is_wide, total, places[out])


def _divide(
    f: Function, real: Real, is_wide: bool, places: list[str], pivot: list[str], inverse: list[str] | None
) -> None:
    """The unknowns of one row, from its right sides with the other sign."""
    t = real.vector if is_wide else real.scalar
    spread = (lambda x: real.spread(f, x)) if is_wide else (lambda x: x)
    if inverse is None:
        divisor = spread(f.op(f"fneg {real.scalar} {pivot[0]}"))
        _write(f, real, is_wide, f.op(f"fdiv {t} {_read(f, real, is_wide, places[0])}, {divisor}"), places[0])
        return
    p, q = map(spread, inverse)
    x, y = (_read(f, real, is_wide, place) for place in places[:2])
    # -(x + i y) (p + i q)
    re = f.op(f"fsub {t} {f.op(f'fmul {t} {y}, {q}')}, {f.op(f'fmul {t} {x}, {p}')}")
    less = f.op(f"fadd {t} {f.op(f'fmul {t} {x}, {q}')}, {f.op(f'fmul {t} {y}, {p}')}")
    for value, place in zip((re, f.op(f"fneg {t} {less}"), less), places, strict=True):
        _write(f, real, is_wide, value, place)


def reciprocal(f: Function, real: Real, re: str, im: str) -> list[str]:
    """1 / (re + i im), which overflows where it is too large only (Smith, "Algorithm 116: complex division")."""
    t = real.scalar
    sizes = [f.op(f"call {t} @llvm.fabs.{real.name}({t} {x})") for x in (re, im)]
    is_real = f.op(f"fcmp oge {t} {sizes[0]}, {sizes[1]}")
    large, small = f.select(is_real, t, re, im), f.select(is_real, t, im, re)
    ratio = f.op(f"fdiv {t} {small}, {large}")
    whole = real.multiply_add(f, small, ratio, large)
    one, other = f.op(f"fdiv {t} 1.0, {whole}"), f.op(f"fdiv {t} {ratio}, {whole}")
    return [f.select(is_real, t, one, other), f.op(f"fneg {t} {f.select(is_real, t, other, one)}")]


def _read(f: Function, real: Real, is_wide: bool, place: str) -> str:
    return real.read(f, place) if is_wide else real.element(f, place)


def _write(f: Function, real: Real, is_wide: bool, value: str, place: str) -> None:
    (real.write if is_wide else real.put)(f, value, place)
