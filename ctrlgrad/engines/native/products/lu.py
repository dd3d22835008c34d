"""Linear systems of any size, by LU with partial pivoting: as triangular systems and products.

    cg_lu_solve_TYPE(X, row stride, A, row stride, column stride, B, row stride, column stride, n, r, scratch)
    cg_lu_solve_scratch_TYPE(n, r)                                                                       bytes

It gives 0, or k + 1 where pivot k is 0: then the result is undefined. A and B are not written.

The columns are halved: the factors of the first half give U_12 = L_11^-1 A_12, and L_21 U_12 is taken away from what is
below (Toledo, "Locality of reference in LU decomposition with partial pivoting", 1997). What is not yet a factor has
the other sign, so that products are added. Rows change places as a whole, and a list says where each came from.
"""

from __future__ import annotations

from ctrlgrad.engines.native.products.fields import Field, Planes, add_product, copy
from ctrlgrad.engines.native.products.function import Function, Number
from ctrlgrad.engines.native.products.solves import SOLVE, largest_below
from ctrlgrad.engines.native.products.triangular import BLOCK, HALVES, and_for_products, halves_name
from ctrlgrad.engines.native.products.whole import GEMM, given

# Products of integers, by simple loops; they wrap.
#
# cg_gemm_TYPE(the arguments of the float products; strides count numbers, and `scratch` is not used)


INTEGERS = {"i8": 1, "i16": 2, "i32": 4, "i64": 8}


def plain() -> list[str]:
    return [_integers(kind) for kind in INTEGERS]


def _integers(kind: str) -> str:
    size = INTEGERS[kind]
    f = Function(f"cg_gemm_{kind}", GEMM)
    with f.loop(0, "%m") as i, f.loop(0, "%n") as j:
        total = f.variable(kind, 0)
        with f.when(f.test("ne", "%accumulate", 0)):
            f.set(total, f.load(kind, f.at("%c", f.add(f.mul(i, "%rc"), j), kind), size))
        with f.loop(0, "%k") as p:
            a = f.load(kind, f.at("%a", f.add(f.mul(i, "%ra"), f.mul(p, "%ca")), kind), size)
            b = f.load(kind, f.at("%b", f.add(f.mul(p, "%rb"), f.mul(j, "%cb")), kind), size)
            f.set(total, f.op(f"add {kind} {f.get(total)}, {f.op(f'mul {kind} {a}, {b}')}"))
        f.store(kind, f.get(total), f.at("%c", f.add(f.mul(i, "%rc"), j), kind), size)
    f.leave()
    return f.text()


FACTOR = [
    ("ptr", "w"),
    ("i64", "rw"),
    ("i64", "first"),
    ("i64", "count"),
    ("i64", "n"),
    ("ptr", "rows"),
    ("ptr", "scratch"),
]


def symbols(kind: Field) -> list[str]:
    return [f"cg_lu_solve_{part}{kind.name}" for part in ("", "scratch_")]


def lu(kind: Field) -> list[str]:
    """The routine and its scratch, of real numbers; beside it `triangular.parts` have to stand."""
    return [_panel(kind), _factor(kind), _routine(kind), _scratch(kind)]


def _factor(kind: Field) -> str:
    """Columns from `first` on, `count` of them, of the rows from there on."""
    name, real = f"lu_{kind.name}", kind.real
    f = Function(name, FACTOR, "i64", prefix="internal")
    with f.leaving_when(f.test("sle", "%count", BLOCK)):
        f.leave(f"i64 {f.op(f'call i64 @lu_panel_{kind.name}({given(FACTOR)})')}")
    half = f.rounded_up(f.div("%count", 2), BLOCK)
    middle, rest, w = f.add("%first", half), f.sub("%count", half), Planes(("%w",), "%rw", 1)
    status = f.op(f"call i64 @{name}({given(FACTOR, count=half)})")
    with f.leaving_when(f.test("ne", status, 0)):
        f.leave(f"i64 {status}")
    beside: dict[str, Number] = {"w": w.moved(f, real, 0, middle).pointers[0], "plane": 0, "n": half, "r": rest}
    beside |= {"a": "%w", "ai": "%w", "ra": "%rw", "ca": 1}
    f.line(f"call void @{halves_name(kind)}({given(HALVES, **beside, unit='true', lower='true')})")
    to, left = w.moved(f, real, middle, middle), w.moved(f, real, middle, "%first")
    sizes = (f.sub("%n", middle), rest, half)
    add_product(f, kind, to, left, w.moved(f, real, "%first", middle), sizes, "%scratch")
    f.leave(f"i64 {f.op(f'call i64 @{name}({given(FACTOR, first=middle, count=rest)})')}")
    return f.text()


def _panel(kind: Field) -> str:
    """Few columns, without products. The first one begins a vector."""
    f, real = Function(f"lu_panel_{kind.name}", FACTOR, "i64", prefix="internal"), kind.real
    end, lanes = f.add("%first", "%count"), real.lanes
    # The row of a pivot without what is before it and the pivot itself, from the panel's first column on.
    behind = f.alloca(f"[{BLOCK} x {real.scalar}]", 64)
    with f.loop("%first", end) as k:
        here = real.at(f, "%w", f.mul(k, "%rw"))
        best = largest_below(f, real, "%w", k, "%rw", "%n")
        with f.when(f.test("ne", best, k)):
            _exchange(f, kind, here, real.at(f, "%w", f.mul(best, "%rw")), k, best)
        pivot = real.element(f, real.at(f, here, k))
        with f.leaving_when(f.op(f"fcmp oeq {real.scalar} {pivot}, 0.0")):
            f.leave(f"i64 {f.add(k, 1)}")
        own = f.sub(k, "%first")
        with f.loop(0, "%count") as j:
            value = real.element(f, real.at(f, here, f.add("%first", j)))
            value = f.select(f.test("sgt", j, own), real.scalar, value, "0.0")
            real.put(f, value, real.at(f, behind, j))
        start = f.sub(own, f.rest(own, lanes))
        with f.loop(f.add(k, 1), "%n") as i:
            row = real.at(f, "%w", f.mul(i, "%rw"))
            factor = f.op(f"fdiv {real.scalar} {real.element(f, real.at(f, row, k))}, {pivot}")
            less = real.spread(f, f.op(f"fneg {real.scalar} {factor}"))
            with f.loop(start, "%count", lanes) as j:
                place = real.at(f, row, f.add("%first", j))
                value = real.fma(f, less, real.read(f, real.at(f, behind, j)), real.read(f, place))
                real.write(f, value, place)
            real.put(f, factor, real.at(f, row, k))
    with f.loop("%first", end) as k, f.loop(k, end) as j:
        place = real.at(f, "%w", f.add(f.mul(k, "%rw"), j))
        real.put(f, f.op(f"fneg {real.scalar} {real.element(f, place)}"), place)
    f.leave("i64 0")
    return f.text()


def _exchange(f: Function, kind: Field, here: str, there: str, k: str, best: str) -> None:
    """Two rows, and what is known of them."""
    real = kind.real
    with f.loop(0, "%rw", real.lanes) as j:
        one, two = real.at(f, here, j), real.at(f, there, j)
        was, now = real.read(f, one), real.read(f, two)
        real.write(f, now, one)
        real.write(f, was, two)
    places = [f.at("%rows", index, "i64") for index in (k, best)]
    first, second = (f.load("i64", place, 8) for place in places)
    f.store("i64", second, places[0], 8)
    f.store("i64", first, places[1], 8)


def _sizes(f: Function, kind: Field) -> tuple[str, str, str, str]:
    """Padded row lengths of the matrix and of the right sides, then the number of elements of each, in whole
    vectors."""
    lanes = kind.real.lanes
    width = f.rounded_up("%n", lanes)
    of_right = f.select(f.test("eq", "%r", 1), "i64", 1, f.rounded_up("%r", lanes))
    return width, of_right, f.mul("%n", width), f.rounded_up(f.mul("%n", of_right), lanes)


def _scratch(kind: Field) -> str:
    f = Function(symbols(kind)[1], [("i64", "n"), ("i64", "r")], "i64")
    *_, matrix, right = _sizes(f, kind)
    # A row's number takes two elements at most.
    elements = f.add(f.add(matrix, right), f.mul("%n", 2))
    f.leave(f"i64 {and_for_products(f, kind, elements, False, ('%n', f.larger('%n', '%r'), '%n'))}")
    return f.text()


def _routine(kind: Field) -> str:
    f, real = Function(symbols(kind)[0], SOLVE, "i64"), kind.real
    width, of_right, matrix, right = _sizes(f, kind)
    with f.loop(0, f.add(matrix, right), real.lanes) as at:
        # So that what is computed beside a row's end is not slow.
        real.write(f, "zeroinitializer", real.at(f, "%scratch", at))
    w, y = "%scratch", real.at(f, "%scratch", matrix)
    rows = real.at(f, y, right)
    behind = f.at("%scratch", f.rounded_up(f.mul(f.add(f.add(matrix, right), f.mul("%n", 2)), real.bytes), 64), "i8")
    copy(f, real, Planes((w,), width, 1), Planes(("%a",), "%ra", "%ca"), ("%n", "%n"), (-1,))
    with f.loop(0, "%n") as i:
        f.store("i64", i, f.at(rows, i, "i64"), 8)
    factor: dict[str, Number] = {"w": w, "rw": width, "first": 0, "count": "%n", "rows": rows, "scratch": behind}
    status = f.op(f"call i64 @lu_{kind.name}({given(FACTOR, **factor)})")
    with f.leaving_when(f.test("ne", status, 0)):
        f.leave(f"i64 {status}")
    with f.loop(0, "%n") as i:
        source = real.at(f, "%b", f.mul(f.load("i64", f.at(rows, i, "i64"), 8), "%rb"))
        target = real.at(f, y, f.mul(i, of_right))
        with f.loop(0, "%r") as j:
            value = real.element(f, real.at(f, source, f.mul(j, "%cb")))
            real.put(f, f.op(f"fneg {real.scalar} {value}"), real.at(f, target, j))
    solved: dict[str, Number] = {"w": y, "plane": 0, "rw": of_right, "a": w, "ai": w, "ra": width, "ca": 1, "first": 0}
    for lower, unit in (("true", "true"), ("false", "false")):
        f.line(f"call void @{halves_name(kind)}({given(HALVES, **solved, lower=lower, unit=unit, scratch=behind)})")
        if lower == "true":
            with f.loop(0, right, real.lanes) as at:
                place = real.at(f, y, at)
                real.write(f, f.op(f"fneg {real.vector} {real.read(f, place)}"), place)
    copy(f, real, Planes(("%x",), "%rx", 1), Planes((y,), of_right, 1), ("%n", "%r"), (1,))
    f.leave("i64 0")
    return f.text()
