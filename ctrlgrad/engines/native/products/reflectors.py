"""Householder reflectors of small real matrices, and the orthonormal factor that they make.

    cg_orthonormal_TYPE(Q, row stride, A, row stride, column stride, m, n, scratch)
    cg_orthonormal_scratch_TYPE(m, n)                                          bytes

Q of A = Q R with m >= n, both m by n, by columns as LAPACK's geqr2 and org2r (signs included); it gives 0.

Routines of this kind work on the columns of a matrix as rows in `scratch`, filled up to whole vectors with zeros. A
reflector 1 - tau v v^T has a vector with zeros before a place and one there. Numbers are scaled by powers of two, which
rounds nothing, so that no square overflows.
"""

from __future__ import annotations

from ctrlgrad.engines.native.products.function import Function, Number
from ctrlgrad.engines.native.products.real import Real
from ctrlgrad.engines.native.products.scalars import Place, Scalar
from ctrlgrad.engines.native.products.whole import given

ROUTINE = [
    ("ptr", "x"),
    ("i64", "rx"),
    ("ptr", "a"),
    ("i64", "ra"),
    ("i64", "ca"),
    ("i64", "m"),
    ("i64", "n"),
    ("ptr", "scratch"),
]
_REFLECTOR = [("ptr", "row"), ("i64", "width"), ("i64", "place"), ("ptr", "beta")]
_REFLECT = [("ptr", "w"), ("i64", "width"), ("i64", "end"), ("ptr", "v"), ("i64", "place"), ("i64", "first")]
_FORM = [
    ("ptr", "q"),
    ("i64", "width"),
    ("i64", "n"),
    ("ptr", "v"),
    ("ptr", "taus"),
    ("i64", "count"),
    ("i64", "below"),
]


def symbols(real: Real) -> list[str]:
    return [f"cg_orthonormal_{part}{real.name}" for part in ("", "scratch_")]


def orthonormal(real: Real) -> list[str]:
    return [*reflectors(real), _orthonormal(real), _scratch(real)]


def reflectors(real: Real) -> list[str]:
    """The parts that the routines on reflectors call."""
    integers = f"<{real.lanes} x i{8 * real.bytes}>"
    return [
        f"declare {real.scalar} @llvm.copysign.{real.name}({real.scalar}, {real.scalar})",
        f"declare i{8 * real.bytes} @llvm.vector.reduce.umax.v{real.lanes}i{8 * real.bytes}({integers})",
        f"declare i{8 * real.bytes} @llvm.umax.i{8 * real.bytes}(i{8 * real.bytes}, i{8 * real.bytes})",
        _reflector(real),
        _reflect(real),
        _form(real),
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


def _orthonormal(real: Real) -> str:
    f = Function(symbols(real)[0], ROUTINE, "i64")
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


def _scratch(real: Real) -> str:
    f = Function(symbols(real)[1], [("i64", "m"), ("i64", "n")], "i64")
    width = f.rounded_up("%m", real.lanes)
    f.leave(f"i64 {f.mul(f.mul('%n', f.add(f.mul(width, 2), 1)), real.bytes)}")
    return f.text()
