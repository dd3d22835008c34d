"""Discrete Fourier transforms of complex and of real numbers, by autosort passes of radix 2, 3, 4 and 5.

    cg_transform_within_TYPExLANES(Y, X, table, first, end, columns, scratch)
    cg_transform_across_TYPExLANES(the same)

X and Y are dense arrays [rows, elements, columns]; the transforms numbered first to end - 1 go along the elements, the
columns of a row one after the other. The table, a symbol `table_name`, says which transform it is, and has its factors,
made in float64 or better and rounded once, and the addresses of its passes: `cg_transform_passRADIX_TYPExLANES` and
`cg_transform_endINVERSE_TYPExLANES`. All is without a factor 1 / n, as in `ops.arrays`.

A pass is a step of Stockham's algorithm (Van Loan, "Computational Frameworks for the Fast Fourier Transform", 1992,
section 1.7): the order of the elements is right after the last one. Numbers lie in blocks: as many real parts as a
vector has lanes, then their imaginary parts. There are two ways to fill lanes:

across      lanes are transforms: a block is one element of each
within      lanes are elements of one transform of n = LANES * m elements: x[LANES * j + lane]. Each lane's m elements
            are transformed, multiplied by exp(-2 pi i lane k / n), and then, lanes and k having changed places, a
            transform of LANES vectors ends it (Bailey, "FFTs in External or Hierarchical Memory", 1990)

The inverse exchanges real and imaginary parts before and after. An even number of real numbers is read as half as many
complex ones, of which the first half of the spectrum is made (Press et al., "Numerical Recipes", 12.3); an odd number
of real numbers is a complex transform.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ctrlgrad.engines.native.products.function import Function, Number, parameters
from ctrlgrad.engines.native.products.real import Real
from ctrlgrad.engines.native.text import constant
from ctrlgrad.plan.lowering.fourier import MOST_ACROSS, MOST_POINTS
from ctrlgrad.plan.model import Spectrum, points_of
from ctrlgrad.records import record

RADICES = (4, 2, 3, 5)
LINE = 64
"""Bytes of a line of the processor's cache, at which scratch begins."""
FEWEST_LANES = 2
# Words in front of the passes of a table, and of each pass.
_HEAD, _OF_PASS = 10, 4
_FIELDS = ("kind", "n", "passes", "halves", "turns", "end", "x_width", "x_count", "y_width", "y_count")
# Kinds by number: complex, real of even and odd size, and their inverses.
_COMPLEX, _INVERSE, _EVEN, _ODD, _TO_EVEN, _TO_ODD = range(6)
Pair = tuple[str, str]


@record
class Form:
    """Form of the transforms of a size: complex elements, lanes, and the way to fill the lanes."""

    points: int
    lanes: int
    across: bool
    areas: int = 2

    def scratch_bytes(self, real: Real) -> int:
        """Bytes of the areas: of `points` + 1 blocks each, or of so many numbers and a block."""
        block = 2 * self.lanes
        elements = (self.points + 1) * block if self.across else 2 * self.points + block
        return self.areas * elements * real.bytes + LINE


def radices_of(n: int) -> list[int]:
    """The radices of the passes for n elements, powers of 4 first."""
    found = []
    for radix in RADICES:
        while n % radix == 0:
            found.append(radix)
            n //= radix
    return found


def lanes_of(real: Real) -> list[int]:
    """The numbers of lanes that routines are made for, the most first."""
    return [n for n in (real.lanes, real.lanes // 2, real.lanes // 4) if n >= FEWEST_LANES]


def form_of(real: Real, spectrum: Spectrum, n: int, count: int | None, columns: int | None) -> Form:
    """The form of `count` transforms of size n, in rows of so many columns."""
    points = points_of(spectrum, n)
    every, are_many = lanes_of(real), count is None or count >= real.lanes
    if columns is not None and columns < real.lanes:
        for lanes in every:
            # Routines of two lanes of eight or more are worth it only where the other lanes would be empty.
            if points % lanes == 0 and points >= lanes * lanes and not (are_many and lanes * lanes < real.lanes):
                return Form(points, lanes, False, 2 if columns == 1 else 3)
    wide = [lanes for lanes in every if are_many or lanes < 2 * (count or 1)]
    return Form(points, wide[0] if wide else every[-1], True)


def most_scratch(real: Real) -> int:
    """The bytes that are enough for every transform of a plan."""
    within = Form(MOST_POINTS, real.lanes, False), Form(MOST_ACROSS, real.lanes, False, 3)
    return max(form.scratch_bytes(real) for form in (*within, Form(MOST_ACROSS, real.lanes, True)))


PARTS = ("within", "across", *(f"pass{radix}" for radix in RADICES), "end0", "end1")
"""Routines for each type and number of lanes, each compiled when it is first needed."""


def symbol(part: str, real: str, lanes: int) -> str:
    return f"cg_transform_{part}_{real}x{lanes}"


TABLE = "cg_transform_table_"


def table_name(real: Real, spectrum: Spectrum, n: int, form: Form) -> str:
    return f"{TABLE}{real.name}_{form.lanes}_{'across' if form.across else 'within'}_{n}_{spectrum}"


# Tables.


def _parsed(name: str) -> tuple[str, int, str, int, Spectrum]:
    """Type, lanes, the way to fill them, size and kind, of a table by its name."""
    kind, lanes, how, size, spectrum = name.removeprefix(TABLE).split("_", 4)
    return kind, int(lanes), how, int(size), spectrum  # type: ignore[return-value]


def called(name: str) -> list[str]:
    """The routines that a table has the addresses of: its passes in their order, and the end of one within."""
    kind, lanes, how, n, spectrum = _parsed(name)
    points, inverse = points_of(spectrum, n), int(spectrum in ("inverse_fft", "irfft"))
    radices = radices_of(points if how == "across" else points // lanes)
    parts = [*(f"pass{radix}" for radix in radices), *([] if how == "across" else [f"end{inverse}"])]
    return [symbol(part, kind, lanes) for part in parts]


def table(name: str, addresses: Mapping[str, int]) -> np.ndarray:
    """The table of a name, as bytes."""
    kind, width, how, n, spectrum = _parsed(name)
    dtype = np.dtype("f4" if kind == "f32" else "f8")
    routines = [addresses[each] for each in called(name)]
    whole, half, real = (2, n), (2, n // 2 + 1), (1, n)
    shapes = {"fft": (whole, whole), "inverse_fft": (whole, whole), "rfft": (real, half), "irfft": (half, real)}
    codes = {"fft": _COMPLEX, "inverse_fft": _INVERSE, "rfft": _EVEN, "irfft": _TO_EVEN}
    code, points = codes[spectrum], points_of(spectrum, n)
    has_halves = points < n
    code += int(real in shapes[spectrum] and not has_halves)
    passed = points if how == "across" else points // width
    radices = radices_of(passed)
    head = _HEAD + _OF_PASS * len(radices)
    numbers: list[np.ndarray] = []

    def offset() -> int:
        return 8 * head + dtype.itemsize * sum(map(np.size, numbers))

    words, s, left = [], width, passed
    for radix, routine in zip(radices, routines, strict=False):
        left //= radix
        words += [routine, s, left, offset()]
        p, j = np.arange(left)[:, None], np.arange(1, radix)
        numbers.append(_pairs(p * j, left * radix))
        s *= radix
    halves = offset()
    if has_halves:
        # -i exp(-2 pi i k / n) / 2, or the conjugate of twice that.
        k = np.arange(points + 1 if how == "across" else points)
        factor = _pairs(k + points // 2, n) if points % 2 == 0 else _pairs(2 * k + points, 2 * n)
        factor = factor / 2 if spectrum == "rfft" else factor * (1, -1)
        numbers.append(factor if how == "across" else _blocks(factor, width))
    turns = offset()
    if how == "within":
        k, lane = np.arange(passed)[:, None], np.arange(width)
        numbers.append(_blocks(_pairs(k * lane, points).reshape(-1, 2), width))
    (x_width, x_count), (y_width, y_count) = shapes[spectrum]
    end = 0 if how == "across" else routines[-1]
    first = [code, points, len(radices), halves, turns, end, x_width, x_count, y_width, y_count]
    values = [np.asarray(x, dtype).reshape(-1).view(np.uint8) for x in numbers]
    return np.concatenate([np.array(first + words, np.int64).view(np.uint8), *values])


def _pairs(k: np.ndarray, n: int) -> np.ndarray:
    """exp(-2 pi i k / n) as pairs, from angles of at most pi / 4, in the longest float."""
    k = k % n
    eighth, rest = k * 8 // n, k * 8 % n
    turned = np.where(eighth % 2 == 1, n - rest, rest)
    angle = turned.astype(np.longdouble) * (np.arctan(np.longdouble(1)) / n)
    c, s = np.cos(angle), np.sin(angle)
    c, s = np.where((eighth + 1) // 2 % 2 == 1, s, c), np.where((eighth + 1) // 2 % 2 == 1, c, s)
    c = np.where((eighth + 2) // 4 % 2 == 1, -c, c)
    s = np.where(eighth >= 4, s, -s)
    return np.stack([c, s], -1)


def _blocks(pairs: np.ndarray, lanes: int) -> np.ndarray:
    return np.swapaxes(pairs.reshape(-1, lanes, 2), 1, 2)


# Vectors of complex numbers.


class _Numbers:
    """Arithmetic of pairs of vectors, the real and the imaginary parts."""

    def __init__(self, f: Function, real: Real) -> None:
        self.f, self.real, self.lanes = f, real, real.lanes

    def _op(self, name: str, a: str, b: str) -> str:
        return self.f.op(f"{name} {self.real.vector} {a}, {b}")

    def plus(self, a: Pair, b: Pair) -> Pair:
        return self._op("fadd", a[0], b[0]), self._op("fadd", a[1], b[1])

    def minus(self, a: Pair, b: Pair) -> Pair:
        return self._op("fsub", a[0], b[0]), self._op("fsub", a[1], b[1])

    def behind(self, a: Pair, b: Pair, turn: int) -> Pair:
        """a - i b, or a + i b."""
        first, second = ("fadd", "fsub") if turn < 0 else ("fsub", "fadd")
        return self._op(first, a[0], b[1]), self._op(second, a[1], b[0])

    def constant(self, value: np.floating | float) -> str:
        return f"splat ({self.real.scalar} {constant(float(self.real.dtype.type(value)), self.real.dtype)})"

    def fma(self, a: str, b: str, c: str) -> str:
        return self.real.fma(self.f, a, b, c)

    def negated(self, a: str) -> str:
        return self.f.op(f"fneg {self.real.vector} {a}")

    def add_scaled(self, a: Pair, factor: np.floating | float, b: Pair) -> Pair:
        text = self.constant(factor)
        return self.fma(text, b[0], a[0]), self.fma(text, b[1], a[1])

    def scaled(self, factor: np.floating | float, a: Pair) -> Pair:
        text = self.constant(factor)
        return self._op("fmul", text, a[0]), self._op("fmul", text, a[1])

    def times(self, a: Pair, w: Pair) -> Pair:
        cross, along = self._op("fmul", a[1], w[1]), self._op("fmul", a[1], w[0])
        return self.fma(a[0], w[0], self.negated(cross)), self.fma(a[0], w[1], along)

    def transform(self, x: Sequence[Pair]) -> list[Pair]:
        """The transform of 2, 3, 4, 5, 8 or 16 numbers."""
        n = len(x)
        if n == 1:
            return [*x]
        if n == 2:
            return [self.plus(*x), self.minus(*x)]
        if n == 3:
            total, middle = self.plus(x[1], x[2]), self.scaled(_SIN(3, 1), self.minus(x[1], x[2]))
            rest = self.add_scaled(x[0], -0.5, total)
            return [self.plus(x[0], total), self.behind(rest, middle, -1), self.behind(rest, middle, 1)]
        if n == 4:
            (a, b), (c, d) = self.transform([x[0], x[2]]), self.transform([x[1], x[3]])
            return [self.plus(a, c), self.behind(b, d, -1), self.minus(a, c), self.behind(b, d, 1)]
        if n == 5:
            (a, b), (c, d) = (
                (self.plus(x[1], x[4]), self.plus(x[2], x[3])),
                (self.minus(x[1], x[4]), self.minus(x[2], x[3])),
            )
            one, two = (self.add_scaled(self.add_scaled(x[0], _COS(5, k), a), _COS(5, 2 * k), b) for k in (1, 2))
            left = self.add_scaled(self.scaled(_SIN(5, 1), c), _SIN(5, 2), d)
            right = self.add_scaled(self.scaled(_SIN(5, 2), c), -_SIN(5, 1), d)
            ends = [self.behind(one, left, -1), self.behind(two, right, -1)]
            return [self.plus(x[0], self.plus(a, b)), *ends, self.behind(two, right, 1), self.behind(one, left, 1)]
        even, odd = self.transform(x[::2]), self.transform(x[1::2])
        turned = [self._turned(z, k, n) for k, z in enumerate(odd)]
        first = [
            self.plus(a, b) if k * 4 != n else self.behind(a, b, -1)
            for k, (a, b) in enumerate(zip(even, turned, strict=True))
        ]
        second = [
            self.minus(a, b) if k * 4 != n else self.behind(a, b, 1)
            for k, (a, b) in enumerate(zip(even, turned, strict=True))
        ]
        return first + second

    def _turned(self, z: Pair, k: int, n: int) -> Pair:
        """z exp(-2 pi i k / n); of a quarter, z itself."""
        if k == 0 or 4 * k == n:
            return z
        if 8 * k == n:
            return self.scaled(_COS(8, 1), (self._op("fadd", z[0], z[1]), self._op("fsub", z[1], z[0])))
        if 8 * k == 3 * n:
            return self.scaled(_COS(8, 1), (self._op("fsub", z[1], z[0]), self.negated(self._op("fadd", z[0], z[1]))))
        return self.times(z, (self.constant(_COS(n, k)), self.constant(-_SIN(n, k))))

    # Memory.

    def block(self, place: str) -> Pair:
        return self.real.read(self.f, place), self.real.read(self.f, self.real.at(self.f, place, self.lanes))

    def put_block(self, z: Pair, place: str) -> None:
        self.real.write(self.f, z[0], place)
        self.real.write(self.f, z[1], self.real.at(self.f, place, self.lanes))

    def apart(self, place: str, reverse: bool = False) -> Pair:
        """Numbers that lie one behind the other, the last one first if `reverse`."""
        one, two = self.block(place)
        order = [*range(0, 2 * self.lanes, 2)][:: -1 if reverse else 1]
        return (
            self.real.shuffled(self.f, one, two, order),
            self.real.shuffled(self.f, one, two, [k + 1 for k in order]),
        )

    def put_together(self, z: Pair, place: str) -> None:
        order = [k // 2 + k % 2 * self.lanes for k in range(2 * self.lanes)]
        halves = [self.real.shuffled(self.f, *z, part) for part in (order[: self.lanes], order[self.lanes :])]
        self.put_block((halves[0], halves[1]), place)

    def spread(self, place: str) -> Pair:
        one, two = (self.real.element(self.f, self.real.at(self.f, place, k)) for k in (0, 1))
        return self.real.spread(self.f, one), self.real.spread(self.f, two)

    def transposed(self, rows: Sequence[str]) -> list[str]:
        """Lane k of vector j as lane j of vector k."""
        found, by = [*rows], 1
        while by < self.lanes:
            for i in range(self.lanes):
                if i & by:
                    continue
                a, b = found[i], found[i + by]
                lanes = range(self.lanes)
                found[i] = self.real.shuffled(self.f, a, b, [k if not k & by else self.lanes + k - by for k in lanes])
                found[i + by] = self.real.shuffled(
                    self.f, a, b, [k + by if not k & by else self.lanes + k for k in lanes]
                )
            by *= 2
        return found


def _COS(n: int, k: int) -> np.floating:
    return _pairs(np.array(k), n)[0]  # type: ignore[no-any-return]


def _SIN(n: int, k: int) -> np.floating:
    return -_pairs(np.array(k), n)[1]  # type: ignore[no-any-return]


# Routines.


def routine(name: str, real: Real) -> list[str]:
    """The routine of a symbol, and its own parts."""
    part, _, lanes = name.removeprefix("cg_transform_").partition(f"_{real.name}x")
    wide, real = real, replace(real, lanes=int(lanes))
    declared = [line for line in real.declarations if line not in wide.declarations]
    if part == "within":
        halves = [_half_within(real, inverse) for inverse in (False, True)]
        return [*declared, *halves, _copy(real), _apart(real), _passes(), _within(real, name)]
    if part == "across":
        halves = [_half_across(real, inverse) for inverse in (False, True)]
        return [*declared, *halves, _lanes(real, True), _lanes(real, False), _passes(), _across(real, name)]
    number = int(part[-1])
    return [*declared, _pass(real, number, name) if part.startswith("pass") else _end(real, bool(number), name)]


def _pass(real: Real, radix: int, name: str) -> str:
    """One pass: `s` numbers lie together, and there are `m` of these beside each other for each input."""
    f = Function(name, parameters("y* x* s m w*"))
    z, wide = _Numbers(f, real), f.mul("%s", 2)
    far = f.mul(wide, "%m")

    def write(p: Number, w: Sequence[Pair]) -> None:
        x, y = real.at(f, "%x", f.mul(wide, p)), real.at(f, "%y", f.mul(f.mul(wide, radix), p))
        xs = [real.at(f, x, f.mul(far, k)) if k else x for k in range(radix)]
        ys = [real.at(f, y, f.mul(wide, k)) if k else y for k in range(radix)]
        with f.loop(0, wide, 2 * real.lanes) as q:
            found = z.transform([z.block(real.at(f, place, q)) for place in xs])
            for k, place in enumerate(ys):
                z.put_block(z.times(found[k], w[k - 1]) if k and w else found[k], real.at(f, place, q))

    write(0, ())
    with f.loop(1, "%m") as p:
        place = real.at(f, "%w", f.mul(p, 2 * (radix - 1)))
        write(p, [z.spread(real.at(f, place, 2 * k)) for k in range(radix - 1)])
    f.leave()
    return f.text()


def _field(f: Function, name: str) -> str:
    return f.load("i64", f.at("%table", _FIELDS.index(name), "i64"), 8)


def _numbers_at(f: Function, offset: str) -> str:
    return f.op(f"getelementptr i8, ptr %table, i64 {offset}")


def _passes() -> str:
    """All passes of a table, from x to y and back; where the result is."""
    f = Function("passes", parameters("x* y* table*"), "ptr", prefix="internal")
    source, target = f.variable("ptr", "%x"), f.variable("ptr", "%y")
    with f.loop(0, _field(f, "passes")) as k:
        place = f.at("%table", f.add(f.mul(k, _OF_PASS), _HEAD), "i64")
        routine, s, m, offset = (f.load("i64", f.at(place, j, "i64"), 8) for j in range(_OF_PASS))
        x, y, w = f.get(source), f.get(target), _numbers_at(f, offset)
        f.line(f"call void {f.op(f'inttoptr i64 {routine} to ptr')}(ptr {y}, ptr {x}, i64 {s}, i64 {m}, ptr {w})")
        f.set(source, y)
        f.set(target, x)
    f.leave(f"ptr {f.get(source)}")
    return f.text()


def _end(real: Real, inverse: bool, name: str) -> str:
    """The end of a transform within: `m` blocks to numbers one behind the other."""
    f = Function(name, parameters("y* x* m w*"))
    z, lanes = _Numbers(f, real), real.lanes
    with f.loop(0, "%m", lanes) as k:
        # The last blocks begin before the end of those before them, where LANES does not divide their number.
        first = f.smaller(k, f.sub("%m", lanes))
        x, w = (real.at(f, place, f.mul(first, 2 * lanes)) for place in ("%x", "%w"))
        rows = [z.times(*(z.block(real.at(f, place, 2 * lanes * i)) for place in (x, w))) for i in range(lanes)]
        parts = [z.transposed([row[part] for row in rows]) for part in (0, 1)]
        for i, number in enumerate(z.transform([*zip(*parts, strict=True)])):
            place = real.at(f, "%y", f.mul(f.add(f.mul("%m", i), first), 2))
            z.put_together(number[::-1] if inverse else number, place)
    f.leave()
    return f.text()


def _sum_and_turn(z: _Numbers, a: Pair, b: Pair, w: Pair, inverse: bool) -> Pair:
    """a + conj(b) + w (a - conj(b)), half of it or all; `w` says which."""
    other = b[0], z.negated(b[1])
    total, rest = z.plus(a, other), z.minus(a, other)
    turned = z.times(rest, w)
    return z.plus(total, turned) if inverse else z.add_scaled(turned, 0.5, total)


def _half_within(real: Real, inverse: bool) -> str:
    """Half of the spectrum of real numbers from that of n complex ones, or the latter, in blocks, from the former."""
    f = Function(f"half_within{int(inverse)}", parameters("y* x* n w*"), prefix="internal")
    z, lanes = _Numbers(f, real), real.lanes
    with f.loop(0, "%n", lanes) as k:
        there = f.mul(f.sub(f.sub("%n", k), lanes - 1), 2)
        a, b = z.apart(real.at(f, "%x", f.mul(k, 2))), z.apart(real.at(f, "%x", there), reverse=True)
        found = _sum_and_turn(z, a, b, z.block(real.at(f, "%w", f.mul(k, 2))), inverse)
        place = real.at(f, "%y", f.mul(k, 2))
        if inverse:
            z.put_block(found[::-1], place)
        else:
            z.put_together(found, place)
    last = real.at(f, "%x", f.mul("%n", 2))
    one, two = (real.element(f, place) for place in ("%x", last if inverse else real.at(f, "%x", 1)))
    total, rest = (f.op(f"{op} {real.scalar} {one}, {two}") for op in ("fadd", "fsub"))
    if inverse:
        # Imaginary parts at both ends do not count.
        real.put(f, rest, "%y")
        real.put(f, total, real.at(f, "%y", lanes))
    else:
        place = real.at(f, "%y", f.mul("%n", 2))
        real.put(f, rest, place)
        real.put(f, "0.0", real.at(f, place, 1))
    f.leave()
    return f.text()


def _half_across(real: Real, inverse: bool) -> str:
    """Half spectra as in `_half_within`, of several transforms: `x` and `y` are blocks."""
    f = Function(f"half_across{int(inverse)}", parameters("y* x* n w*"), prefix="internal")
    z, block = _Numbers(f, real), 2 * real.lanes
    last = real.at(f, "%x", f.mul("%n", block))
    if inverse:
        for place in ("%x", last):
            real.write(f, "zeroinitializer", real.at(f, place, real.lanes))
    else:
        z.put_block(z.block("%x"), last)
    with f.loop(0, "%n" if inverse else f.add("%n", 1)) as k:
        a, b = (z.block(real.at(f, "%x", f.mul(place, block))) for place in (k, f.sub("%n", k)))
        found = _sum_and_turn(z, a, b, z.spread(real.at(f, "%w", f.mul(k, 2))), inverse)
        z.put_block(found[::-1] if inverse else found, real.at(f, "%y", f.mul(k, block)))
    f.leave()
    return f.text()


def _copy(real: Real) -> str:
    """`count` elements of one or two numbers, at distances of their own."""
    f = Function("copy", parameters("y* x* count width sy sx"), prefix="internal")
    with f.loop(0, "%count") as k:
        x, y = real.at(f, "%x", f.mul(k, "%sx")), real.at(f, "%y", f.mul(k, "%sy"))
        with f.loop(0, "%width") as j:
            real.put(f, real.element(f, real.at(f, x, j)), real.at(f, y, j))
    f.leave()
    return f.text()


def _apart(real: Real) -> str:
    """Numbers one behind the other to blocks, with real and imaginary parts exchanged for an inverse."""
    f = Function("apart", parameters("y* x* n at"), prefix="internal")
    z = _Numbers(f, real)
    with f.loop(0, f.mul("%n", 2), 2 * real.lanes) as k:
        found, place = z.apart(real.at(f, "%x", k)), real.at(f, "%y", k)
        real.write(f, found[0], real.at(f, place, "%at"))
        real.write(f, found[1], real.at(f, place, f.sub(real.lanes, "%at")))
    f.leave()
    return f.text()


def _lanes(real: Real, inside: bool) -> str:
    """Elements of several transforms from an array to blocks, or back: real parts at `at` of each.

    Imaginary parts lie `beside` their real ones: 1 for complex numbers, 0 for real ones, which have none, and the
    columns for real numbers at even and odd places.
    """
    f = Function(
        f"lanes{int(inside)}", parameters("z* x* n at first count columns row width step beside"), prefix="internal"
    )
    numbers, block = _Numbers(f, real), 2 * real.lanes
    other = f.sub(real.lanes, "%at")
    has_both = f.test("ne", "%beside", 0)

    def base(number: str) -> str:
        row, column = f.div(number, "%columns"), f.rest(number, "%columns")
        return real.at(f, "%x", f.add(f.mul(f.mul(row, "%row"), "%columns"), f.mul(column, "%width")))

    def move(array: str, own: str, kind: str, align: int = real.bytes) -> None:
        if inside:
            f.store(kind, f.load(kind, array, align), own, align)
        else:
            f.store(kind, f.load(kind, own, align), array, align)

    end = f.add(f.rest("%first", "%columns"), real.lanes)
    dense = f.both(f.test("sle", end, "%columns"), f.test("eq", "%count", real.lanes))
    with f.leaving_when(dense):
        start = base("%first")
        with f.loop(0, "%n") as k:
            array, own = real.at(f, start, f.mul(k, "%step")), real.at(f, "%z", f.mul(k, block))
            re, im = real.at(f, own, "%at"), real.at(f, own, other)
            together = f.both(f.test("eq", "%width", 2), has_both)
            with f.when(together):
                if inside:
                    for value, place in zip(numbers.apart(array), (re, im), strict=True):
                        real.write(f, value, place)
                else:
                    numbers.put_together((real.read(f, re), real.read(f, im)), array)
            with f.when(f.op(f"xor i1 {together}, true")):
                move(array, re, real.vector)
                with f.when(has_both):
                    move(real.at(f, array, "%beside"), im, real.vector)
                if inside:
                    with f.when(f.op(f"xor i1 {has_both}, true")):
                        real.write(f, "zeroinitializer", im)
        f.leave()
    with f.loop(0, "%count") as lane:
        start, own = base(f.add("%first", lane)), real.at(f, "%z", lane)
        with f.loop(0, "%n") as k:
            array, place = real.at(f, start, f.mul(k, "%step")), real.at(f, own, f.mul(k, block))
            move(array, real.at(f, place, "%at"), real.scalar)
            im = real.at(f, place, other)
            with f.when(has_both):
                move(real.at(f, array, "%beside"), im, real.scalar)
            if inside:
                with f.when(f.op(f"xor i1 {has_both}, true")):
                    real.put(f, "0.0", im)
    f.leave()
    return f.text()


_UNITS = parameters("y* x* table* first end columns scratch*")


def _is(f: Function, kind: str, *codes: int) -> str:
    found = "false"
    for code in codes:
        found = f.op(f"or i1 {found}, {f.test('eq', kind, code)}")
    return found


def _areas(f: Function, real: Real, size: str) -> list[str]:
    after = f.add(f.op("ptrtoint ptr %scratch to i64"), LINE - 1)
    start = f.op(f"inttoptr i64 {f.op(f'and i64 {after}, {-LINE}')} to ptr")
    return [real.at(f, start, f.mul(size, k) if k else 0) for k in range(3)]


def _within(real: Real, name: str) -> str:
    f = Function(name, _UNITS)
    kind, n, x_width, x_count, y_width, y_count = (
        _field(f, name) for name in ("kind", "n", "x_width", "x_count", "y_width", "y_count")
    )
    halves, turns = (_numbers_at(f, _field(f, name)) for name in ("halves", "turns"))
    one, two, three = _areas(f, real, f.add(f.mul(n, 2), 2 * real.lanes))
    m = f.div(n, real.lanes)
    is_alone = f.test("eq", "%columns", 1)
    is_inverse = _is(f, kind, _INVERSE, _TO_EVEN)
    with f.loop("%first", "%end") as number:
        row, column = f.div(number, "%columns"), f.rest(number, "%columns")
        places = []
        for name, width, count in (("x", x_width, x_count), ("y", y_width, y_count)):
            base = f.mul(f.mul(f.mul(row, count), width), "%columns")
            places.append(real.at(f, f"%{name}", f.add(base, f.mul(column, width))))
        step_x, step_y = f.mul(x_width, "%columns"), f.mul(y_width, "%columns")
        x = f.select(is_alone, "ptr", places[0], three)
        with f.when(f.op(f"xor i1 {is_alone}, true")):
            sizes = f"i64 {x_count}, i64 {x_width}, i64 {x_width}, i64 {step_x}"
            f.line(f"call void @copy(ptr {three}, ptr {places[0]}, {sizes})")
        is_half = _is(f, kind, _TO_EVEN)
        with f.when(is_half):
            f.line(f"call void @half_within1(ptr {one}, ptr {x}, i64 {n}, ptr {halves})")
        with f.when(f.op(f"xor i1 {is_half}, true")):
            at = f.select(is_inverse, "i64", real.lanes, 0)
            f.line(f"call void @apart(ptr {one}, ptr {x}, i64 {n}, i64 {at})")
        found = f.op(f"call ptr @passes(ptr {one}, ptr {two}, ptr %table)")
        y = f.select(is_alone, "ptr", places[1], three)
        makes_half = _is(f, kind, _EVEN)
        # The area that the passes did not end in.
        free = f.select(f.op(f"icmp eq ptr {found}, {one}"), "ptr", two, one)
        to = f.select(makes_half, "ptr", free, y)
        end = f.op(f"inttoptr i64 {_field(f, 'end')} to ptr")
        f.line(f"call void {end}(ptr {to}, ptr {found}, i64 {m}, ptr {turns})")
        with f.when(makes_half):
            last = real.at(f, free, f.mul(n, 2))
            for k in (0, 1):
                real.put(f, real.element(f, real.at(f, free, k)), real.at(f, last, k))
            f.line(f"call void @half_within0(ptr {y}, ptr {free}, i64 {n}, ptr {halves})")
        with f.when(f.op(f"xor i1 {is_alone}, true")):
            sizes = f"i64 {y_count}, i64 {y_width}, i64 {step_y}, i64 {y_width}"
            f.line(f"call void @copy(ptr {places[1]}, ptr {three}, {sizes})")
    f.leave()
    return f.text()


def _across(real: Real, name: str) -> str:
    f = Function(name, _UNITS)
    kind, n, x_width, x_count, y_width, y_count = (
        _field(f, name) for name in ("kind", "n", "x_width", "x_count", "y_width", "y_count")
    )
    halves = _numbers_at(f, _field(f, "halves"))
    block = 2 * real.lanes
    one, two, _ = _areas(f, real, f.mul(f.add(n, 1), block))
    at = f.select(_is(f, kind, _INVERSE, _TO_EVEN, _TO_ODD), "i64", real.lanes, 0)
    is_pair, is_real = _is(f, kind, _EVEN), _is(f, kind, _ODD)
    to_pair, to_real = _is(f, kind, _TO_EVEN), _is(f, kind, _TO_ODD)
    # Halves of spectra have real parts first until they are whole.
    at_x, at_y = f.select(to_pair, "i64", 0, at), at

    def moved(name: str, place: str, array: str, start: str, count: str) -> None:
        width, elements = (x_width, x_count) if name == "x" else (y_width, y_count)
        pair, only = (is_pair, is_real) if name == "x" else (to_pair, to_real)
        step = f.mul(f.select(only, "i64", 1, 2), "%columns")
        beside = f.select(only, "i64", 0, f.select(pair, "i64", "%columns", 1))
        number = f.select(pair, "i64", n, elements)
        row = f.mul(width, elements)
        given = f"i64 {start}, i64 {count}, i64 %columns, i64 {row}, i64 {width}, i64 {step}, i64 {beside}"
        routine = "@lanes1" if name == "x" else "@lanes0"
        f.line(
            f"call void {routine}(ptr {place}, ptr {array}, i64 {number}, i64 {at_x if name == 'x' else at_y}, {given})"
        )

    z = _Numbers(f, real)
    with f.loop("%first", "%end", real.lanes) as start:
        count = f.smaller(f.sub("%end", start), real.lanes)
        moved("x", one, "%x", start, count)
        with f.when(to_pair):
            f.line(f"call void @half_across1(ptr {two}, ptr {one}, i64 {n}, ptr {halves})")
        with f.when(to_real):
            real.write(f, "zeroinitializer", one)
            with f.loop(1, x_count) as k:
                im, re = z.block(real.at(f, one, f.mul(k, block)))
                z.put_block((z.negated(im), re), real.at(f, one, f.mul(f.sub(n, k), block)))
        source, other = f.select(to_pair, "ptr", two, one), f.select(to_pair, "ptr", one, two)
        found = f.op(f"call ptr @passes(ptr {source}, ptr {other}, ptr %table)")
        free = f.select(f.op(f"icmp eq ptr {found}, {one}"), "ptr", two, one)
        with f.when(is_pair):
            f.line(f"call void @half_across0(ptr {free}, ptr {found}, i64 {n}, ptr {halves})")
        moved("y", f.select(is_pair, "ptr", free, found), "%y", start, count)
    f.leave()
    return f.text()
