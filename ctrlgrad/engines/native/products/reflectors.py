"""Householder reflectors of small matrices, and the orthonormal factor that they make.

    cg_orthonormal_TYPE(Q, row stride, A, row stride, column stride, m, n, scratch)
    cg_orthonormal_scratch_TYPE(m, n)                                          bytes

TYPE is f32, f64, c64 or c128. Q of A = Q R with m >= n, both m by n, by columns as LAPACK's geqr2 and org2r (signs
included); it gives 0.

Routines of this kind work on the columns of a matrix as rows in `scratch`, filled up to whole vectors with zeros. A
reflector 1 - tau v v^T has a vector with zeros before a place and one there. Numbers are scaled by powers of two, which
rounds nothing, so that no square overflows.
"""

from __future__ import annotations

from collections.abc import Sequence

from ctrlgrad.engines.native.products.fields import Field
from ctrlgrad.engines.native.products.function import Function, Number, parameters
from ctrlgrad.engines.native.products.real import Real
from ctrlgrad.engines.native.products.scalars import Place, Scalar
from ctrlgrad.engines.native.products.substitution import reciprocal
from ctrlgrad.engines.native.products.whole import given

ROUTINE = parameters("x* rx a* ra ca m n scratch*")
_REFLECTOR = parameters("row* width place beta*")
_REFLECT = parameters("w* width end v* place first")
_FORM = parameters("q* width n v* taus* count below")


def symbols(kind: Field) -> list[str]:
    return [f"cg_orthonormal_{part}{kind.name}" for part in ("", "scratch_")]


def orthonormal(kind: Field) -> list[str]:
    real = kind.real
    if kind.parts == 1:
        return [*reflectors(real), _orthonormal(kind), _scratch(kind)]
    made = [_complex_reflector(kind), _complex_reflect(kind), _complex_orthonormal(kind), _scratch(kind)]
    return [*_intrinsics(real), *made]


def reflectors(real: Real) -> list[str]:
    """The parts that the routines on reflectors call."""
    return [*_intrinsics(real), _reflector(real), _reflect(real), _form(real)]


def _intrinsics(real: Real) -> list[str]:
    integers = f"<{real.lanes} x i{8 * real.bytes}>"
    return [
        f"declare {real.scalar} @llvm.copysign.{real.name}({real.scalar}, {real.scalar})",
        f"declare i{8 * real.bytes} @llvm.vector.reduce.umax.v{real.lanes}i{8 * real.bytes}({integers})",
        f"declare i{8 * real.bytes} @llvm.umax.i{8 * real.bytes}(i{8 * real.bytes}, i{8 * real.bytes})",
    ]


# Powers of two. The bits of floats that are not negative are in the order of the floats, NaN and infinity last.


def largest_bits(f: Function, real: Real, start: str, first: Number, end: Number) -> str:
    """Bits of the largest modulus, by whole vectors."""
    kind = f"<{real.lanes} x i{8 * real.bytes}>"
    found = f.variable(kind, "zeroinitializer")
    with f.loop(first, end, real.lanes) as j:
        bits = f.op(f"bitcast {real.vector} {real.read(f, real.at(f, start, j))} to {kind}")
        size = f.op(f"and {kind} {bits}, splat (i{8 * real.bytes} {(1 << 8 * real.bytes - 1) - 1})")
        larger = f.op(f"icmp ugt {kind} {size}, {f.get(found)}")
        f.set(found, f.op(f"select <{real.lanes} x i1> {larger}, {kind} {size}, {kind} {f.get(found)}"))
    whole = f"i{8 * real.bytes} @llvm.vector.reduce.umax.v{real.lanes}i{8 * real.bytes}"
    return f.op(f"call {whole}({kind} {f.get(found)})")


def _fraction_bits(real: Real) -> int:
    return 23 if real.bytes == 4 else 52


def is_finite(f: Function, real: Real, bits: str) -> str:
    infinity = ((1 << 8 * real.bytes - 1) - 1) >> _fraction_bits(real) << _fraction_bits(real)
    return f.op(f"icmp ult i{8 * real.bytes} {bits}, {infinity}")


def power_of_two(f: Function, real: Real, bits: str) -> Scalar:
    """The power of two at or below a modulus: at least the smallest normal one, infinite if that is not finite."""
    word, fraction = f"i{8 * real.bytes}", _fraction_bits(real)
    mask = ((1 << 8 * real.bytes - 1) - 1) >> fraction << fraction
    exponent = f.op(
        f"call {word} @llvm.umax.{word}({word} {f.op(f'and {word} {bits}, {mask}')}, {word} {1 << fraction})"
    )
    return Scalar(f, real, f.op(f"bitcast {word} {exponent} to {real.scalar}"))


def scale_rows(f: Function, real: Real, start: str, first: Number, end: Number, by: Scalar) -> None:
    factor = real.spread(f, by.text)
    with f.loop(first, end, real.lanes) as j:
        place = real.at(f, start, j)
        real.write(f, f.op(f"fmul {real.vector} {real.read(f, place)}, {factor}"), place)


def dot(f: Function, real: Real, a: str, b: str, first: Number, end: Number) -> Scalar:
    """The sum of products of two rows, by whole vectors."""
    total = f.variable(real.vector, "zeroinitializer")
    with f.loop(first, end, real.lanes) as j:
        one, two = (real.read(f, real.at(f, row, j)) for row in (a, b))
        f.set(total, real.fma(f, one, two, f.get(total)))
    return Scalar(f, real, real.total(f, f.get(total)))


def begin_of(f: Function, real: Real, place: str) -> str:
    """The vector in which a place lies."""
    return f.sub(place, f.rest(place, real.lanes))


def _reflector(real: Real) -> str:
    """LAPACK's larfg: tau and beta with (1 - tau v v^T) row = beta at the place, and zeros behind it; v in the row's
    place."""
    f = Function(f"reflector_{real.name}", _REFLECTOR, real.scalar, prefix="internal")
    word, head = f"i{8 * real.bytes}", Place(f, real, real.at(f, "%row", "%place"))
    alpha, begin = head.value, begin_of(f, real, "%place")
    with f.loop(begin, "%place") as j:
        real.put(f, "0.0", real.at(f, "%row", j))
    head.value = 0.0
    behind = largest_bits(f, real, "%row", begin, "%width")
    with f.leaving_when(f.op(f"icmp eq {word} {behind}, 0")):
        head.value = 1.0
        real.put(f, alpha.text, "%beta")
        f.leave(f"{real.scalar} 0.0")
    own = f.op(f"bitcast {real.scalar} {abs(alpha).text} to {word}")
    power = power_of_two(f, real, f.op(f"call {word} @llvm.umax.{word}({word} {behind}, {word} {own})"))
    inverse = Scalar(f, real, 1.0) / power
    scale_rows(f, real, "%row", begin, "%width", inverse)
    alpha = alpha * inverse
    beta = -(alpha * alpha + dot(f, real, "%row", "%row", begin, "%width")).sqrt().signed(alpha)
    scale_rows(f, real, "%row", begin, "%width", Scalar(f, real, 1.0) / (alpha - beta))
    head.value = 1.0
    real.put(f, (beta * power).text, "%beta")
    f.leave(f"{real.scalar} {((beta - alpha) / beta).text}")
    return f.text()


def _reflect(real: Real) -> str:
    """The reflector of a vector on the rows from `first` below `end`."""
    parameters = [*_REFLECT, (real.scalar, "tau")]
    f = Function(f"reflect_{real.name}", parameters, prefix="internal")
    tau = Scalar(f, real, "%tau")
    with f.leaving_when(tau.test("oeq", 0.0)):
        f.leave()
    begin = begin_of(f, real, "%place")
    with f.loop("%first", "%end") as i:
        row = real.at(f, "%w", f.mul(i, "%width"))
        factor = real.spread(f, (-(dot(f, real, row, "%v", begin, "%width") * tau)).text)
        with f.loop(begin, "%width", real.lanes) as j:
            place = real.at(f, row, j)
            real.write(f, real.fma(f, factor, real.read(f, real.at(f, "%v", j)), real.read(f, place)), place)
    f.leave()
    return f.text()


def reflector(f: Function, real: Real, row: str, width: str, place: str, beta: str) -> Scalar:
    """Call for the reflector of a row; its tau."""
    text = given(_REFLECTOR, row=row, width=width, place=place, beta=beta)
    return Scalar(f, real, f.op(f"call {real.scalar} @reflector_{real.name}({text})"))


def reflect(f: Function, real: Real, tau: Scalar, **numbers: Number) -> None:
    f.line(f"call void @reflect_{real.name}({given(_REFLECT, **numbers)}, {real.scalar} {tau.text})")


def _form(real: Real) -> str:
    """The first n columns, as rows, of the product of reflectors; vector k has its one at place k + `below`."""
    f = Function(f"form_{real.name}", _FORM, prefix="internal")
    with f.loop(0, f.mul("%n", "%width"), real.lanes) as at:
        real.write(f, "zeroinitializer", real.at(f, "%q", at))
    with f.loop(0, "%n") as j:
        real.put(f, "1.0", real.at(f, "%q", f.add(f.mul(j, "%width"), j)))
    with f.loop_down("%count") as k:
        place = f.add(k, "%below")
        tau = Scalar(f, real, real.element(f, real.at(f, "%taus", k)))
        v = real.at(f, "%v", f.mul(k, "%width"))
        reflect(f, real, tau, w="%q", width="%width", end="%n", v=v, place=place, first=place)
    f.leave()
    return f.text()


def form(f: Function, real: Real, **numbers: Number) -> None:
    f.line(f"call void @form_{real.name}({given(_FORM, **numbers)})")


def reduce_rows(f: Function, real: Real, w: str, width: str, n: str, taus: str) -> None:
    """Reflectors that make the matrix, whose columns are rows here, upper triangular; their vectors in its place."""
    beta = f.alloca(real.scalar, real.bytes)
    with f.loop(0, n) as k:
        row = real.at(f, w, f.mul(k, width))
        tau = reflector(f, real, row, width, k, beta)
        real.put(f, tau.text, real.at(f, taus, k))
        reflect(f, real, tau, w=w, width=width, end=n, v=row, place=k, first=f.add(k, 1))


def read_columns(
    f: Function, real: Real, own: Real, to: str, width: str, a: tuple[str, Number, Number], m: str, n: str
) -> None:
    """Columns of a matrix of type `own` (pointer, row and column stride) as rows."""
    with f.loop(0, f.mul(n, width), real.lanes) as at:
        real.write(f, "zeroinitializer", real.at(f, to, at))
    with f.loop(0, n) as j:
        row, column = real.at(f, to, f.mul(j, width)), own.at(f, a[0], f.mul(j, a[2]))
        with f.loop(0, m) as i:
            value = own.element(f, own.at(f, column, f.mul(i, a[1])))
            if own != real:
                value = f.op(f"fpext {own.scalar} {value} to {real.scalar}")
            real.put(f, value, real.at(f, row, i))


def write_columns(
    f: Function, real: Real, own: Real, to: str, stride: Number, w: str, width: str, m: str, n: str
) -> None:
    """Rows as the columns of a matrix of type `own` with dense rows."""
    with f.loop(0, m) as i:
        target, source = own.at(f, to, f.mul(i, stride)), real.at(f, w, i)
        with f.loop(0, n) as j:
            put(f, real, own, real.element(f, real.at(f, source, f.mul(j, width))), own.at(f, target, j))


def put(f: Function, real: Real, own: Real, value: str, address: str) -> None:
    """Write a number to an element of type `own`."""
    if own != real:
        value = f.op(f"fptrunc {real.scalar} {value} to {own.scalar}")
    own.put(f, value, address)


def _orthonormal(kind: Field) -> str:
    f, real = Function(symbols(kind)[0], ROUTINE, "i64"), kind.real
    width = f.rounded_up("%m", real.lanes)
    size = f.mul(width, "%n")
    q = real.at(f, "%scratch", size)
    taus = real.at(f, q, size)
    read_columns(f, real, real, "%scratch", width, ("%a", "%ra", "%ca"), "%m", "%n")
    reduce_rows(f, real, "%scratch", width, "%n", taus)
    form(f, real, q=q, width=width, n="%n", v="%scratch", taus=taus, count="%n", below=0)
    write_columns(f, real, real, "%x", "%rx", q, width, "%m", "%n")
    f.leave("i64 0")
    return f.text()


def _scratch(kind: Field) -> str:
    f = Function(symbols(kind)[1], parameters("m n"), "i64")
    width = f.rounded_up("%m", kind.real.lanes)
    f.leave(f"i64 {f.mul(f.mul('%n', f.add(f.mul(width, 2), 1)), kind.bytes)}")
    return f.text()


# Complex matrices: a column is a row of real parts, then one of imaginary parts. A reflector is 1 - tau v v^H, and its
# conjugate transpose leaves a real number at its place (LAPACK's larfg).


_COMPLEX_REFLECT = [*_REFLECT, ("i1", "turned"), ("ptr", "tau")]


def _parts_of(f: Function, real: Real, row: str) -> tuple[str, str]:
    return row, real.at(f, row, "%width")


def _multiply(f: Function, real: Real, a: Sequence[str], b: Sequence[str], to: Sequence[str]) -> list[str]:
    """to + a b of vectors."""
    re = real.fma(f, a[0], b[0], to[0])
    im = real.fma(f, a[0], b[1], to[1])
    minus = f.op(f"fneg {real.vector} {a[1]}")
    return [real.fma(f, minus, b[1], re), real.fma(f, a[1], b[0], im)]


def _complex_reflector(kind: Field) -> str:
    """The vector of a reflector in a row's place; its tau, as two numbers."""
    real, parameters = kind.real, [*_REFLECTOR[:3], ("ptr", "tau")]
    f, word = Function(f"reflector_{kind.name}", parameters, prefix="internal"), f"i{8 * real.bytes}"
    planes, begin = _parts_of(f, real, "%row"), begin_of(f, real, "%place")
    heads = [Place(f, real, real.at(f, plane, "%place")) for plane in planes]
    taus = [Place(f, real, real.at(f, "%tau", part)) for part in range(2)]

    def most(*bits: str) -> str:
        found = bits[0]
        for other in bits[1:]:
            found = f.op(f"call {word} @llvm.umax.{word}({word} {found}, {word} {other})")
        return found

    alpha = [head.value for head in heads]
    for plane, head in zip(planes, heads, strict=True):
        with f.loop(begin, "%place") as j:
            real.put(f, "0.0", real.at(f, plane, j))
        head.value = 0.0
    own = [f.op(f"bitcast {real.scalar} {abs(part).text} to {word}") for part in alpha]
    behind = most(own[1], *(largest_bits(f, real, plane, begin, "%width") for plane in planes))
    with f.leaving_when(f.op(f"icmp eq {word} {behind}, 0")):
        heads[0].value = 1.0
        taus[0].value = taus[1].value = 0.0
        f.leave()
    inverse = Scalar(f, real, 1.0) / power_of_two(f, real, most(behind, own[0]))
    for plane in planes:
        scale_rows(f, real, plane, begin, "%width", inverse)
    alpha = [part * inverse for part in alpha]
    squares = [dot(f, real, plane, plane, begin, "%width") for plane in planes]
    size = alpha[0] * alpha[0] + alpha[1] * alpha[1] + squares[0] + squares[1]
    beta = -size.sqrt().signed(alpha[0])
    by = [real.spread(f, part) for part in reciprocal(f, real, (alpha[0] - beta).text, alpha[1].text)]
    with f.loop(begin, "%width", real.lanes) as j:
        places = [real.at(f, plane, j) for plane in planes]
        values = _multiply(f, real, [real.read(f, place) for place in places], by, ["zeroinitializer"] * 2)
        for value, place in zip(values, places, strict=True):
            real.write(f, value, place)
    heads[0].value = 1.0
    taus[0].value, taus[1].value = (beta - alpha[0]) / beta, -alpha[1] / beta
    f.leave()
    return f.text()


def _complex_reflect(kind: Field) -> str:
    """The reflector of a vector, or with `turned` its conjugate transpose, on the rows from `first` below `end`."""
    real = kind.real
    f = Function(f"reflect_{kind.name}", _COMPLEX_REFLECT, prefix="internal")
    tau = [Scalar(f, real, real.element(f, real.at(f, "%tau", part))) for part in range(2)]
    tau[1] = (-tau[1]).chosen("%turned", tau[1])
    v, begin = _parts_of(f, real, "%v"), begin_of(f, real, "%place")
    with f.loop("%first", "%end") as i:
        row = _parts_of(f, real, real.at(f, "%w", f.mul(f.mul(i, "%width"), 2)))
        # v^H row
        re = dot(f, real, v[0], row[0], begin, "%width") + dot(f, real, v[1], row[1], begin, "%width")
        im = dot(f, real, v[0], row[1], begin, "%width") - dot(f, real, v[1], row[0], begin, "%width")
        factor = [-(tau[0] * re - tau[1] * im), -(tau[0] * im + tau[1] * re)]
        factors = [real.spread(f, part.text) for part in factor]
        with f.loop(begin, "%width", real.lanes) as j:
            places = [real.at(f, plane, j) for plane in row]
            given_v = [real.read(f, real.at(f, plane, j)) for plane in v]
            values = _multiply(f, real, factors, given_v, [real.read(f, place) for place in places])
            for value, place in zip(values, places, strict=True):
                real.write(f, value, place)
    f.leave()
    return f.text()


def _complex_orthonormal(kind: Field) -> str:
    f, real = Function(symbols(kind)[0], ROUTINE, "i64"), kind.real
    width = f.rounded_up("%m", real.lanes)
    length = f.mul(width, 2)
    size = f.mul(length, "%n")
    q = real.at(f, "%scratch", size)
    taus = real.at(f, q, size)

    def reflect_rows(w: str, k: str, first: Number, turned: str) -> None:
        numbers: dict[str, Number] = {"w": w, "width": width, "end": "%n", "place": k, "first": first}
        numbers |= {"v": real.at(f, "%scratch", f.mul(k, length)), "tau": real.at(f, taus, f.mul(k, 2))}
        f.line(f"call void @reflect_{kind.name}({given(_COMPLEX_REFLECT, **numbers, turned=turned)})")

    with f.loop(0, f.mul(size, 2), real.lanes) as at:
        real.write(f, "zeroinitializer", real.at(f, "%scratch", at))
    elements = [
        (part, real.at(f, "%scratch", f.mul(width, part)), real.at(f, q, f.mul(width, part))) for part in (0, 1)
    ]
    with f.loop(0, "%n") as j, f.loop(0, "%m") as i:
        source = kind.at(f, "%a", f.add(f.mul(i, "%ra"), f.mul(j, "%ca")))
        for part, row, _ in elements:
            place = real.at(f, row, f.add(f.mul(j, length), i))
            real.put(f, real.element(f, real.at(f, source, part)), place)
    with f.loop(0, "%n") as k:
        numbers: dict[str, Number] = {"row": real.at(f, "%scratch", f.mul(k, length)), "width": width, "place": k}
        text = given([*_REFLECTOR[:3], ("ptr", "tau")], **numbers, tau=real.at(f, taus, f.mul(k, 2)))
        f.line(f"call void @reflector_{kind.name}({text})")
        reflect_rows("%scratch", k, f.add(k, 1), "true")
    with f.loop(0, "%n") as j:
        real.put(f, "1.0", real.at(f, q, f.add(f.mul(j, length), j)))
    with f.loop_down("%n") as k:
        reflect_rows(q, k, k, "false")
    with f.loop(0, "%m") as i, f.loop(0, "%n") as j:
        target = kind.at(f, "%x", f.add(f.mul(i, "%rx"), j))
        for part, _, row in elements:
            real.put(f, real.element(f, real.at(f, row, f.add(f.mul(j, length), i))), real.at(f, target, part))
    f.leave("i64 0")
    return f.text()
