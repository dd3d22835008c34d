"""General programs: networks, simulations, filters and solvers as people write them.

None of them shaped the engine: each is a program from a field that a new user may come from. `programs.py` adds them to
its table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.small.library import Library, Small


def mlp(lib: Library, layers: int, width: int, batch: int) -> Small:
    """Mean squared error of a multilayer perceptron."""
    rng = np.random.default_rng(0)
    weights = [(rng.normal(size=(width, width)) / np.sqrt(width), np.zeros(width)) for _ in range(layers)]

    def loss(weights: Any, x: Any, y: Any) -> Any:
        for w, b in weights:
            x = lib.array.tanh(x @ w + b)
        return lib.array.mean((x - y) ** 2)

    return Small(loss, (weights, rng.normal(size=(batch, width)), rng.normal(size=(batch, width))), 1)


def transformer(lib: Library, layers: int, width: int, length: int) -> Small:
    """Causal transformer with one attention head, unrolled over its layers."""
    rng = np.random.default_rng(0)
    shapes = {"q": (width, width), "k": (width, width), "v": (width, width), "up": (width, 4 * width)}
    shapes |= {"down": (4 * width, width)}
    weights = [{k: rng.normal(size=s) / np.sqrt(s[0]) for k, s in shapes.items()} for _ in range(layers)]
    mask = np.where(np.tril(np.ones((length, length))) > 0, 0.0, -1e9)

    def normalised(x: Any) -> Any:
        centred = x - lib.array.mean(x, axis=-1, keepdims=True)
        return centred / lib.array.sqrt(lib.array.mean(centred * centred, axis=-1, keepdims=True) + 1e-5)

    def loss(weights: Any, x: Any) -> Any:
        for w in weights:
            z = normalised(x)
            scores = (z @ w["q"]) @ (z @ w["k"]).T / np.sqrt(width) + mask
            x = x + lib.softmax(scores) @ (z @ w["v"])
            x = x + lib.array.maximum(normalised(x) @ w["up"], 0.0) @ w["down"]
        return lib.array.mean(x * x)

    return Small(loss, (weights, rng.normal(size=(length, width))), 1)


def convnet(lib: Library, n: int, channels: int, batch: int) -> Small:
    """Two 3 x 3 convolutions, written as sums over shifted images, with a mean over the image."""
    rng = np.random.default_rng(0)

    def convolved(x: Any, w: Any) -> Any:
        rows, columns = x.shape[1] - 2, x.shape[2] - 2
        return sum(x[:, i : i + rows, j : j + columns] @ w[i, j] for i in range(3) for j in range(3))

    def loss(first: Any, second: Any, x: Any) -> Any:
        x = lib.array.maximum(convolved(x, first), 0.0)
        x = lib.array.maximum(convolved(x, second), 0.0)
        return lib.array.mean(lib.array.mean(x, axis=(1, 2)) ** 2)

    first, second = rng.normal(size=(3, 3, 3, channels)) / 5, rng.normal(size=(3, 3, channels, channels)) / 9
    return Small(loss, (first, second, rng.normal(size=(batch, n, n, 3))), 2)


def tagger(lib: Library, n: int, steps: int, batch: int, tags: int) -> Small:
    """Cross-entropy of the tags that a GRU gives to each element of a batch of sequences."""
    rng = np.random.default_rng(0)
    weights = {
        "gates": rng.normal(size=(2 * n, 2 * n)) / np.sqrt(2 * n),
        "new": rng.normal(size=(2 * n, n)) / np.sqrt(2 * n),
        "out": rng.normal(size=(n, tags)) / np.sqrt(n),
    }
    wanted = np.eye(tags)[rng.integers(0, tags, (steps, batch))]

    def sigmoid(x: Any) -> Any:
        return 0.5 + 0.5 * lib.array.tanh(0.5 * x)

    def loss(weights: Any, xs: Any) -> Any:
        def step(h: Any, row: Any) -> Any:
            x, y = row
            gates = sigmoid(lib.array.concatenate([x, h], axis=1) @ weights["gates"])
            new = lib.array.tanh(lib.array.concatenate([x, gates[:, :n] * h], axis=1) @ weights["new"])
            h = gates[:, n:] * h + (1.0 - gates[:, n:]) * new
            scores = h @ weights["out"]
            return h, lib.array.mean(lib.logsumexp(scores, 1) - lib.array.sum(scores * y, axis=1))

        return lib.array.mean(lib.scan(step, np.zeros((batch, n)), (xs, wanted))[1])

    return Small(loss, (weights, rng.normal(size=(steps, batch, n))), 1)


def state_space(lib: Library, n: int, steps: int) -> Small:
    """Diagonal linear state-space layer with a learned step size."""
    rng = np.random.default_rng(0)

    def loss(decay: Any, into: Any, out: Any, size: Any, xs: Any) -> Any:
        factor = lib.array.exp(-lib.array.exp(decay) * lib.array.exp(size))

        def step(h: Any, x: Any) -> Any:
            h = factor * h + (1.0 - factor) * into * x
            return h, lib.array.sum(out * h)

        return lib.array.mean(lib.scan(step, np.zeros(n), xs)[1] ** 2)

    arrays = (rng.normal(size=n), rng.normal(size=n), rng.normal(size=n), np.asarray(-1.0), rng.normal(size=steps))
    return Small(loss, arrays, 4)


def alignments(lib: Library, n: int, steps: int, batch: int) -> Small:
    """Forward pass of connectionist temporal classification for a batch, by `vmap`."""
    rng = np.random.default_rng(0)

    def one(scores: Any) -> Any:
        def step(alpha: Any, row: Any) -> Any:
            before = lib.array.concatenate([lib.array.full((1,), -1e9), alpha[:-1]])
            return lib.array.logaddexp(alpha, before) + row, None

        return -lib.scan(step, scores[0], scores[1:])[0][-1]

    return Small(lambda scores: lib.array.mean(lib.vmap(one)(scores)), (rng.normal(size=(batch, steps, n)),), 1)


def cartpole(lib: Library, n: int, steps: int) -> Small:
    """Cost of a rollout of a cart with a pole, under a policy with one hidden layer."""
    rng = np.random.default_rng(0)

    def loss(first: Any, second: Any) -> Any:
        def step(_: Any, carry: Any) -> Any:
            state, total = carry
            force = 10.0 * lib.array.tanh(lib.array.sum(second * lib.array.tanh(first @ state)))
            _, v, angle, spin = state[0], state[1], state[2], state[3]
            sine, cosine = lib.array.sin(angle), lib.array.cos(angle)
            push = (force + 0.05 * spin * spin * sine) / 1.1
            turn = (9.8 * sine - cosine * push) / (0.5 * (4.0 / 3.0 - 0.1 * cosine * cosine / 1.1))
            slope = lib.array.stack([v, push - 0.05 * turn * cosine / 1.1, spin, turn])
            return state + 0.02 * slope, total + angle * angle + 0.1 * state[0] * state[0]

        return lib.fori_loop(0, steps, step, (np.array([0.0, 0.0, 0.1, 0.0]), lib.array.zeros(())))[1]

    return Small(loss, (rng.normal(size=(n, 4)), rng.normal(size=n) / n), 2)


def particle_filter(lib: Library, n: int, steps: int) -> Small:
    """Log-likelihood of a bootstrap particle filter with systematic resampling at each step."""
    rng = np.random.default_rng(0)
    offsets = (np.arange(n) + 0.5) / n

    def loss(a: Any, width: Any, noise: Any, seen: Any) -> Any:
        def step(carry: Any, row: Any) -> Any:
            x, total = carry
            e, y = row
            x = a * x + 0.3 * lib.array.sin(x) + 0.5 * e
            weights = -0.5 * ((y - x) / width) ** 2 - lib.array.log(width)
            shares = lib.softmax(weights)
            chosen = lib.array.searchsorted(lib.array.cumsum(shares), offsets)
            x = x[lib.array.clip(chosen, 0, n - 1)]
            return (x, total + lib.logsumexp(weights, 0)), None

        return -lib.scan(step, (np.zeros(n), lib.array.zeros(())), (noise, seen))[0][1]

    return Small(loss, (np.asarray(0.9), np.asarray(0.7), rng.normal(size=(steps, n)), rng.normal(size=steps)), 2)


def neural_ode(lib: Library, n: int, steps: int, batch: int) -> Small:
    """Fourth-order Runge-Kutta steps of a small network's vector field, for a batch of states."""
    rng = np.random.default_rng(0)

    def loss(first: Any, second: Any, x: Any) -> Any:
        def slope(x: Any) -> Any:
            return lib.array.tanh(x @ first) @ second

        def step(_: Any, x: Any) -> Any:
            k1 = slope(x)
            k2 = slope(x + 0.05 * k1)
            k3 = slope(x + 0.05 * k2)
            return x + 0.1 / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + slope(x + 0.1 * k3))

        return lib.array.mean(lib.fori_loop(0, steps, step, x) ** 2)

    first, second = rng.normal(size=(n, 4 * n)) / np.sqrt(n), rng.normal(size=(4 * n, n)) / np.sqrt(4 * n)
    return Small(loss, (first, second, rng.normal(size=(batch, n))), 2)


def adaptive(lib: Library, most: int) -> Small:
    """Embedded Euler-Heun steps of a stiff oscillator; each step's size follows from its error."""

    def loss(mu: Any, x: Any) -> Any:
        def slope(x: Any, v: Any) -> Any:
            return v, mu * (1.0 - x * x) * v - x

        def step(carry: Any) -> Any:
            t, x, v, h, count = carry
            a, b = slope(x, v)
            c, d = slope(x + h * a, v + h * b)
            error = 0.5 * h * (lib.array.abs(c - a) + lib.array.abs(d - b)) + 1e-12
            is_good = error < 1e-3
            t = lib.array.where(is_good, t + h, t)
            x, v = (
                lib.array.where(is_good, x + 0.5 * h * (a + c), x),
                lib.array.where(is_good, v + 0.5 * h * (b + d), v),
            )
            h = h * lib.array.clip(0.9 * lib.array.sqrt(1e-3 / error), 0.3, 2.0)
            return t, x, v, h, count + 1

        start = (lib.array.zeros(()), x, lib.array.zeros(()), lib.array.full((), 0.01), 0)
        end = lib.while_loop(lambda c: (c[0] < 2.0) & (c[4] < most), step, start, most)
        return end[1] ** 2 + end[2] ** 2

    return Small(loss, (np.asarray(2.0), np.asarray(1.5)), 2)


def ray_marching(lib: Library, n: int, most: int) -> Small:
    """Mean depth of an image of a sphere and a wave, each ray marched until it is near the surface."""
    angles = np.linspace(-0.5, 0.5, n)
    directions = np.stack([*np.meshgrid(angles, angles), np.ones((n, n))], -1).reshape(-1, 3)
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)

    def loss(radius: Any, wave: Any) -> Any:
        def distance(p: Any) -> Any:
            ripple = wave * lib.array.sin(5.0 * p[0]) * lib.array.sin(5.0 * p[1])
            return lib.array.sqrt(p[0] * p[0] + p[1] * p[1] + (p[2] - 4.0) ** 2) - radius + ripple

        def one(direction: Any) -> Any:
            def goes_on(c: Any) -> Any:
                return (lib.array.abs(distance(c[0] * direction)) > 1e-4) & (c[0] < 10.0) & (c[1] < most)

            def step(c: Any) -> Any:
                return c[0] + 0.7 * distance(c[0] * direction), c[1] + 1

            return lib.while_loop(goes_on, step, (lib.array.ones(()), 0), most)[0]

        return lib.array.mean(lib.vmap(one)(directions))

    return Small(loss, (np.asarray(1.5), np.asarray(0.1)), 2)


def lennard_jones(lib: Library, n: int, steps: int) -> Small:
    """Potential energy after steepest-descent steps of particles with Lennard-Jones forces."""
    side = round(n ** (1 / 3))
    lattice = np.stack(np.meshgrid(*3 * [np.arange(side)]), -1).reshape(-1, 3) * 1.2
    apart = np.eye(len(lattice)) * 1e3

    def loss(x: Any, size: Any) -> Any:
        def inverse_squares(x: Any) -> Any:
            between = x[:, None, :] - x[None, :, :]
            return between, size * size / (lib.array.sum(between * between, axis=-1) + apart)

        def step(_: Any, x: Any) -> Any:
            between, s = inverse_squares(x)
            pull = (2.0 * s**7 - s**4)[:, :, None] * between
            return x + 1e-3 * lib.array.sum(pull, axis=1)

        s = inverse_squares(lib.fori_loop(0, steps, step, x))[1]
        return lib.array.sum(s**6 - s**3)

    moved = lattice + 0.05 * np.random.default_rng(0).normal(size=lattice.shape)
    return Small(loss, (moved, np.asarray(1.0)), 2)


def tridiagonal(lib: Library, n: int) -> Small:
    """Thomas's algorithm: a scan forwards and a scan backwards over three diagonals."""
    rng = np.random.default_rng(0)

    def loss(lower: Any, middle: Any, upper: Any, right: Any) -> Any:
        def forwards(carry: Any, row: Any) -> Any:
            c, d = carry
            a, b, over, r = row
            scale = 1.0 / (b - a * c)
            carry = over * scale, (r - a * d) * scale
            return carry, carry

        zero = lib.array.zeros(())
        _, (c, d) = lib.scan(forwards, (zero, zero), (lower, middle, upper, right))

        def backwards(x: Any, row: Any) -> Any:
            x = row[1] - row[0] * x
            return x, x

        return lib.array.sum(lib.scan(backwards, zero, (c[::-1], d[::-1]))[1] ** 2)

    arrays = (rng.random(n), 4.0 + rng.random(n), rng.random(n), rng.normal(size=n))
    return Small(loss, arrays, 4)


def unrolled_descent(lib: Library, n: int, steps: int, batch: int) -> Small:
    """Validation loss after gradient steps on a logistic regression, by its learning rate and decay."""
    rng = np.random.default_rng(0)
    x, held_out = rng.normal(size=(batch, n)), rng.normal(size=(batch, n))
    truth = rng.normal(size=n)
    y, wanted = np.sign(x @ truth), np.sign(held_out @ truth)

    def loss(rate: Any, decay: Any) -> Any:
        def step(_: Any, w: Any) -> Any:
            share = 0.5 - 0.5 * lib.array.tanh(0.5 * y * (x @ w))
            return w + rate * (lib.array.mean((share * y)[:, None] * x, axis=0) - decay * w)

        w = lib.fori_loop(0, steps, step, np.zeros(n))
        return lib.array.mean(lib.array.logaddexp(0.0, -wanted * (held_out @ w)))

    return Small(loss, (np.asarray(0.5), np.asarray(0.01)), 2)


def fourier_convolution(lib: Library, n: int, batch: int) -> Small:
    """Convolution of a batch of signals with long filters, by real Fourier transforms."""
    rng = np.random.default_rng(0)

    def loss(filters: Any, x: Any) -> Any:
        spectrum = lib.array.fft.rfft(x, n=2 * n) * lib.array.fft.rfft(filters, n=2 * n)
        return lib.array.mean(lib.array.fft.irfft(spectrum, n=2 * n)[:, :n] ** 2)

    return Small(loss, (rng.normal(size=(batch, n)) / n, rng.normal(size=(batch, n))), 1)


def mixture(lib: Library, n: int, parts: int) -> Small:
    """Negative log-likelihood of a one-dimensional mixture of normal distributions."""
    rng = np.random.default_rng(0)

    def loss(shares: Any, centres: Any, widths: Any, x: Any) -> Any:
        scores = -0.5 * ((x[:, None] - centres) * lib.array.exp(-widths)) ** 2 - widths
        return -lib.array.mean(lib.logsumexp(scores + shares - lib.logsumexp(shares, 0), 1))

    return Small(loss, (np.zeros(parts), rng.normal(size=parts), np.zeros(parts), rng.normal(size=n)), 3)


def equilibrium(lib: Library, n: int, most: int) -> Small:
    """Deep equilibrium layer, iterated until it changes by less than a millionth."""
    rng = np.random.default_rng(0)

    def loss(w: Any, x: Any) -> Any:
        def goes_on(c: Any) -> Any:
            return (lib.array.max(lib.array.abs(c[0] - c[1])) > 1e-6) & (c[2] < most)

        def step(c: Any) -> Any:
            return lib.array.tanh(w @ c[0] + x), c[0], c[2] + 1

        start = (lib.array.zeros(n), lib.array.ones(n), 0)
        return lib.array.sum(lib.while_loop(goes_on, step, start, most)[0] ** 2)

    return Small(loss, (0.5 * rng.normal(size=(n, n)) / np.sqrt(n), rng.normal(size=n)), 2)


def dynamic_time_warping(lib: Library, n: int) -> Small:
    """Soft dynamic time warping of two series: a scan over columns inside a scan over rows."""
    rng = np.random.default_rng(0)

    def loss(x: Any, y: Any) -> Any:
        def rows(above: Any, cost: Any) -> Any:
            def columns(left: Any, cell: Any) -> Any:
                corner, over, c = cell
                best = -lib.logsumexp(-lib.array.stack([left, corner, over]), 0)
                return c + best, c + best

            row = lib.scan(columns, lib.array.full((), 1e6), (above[:-1], above[1:], cost))[1]
            return lib.array.concatenate([lib.array.full((1,), 1e6), row]), None

        start = lib.array.concatenate([lib.array.zeros((1,)), lib.array.full((n,), 1e6)])
        return lib.scan(rows, start, (x[:, None] - y[None, :]) ** 2)[0][-1]

    return Small(loss, (rng.normal(size=n), rng.normal(size=n)), 2)


def log_sinkhorn(lib: Library, n: int, steps: int) -> Small:
    """Optimal transport by Sinkhorn iterations in logarithms: rows and columns are normalised in turn."""
    rng = np.random.default_rng(0)

    def loss(cost: Any) -> Any:
        def step(_: Any, carry: Any) -> Any:
            f = -lib.logsumexp(carry[1] - cost / 0.1, 1)
            return f, -lib.logsumexp(f[:, None] - cost / 0.1, 0)

        f, g = lib.fori_loop(0, steps, step, (lib.array.zeros(n), lib.array.zeros(n)))
        return lib.array.sum(lib.array.exp(f[:, None] + g - cost / 0.1) * cost)

    return Small(loss, (rng.random((n, n)),), 1)


def tridiagonal_batch(lib: Library, n: int, batch: int) -> Small:
    """Thomas's algorithm for many systems at once: each row of the scan is a vector over the batch."""
    rng = np.random.default_rng(0)
    single = tridiagonal(lib, n)

    def loss(*diagonals: Any) -> Any:
        return lib.array.sum(lib.vmap(single.loss)(*diagonals))

    arrays = (rng.random((batch, n)), 4.0 + rng.random((batch, n)), rng.random((batch, n)), rng.normal(size=(batch, n)))
    return Small(loss, arrays, 4)


def attention_cache(lib: Library, batch: int, heads: int, length: int, width: int) -> Small:
    """Batched attention with caches of keys and values that grow in a loop, as products of many axes (`einsum`)."""
    rng = np.random.default_rng(0)
    weights = [rng.normal(size=(heads * width, heads, width)) / np.sqrt(heads * width) for _ in range(4)]

    def loss(weights: Any, x: Any) -> Any:
        def step(t: Any, carry: Any) -> Any:
            x, keys, values = carry
            q, k, v = (lib.array.einsum("bd,dhw->bhw", x, w) for w in weights[:3])
            keys, values = keys.at[:, :, t].set(k), values.at[:, :, t].set(v)
            scores = lib.array.einsum("bhw,bhlw->bhl", q, keys) / np.sqrt(width)
            shares = lib.softmax(lib.array.where(np.arange(length) <= t, scores, -1e9))
            found = lib.array.einsum("bhl,bhlw->bhw", shares, values)
            return lib.array.tanh(x + lib.array.einsum("bhw,dhw->bd", found, weights[3])), keys, values

        rows = lib.array.zeros((batch, heads, length, width))
        return lib.array.sum(lib.fori_loop(0, length, step, (x, rows, rows))[0] ** 2)

    return Small(loss, (weights, rng.normal(size=(batch, heads * width))), 1)


def complex_solves(lib: Library, n: int, steps: int) -> Small:
    """Frequency response of a linear system: a complex solve for each frequency of a scan."""
    rng = np.random.default_rng(0)

    def loss(a: Any, b: Any) -> Any:
        def step(total: Any, w: Any) -> Any:
            x = lib.array.linalg.solve(1j * w * np.eye(n) - a, b + 0j)
            return total + lib.array.sum(lib.array.abs(x) ** 2), None

        return lib.scan(step, lib.array.zeros(()), np.linspace(0.1, 10.0, steps))[0]

    return Small(loss, (rng.normal(size=(n, n)) / np.sqrt(n), rng.normal(size=(n, 2))), 2)


def complex_factors(lib: Library, n: int, steps: int) -> Small:
    """Orthogonal iteration: each step factorises a complex matrix by QR."""
    rng = np.random.default_rng(0)
    a, start = (rng.normal(size=(n, k)) + 1j * rng.normal(size=(n, k)) for k in (n, n // 2))

    def loss(shift: Any) -> Any:
        matrix = a / np.sqrt(n) + shift * np.eye(n)
        q = lib.fori_loop(0, steps, lambda _, q: lib.array.linalg.qr(matrix @ q)[0], np.linalg.qr(start)[0])
        return lib.array.sum(lib.array.abs(q.T @ matrix @ q) ** 2)

    return Small(loss, (np.asarray(0.5),), 1)


def systems(lib: Library, n: int, columns: int) -> Small:
    """A linear system with some right sides; its gradient is a second system with the transposed matrix."""
    rng = np.random.default_rng(0)

    def loss(a: Any, b: Any) -> Any:
        return lib.array.sum(lib.array.linalg.solve(a, b) ** 2)

    return Small(loss, (rng.normal(size=(n, n)) + n * np.eye(n), rng.normal(size=(n, columns))), 2)


GENERAL: tuple[Callable[..., Small], ...] = (
    mlp,
    transformer,
    convnet,
    tagger,
    state_space,
    alignments,
    cartpole,
    particle_filter,
    neural_ode,
    adaptive,
    ray_marching,
    lennard_jones,
    tridiagonal,
    unrolled_descent,
    fourier_convolution,
    mixture,
    equilibrium,
    dynamic_time_warping,
    log_sinkhorn,
    tridiagonal_batch,
    attention_cache,
    complex_solves,
    complex_factors,
    systems,
)
