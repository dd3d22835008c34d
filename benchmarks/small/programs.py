"""The programs: a loss of some arrays, and the arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.small.general import GENERAL
from benchmarks.small.library import Library, Small
from benchmarks.small.wide import WIDE


def matrix_vector(lib: Library, n: int, steps: int) -> Small:
    """A recurrence of matrix-vector products."""
    rng = np.random.default_rng(0)

    def loss(w: Any, h: Any) -> Any:
        return lib.array.sum(lib.fori_loop(0, steps, lambda _, h: lib.array.tanh(w @ h), h) ** 2)

    return Small(loss, (rng.normal(size=(n, n)) / np.sqrt(n), rng.normal(size=n)), 2)


def alignment(lib: Library, n: int, steps: int) -> Small:
    """The forward pass of connectionist temporal classification: vectors of about a hundred log-probabilities."""
    rng = np.random.default_rng(0)
    blank_before = np.where(np.arange(n) % 2 == 1, 0.0, -1e9)

    def loss(scores: Any) -> Any:
        def step(alpha: Any, row: Any) -> Any:
            one = lib.array.concatenate([lib.array.full((1,), -1e9), alpha[:-1]])
            two = lib.array.concatenate([lib.array.full((2,), -1e9), alpha[:-2]]) + blank_before
            return lib.array.logaddexp(lib.array.logaddexp(alpha, one), two) + row, None

        alpha = lib.scan(step, scores[0], scores[1:])[0]
        return -lib.array.logaddexp(alpha[-1], alpha[-2])

    return Small(loss, (rng.normal(size=(steps, n)),), 1)


def many_scalars(lib: Library, n: int, steps: int) -> Small:
    """`vmap` of a loop over a scalar."""
    rng = np.random.default_rng(0)

    def one(x: Any, a: Any) -> Any:
        return lib.fori_loop(0, steps, lambda _, x: a * lib.array.sin(x) + 0.1 * x, x)

    def loss(x: Any, a: Any) -> Any:
        return lib.array.sum(lib.vmap(one)(x, a))

    return Small(loss, (rng.random(n), rng.uniform(0.5, 1.0, n)), 2)


def slow_lane(lib: Library, n: int, steps: int) -> Small:
    """Loops that end where data says: all but one of them soon."""

    def loss(x: Any, count: Any) -> Any:
        body = lambda s: (lib.array.sin(s[0]) * x + s[0], s[1] + 1)
        return lib.while_loop(lambda s: s[1] < count, body, (x, 0), steps)[0]

    counts = np.full(n, 5)
    counts[n // 2] = steps
    return Small(loss, (np.linspace(0.1, 0.2, n), counts), 1, is_mapped=True)


def kalman(lib: Library, n: int, steps: int) -> Small:
    """A Kalman filter, with a solve in each step."""
    rng = np.random.default_rng(0)
    f, h = np.eye(n) + 0.05 * rng.normal(size=(n, n)), np.eye(n) + 0.1 * rng.normal(size=(n, n))

    def loss(f: Any, h: Any, q: Any, seen: Any) -> Any:
        def step(carry: Any, y: Any) -> Any:
            x, p, total = carry
            x, p = f @ x, f @ p @ f.T + q * np.eye(n)
            s = h @ p @ h.T + np.eye(n)
            gain = lib.array.linalg.solve(s, h @ p).T
            error = y - h @ x
            return (x + gain @ error, p - gain @ h @ p, total + lib.array.sum(error * (gain @ error))), None

        return lib.scan(step, (np.zeros(n), np.eye(n), lib.array.zeros(())), seen)[0][2]

    return Small(loss, (f, h, np.asarray(0.1), rng.normal(size=(steps, n))), 3)


def hidden_markov(lib: Library, n: int, steps: int) -> Small:
    """The forward pass of a hidden Markov model, in logarithms."""
    rng = np.random.default_rng(0)

    def loss(transitions: Any, emissions: Any) -> Any:
        def step(alpha: Any, row: Any) -> Any:
            return lib.logsumexp(alpha[:, None] + transitions, 0) + row, None

        return lib.logsumexp(lib.scan(step, emissions[0], emissions[1:])[0], 0)

    return Small(loss, (rng.normal(size=(n, n)), rng.normal(size=(steps, n))), 2)


def sinkhorn(lib: Library, n: int, steps: int) -> Small:
    """Optimal transport by scaling rows and columns in turn."""
    rng = np.random.default_rng(0)
    share = np.full(n, 1.0 / n)

    def loss(cost: Any) -> Any:
        kernel = lib.array.exp(-cost / 0.5)

        def step(_: Any, v: Any) -> Any:
            return share / (kernel.T @ (share / (kernel @ v)))

        v = lib.fori_loop(0, steps, step, np.ones(n))
        return lib.array.sum((share / (kernel @ v))[:, None] * kernel * v * cost)

    return Small(loss, (rng.random((n, n)),), 1)


def updates(lib: Library, n: int, steps: int) -> Small:
    """An array that changes by one number in each iteration."""
    rng = np.random.default_rng(0)

    def loss(xs: Any, a: Any) -> Any:
        def step(t: Any, xs: Any) -> Any:
            i = (7 * t) % n
            return xs.at[i].set(a * lib.array.sin(xs[i]) + 0.1 * xs[(i + 1) % n])

        return lib.array.sum(lib.fori_loop(0, steps, step, xs))

    return Small(loss, (rng.random(n), np.asarray(0.9)), 2)


def swaps(lib: Library, n: int, steps: int) -> Small:
    """Exchanges of two elements of an array, counted: an element is read after another one was replaced."""
    rng = np.random.default_rng(0)

    def loss(x: Any) -> Any:
        def step(carry: Any) -> Any:
            t, x = carry
            i, j = t % n, (7 * t + 3) % n
            y = x.at[i].set(0.9 * lib.array.sin(x[j]))
            return t + 1, y.at[j].set(x[i] + 0.1 * x[j])

        count, x = lib.while_loop(lambda carry: carry[0] < steps, step, (0, x), steps)
        return lib.array.sum(x * x) / count

    return Small(loss, (rng.random(n),), 1)


def integrator(lib: Library, steps: int) -> Small:
    """An explicit integrator of fourth order for three coupled numbers."""

    def slope(s: Any, r: Any) -> Any:
        x, y, z = s
        return 10.0 * (y - x), x * (r - z) - y, x * y - 8.0 / 3.0 * z

    def moved(s: Any, k: Any, h: float) -> Any:
        return tuple(a + h * b for a, b in zip(s, k, strict=True))

    def loss(x: Any, r: Any) -> Any:
        def step(_: Any, s: Any) -> Any:
            k1 = slope(s, r)
            k2 = slope(moved(s, k1, 0.5e-3), r)
            k3 = slope(moved(s, k2, 0.5e-3), r)
            k4 = slope(moved(s, k3, 1e-3), r)
            total = tuple(a + 2.0 * b + 2.0 * c + d for a, b, c, d in zip(k1, k2, k3, k4, strict=True))
            return moved(s, total, 1e-3 / 6.0)

        return sum(lib.fori_loop(0, steps, step, (x, 0.5 * x, 20.0 + x)))

    return Small(loss, (np.asarray(1.2), np.asarray(28.0)), 2)


def stencil(lib: Library, n: int, steps: int) -> Small:
    """Heat along a line."""
    rng = np.random.default_rng(0)

    def loss(u: Any, k: Any) -> Any:
        def step(_: Any, u: Any) -> Any:
            return u.at[1:-1].add(k * (u[2:] - 2.0 * u[1:-1] + u[:-2]))

        return lib.array.sum(lib.fori_loop(0, steps, step, u) ** 2)

    return Small(loss, (rng.random(n), np.asarray(0.2)), 2)


def decoder(lib: Library, layers: int, width: int, length: int, batch: int) -> Small:
    """The mean loss of decoders that attend to caches which grow by a row in each step; one `vmap` over the batch."""
    rng = np.random.default_rng(0)
    shapes = {"q": 1, "k": 1, "v": 1, "o": 1, "up": 2}
    weights = [
        {name: rng.normal(size=(width, m * width)) / np.sqrt(width) for name, m in shapes.items()}
        | {"down": rng.normal(size=(2 * width, width)) / np.sqrt(2 * width)}
        for _ in range(layers)
    ]

    def one(weights: Any, start: Any) -> Any:
        def step(t: Any, carry: Any) -> Any:
            x, caches, total = carry
            grown = []
            for w, (keys, values) in zip(weights, caches, strict=True):
                keys, values = keys.at[t].set(x @ w["k"]), values.at[t].set(x @ w["v"])
                scores = lib.array.where(np.arange(length) <= t, keys @ (x @ w["q"]) / np.sqrt(width), -1e9)
                x = x + (lib.softmax(scores) @ values) @ w["o"]
                x = x + lib.array.tanh(x @ w["up"]) @ w["down"]
                x = x / lib.array.sqrt(lib.array.mean(x * x) + 1e-6)
                grown.append((keys, values))
            return x, grown, total + lib.array.sum(lib.array.sin(x))

        rows = lib.array.zeros((length, width))
        caches = [(rows, rows) for _ in range(layers)]
        return lib.fori_loop(0, length, step, (start, caches, lib.array.zeros(())))[2]

    def loss(weights: Any, starts: Any) -> Any:
        return lib.array.mean(lib.vmap(lambda start: one(weights, start))(starts))

    return Small(loss, (weights, rng.normal(size=(batch, width))), 1)


def nested(lib: Library, depth: int, batch: int) -> Small:
    """Loops and branches in each other, in turn, under `vmap`."""

    def level(k: int, x: Any) -> Any:
        if k == 0:
            return lib.array.sin(x) + 0.1 * x
        if k % 2:
            return lib.fori_loop(0, 2, lambda _, y: level(k - 1, y) * 0.9, x)
        return lib.cond(x > 0.5, lambda y: level(k - 1, y), lambda y: 0.5 * y * y, x)

    def loss(xs: Any) -> Any:
        return lib.array.sum(lib.vmap(lambda x: level(depth, x))(xs))

    return Small(loss, (np.linspace(0.1, 1.4, batch),), 1)


def ten_operations(lib: Library) -> Small:
    """A scalar function of three numbers: nearly all of a call of its gradient is what a call costs."""

    def loss(a: Any, b: Any, c: Any) -> Any:
        x = lib.array.sin(a * b) + c
        y = lib.array.exp(-x * x) * b
        return lib.array.tanh(y + a) / (1.0 + c * c)

    return Small(loss, (np.asarray(0.3), np.asarray(0.7), np.asarray(1.1)), 3)


PROGRAMS: dict[str, Callable[..., Small]] = {
    f.__name__: f
    for f in (
        matrix_vector,
        alignment,
        many_scalars,
        slow_lane,
        kalman,
        hidden_markov,
        sinkhorn,
        updates,
        swaps,
        integrator,
        stencil,
        decoder,
        nested,
        ten_operations,
        *GENERAL,
        *WIDE,
    )
}


def read(leaves: Any) -> dict[str, np.ndarray]:
    """The loss and the gradients under shared names."""
    return {f"result {k}": np.asarray(x) for k, x in enumerate(leaves)}
