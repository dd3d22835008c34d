"""Triangular systems of any size: blocks of the matrix are products, their diagonal ones are solved by substitution.

    cg_triangular_solve_TYPE(X, row stride, A, row stride, column stride, B, row stride, column stride, n, r, scratch,
                             lower, unit)
    cg_triangular_solve_small_TYPE(the same), of at most `BLOCK` rows
    cg_triangular_solve_scratch_TYPE(n, r), cg_triangular_solve_small_scratch_TYPE(n, r)          bytes

TYPE is f32, f64, c64 or c128; strides count numbers, complex ones where they are. X with A X = B; `lower` says which
triangle of A there is (1 or 0), the other one is not read, nor is the diagonal where it is `unit` (it is 1 then). It
gives 0, or k + 1 where the diagonal has its first 0 at k: then the result is undefined. A and B are not written.

A system is halved: the half of the unknowns that is known first is taken away from the right sides of the other by one
product, as large as can be (Gustavson, "Recursion leads to automatic variable blocking for dense linear-algebra
algorithms", 1997). What is worked on has the other sign, so that products are added.
"""

from __future__ import annotations

from ctrlgrad.engines.native.products.fields import Field, Planes, add_product, copy
from ctrlgrad.engines.native.products.function import Function, Number, parameters
from ctrlgrad.engines.native.products.substitution import SUBSTITUTE, substitute
from ctrlgrad.engines.native.products.whole import given

BLOCK = 32
"""Rows of a diagonal block: a multiple of a vector's lanes, so that blocks of a row begin with whole vectors."""

SOLVE = parameters("x* rx a* ra ca b* rb cb n r scratch* lower unit")
HALVES = [*SUBSTITUTE[:7], ("i64", "first"), *SUBSTITUTE[7:], ("i1", "lower"), ("ptr", "scratch")]


def symbols(kind: Field, small: bool) -> list[str]:
    size = "small_" if small else ""
    return [f"cg_triangular_solve_{size}{part}{kind.name}" for part in ("", "scratch_")]


def triangular(kind: Field, small: bool) -> list[str]:
    """The routine and its scratch; beside it `parts` have to stand."""
    return [_routine(kind, small), _scratch(kind, small)]


def parts(kind: Field, small: bool) -> list[str]:
    return [substitute(kind), _halves(kind, small)]


def halves_name(kind: Field) -> str:
    return f"solve_halves_{kind.name}"


def _halves(kind: Field, small: bool) -> str:
    """Solve the rows from `first` on, n of them, in place; see `substitution` for the rest."""
    f, real = Function(halves_name(kind), HALVES, prefix="internal"), kind.real
    w = Planes(tuple(real.at(f, "%w", f.mul("%plane", k)) for k in range(kind.planes)), "%rw", 1)
    a = Planes(("%a", "%ai")[: kind.parts], "%ra", "%ca")
    if small:
        _block(f, kind, w, a)
        f.leave()
        return f.text()
    with f.leaving_when(f.test("sle", "%n", BLOCK)):
        _block(f, kind, w, a)
        f.leave()
    half = f.rounded_up(f.div("%n", 2), BLOCK)
    upper, lower = (("%first", half), (f.add("%first", half), f.sub("%n", half)))
    now, then = (
        [f.select("%lower", "i64", one[k], other[k]) for k in range(2)]
        for one, other in ((upper, lower), (lower, upper))
    )
    f.line(f"call void @{halves_name(kind)}({given(HALVES, first=now[0], n=now[1])})")
    to, left, right = (w.moved(f, real, then[0], 0), a.moved(f, real, then[0], now[0]), w.moved(f, real, now[0], 0))
    add_product(f, kind, to, left, right, (then[1], "%r", now[1]), "%scratch")
    f.line(f"call void @{halves_name(kind)}({given(HALVES, first=then[0], n=then[1])})")
    f.leave()
    return f.text()


def _block(f: Function, kind: Field, w: Planes, a: Planes) -> None:
    """A diagonal block; an upper one from its end, backwards."""
    first = f.select("%lower", "i64", "%first", f.sub(f.add("%first", "%n"), 1))
    rows, matrix = w.moved(f, kind.real, first, 0), a.moved(f, kind.real, first, first)
    turned = {name: f.select("%lower", "i64", f"%{name}", f.sub(0, f"%{name}")) for name in ("rw", "ra", "ca")}
    pointers = {"w": rows.pointers[0], "a": matrix.pointers[0], "ai": matrix.pointers[-1]}
    f.line(f"call void @substitute_{kind.name}({given(SUBSTITUTE, **turned, **pointers)})")


def _sizes(f: Function, kind: Field) -> tuple[Number, Number]:
    """Of what is worked on: how long a row is, and a plane. A single column's rows lie side by side."""
    width = f.select(f.test("eq", "%r", 1), "i64", 1, f.rounded_up("%r", kind.real.lanes))
    return width, f.mul("%n", width)


def _scratch(kind: Field, small: bool) -> str:
    name = symbols(kind, small)[1]
    f = Function(name, parameters("n r"), "i64")
    _, plane = _sizes(f, kind)
    elements = f.mul(plane, kind.planes)
    if kind.parts == 2:
        elements = f.add(elements, f.mul(f.mul("%n", "%n"), 2))
    f.leave(f"i64 {and_for_products(f, kind, elements, small, ('%n', '%r', '%n'))}")
    return f.text()


def and_for_products(f: Function, kind: Field, elements: str, small: bool, sizes: tuple[str, str, str]) -> str:
    """The bytes of so many real numbers, and of the scratch of products behind them."""
    nbytes = f.rounded_up(f.mul(elements, kind.real.bytes), 64)
    if small:
        return nbytes
    name = f"cg_gemm_scratch_{kind.real.name}"
    return f.add(f.op(f"call i64 @{name}({', '.join(f'i64 {size}' for size in sizes)})"), nbytes)


def _routine(kind: Field, small: bool) -> str:
    f, real = Function(symbols(kind, small)[0], SOLVE, "i64"), kind.real
    lower, unit = f.test("ne", "%lower", 0), f.test("ne", "%unit", 0)
    with f.when(f.test("eq", "%unit", 0)), f.loop(0, "%n") as k:
        place = kind.at(f, "%a", f.mul(k, f.add("%ra", "%ca")))
        zeros = [
            f.op(f"fcmp oeq {real.scalar} {real.element(f, real.at(f, place, part))}, 0.0")
            for part in range(kind.parts)
        ]
        with f.leaving_when(zeros[0] if len(zeros) == 1 else f.both(*zeros)):
            f.leave(f"i64 {f.add(k, 1)}")
    width, plane = _sizes(f, kind)
    w = Planes(tuple(real.at(f, "%scratch", f.mul(plane, k)) for k in range(kind.planes)), width, 1)
    # So that what is computed beside a row's end is not slow.
    filled = f.select(f.test("ne", width, "%r"), "i64", f.mul(plane, kind.planes), 0)
    with f.loop(0, filled, real.lanes) as at:
        real.write(f, "zeroinitializer", real.at(f, "%scratch", at))
    b, x = (as_parts(f, kind, name, f"%r{name}", f"%c{name}" if name == "b" else 1) for name in "bx")
    copy(f, real, Planes(w.pointers[: kind.parts], width, 1), b, ("%n", "%r"), (-1, -1)[: kind.parts])
    end = f.mul(plane, kind.planes)
    a = as_parts(f, kind, "a", "%ra", "%ca")
    if kind.parts == 2:
        # Products read it along vectors.
        square, whole = f.mul("%n", "%n"), end
        planes = tuple(real.at(f, "%scratch", f.add(whole, f.mul(square, k))) for k in range(2))
        own = Planes(planes, "%n", 1)
        copy(f, real, own, a, ("%n", "%n"), (1, 1))
        a, end = own, f.add(whole, f.mul(square, 2))
    behind = f.at("%scratch", f.rounded_up(f.mul(end, real.bytes), 64), "i8")
    numbers: dict[str, Number] = {"plane": plane, "rw": width, "ra": a.row, "ca": a.column, "first": 0}
    numbers |= {"w": w.pointers[0], "a": a.pointers[0], "ai": a.pointers[-1], "unit": unit, "lower": lower}
    f.line(f"call void @{halves_name(kind)}({given(HALVES, **numbers, scratch=behind)})")
    copy(f, real, x, Planes(w.pointers[: kind.parts], width, 1), ("%n", "%r"), (1, 1)[: kind.parts])
    f.leave("i64 0")
    return f.text()


def as_parts(f: Function, kind: Field, name: str, row: Number, column: Number) -> Planes:
    """A matrix of the caller's, whose parts lie side by side."""
    pointers = tuple(kind.real.at(f, f"%{name}", part) for part in range(kind.parts))
    return Planes(pointers, f.mul(row, kind.parts), f.mul(column, kind.parts))
