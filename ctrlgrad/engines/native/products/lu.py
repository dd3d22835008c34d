"""Linear systems of any size, by LU with partial pivoting: as triangular systems and products.

    cg_lu_TYPE(F, A, row stride, column stride, n, scratch)
    cg_lu_solved_TYPE(X, row stride, F, B, row stride, column stride, n, r, scratch, transposed)
    cg_lu_solve_TYPE(X, row stride, A, row stride, column stride, B, row stride, column stride, n, r, scratch)
    cg_lu_scratch_TYPE(n), cg_lu_solved_scratch_TYPE(n, r), cg_lu_solve_scratch_TYPE(n, r)               bytes

TYPE is f32, f64, c64 or c128; strides count numbers. Each gives 0, or k + 1 where pivot k is 0: then the result is
undefined. A and B are not written. F holds the factors of A (`model.lu_elements` real numbers): planes of rows of whole
vectors, then for each row the number of the row of A that it was. With `transposed`, X solves A^T X = B.

The columns are halved: the factors of the first half give U_12 = L_11^-1 A_12, and L_21 U_12 is taken away from what is
below (Toledo, "Locality of reference in LU decomposition with partial pivoting", 1997). What is not yet a factor has
the other sign, so that products are added. Rows change places as a whole, and a list says where each came from.
"""

from __future__ import annotations

from ctrlgrad.engines.native.products.fields import Field, Planes, add_product, copy
from ctrlgrad.engines.native.products.function import Function, Number, parameters
from ctrlgrad.engines.native.products.real import Real
from ctrlgrad.engines.native.products.solves import SOLVE, largest_below
from ctrlgrad.engines.native.products.substitution import multiply_add, planes_at, reciprocal
from ctrlgrad.engines.native.products.triangular import BLOCK, HALVES, and_for_products, as_parts, halves_name
from ctrlgrad.engines.native.products.whole import GEMM, given
from ctrlgrad.plan.model import LU_COLUMNS

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


FACTOR = parameters("w* plane rw first count n rows* scratch*")
LU = parameters("x* a* ra ca n scratch*")
SOLVED = parameters("x* rx w* b* rb cb n r scratch* transposed")
_NAMES = ("lu", "lu_solved", "lu_solve")


def symbols(kind: Field) -> list[str]:
    return [f"cg_{name}_{part}{kind.name}" for name in _NAMES for part in ("", "scratch_")]


def lu(kind: Field) -> list[str]:
    """The routines and their scratch; beside them `triangular.parts` have to stand."""
    return [_panel(kind), _factor(kind), _lu(kind), _solved(kind), _solve(kind), *_scratches(kind)]


def _planes(f: Function, kind: Field) -> Planes:
    return Planes(tuple(kind.real.at(f, "%w", f.mul("%plane", k)) for k in range(kind.planes)), "%rw", 1)


def _factor(kind: Field) -> str:
    """Columns from `first` on, `count` of them, of the rows from there on."""
    name, real = f"lu_{kind.name}", kind.real
    f = Function(name, FACTOR, "i64", prefix="internal")
    with f.leaving_when(f.test("sle", "%count", BLOCK)):
        f.leave(f"i64 {f.op(f'call i64 @lu_panel_{kind.name}({given(FACTOR)})')}")
    half = f.rounded_up(f.div("%count", 2), BLOCK)
    middle, rest, w = f.add("%first", half), f.sub("%count", half), _planes(f, kind)
    status = f.op(f"call i64 @{name}({given(FACTOR, count=half)})")
    with f.leaving_when(f.test("ne", status, 0)):
        f.leave(f"i64 {status}")
    beside: dict[str, Number] = {"w": w.moved(f, real, 0, middle).pointers[0], "n": half, "r": rest}
    beside |= {"a": w.pointers[0], "ai": w.pointers[kind.parts - 1], "ra": "%rw", "ca": 1}
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
    starts = _planes(f, kind).pointers[: kind.parts]
    # The row of a pivot without what is before it and the pivot itself, from the panel's first column on.
    behind = f.alloca(f"[{kind.planes * BLOCK} x {real.scalar}]", 64)

    def at(row: str, column: str) -> list[str]:
        return planes_at(f, kind, "%w", "%plane", f.add(f.mul(row, "%rw"), column))[: kind.parts]

    with f.loop("%first", end) as k:
        best = largest_below(f, real, starts, k, "%rw", "%n")
        with f.when(f.test("ne", best, k)):
            _exchange(f, real, starts, k, best)
        pivot = [real.element(f, place) for place in at(k, k)]
        zeros = [f.op(f"fcmp oeq {real.scalar} {part}, 0.0") for part in pivot]
        with f.leaving_when(zeros[0] if len(zeros) == 1 else f.both(*zeros)):
            f.leave(f"i64 {f.add(k, 1)}")
        inverse = reciprocal(f, real, pivot[0], pivot[1]) if kind.parts == 2 else []
        own = f.sub(k, "%first")
        with f.loop(0, "%count") as j:
            values = [real.element(f, place) for place in at(k, f.add("%first", j))]
            values = [f.select(f.test("sgt", j, own), real.scalar, value, "0.0") for value in values]
            values += [f.op(f"fneg {real.scalar} {value}") for value in values[1:]]
            for value, place in zip(values, planes_at(f, kind, behind, BLOCK, j), strict=True):
                real.put(f, value, place)
        start = f.sub(own, f.rest(own, lanes))
        with f.loop(f.add(k, 1), "%n") as i:
            factor = [real.element(f, place) for place in at(i, k)]
            if kind.parts == 1:
                factor = [f.op(f"fdiv {real.scalar} {factor[0]}, {pivot[0]}")]
            else:
                (x, y), (p, q) = factor, inverse
                less = f.op(f"fneg {real.scalar} {f.op(f'fmul {real.scalar} {y}, {q}')}")
                more = f.op(f"fmul {real.scalar} {y}, {p}")
                factor = [real.multiply_add(f, x, p, less), real.multiply_add(f, x, q, more)]
            minus = [f.op(f"fneg {real.scalar} {part}") for part in factor]
            with f.loop(start, "%count", lanes) as j:
                right = [real.read(f, place) for place in planes_at(f, kind, behind, BLOCK, j)]
                multiply_add(f, real, True, at(i, f.add("%first", j)), minus, right)
            for part, place in zip(factor, at(i, k), strict=True):
                real.put(f, part, place)
    with f.loop("%first", end) as k, f.loop(k, end) as j:
        for place in at(k, j):
            real.put(f, f.op(f"fneg {real.scalar} {real.element(f, place)}"), place)
    f.leave("i64 0")
    return f.text()


def _exchange(f: Function, real: Real, starts: tuple[str, ...], k: str, best: str) -> None:
    """Two rows, and what is known of them."""
    for start in starts:
        here, there = (real.at(f, start, f.mul(row, "%rw")) for row in (k, best))
        with f.loop(0, "%rw", real.lanes) as j:
            one, two = real.at(f, here, j), real.at(f, there, j)
            was, now = real.read(f, one), real.read(f, two)
            real.write(f, now, one)
            real.write(f, was, two)
    places = [f.at("%rows", index, "i64") for index in (k, best)]
    first, second = (f.load("i64", place, 8) for place in places)
    f.store("i64", second, places[0], 8)
    f.store("i64", first, places[1], 8)


def _factors(f: Function, kind: Field, start: str) -> tuple[str, str, Planes, str]:
    """Of the factors at an address: the length of a row, the elements of a plane, the planes, and the rows' numbers."""
    width = f.rounded_up("%n", LU_COLUMNS)
    plane = f.mul("%n", width)
    pointers = tuple(kind.real.at(f, start, f.mul(plane, k)) for k in range(kind.planes))
    return width, plane, Planes(pointers, width, 1), kind.real.at(f, start, f.mul(plane, kind.planes))


def _right(f: Function, kind: Field) -> tuple[str, str]:
    """The length of a row of right sides, and the elements of a plane, in whole vectors."""
    lanes = kind.real.lanes
    width = f.select(f.test("eq", "%r", 1), "i64", 1, f.rounded_up("%r", lanes))
    return width, f.rounded_up(f.mul("%n", width), lanes)


def _scratches(kind: Field) -> list[str]:
    n, r, texts = ("i64", "n"), ("i64", "r"), []
    for name, sizes in zip(_NAMES, ([n], [n, r], [n, r]), strict=True):
        f = Function(f"cg_{name}_scratch_{kind.name}", sizes, "i64")
        elements = "0" if name == "lu" else f.mul(_right(f, kind)[1], kind.planes)
        most = "%n" if name == "lu" else f.larger("%n", "%r")
        nbytes = and_for_products(f, kind, elements, False, ("%n", most, "%n"))
        f.leave(f"i64 {f.add(nbytes, _factor_bytes(f, kind)) if name == 'lu_solve' else nbytes}")
        texts.append(f.text())
    return texts


def _factor_bytes(f: Function, kind: Field) -> str:
    """The bytes of factors, in whole lines of memory: a row's number takes two elements at most."""
    elements = f.add(f.mul(_factors(f, kind, "null")[1], kind.planes), f.mul("%n", 2))
    return f.rounded_up(f.mul(elements, kind.real.bytes), 64)


def _lu(kind: Field) -> str:
    f, real = Function(f"cg_lu_{kind.name}", LU, "i64"), kind.real
    width, plane, w, rows = _factors(f, kind, "%x")
    with f.loop(0, f.mul(plane, kind.planes), real.lanes) as at:
        # So that what is computed beside a row's end is not slow.
        real.write(f, "zeroinitializer", real.at(f, "%x", at))
    own = Planes(w.pointers[: kind.parts], width, 1)
    copy(f, real, own, as_parts(f, kind, "a", "%ra", "%ca"), ("%n", "%n"), (-1,) * kind.parts)
    with f.loop(0, "%n") as i:
        f.store("i64", i, f.at(rows, i, "i64"), 8)
    numbers: dict[str, Number] = {"w": "%x", "plane": plane, "rw": width, "first": 0, "count": "%n", "rows": rows}
    f.leave(f"i64 {f.op(f'call i64 @lu_{kind.name}({given(FACTOR, **numbers)})')}")
    return f.text()


def _solved(kind: Field) -> str:
    f, real = Function(f"cg_lu_solved_{kind.name}", SOLVED, "i64"), kind.real
    width, _, w, rows = _factors(f, kind, "%w")
    of_right, plane = _right(f, kind)
    turned = f.test("ne", "%transposed", 0)
    whole = f.mul(plane, kind.planes)
    with f.loop(0, whole, real.lanes) as at:
        real.write(f, "zeroinitializer", real.at(f, "%scratch", at))
    behind = f.at("%scratch", f.rounded_up(f.mul(whole, real.bytes), 64), "i8")
    y = Planes(tuple(real.at(f, "%scratch", f.mul(plane, k)) for k in range(kind.planes)), of_right, 1)
    b, x = (as_parts(f, kind, name, f"%r{name}", "%cb" if name == "b" else 1) for name in "bx")

    def row(is_here: str, i: str) -> str:
        """The number of a row where rows have changed places, else i."""
        return f.select(is_here, "i64", f.load("i64", f.at(rows, i, "i64"), 8), i)

    with f.loop(0, "%n") as i:
        source, target = (m.moved(f, real, k, 0) for m, k in ((b, row(f.op(f"xor i1 {turned}, true"), i)), (y, i)))
        with f.loop(0, "%r") as j:
            for part in range(kind.parts):
                value = real.element(f, source.moved(f, real, 0, j).pointers[part])
                real.put(f, f.op(f"fneg {real.scalar} {value}"), target.moved(f, real, 0, j).pointers[part])
    strides = [f.select(turned, "i64", one, other) for one, other in ((1, width), (width, 1))]
    solved: dict[str, Number] = {"w": "%scratch", "plane": plane, "rw": of_right, "first": 0, "scratch": behind}
    solved |= {"a": w.pointers[0], "ai": w.pointers[kind.parts - 1], "ra": strides[0], "ca": strides[1]}
    for lower in ("true", "false"):
        # Of L the diagonal is 1; transposed, it is the upper one.
        unit = f.op(f"xor i1 {turned}, {lower}")
        f.line(f"call void @{halves_name(kind)}({given(HALVES, **solved, lower=lower, unit=unit)})")
        if lower == "true":
            with f.loop(0, whole, real.lanes) as at:
                place = real.at(f, "%scratch", at)
                real.write(f, f.op(f"fneg {real.vector} {real.read(f, place)}"), place)
    with f.loop(0, "%n") as i:
        source, target = (m.moved(f, real, k, 0) for m, k in ((y, i), (x, row(turned, i))))
        one = Planes(source.pointers[: kind.parts], of_right, 1)
        copy(f, real, target, one, (1, "%r"), (1,) * kind.parts)
    f.leave("i64 0")
    return f.text()


def _solve(kind: Field) -> str:
    """Factors in the scratch, and the system that they solve."""
    f = Function(f"cg_lu_solve_{kind.name}", SOLVE, "i64")
    behind = f.at("%scratch", _factor_bytes(f, kind), "i8")
    text = given(LU, x="%scratch", scratch=behind)
    status = f.op(f"call i64 @cg_lu_{kind.name}({text})")
    with f.leaving_when(f.test("ne", status, 0)):
        f.leave(f"i64 {status}")
    text = given(SOLVED, w="%scratch", scratch=behind, transposed=0)
    f.leave(f"i64 {f.op(f'call i64 @cg_lu_solved_{kind.name}({text})')}")
    return f.text()
