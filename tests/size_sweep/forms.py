"""Forms of programs: source for any array module, with the shapes and kinds of its arguments.

The source is one expression over `np` (NumPy, or JAX's), `m` (loops, and updates by index) and the names of its
arguments, the numbers of its sizes written out.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from size_sweep.sizes import MOST, short, size, split

FLOATS = ("float64", "float64", "float32")
NUMBERS = (*FLOATS, "int64", "int32", "uint8", "int8")
# A product has at most so many multiplications, a factorisation so many rows.
MOST_WORK, MOST_ROWS = 1 << 29, 400


@dataclass(frozen=True)
class Argument:
    """`kind` says how it is filled; an "index" is below `below`."""

    shape: tuple[int, ...]
    kind: str = "normal"
    below: int = 0


@dataclass(frozen=True)
class Form:
    """`arguments` are called x, y, z in their order; `exact`: it has no derivative to look at."""

    source: str
    arguments: tuple[Argument, ...]
    dtypes: tuple[str, ...] = FLOATS
    exact: bool = False
    known: bool = False
    """Whether its sizes have to be known when it is traced."""


FORMS: dict[str, Callable[[random.Random], Form]] = {}


def form(weight: int = 1) -> Callable[[Callable[[random.Random], Form]], Callable[[random.Random], Form]]:
    def add(make: Callable[[random.Random], Form]) -> Callable[[random.Random], Form]:
        for k in range(weight):
            FORMS[f"{make.__name__}{k or ''}"] = make
        return make

    return add


def _sides(draw: random.Random) -> tuple[int, int, int]:
    """Rows, columns and depth of a product: the work drawn first, then two sides of it."""
    m, n, k = split(draw, 3, MOST_WORK)
    while max(m * k, n * k, m * n) > MOST:
        m, n, k = m // 2, n // 2, k // 2
    return m, n, k


@form(4)
def product(draw: random.Random) -> Form:
    m, n, k = _sides(draw)
    left, right = draw.random() < 0.3, draw.random() < 0.3
    source = f"{'x.T' if left else 'x'} @ {'y.T' if right else 'y'}"
    shapes = (k, m) if left else (m, k), (n, k) if right else (k, n)
    if draw.random() < 0.3:
        shapes = (*shapes, (m, n))
        source = draw.choice(
            (f"z + {source}", f"z - 2 * ({source})", f"z * ({source})", f"np.sum({source} * z, axis=1)")
        )
    return Form(source, tuple(Argument(s) for s in shapes), (*FLOATS, "float32"))


@form(2)
def vectors(draw: random.Random) -> Form:
    m, n = split(draw, 2)
    length = size(draw)
    return draw.choice(
        (
            Form("x @ x", (Argument((length,)),)),
            Form("np.vdot(x, y)", (Argument((length,)), Argument((length,)))),
            Form("x @ y", (Argument((m, n)), Argument((n,)))),
            Form("y @ x", (Argument((m, n)), Argument((m,)))),
            Form("np.outer(x, y)", (Argument((m,)), Argument((n,)))),
            Form("np.einsum('ij,ij->', x, y)", (Argument((m, n)), Argument((m, n)))),
            Form("np.einsum('ij,ij->i', x, y)", (Argument((m, n)), Argument((m, n)))),
            Form("np.einsum('ij->j', x)", (Argument((m, n)),)),
            Form("np.einsum('ij,j->ij', x, y)", (Argument((m, n)), Argument((n,)))),
        )
    )


@form()
def products_of_a_batch(draw: random.Random) -> Form:
    count = short(draw)
    m, n, k = (max(1, size(draw, draw.choice((5, 20, 70)))) for _ in range(3))
    source = draw.choice(("x @ y", "np.einsum('bik,bkj->bij', x, y)", "np.einsum('bik,bkj->ij', x, y)"))
    return Form(source, (Argument((count, m, k)), Argument((count, k, n))))


@form()
def integer_products(draw: random.Random) -> Form:
    m, n, k = (size(draw, 200) for _ in range(3))
    return Form("x @ y", (Argument((m, k)), Argument((k, n))), ("int64", "int32", "uint8"), exact=True)


@form(4)
def reductions(draw: random.Random) -> Form:
    rank = draw.choice((1, 2, 2, 3))
    shape = split(draw, rank)
    axis = draw.choice((None, *range(rank)))
    name = draw.choice(("sum", "sum", "mean", "max", "min", "prod", "var"))
    if name in ("max", "min", "mean", "var") and 0 in shape:
        shape = tuple(max(s, 1) for s in shape)
    if name == "var":
        shape = tuple(max(s, 2) for s in shape)
    inner = draw.choice(("x", "x", "x * x", "np.sin(x)", "np.abs(x) + 1", "x.T" if rank == 2 else "2 * x"))
    kind = "near one" if name == "prod" else "normal"
    keep = ", keepdims=True" if draw.random() < 0.3 else ""
    return Form(f"np.{name}({inner}, axis={axis}{keep})", (Argument(shape, kind),))


@form()
def exact_reductions(draw: random.Random) -> Form:
    shape = split(draw, draw.choice((1, 2)))
    axis = draw.choice((None, *range(len(shape))))
    name = draw.choice(("sum", "argmax", "argmin", "any", "all", "count_nonzero", "max", "min"))
    if name in ("argmax", "argmin", "max", "min"):
        shape = tuple(max(s, 1) for s in shape)
    return Form(f"np.{name}(x, axis={axis})", (Argument(shape),), NUMBERS[3:], exact=True)


@form(2)
def sorts(draw: random.Random) -> Form:
    shape = split(draw, draw.choice((1, 1, 2)), MOST // 4)
    axis = draw.randrange(len(shape))
    kind = draw.choice(("np.sort(x, axis={})", "np.argsort(x, axis={}, kind='stable')", "np.sort(x * x, axis={})"))
    exact = "arg" in kind
    return Form(kind.format(axis), (Argument(shape),), NUMBERS if exact else FLOATS, exact=exact)


@form()
def selections(draw: random.Random) -> Form:
    n = max(1, size(draw, MOST // 4))
    k = max(1, size(draw, min(n, 5000)))
    return draw.choice(
        (
            Form(f"np.sort(x)[-{k}:]", (Argument((n,)),)),
            Form("np.median(x)", (Argument((n,)),)),
            Form("np.searchsorted(np.sort(x), y)", (Argument((n,)), Argument((k,))), exact=True),
            Form("np.percentile(x, 30.0)", (Argument((n,)),)),
        )
    )


@form(3)
def cumulative(draw: random.Random) -> Form:
    shape = split(draw, draw.choice((1, 2)))
    axis = draw.randrange(len(shape))
    name = draw.choice(("cumsum", "cumsum", "cumprod"))
    kind = "near one" if name == "cumprod" else "normal"
    if name == "cumprod" and max(shape) > 3_000_000:
        shape = tuple(min(s, 3_000_000) for s in shape)
    inner = draw.choice(("x", "x * x", "np.tanh(x)", "x[::-1]"))
    inner = "x" if name == "cumprod" else inner
    return Form(f"np.{name}({inner}, axis={axis})", (Argument(shape, kind),))


@form(3)
def gathers(draw: random.Random) -> Form:
    rows, width = split(draw, 2)
    rows = max(rows, 1)
    count = size(draw, max(1, MOST // max(width, 1)))
    index = Argument((count,), "index", rows)
    return draw.choice(
        (
            Form("np.take(x, y, axis=0)", (Argument((rows, width)), index)),
            Form("x[y]", (Argument((rows,)), index)),
            Form("x[y] * x[y]", (Argument((rows, width)), index)),
            Form("np.take(x, y, axis=1)", (Argument((width, rows)), index)),
            Form("np.sum(x[y], axis=0)", (Argument((rows, width)), index)),
            Form("np.take_along_axis(x, z, axis=0)", (Argument((rows, 3)), index, Argument((count, 3), "index", rows))),
        )
    )


@form(3)
def scatters(draw: random.Random) -> Form:
    rows, width = split(draw, 2)
    rows = max(rows, 1)
    count = size(draw, max(1, MOST // max(width, 1)))
    index, new = Argument((count,), "index", rows), Argument((count, width))
    few = Argument((min(count, rows),), "different", rows)
    return draw.choice(
        (
            Form("m.add(x, y, z)", (Argument((rows, width)), index, new)),
            Form("m.set(x, y, z)", (Argument((rows, width)), few, Argument((min(count, rows), width)))),
            Form("m.add(x, y, z)", (Argument((rows,)), index, Argument((count,)))),
            Form("m.add(0 * x, y, z * z)", (Argument((rows,)), index, Argument((count,)))),
        )
    )


@form(3)
def elementwise(draw: random.Random) -> Form:
    shape = split(draw, draw.choice((1, 2, 3)))
    source = draw.choice(
        (
            *("np.exp(x)", "np.sin(x) * np.cos(y)", "x * y + x", "np.where(x > 0, x, y)", "np.maximum(x, y)"),
            *("np.tanh(x) - y", "np.sqrt(np.abs(x) + 1)", "np.log1p(x * x)", "x / (1 + y * y)", "np.hypot(x, y)"),
            *("np.arctan2(x, y)", "np.exp(x) / (1 + np.exp(x))", "np.abs(x) ** 1.5", "np.sin(1000 * x)"),
        )
    )
    count = 2 if "y" in source.replace("hypot", "") else 1
    other = tuple(1 if draw.random() < 0.3 else s for s in shape)
    return Form(source, (Argument(shape), Argument(draw.choice((shape, other, shape[1:]))))[:count])


@form(2)
def exact_elementwise(draw: random.Random) -> Form:
    shape = split(draw, draw.choice((1, 2)))
    source = draw.choice(("x + y", "x * y", "x - 3 * y", "np.minimum(x, y)", "x & y", "x ^ y", "x // 3 + y", "x % 7"))
    return Form(source, (Argument(shape), Argument(shape))[: 2 if "y" in source else 1], NUMBERS[3:], exact=True)


@form(3)
def pairs(draw: random.Random) -> Form:
    """A chain of elementwise work and reductions, as a plan fuses and tiles it."""
    rows, columns = split(draw, 2)
    rows, columns = max(rows, 1), max(columns, 1)
    x, across, down = Argument((rows, columns)), Argument((columns,)), Argument((rows, 1))
    return draw.choice(
        (
            Form("np.exp(x - np.max(x, axis=1, keepdims=True))", (x,)),
            Form("x / np.sum(x * x + 1, axis=1, keepdims=True)", (x,)),
            Form("(x - np.mean(x, axis=0)) / np.sqrt(np.var(x, axis=0) + 1)", (x,)),
            Form("(x - np.mean(x, axis=1, keepdims=True)) / np.sqrt(np.var(x, axis=1, keepdims=True) + 1)", (x,)),
            Form("np.sum(np.tanh(x * y), axis=1)", (x, across)),
            Form("np.sum(np.tanh(x + y), axis=0) + np.sum(x)", (x, down)),
            Form("np.sum(np.sum(x * y, axis=1) ** 2)", (x, across)),
            Form("np.cumsum(np.sin(x), axis=1) * y", (x, down)),
            Form("np.sum(np.sort(x, axis=1) * y, axis=0)", (x, across)),
            Form("np.sum(np.sin(x).T @ x, axis=0)", (Argument((max(rows // 8, 1), short(draw))),)),
        )
    )


@form(2)
def concatenations(draw: random.Random) -> Form:
    rows, columns = split(draw, 2)
    more = size(draw, max(1, MOST // max(columns, 1)))
    x, y = Argument((rows, columns)), Argument((more, columns))
    k = size(draw, rows)
    return draw.choice(
        (
            Form("np.concatenate([x, y])", (x, y)),
            Form("np.concatenate([x.T, y.T], axis=1)", (x, y)),
            Form("np.sin(np.concatenate([x, 2 * y, x]))", (x, y)),
            Form(f"np.concatenate([x[{k}:], x[:{k}]]) * x", (x,), known=True),
            Form("np.sum(np.concatenate([x * x, np.exp(y)]), axis=0)", (x, y)),
            Form("np.stack([x, x * x], axis=1)", (x,)),
            Form(f"np.pad(x, (({k}, 1), (0, 2)))", (x,)),
            Form(f"np.roll(x, {k}, axis=0) + x", (x,)),
        )
    )


@form()
def moves(draw: random.Random) -> Form:
    shape = split(draw, 3)
    step = draw.choice((2, 3, 7, -1))
    return draw.choice(
        (
            Form("np.transpose(x, (2, 0, 1)) * 2", (Argument(shape),)),
            Form("np.reshape(np.sin(x), (-1,))", (Argument(tuple(max(s, 1) for s in shape)),)),
            Form(f"x[::{step}] * 3", (Argument(shape),), known=True),
            Form(f"np.sin(x[:, ::{step}])", (Argument(shape),), known=True),
            Form("np.swapaxes(x, 0, 2) + np.sum(x)", (Argument(shape),)),
            Form("np.repeat(x, 3, axis=0)", (Argument(shape[:2]),), known=True),
            Form("np.tile(x, 3)", (Argument((size(draw, MOST // 4),)),), known=True),
            Form("np.diff(x, axis=0)", (Argument(tuple(max(s, 1) for s in shape[:2])),), known=True),
        )
    )


@form()
def convolutions(draw: random.Random) -> Form:
    n = max(1, size(draw, 200_000))
    k = max(1, size(draw, min(n, 2000 if n < 20_000 else 60)))
    mode = draw.choice(("full", "same", "valid"))
    return Form(f"np.convolve(x, y, mode={mode!r})", (Argument((n,)), Argument((k,))), known=True)


@form()
def transforms(draw: random.Random) -> Form:
    n = max(1, size(draw, 300_000))
    rows = max(1, size(draw, max(1, 300_000 // n)))
    source = draw.choice(
        (
            "np.abs(np.fft.fft(x)) ** 2",
            "np.real(np.fft.ifft(x))",
            "np.abs(np.fft.rfft(x)) ** 2",
            "np.imag(np.fft.fft(x))",
        )
    )
    return Form(source, (Argument((rows, n)),), ("float64",), known=True)


@form(2)
def factorisations(draw: random.Random) -> Form:
    n, columns = max(1, size(draw, MOST_ROWS)), short(draw, 100)
    positive, well, right = Argument((n, n), "positive"), Argument((n, n), "well"), Argument((n, columns))
    few = min(n, 60)
    return draw.choice(
        (
            Form("np.linalg.cholesky(x + x.T)", (positive,), known=True),
            Form("np.linalg.solve(x, y)", (well, right)),
            Form("np.linalg.solve(x, y)", (well, Argument((n,)))),
            Form("np.linalg.inv(x)", (well,)),
            Form("np.linalg.slogdet(x)[1]", (well,)),
            Form("np.linalg.solve(x.T @ x, x.T @ y)", (Argument((n, n), "well"), right)),
            Form("np.linalg.eigvalsh(x + x.T)", (Argument((few, few), "positive"),), ("float64",)),
            Form("np.linalg.svd(x, compute_uv=False)", (Argument((few, few), "well"),), ("float64",)),
            Form("np.abs(np.linalg.qr(x)[1])", (Argument((few, few), "well"),), ("float64",)),
        )
    )


@form()
def statistics(draw: random.Random) -> Form:
    variables, samples = max(2, short(draw, 20)), max(2, size(draw, MOST // 20))
    return draw.choice(
        (
            Form("np.cov(x)", (Argument((variables, samples)),)),
            Form("np.linalg.solve(x.T @ x, x.T @ y)", (Argument((samples + 30, 3)), Argument((samples + 30,)))),
            Form("np.histogram(x, bins=20, range=(-3, 3))[0]", (Argument((samples,)),), exact=True, known=True),
        )
    )


def _row(draw: random.Random, most: int) -> tuple[int, int]:
    """Iterations, and the elements of a row of at most so many in all."""
    iterations = max(1, size(draw, draw.choice((3, 20, 300, 3000))))
    return iterations, size(draw, max(1, most // iterations))


@form(4)
def loops(draw: random.Random) -> Form:
    iterations, row = _row(draw, 4_000_000)
    k = max(1, short(draw, 70))
    x, rows = Argument((row,)), Argument((iterations, row))
    last, narrow = iterations - 1, min(row, 30)
    return draw.choice(
        (
            Form(f"m.fori({iterations}, lambda i, c: np.sin(c) + 0.1, x)", (x,)),
            Form(f"m.fori({iterations}, lambda i, c: c * 0.9 + x, x)", (x,)),
            Form("m.scan(lambda c, r: (0.5 * c + r, c * r), 0 * y, x)[1]", (rows, x)),
            Form("m.scan(lambda c, r: (np.tanh(c + r), np.sum(c)), y, x)[1]", (rows, x)),
            Form("m.scan(lambda c, r: (c + np.sum(r * r), c), 0 * y, x)[0]", (rows, Argument(()))),
            Form(f"m.fori({iterations}, lambda i, c: m.set(c, {last} - i, 0.5 * c[i]), x)", (rows,)),
            Form(f"m.fori({iterations}, lambda i, c: m.add(c, i, y), x)", (rows, x)),
            Form(
                "m.while_(lambda c: np.sum(c[0]) < 30, lambda c: (c[0] + 1 + 0 * y, np.cos(c[1])), (y, x))[1]",
                (x, Argument((3,))),
            ),
            Form(
                f"m.fori({min(iterations, 50)}, lambda i, c: np.tanh(c @ y), x)",
                (Argument((min(max(row // k, 1), 3000), k)), Argument((k, k), "small")),
            ),
            Form(
                f"m.fori({min(iterations, 30)}, lambda i, c: np.linalg.solve(y, c), x)",
                (Argument((max(narrow, 1),)), Argument((max(narrow, 1),) * 2, "well")),
            ),
            Form(f"m.fori({min(iterations, 40)}, lambda i, c: np.cumsum(c) / x.shape[0] + x, x)", (x,)),
            Form(
                "np.sum(m.scan(lambda c, r: (c + 1, m.fori(3, lambda i, d: d * np.cos(r), r)), 0.0, x)[1], axis=0)",
                (rows,),
            ),
        )
    )


@form()
def loops_of_narrow_rows(draw: random.Random) -> Form:
    """Rows of one byte and more."""
    iterations, row = _row(draw, 1_000_000)
    dtypes = ("uint8", "int8", "int32", "bool")
    rows, x = Argument((iterations, row)), Argument((row,))
    return draw.choice(
        (
            Form("m.scan(lambda c, r: (c ^ r, c & r), y, x)[1]", (rows, x), dtypes, exact=True),
            Form("m.scan(lambda c, r: (r, c), y, x)[1]", (rows, x), dtypes, exact=True),
            Form(f"m.fori({iterations}, lambda i, c: m.set(c, i, y), x)", (rows, x), dtypes, exact=True),
        )
    )
