"""Programs with one size near a threshold: values are compared with NumPy, gradients with the reference engine."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import ctrlgrad as cg
import ctrlgrad.numpy as cnp

MOST = 1 << 21
# A function of `np` (NumPy or ctrlgrad.numpy), and its arguments.
Case = tuple[Callable[..., Any], list[np.ndarray]]
RNG = np.random.default_rng(0)


def _normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape)


def products(n: int) -> Iterator[Case]:
    yield lambda np, x: x @ x, [_normal(n)]
    yield lambda np, x, y: x @ y, [_normal(3, n), _normal(n, 5)]
    yield lambda np, x, y: x @ y, [_normal(n, 3), _normal(3, 2)]
    yield lambda np, x, y: x.T @ y.T, [_normal(2, 1), _normal(n, 2)]
    if n < 1100:
        yield lambda np, x, y: x @ y, [_normal(n, 40), _normal(40, n)]
        yield lambda np, x, y: x @ y.T, [_normal(70, n), _normal(130, n)]
    if n < 100:
        yield lambda np, x, y: (x @ y[:, :, None])[:, :, 0], [_normal(3, n, n), _normal(3, n)]
    if n > 1 << 17:
        yield lambda np, x, y: x @ y, [_normal(4, n // 16), _normal(n // 16, 4)]


def beside_products(n: int) -> Iterator[Case]:
    """Loops with a product of about `n` multiplications, and kernels that threads may share since they are awake."""

    def loop(np: Any, x: Any, y: Any) -> Any:
        return _fori(np, 3, lambda i, c: np.tanh(c @ y) + 0.1 * np.sum(c * c, axis=0), x)

    for rows, k in ((n // 128**2, 128), (n // 128**2 + 1, 128), (16, round((n / 16) ** 0.5)), (45, 128), (47, 128)):
        yield loop, [_normal(rows, k) / 10, _normal(k, k) / 10]


def factors(n: int) -> Iterator[Case]:
    well = _normal(n, n) / max(n, 1) ** 0.5 + 3 * np.eye(n)
    yield lambda np, x, y: np.linalg.solve(x, y), [well, _normal(n, 3)]
    yield lambda np, x, y: np.linalg.solve(x, y), [well, _normal(n)]
    yield lambda np, x: np.linalg.slogdet(x)[1], [well]
    yield lambda np, x: np.linalg.cholesky(x @ x.T), [well]


def factor_batches(n: int) -> Iterator[Case]:
    """Batches of factors: `n` units of work of one matrix, which has 16 a multiplication, and of all matrices."""
    side = round((n / 16) ** (1 / 3))
    for count, k in ((4, side - 1), (4, side), (4, side + 1), (n // 432, 3), (n // 432 + 1, 3)):
        well = _normal(count, k, k) / max(k, 1) ** 0.5 + 3 * np.eye(k)
        yield lambda np, x: np.linalg.cholesky(x @ np.swapaxes(x, 1, 2)), [well]
        yield lambda np, x, y: np.linalg.solve(x, y), [well, _normal(count, k, 2)]


def nests(n: int) -> Iterator[Case]:
    yield lambda np, x: np.sum(np.sin(x) * x), [_normal(n)]
    yield lambda np, x: np.exp(x) + 2 * x, [_normal(n)]
    yield lambda np, x: np.sum(x * x, axis=0), [_normal(n, 3)]
    yield lambda np, x: np.sum(x * x, axis=0), [_normal(3, n)]
    yield lambda np, x: np.exp(x - np.max(x, axis=1, keepdims=True)), [_normal(3, max(n, 1))]
    yield lambda np, x: np.concatenate([x * x, x]).T * 2, [_normal(n, 2)]
    # A threshold that counts instructions instead of elements: a sine has about 22.
    yield lambda np, x: np.sum(np.sin(x)), [_normal(n // 22 + 1)]
    yield lambda np, x: np.cumsum(x), [_normal(n)]
    yield lambda np, x: np.cumsum(x, axis=0), [_normal(n // 3, 3)]
    # Indices: bytes that are read, and rows that are chosen.
    chosen, rows = RNG.integers(0, n + 1, n // 8 + 1), RNG.integers(0, 5, n // 64 + 1)
    yield lambda np, x: x[chosen] * 2, [_normal(n + 1)]
    yield lambda np, x: x[rows] + 1, [_normal(5, 4)]
    yield lambda np, x: np.sum(x[:, rows], axis=1), [_normal(4, 5)]


def vectors(n: int) -> Iterator[Case]:
    """Programs on rows of `n` vectors, for every number of lanes that a vector has."""
    for k, lanes in enumerate((2, 4, 8, 16)):
        columns = n * lanes + (n + k) % 3 - 1
        yield lambda np, x: np.sum(x * x, axis=1) + np.max(x, axis=1), [_normal(n * lanes, columns)]


def chains(n: int) -> Iterator[Case]:
    def chain(np: Any, x: Any) -> Any:
        y = x
        for k in range(n):
            y = y * 0.5 + x if k % 2 else y * x
        return y

    for shape in ((3,), (70, 3), (9, 40)):
        yield chain, [_normal(*shape)]
        yield lambda np, x: np.sum(chain(np, x), axis=-1), [_normal(*shape)]


def columns(n: int) -> Iterator[Case]:
    """A loop that reduces short rows again and again."""

    def loop(np: Any, x: Any) -> Any:
        return _fori(np, 5, lambda i, c: c * 0.5 + np.sum(x * c[:, None], axis=1), x[:, 0])

    if n < 100:
        yield loop, [_normal(40, max(n, 1))]
        yield loop, [_normal(max(n, 1), 5)]
    else:
        yield loop, [_normal(n // 4, 4)]
        yield loop, [_normal(n // 4 + 1, 4)]


def sorts(n: int) -> Iterator[Case]:
    yield lambda np, x: np.sort(x), [_normal(n)]
    yield lambda np, x: np.sort(x, axis=0), [_normal(n, 2)]
    yield lambda np, x: np.sort(x * x)[-max(n // 16, 1) :], [_normal(16 * n + 1)]
    yield lambda np, x: np.argsort(x, kind="stable") * 1.0, [_normal(n).round(1)]


def cumulative(n: int) -> Iterator[Case]:
    """Cumulative sums of `n` columns, of `n` positions and of `n` rows, and of complex numbers."""
    yield lambda np, x: np.cumsum(x, axis=0), [_normal(5, n)]
    yield lambda np, x: np.cumsum(x[::-1], axis=0), [_normal(n, 5)]
    yield lambda np, x: np.cumsum(x, axis=1), [_normal(3, n)]
    yield lambda np, x: np.cumsum(x, axis=1), [_normal(2, 70, n)]
    yield lambda np, x: np.cumsum(x + 1j * x, axis=0).imag, [_normal(3, n)]
    yield lambda np, x: np.cumsum(x, axis=0), [_normal(20_000, n)]


def transforms(n: int) -> Iterator[Case]:
    """Fourier transforms of about `n` numbers with no prime factor above 5, and `n` transforms in rows and columns."""
    size = next(k for k in itertools.count(max(n, 1)) if 30**20 % k == 0)
    yield lambda np, x: np.fft.fft(x).imag, [_normal(size)]
    yield lambda np, x: np.fft.irfft(np.fft.rfft(x) * 2, 2 * size), [_normal(2, 2 * size)]
    yield lambda np, x: np.fft.rfft(x, axis=0).imag, [_normal(size, 3)]
    if n < 100:
        yield lambda np, x: np.fft.ifft(x).imag, [_normal(n, 16)]
        yield lambda np, x: np.fft.rfft(x, axis=1).imag, [_normal(2, 6, n)]


def stacks(n: int) -> Iterator[Case]:
    """Gradients of loops that save rows: `n` rows, rows of `n` elements, and rows of `n` arrays."""
    if n < 5000:
        yield lambda np, x: _fori(np, n, lambda i, c: np.sin(c) * 1.1, x), [_normal(3)]
    yield lambda np, x: _fori(np, 5, lambda i, c: np.sin(c) * 1.1, x), [_normal(n)]
    if n < 20:

        def many(np: Any, x: Any) -> Any:
            carried = _fori(np, 4, lambda i, c: tuple(np.sin(x) * x for x in c), tuple(x + k for k in range(n)))
            return sum(carried, 0.0 * x)

        yield many, [_normal(3)]


def calls(n: int) -> Iterator[Case]:
    """Programs with `n` calls of elementary functions, on numbers in a loop and on long vectors."""

    def called(np: Any, x: Any) -> Any:
        for k in range(n):
            x = np.sin(x) + k
        return x

    yield lambda np, x: _fori(np, 3, lambda i, c: called(np, c), x), [_normal()]
    yield called, [_normal(5000)]


def buffers(n: int) -> Iterator[Case]:
    """Programs with `n` bytes of small arrays that are live at the same time."""
    count = min(n // 128 + 1, 200)

    def alive(np: Any, x: Any) -> Any:
        made = [x @ (x + k) for k in range(count)]
        return sum((a @ b for a, b in zip(made, made[::-1], strict=True)), 0.0 * x)

    yield alive, [_normal(4, 4) / 10]


PROGRAMS = {made.__name__: made for made in (products, factors, nests, vectors, chains, columns, sorts, stacks)}
PROGRAMS |= {made.__name__: made for made in (calls, buffers, cumulative, factor_batches, transforms, beside_products)}


def _fori(np_: Any, count: int, fn: Callable[..., Any], carry: Any) -> Any:
    if np_ is cnp:
        return cg.fori_loop(0, count, fn, carry)
    for k in range(count):
        carry = fn(k, carry)
    return carry


def judge(name: str, number: int) -> None:
    """Run a group's programs at one number. Raise AssertionError where results differ."""
    for k, (fn, given) in enumerate(PROGRAMS[name](number)):
        what = f"{name} at {number}, program {k}, {[x.shape for x in given]}"
        found = cg.function(lambda *x, fn=fn: fn(cnp, *x), engine="native")(*given)
        _same(what, found, fn(np, *given))
        # Gradients take most of the time, so a program's gradient runs for one of three neighbouring numbers.
        if (number + k) % 3 or (name == "chains" and number > 100):
            continue
        gradient = cg.grad(lambda *x, fn=fn: cnp.sum(fn(cnp, *x) ** 2), argnums=tuple(range(len(given))))
        results = (cg.function(gradient, engine=engine)(*given) for engine in ("native", "reference"))
        for result, reference in zip(*results, strict=True):
            _same(f"{what}, gradient", result, reference)


def _same(what: str, found: Any, expected: Any) -> None:
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape, what
    wrong = np.abs(found - expected).max(initial=0)
    assert wrong <= 1e-9 * max(1, np.abs(expected).max(initial=0)), (what, wrong)
