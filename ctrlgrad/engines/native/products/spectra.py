"""Eigenvalues and singular values of small real matrices, with their vectors.

    cg_eigh_TYPE(X, row stride, A, row stride, column stride, m, n, scratch, vectors)
    cg_svd_TYPE(the same)
    cg_eigh_scratch_TYPE(m, n), cg_svd_scratch_TYPE(m, n)                     bytes

With k = min(m, n), X has the n eigenvectors as columns and below them, as row n, the eigenvalues; or the singular
vectors [u; v] as columns and below them, as row m + n, the singular values. Where `vectors` is 0, X has the one row of
values. A matrix that is not finite, and one on which the iteration does not end, has NaN. They give 0.

Eigenvalues are ascending. A symmetric matrix is made tridiagonal by reflectors, and diagonal by implicit QL or QR
steps as in LAPACK's sytd2 and steqr, which LAPACK's syevd runs for up to 25 rows: vectors have the signs that they have
there. Singular values are descending, by one-sided Jacobi rotations (Drmac and Veselic, "New fast and accurate Jacobi
SVD algorithm", 2008), which make the columns of the matrix, or of its transpose if it is wide, orthogonal; where a
singular value is 0, reflectors complete the vectors to an orthonormal set. Signs are those of `ops.linalg.signed`.

All is computed in float64, as NumPy does: so float32 has the signs that it has there.
"""

from __future__ import annotations

from ctrlgrad.engines.native.products import reflectors
from ctrlgrad.engines.native.products.function import Function, Number, Variable, parameters
from ctrlgrad.engines.native.products.real import Real
from ctrlgrad.engines.native.products.reflectors import ROUTINE, dot, largest_bits, read_columns, write_columns
from ctrlgrad.engines.native.products.scalars import Place, Scalar, variable
from ctrlgrad.engines.native.text import constant
from ctrlgrad.ops.linalg import SIGN_OF

_SPECTRUM = [*ROUTINE, ("i64", "vectors")]
_STEPS, _SWEEPS = 30, 40
"""Steps for each eigenvalue, and sweeps over all pairs of columns, after which an iteration is given up."""


def symbols(real: Real, name: str) -> list[str]:
    return [f"cg_{name}_{part}{real.name}" for part in ("", "scratch_")]


def spectrum(own: Real, real: Real, name: str) -> list[str]:
    """The routine `eigh` or `svd` on matrices of type `own`, computed in `real`, and its scratch."""
    routine = _eigh if name == "eigh" else _svd
    declarations = [] if own == real else real.declarations
    return [*declarations, *reflectors.reflectors(real), routine(own, real), _scratch(own, real, name)]


class _Rows:
    """Equally long rows side by side, and vectors of floats, in a routine's scratch."""

    def __init__(self, f: Function, real: Real, start: str, width: str) -> None:
        self.f, self.real, self.start, self.width = f, real, start, width

    def row(self, i: Number) -> str:
        return self.real.at(self.f, self.start, self.f.mul(i, self.width))

    def rotate(self, i: Number, j: Number, c: Scalar, s: Scalar) -> None:
        """Rows c x_i + s x_j and c x_j - s x_i."""
        f, real, one, two = self.f, self.real, self.row(i), self.row(j)
        cs, ss, less = (real.spread(f, x.text) for x in (c, s, -s))
        with f.loop(0, self.width, real.lanes) as at:
            here, there = real.at(f, one, at), real.at(f, two, at)
            x, y = real.read(f, here), real.read(f, there)
            for place, u, by, v in ((here, x, ss, y), (there, y, less, x)):
                product = f.op(f"fmul {real.vector} {cs}, {u}")
                real.write(f, real.fma(f, by, v, product), place)

    def exchange(self, i: Number, j: Number) -> None:
        f, real, one, two = self.f, self.real, self.row(i), self.row(j)
        with f.loop(0, self.width, real.lanes) as at:
            here, there = real.at(f, one, at), real.at(f, two, at)
            x, y = real.read(f, here), real.read(f, there)
            real.write(f, y, here)
            real.write(f, x, there)


class _Floats:
    """A vector of floats in memory, read and set by position."""

    def __init__(self, f: Function, real: Real, start: str) -> None:
        self.f, self.real, self.start = f, real, start

    def place(self, i: Number) -> Place:
        return Place(self.f, self.real, self.real.at(self.f, self.start, i))

    def __getitem__(self, i: Number) -> Scalar:
        return self.place(i).value

    def __setitem__(self, i: Number, value: Scalar | float) -> None:
        self.place(i).value = value


def _epsilon(real: Real) -> float:
    """The unit of rounding."""
    return 2.0**-24 if real.bytes == 4 else 2.0**-53


def _tiny(real: Real) -> float:
    """The smallest normal number."""
    return 2.0**-126 if real.bytes == 4 else 2.0**-1022


def _scaled(f: Function, own: Real, real: Real, rows: _Rows, count: str, result: tuple[Number, Number]) -> Scalar:
    """Scale the matrix by a power of two, which is returned, to a largest modulus below 2.

    Where the matrix is not finite the result, of so many rows and columns, is NaN, and the routine ends.
    """
    size = f.mul(count, rows.width)
    bits = largest_bits(f, real, rows.start, 0, size)
    _nan_when(f, own, f.op(f"xor i1 {reflectors.is_finite(f, real, bits)}, true"), result)
    power = reflectors.power_of_two(f, real, bits)
    reflectors.scale_rows(f, real, rows.start, 0, size, Scalar(f, real, 1.0) / power)
    return power


def _nan_when(f: Function, own: Real, condition: str, result: tuple[Number, Number]) -> None:
    with f.leaving_when(condition):
        with f.loop(0, result[0]) as i, f.loop(0, result[1]) as j:
            own.put(f, constant(float("nan"), own.dtype), own.at(f, "%x", f.add(f.mul(i, "%rx"), j)))
        f.leave("i64 0")


def _sort(f: Function, values: _Floats, n: Number, relation: str, *moved: _Rows) -> None:
    """Selection sort of values, and of the rows that go with them: exchanges are few."""
    with f.loop(0, n) as i:
        best = f.variable("i64", i)
        with f.loop(f.add(i, 1), n) as j:
            f.set(best, f.select(values[j].test(relation, values[f.get(best)]), "i64", j, f.get(best)))
        to = f.get(best)
        with f.when(f.test("ne", to, i)):
            here, there = values[i], values[to]
            values[i], values[to] = there, here
            for rows in moved:
                rows.exchange(i, to)


def _write_values(f: Function, own: Real, values: _Floats, row: Number, n: Number, by: Scalar) -> None:
    target = own.at(f, "%x", f.mul(row, "%rx"))
    with f.loop(0, n) as i:
        reflectors.put(f, values.real, own, (values[i] * by).text, own.at(f, target, i))


# Eigenvalues and eigenvectors of symmetric matrices.


def _eigh(own: Real, real: Real) -> str:
    f = Function(symbols(own, "eigh")[0], _SPECTRUM, "i64")
    width, wanted = f.rounded_up("%n", real.lanes), f.test("ne", "%vectors", 0)
    size = f.mul("%n", width)
    a = _Rows(f, real, "%scratch", width)
    # Without vectors their rows have length 0.
    z = _Rows(f, real, real.at(f, "%scratch", size), f.select(wanted, "i64", width, 0))
    d, e, taus, y = (_Floats(f, real, real.at(f, "%scratch", f.add(f.mul(size, 2), f.mul(width, k)))) for k in range(4))
    values_row = f.select(wanted, "i64", "%n", 0)
    result = f.add(values_row, 1), "%n"
    read_columns(f, real, own, a.start, width, ("%a", "%ra", "%ca"), "%n", "%n")
    power = _scaled(f, own, real, a, "%n", result)
    last = f.sub("%n", 1)
    _tridiagonal(f, real, a, d, e, taus, y, last)
    with f.when(wanted):
        numbers: dict[str, Number] = {"q": z.start, "width": width, "v": a.start, "taus": taus.start}
        reflectors.form(f, real, **numbers, n="%n", count=f.larger(last, 0), below=1)
    steps = _diagonal(f, real, d, e, z, last)
    _nan_when(f, own, f.test("sge", f.get(steps), f.mul("%n", _STEPS)), result)
    _sort(f, d, "%n", "olt", z)
    with f.when(wanted):
        write_columns(f, real, own, "%x", "%rx", z.start, width, "%n", "%n")
    _write_values(f, own, d, values_row, "%n", power)
    f.leave("i64 0")
    return f.text()


def _tridiagonal(
    f: Function, real: Real, a: _Rows, d: _Floats, e: _Floats, taus: _Floats, y: _Floats, last: str
) -> None:
    """The diagonals d and e of Q^T A Q, and in the rows of a the vectors of the reflectors of Q."""
    lanes, width = real.lanes, a.width
    with f.loop(0, f.add(last, 1)) as i:
        d[i] = Scalar(f, real, real.element(f, real.at(f, a.row(i), i)))
        with f.when(f.test("slt", i, last)):
            v, first = a.row(i), f.add(i, 1)
            tau = reflectors.reflector(f, real, v, width, first, real.at(f, e.start, i))
            taus[i] = tau
            begin = reflectors.begin_of(f, real, first)
            with f.loop(begin, width, lanes) as at:
                total = f.variable(real.vector, "zeroinitializer")
                with f.loop(first, f.add(last, 1)) as j:
                    factor = real.spread(f, real.element(f, real.at(f, v, j)))
                    f.set(total, real.fma(f, factor, real.read(f, real.at(f, a.row(j), at)), f.get(total)))
                scaled = f.op(f"fmul {real.vector} {f.get(total)}, {real.spread(f, tau.text)}")
                real.write(f, scaled, real.at(f, y.start, at))
            half = real.spread(f, (tau * dot(f, real, y.start, v, begin, width) * -0.5).text)
            with f.loop(begin, width, lanes) as at:
                place = real.at(f, y.start, at)
                real.write(f, real.fma(f, half, real.read(f, real.at(f, v, at)), real.read(f, place)), place)
            with f.loop(first, f.add(last, 1)) as j:
                row = a.row(j)
                less = [
                    real.spread(f, (-Scalar(f, real, real.element(f, real.at(f, x, j)))).text) for x in (v, y.start)
                ]
                with f.loop(begin, width, lanes) as at:
                    place = real.at(f, row, at)
                    found = real.read(f, place)
                    for factor, x in zip(less, (y.start, v), strict=True):
                        found = real.fma(f, factor, real.read(f, real.at(f, x, at)), found)
                    real.write(f, found, place)


def _diagonal(f: Function, real: Real, d: _Floats, e: _Floats, z: _Rows, last: str) -> Variable:
    """LAPACK's steqr: d become the eigenvalues, and the rows of z go with them; the number of steps.

    A block without zeros beside its diagonal lies from `near` to `far`, the end at which eigenvalues are found and the
    other one, `way` being 1 (QL) or -1 (QR).
    """
    eps = _epsilon(real)
    steps, top = f.variable("i64", 0), f.variable("i64", 0)
    limit = f.mul(f.add(last, 1), _STEPS)
    with f.repeat() as blocks:
        blocks.leave_when(f.test("sgt", f.get(top), last))
        blocks.leave_when(f.test("sge", f.get(steps), limit))
        bottom = f.variable("i64", f.get(top))
        with f.repeat() as search:
            m = f.get(bottom)
            search.leave_when(f.test("sge", m, last))
            bound = abs(d[m]).sqrt() * abs(d[f.add(m, 1)]).sqrt() * eps
            search.leave_when(abs(e[m]).test("ole", bound))
            f.set(bottom, f.add(m, 1))
        start, end = f.get(top), f.get(bottom)
        with f.when(f.test("slt", end, last)):
            e[end] = 0.0
        f.set(top, f.add(end, 1))
        is_turned = abs(d[end]).test("olt", abs(d[start]))
        near = f.variable("i64", f.select(is_turned, "i64", end, start))
        far = f.select(is_turned, "i64", start, end)
        way = f.select(is_turned, "i64", -1, 1)
        with f.repeat() as values:
            here = f.get(near)
            values.leave_when(f.test("slt", f.mul(f.sub(far, here), way), 0))
            split = f.variable("i64", here)
            with f.repeat() as search:
                m = f.get(split)
                search.leave_when(f.test("eq", m, far))
                beside, following = e[f.smaller(m, f.add(m, way))], d[f.add(m, way)]
                bound = abs(d[m]) * (eps * eps) * abs(following) + _tiny(real)
                search.leave_when((beside * beside).test("ole", bound))
                f.set(split, f.add(m, way))
            m = f.get(split)
            with f.when(f.test("ne", m, far)):
                e[f.smaller(m, f.add(m, way))] = 0.0
            f.set(near, f.add(here, way))
            values.again_when(f.test("eq", m, here))
            behind = f.add(here, way)
            between = f.smaller(here, behind)
            is_pair = f.test("eq", m, behind)
            with f.when(is_pair):
                low = between
                one, two, c, s = _pair(d[low], e[low], d[f.add(low, 1)])
                # The columns x_low and x_low+1 become c x_low + s x_low+1 and c x_low+1 - s x_low.
                z.rotate(low, f.add(low, 1), c, s)
                d[low], d[f.add(low, 1)], e[low] = one, two, 0.0
                f.set(near, f.add(behind, way))
            values.again_when(is_pair)
            f.set(near, here)
            values.leave_when(f.test("sge", f.get(steps), limit))
            f.set(steps, f.add(f.get(steps), 1))
            _step(f, real, d, e, z, here, m, way)
    return steps


def _step(f: Function, real: Real, d: _Floats, e: _Floats, z: _Rows, near: str, far: str, way: str) -> None:
    """An implicit step: rotations from the far end to the near one."""
    one, between = Scalar(f, real, 1.0), f.smaller(near, f.add(near, way))
    shift = d[near]
    g0 = (d[f.add(near, way)] - shift) / (e[between] * 2.0)
    root = (g0 * g0 + 1.0).sqrt()
    g = variable(f, real, d[far] - shift + e[between] / (g0 + root.signed(g0)))
    s, c, p = (variable(f, real, x) for x in (1.0, 1.0, 0.0))
    at = f.variable("i64", far)
    with f.repeat() as rotations:
        i = f.get(at)
        rotations.leave_when(f.test("eq", i, near))
        following = f.sub(i, way)
        beside = e[f.smaller(i, following)]
        first, b = s.value * beside, c.value * beside
        c.value, s.value, r = _rotation(g.value, first, one)
        with f.when(f.test("ne", i, far)):
            e[f.smaller(i, f.add(i, way))] = r
        rest = d[i] - p.value
        r = (d[following] - rest) * s.value + c.value * 2.0 * b
        p.value = s.value * r
        d[i] = rest + p.value
        g.value = c.value * r - b
        z.rotate(i, following, c.value, s.value)
        f.set(at, following)
    d[near] = d[near] - p.value
    e[between] = g.value


def _rotation(a: Scalar, b: Scalar, one: Scalar) -> tuple[Scalar, Scalar, Scalar]:
    """LAPACK's lartg: c, s and r with c a + s b = r and c b = s a, of numbers beside which a matrix has the norm 1."""
    square = a * a + b * b
    # Squares that are not normal numbers are of what is far below the rounding of the matrix.
    is_none = a.f.op(f"or i1 {square.test('olt', _tiny(a.real) / _epsilon(a.real) ** 2)}, {b.test('oeq', 0.0)}")
    root = one.chosen(is_none, square.sqrt())
    r = root.signed(a + 0.0)
    c = one.chosen(is_none, abs(a) / root)
    return c, a.like(0.0).chosen(is_none, b / r), a.chosen(is_none, r)


def _pair(a: Scalar, b: Scalar, c: Scalar) -> tuple[Scalar, Scalar, Scalar, Scalar]:
    """LAPACK's laev2: the eigenvalues of [[a, b], [b, c]], the one of larger modulus first, and its vector."""
    one, total, difference, twice = a.like(1.0), a + c, a - c, b + b
    root = (difference * difference + twice * twice).sqrt()
    is_larger = abs(a).test("ogt", abs(c))
    larger, smaller = a.chosen(is_larger, c), c.chosen(is_larger, a)
    is_negative, is_none = total.test("olt", 0.0), total.test("oeq", 0.0)
    first = (total - root).chosen(is_negative, total + root) * 0.5
    divisor = one.chosen(is_none, first)
    second = (-(root * 0.5)).chosen(is_none, larger / divisor * smaller - b / divisor * b)
    is_down = difference.test("olt", 0.0)
    cs = (difference - root).chosen(is_down, difference + root)
    is_steep = abs(cs).test("ogt", abs(twice))
    ratio = -(twice / cs).chosen(is_steep, cs / twice)
    unit = one / (ratio * ratio + 1.0).sqrt()
    x, y = (ratio * unit).chosen(is_steep, unit), unit.chosen(is_steep, ratio * unit)
    # As the signs of the two choices above are the same or not.
    is_same = a.f.op(f"icmp eq i1 {is_negative}, {is_down}")
    return first, second, (-y).chosen(is_same, x), x.chosen(is_same, y)


# Singular values and singular vectors.


def _svd(own: Real, real: Real) -> str:
    f = Function(symbols(own, "svd")[0], _SPECTRUM, "i64")
    wanted, is_tall = f.test("ne", "%vectors", 0), f.test("sge", "%m", "%n")
    rows, columns = f.larger("%m", "%n"), f.smaller("%m", "%n")
    along, across = (f.select(is_tall, "i64", *pair) for pair in (("%ra", "%ca"), ("%ca", "%ra")))
    width = f.rounded_up(rows, real.lanes)
    size = f.mul(columns, width)
    w = _Rows(f, real, "%scratch", width)
    right = f.rounded_up(columns, real.lanes)
    v = _Rows(f, real, real.at(f, w.start, size), f.select(wanted, "i64", right, 0))
    s = _Floats(f, real, real.at(f, v.start, f.mul(columns, right)))
    behind = real.at(f, s.start, right)
    values_row = f.select(wanted, "i64", f.add("%m", "%n"), 0)
    result = f.add(values_row, 1), columns
    read_columns(f, real, own, w.start, width, ("%a", along, across), rows, columns)
    power = _scaled(f, own, real, w, columns, result)
    with f.loop(0, f.mul(columns, v.width), real.lanes) as at:
        real.write(f, "zeroinitializer", real.at(f, v.start, at))
    with f.when(wanted), f.loop(0, columns) as j:
        real.put(f, "1.0", real.at(f, v.row(j), j))
    sweeps = _sweeps(f, real, w, v, rows, columns)
    _nan_when(f, own, f.test("sge", f.get(sweeps), _SWEEPS), result)
    with f.loop(0, columns) as j:
        s[j] = _norm(f, real, w.row(j), width)
    _sort(f, s, columns, "ogt", w, v)
    with f.when(wanted):
        _unit_rows(f, real, w, s, columns, behind)
        _turn(f, real, w, v, columns, is_tall)
        below = own.at(f, "%x", f.mul("%m", "%rx"))
        tall, wide = (f.select(is_tall, "ptr", *pair) for pair in (("%x", below), (below, "%x")))
        write_columns(f, real, own, tall, "%rx", w.start, width, rows, columns)
        write_columns(f, real, own, wide, "%rx", v.start, right, columns, columns)
    _write_values(f, own, s, values_row, columns, power)
    f.leave("i64 0")
    return f.text()


def _sweeps(f: Function, real: Real, w: _Rows, v: _Rows, rows: str, columns: str) -> Variable:
    """Rotations of all pairs of rows until they are orthogonal; the number of sweeps."""
    one, count = Scalar(f, real, 1.0), f.variable("i64", 0)
    length = Scalar(f, real, f.op(f"sitofp i64 {rows} to {real.scalar}"))
    bound = length.sqrt() * (2 * _epsilon(real))
    with f.repeat() as sweeps:
        sweeps.leave_when(f.test("sge", f.get(count), _SWEEPS))
        is_done = f.variable("i1", "true")
        with f.loop(0, columns) as i, f.loop(f.add(i, 1), columns) as j:
            x, y = w.row(i), w.row(j)
            xx, xy, yy = _dots(f, real, x, y, w.width)
            # Rows whose squares are not normal numbers count as zero.
            least = _tiny(real) / _epsilon(real)
            is_some = f.both(xx.test("ogt", least), yy.test("ogt", least))
            is_skew = abs(xy).test("ogt", bound * xx.sqrt() * yy.sqrt())
            with f.when(f.both(is_some, is_skew)):
                f.set(is_done, "false")
                zeta = (yy - xx) / (xy * 2.0)
                size = abs(zeta)
                # Squares of larger ones do not fit.
                is_large = size.test("ogt", 1e8)
                limited = one.chosen(is_large, size)
                t = one / (size + size.chosen(is_large, (limited * limited + 1.0).sqrt()))
                t = t.signed(zeta)
                c = one / (t * t + 1.0).sqrt()
                s = c * t
                # The larger row comes first.
                is_turned = xx.test("olt", yy)
                c, s = s.chosen(is_turned, c), (-c).chosen(is_turned, s)
                for moved in (w, v):
                    moved.rotate(j, i, c, s)
        f.set(count, f.select(f.get(is_done), "i64", f.get(count), f.add(f.get(count), 1)))
        sweeps.leave_when(f.get(is_done))
    return count


def _dots(f: Function, real: Real, a: str, b: str, width: str) -> list[Scalar]:
    """a . a, a . b and b . b."""
    totals = [f.variable(real.vector, "zeroinitializer") for _ in range(3)]
    with f.loop(0, width, real.lanes) as j:
        x, y = (real.read(f, real.at(f, row, j)) for row in (a, b))
        for total, (one, two) in zip(totals, ((x, x), (x, y), (y, y)), strict=True):
            f.set(total, real.fma(f, one, two, f.get(total)))
    return [Scalar(f, real, real.total(f, f.get(total))) for total in totals]


def _norm(f: Function, real: Real, row: str, width: str) -> Scalar:
    """Norm of a row that is scaled by a power of two meanwhile."""
    power = reflectors.power_of_two(f, real, largest_bits(f, real, row, 0, width))
    reflectors.scale_rows(f, real, row, 0, width, Scalar(f, real, 1.0) / power)
    found = dot(f, real, row, row, 0, width).sqrt()
    reflectors.scale_rows(f, real, row, 0, width, Scalar(f, real, 1.0) / found.chosen(found.test("ogt", 0.0), 1.0))
    return found * power


def _unit_rows(f: Function, real: Real, w: _Rows, s: _Floats, columns: str, scratch: str) -> None:
    """Rows for the singular values that count as zero, orthonormal to the remaining rows, which have norm 1."""
    least = (_tiny(real) / _epsilon(real)) ** 0.5
    rank = f.variable("i64", 0)
    with f.loop(0, columns) as j:
        # Rows are sorted: those that count come first.
        f.set(rank, f.select(s[j].test("ogt", least), "i64", f.add(j, 1), f.get(rank)))
    known = f.get(rank)
    with f.when(f.test("slt", known, columns)):
        size = f.mul(columns, w.width)
        copy, q = _Rows(f, real, scratch, w.width), _Rows(f, real, real.at(f, scratch, size), w.width)
        taus = real.at(f, q.start, size)
        with f.loop(0, size, real.lanes) as at:
            inside = f.test("slt", at, f.mul(known, w.width))
            found = f.select(inside, real.vector, real.read(f, real.at(f, w.start, at)), "zeroinitializer")
            real.write(f, found, real.at(f, copy.start, at))
        reflectors.reduce_rows(f, real, copy.start, w.width, columns, taus)
        numbers: dict[str, Number] = {"q": q.start, "width": w.width, "n": columns, "v": copy.start, "taus": taus}
        reflectors.form(f, real, **numbers, count=columns, below=0)
        with f.loop(f.mul(known, w.width), size, real.lanes) as at:
            real.write(f, real.read(f, real.at(f, q.start, at)), real.at(f, w.start, at))


def _turn(f: Function, real: Real, w: _Rows, v: _Rows, columns: str, is_tall: str) -> None:
    """The signs of `ops.linalg.signed`."""
    start, width = f.select(is_tall, "ptr", w.start, v.start), f.select(is_tall, "i64", w.width, v.width)
    left = _Rows(f, real, start, width)
    with f.loop(0, columns) as j:
        row = left.row(j)
        bits = largest_bits(f, real, row, 0, width)
        word = f"i{8 * real.bytes}"
        bound = Scalar(f, real, f.op(f"bitcast {word} {bits} to {real.scalar}")) * SIGN_OF
        sign = variable(f, real, 0.0)
        with f.loop(0, width) as i:
            value = Scalar(f, real, real.element(f, real.at(f, row, i)))
            is_first = f.both(abs(value).test("oge", bound), sign.value.test("oeq", 0.0))
            sign.value = value.like(1.0).signed(value).chosen(is_first, sign.value)
        for rows in (w, v):
            reflectors.scale_rows(f, real, rows.row(j), 0, rows.width, sign.value)


def _scratch(own: Real, real: Real, name: str) -> str:
    f = Function(symbols(own, name)[1], parameters("m n"), "i64")
    rows, columns = f.larger("%m", "%n"), f.smaller("%m", "%n")
    width, right = f.rounded_up(rows, real.lanes), f.rounded_up(columns, real.lanes)
    if name == "eigh":
        elements = f.mul(width, f.add(f.mul(columns, 2), 4))
    else:
        # Vectors, right vectors, values; then a copy of the vectors, their completion and its factors.
        of_columns = f.add(f.add(f.mul(width, 3), right), 1)
        elements = f.add(f.mul(columns, of_columns), right)
    f.leave(f"i64 {f.mul(elements, real.bytes)}")
    return f.text()
