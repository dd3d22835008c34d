"""Cholesky factors of any size, as triangular systems and products.

    cg_cholesky_TYPE(L, row stride, A, row stride, column stride, n, scratch)
    cg_cholesky_small_TYPE(the same), of at most `BLOCK` rows
    cg_cholesky_scratch_TYPE(n), cg_cholesky_small_scratch_TYPE(n)          bytes

TYPE is f32, f64, c64 or c128; strides count numbers. L is lower, A = L L^H; of A the lower triangle is read, and the
real part of its diagonal. It gives 0, or k + 1 where pivot k is not greater than 0 (NaN goes on, as in OpenBLAS): then
the result is undefined.

What is computed is U = L^H, row by row, in place of -A. It is halved: the first half's factor U_11 gives the rows
beside it, U_12 with U_11^H U_12 = A_12, and these are taken away from the second half, U_12^H U_12 in strips from its
diagonal on. The unblocked form is Golub and Van Loan's, "Matrix Computations", algorithm 4.2.1.
"""

from __future__ import annotations

from ctrlgrad.engines.native.products.fields import Field, Planes, add_product, squares
from ctrlgrad.engines.native.products.function import Function, Number, parameters
from ctrlgrad.engines.native.products.substitution import multiply_add, planes_at
from ctrlgrad.engines.native.products.triangular import BLOCK, HALVES, and_for_products, as_parts, halves_name
from ctrlgrad.engines.native.products.whole import given

CHOLESKY = parameters("x* rx a* ra ca n scratch*")
FACTOR = parameters("w* plane rw first n scratch*")
STRIP = 2 * BLOCK
"""Rows of the second half that one product takes: of each strip the triangle left of the diagonal is for nothing."""


def symbols(kind: Field, small: bool) -> list[str]:
    size = "small_" if small else ""
    return [f"cg_cholesky_{size}{part}{kind.name}" for part in ("", "scratch_")]


def cholesky(kind: Field, small: bool) -> list[str]:
    """The routine and its scratch; beside it `triangular.parts` have to stand."""
    return [_block(kind), _factor(kind, small), _routine(kind, small), _scratch(kind, small)]


def _planes(f: Function, kind: Field) -> Planes:
    return Planes(tuple(kind.real.at(f, "%w", f.mul("%plane", k)) for k in range(kind.planes)), "%rw", 1)


def _factor(kind: Field, small: bool) -> str:
    """The rows and columns from `first` on, n of them."""
    name, real = f"factor_{kind.name}", kind.real
    f = Function(name, FACTOR, "i64", prefix="internal")

    def block() -> None:
        f.leave(f"i64 {f.op(f'call i64 @factor_block_{kind.name}({given(FACTOR)})')}")

    if small:
        block()
        return f.text()
    with f.leaving_when(f.test("sle", "%n", BLOCK)):
        block()
    half = f.rounded_up(f.div("%n", 2), BLOCK)
    middle, rest, w = f.add("%first", half), f.sub("%n", half), _planes(f, kind)
    status = f.op(f"call i64 @{name}({given(FACTOR, n=half)})")
    with f.leaving_when(f.test("ne", status, 0)):
        f.leave(f"i64 {status}")
    # U^H, whose rows are columns: of complex numbers the planes that have it are the first and the last.
    beside = w.moved(f, real, 0, middle).pointers[0]
    solved: dict[str, Number] = {
        "w": beside,
        "a": w.pointers[0],
        "ai": w.pointers[-1],
        "ra": 1,
        "ca": "%rw",
        "n": half,
        "r": rest,
    }
    f.line(f"call void @{halves_name(kind)}({given(HALVES, **solved, unit='false', lower='true')})")
    with f.loop(0, rest, STRIP) as j:
        at, rows = f.add(middle, j), f.smaller(f.sub(rest, j), STRIP)
        right = w.moved(f, real, "%first", at)
        left = Planes((right.pointers[0], right.pointers[-1])[: kind.parts], 1, "%rw")
        add_product(f, kind, w.moved(f, real, at, at), left, right, (rows, f.sub(rest, j), half), "%scratch")
    f.leave(f"i64 {f.op(f'call i64 @{name}({given(FACTOR, first=middle, n=rest)})')}")
    return f.text()


def _block(kind: Field) -> str:
    """Without products. Rows begin with a whole vector."""
    real, name = kind.real, f"factor_block_{kind.name}"
    f = Function(name, FACTOR, "i64", prefix="internal")
    start = _planes(f, kind).moved(f, real, "%first", "%first").pointers[0]
    v = real.vector

    def at(i: str, j: str) -> list[str]:
        return planes_at(f, kind, start, "%plane", f.add(f.mul(i, "%rw"), j))

    with f.loop(0, "%n") as k:
        begin = f.sub(k, f.rest(k, real.lanes))
        with f.leaving_when(f.op(f"fcmp oge {real.scalar} {real.element(f, at(k, k)[0])}, 0.0")):
            f.leave(f"i64 {f.add(f.add(k, 1), '%first')}")
        square = f.op(f"fneg {real.scalar} {real.element(f, at(k, k)[0])}")
        root = f.op(f"call {real.scalar} @llvm.sqrt.{real.name}({real.scalar} {square})")
        divisor = real.spread(f, f.op(f"fneg {real.scalar} {root}"))
        with f.loop(begin, "%n", real.lanes) as j:
            places = at(k, j)
            values = [f.op(f"fdiv {v} {real.read(f, place)}, {divisor}") for place in places[: kind.parts]]
            values += [f.op(f"fneg {v} {value}") for value in values[1:]]
            for value, place in zip(values, places, strict=True):
                real.write(f, value, place)
        for value, place in zip((root, "0.0", "-0.0"), at(k, k), strict=False):
            real.put(f, value, place)
        with f.loop(f.add(k, 1), "%n") as i:
            left = [real.element(f, place) for place in at(k, i)]
            left = [left[0], left[-1]][: kind.parts]
            with f.loop(f.sub(i, f.rest(i, real.lanes)), "%n", real.lanes) as j:
                multiply_add(f, real, True, at(i, j), left, [real.read(f, place) for place in at(k, j)])
    f.leave("i64 0")
    return f.text()


def _scratch(kind: Field, small: bool) -> str:
    f = Function(symbols(kind, small)[1], parameters("n"), "i64")
    elements = f.mul(f.mul("%n", f.rounded_up("%n", kind.real.lanes)), kind.planes)
    f.leave(f"i64 {and_for_products(f, kind, elements, small, ('%n', '%n', '%n'))}")
    return f.text()


def _routine(kind: Field, small: bool) -> str:
    f, real = Function(symbols(kind, small)[0], CHOLESKY, "i64"), kind.real
    width = f.rounded_up("%n", real.lanes)
    plane = f.mul("%n", width)
    w = Planes(tuple(real.at(f, "%scratch", f.mul(plane, k)) for k in range(kind.planes)), width, 1)
    a, x = (as_parts(f, kind, name, f"%r{name}", f"%c{name}" if name == "a" else 1) for name in "ax")
    # Beside a row's end, so that what is computed there is not slow.
    for pointer in w.pointers:
        with f.loop(0, "%n") as i, f.loop("%n", width) as j:
            real.put(f, "0.0", real.at(f, pointer, f.add(f.mul(i, width), j)))
    for i, j in squares(f, "%n", "%n", from_diagonal=True):
        values = [real.element(f, place) for place in a.moved(f, real, j, i).pointers]
        values = [f.op(f"fneg {real.scalar} {values[0]}"), *values[1:]]
        for value, place in zip(values, w.moved(f, real, i, j).pointers, strict=False):
            real.put(f, value, place)
    behind = f.at("%scratch", f.rounded_up(f.mul(f.mul(plane, kind.planes), real.bytes), 64), "i8")
    numbers: dict[str, Number] = {"w": w.pointers[0], "plane": plane, "rw": width, "first": 0, "scratch": behind}
    status = f.op(f"call i64 @factor_{kind.name}({given(FACTOR, **numbers)})")
    with f.leaving_when(f.test("ne", status, 0)):
        f.leave(f"i64 {status}")
    for i, j in squares(f, "%n", "%n"):
        is_below = f.test("sle", j, i)
        # The factor's conjugate transpose: of complex numbers the plane with the other sign.
        found = w.moved(f, real, f.select(is_below, "i64", j, i), f.select(is_below, "i64", i, j))
        parts = (found.pointers[0], found.pointers[-1])[: kind.parts]
        for source, place in zip(parts, x.moved(f, real, i, j).pointers, strict=True):
            real.put(f, f.select(is_below, real.scalar, real.element(f, source), "0.0"), place)
    f.leave("i64 0")
    return f.text()
