"""Numerical methods that stop when the numbers say so."""

from __future__ import annotations

import numpy as np

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from corpus.program import between, count, normal, program, scalar


@program(scalar(2.3), scalar(1.5))
def newton_iteration(a, start):
    """The cube root of a; the derivative is that of the unrolled iteration."""

    def more(y):
        return np.abs(y * y * y - a) > 1e-3

    return cg.while_loop(more, lambda y: y - (y * y * y - a) / (3.0 * y * y), start)


@newton_iteration.twin
def _(a, start):
    y = start
    while abs(y * y * y - a) > 1e-3:
        y = y - (y * y * y - a) / (3.0 * y * y)
    return y


@program(normal(61, 3, 3), normal(62, 3))
def power_iteration(b, start):
    """The largest eigenvalue of a symmetric matrix by its Rayleigh quotient."""
    a = b @ b.T + np.eye(3)

    def quotient(v):
        return v @ a @ v / (v @ v)

    def more(carry):
        i, _, change = carry
        return np.logical_and(i < 50, change > 1e-3)

    def step(carry):
        i, v, _ = carry
        w = a @ v
        w = w / np.sqrt(np.sum(w * w))
        return i + 1, w, np.abs(quotient(w) - quotient(v))

    _, v, _ = cg.while_loop(more, step, (0, start, 1.0))
    return quotient(v)


@power_iteration.twin
def _(b, start):
    a = b @ b.T + np.eye(3)
    i, v, change = 0, start, 1.0
    while i < 50 and change > 1e-3:
        w = a @ v
        w = w / np.sqrt(np.sum(w * w))
        change = abs(w @ a @ w / (w @ w) - v @ a @ v / (v @ v))
        i, v = i + 1, w
    return v @ a @ v / (v @ v)


def _heun(f, t, y, h):
    k1 = f(t, y)
    k2 = f(t + h, y + h * k1)
    return y + h * k1, y + 0.5 * h * (k1 + k2)


@program(scalar(1.0), scalar(1.1), scalar(0.7))
def adaptive_runge_kutta(y0, rate, forcing):
    """Heun's method with an error estimate: a step is taken or refused, and its size follows the error."""

    def f(t, y):
        return -rate * y + forcing * np.sin(3.0 * t) * y * y

    def step(carry):
        t, y, h = carry
        h = np.minimum(h, 1.0 - t)
        low, high = _heun(f, t, y, h)
        error = np.sqrt((high - low) ** 2 + 1e-12)
        t, y = cg.cond(error < 0.02, lambda: (t + h, high), lambda: (t, y))
        return t, y, h * np.clip(0.9 * np.sqrt(0.02 / error), 0.3, 2.0)

    _, y, _ = cg.while_loop(lambda c: c[0] < 1.0 - 1e-9, step, (0.0, y0, 0.6))
    return y


@adaptive_runge_kutta.twin
def _(y0, rate, forcing):
    def f(t, y):
        return -rate * y + forcing * np.sin(3.0 * t) * y * y

    t, y, h = 0.0, y0, 0.6
    while t < 1.0 - 1e-9:
        h = min(h, 1.0 - t)
        low, high = _heun(f, t, y, h)
        error = np.sqrt((high - low) ** 2 + 1e-12)
        if error < 0.02:
            t, y = t + h, high
        h = h * np.clip(0.9 * np.sqrt(0.02 / error), 0.3, 2.0)
    return y


@program(normal(63, 6), scalar(0.5))
def soft_sorting_network(x, temperature):
    """Odd-even transposition with soft exchanges: n rounds over pairs that start at 0 and 1 in turn."""

    def exchange(i, y):
        a, b = y[i], y[i + 1]
        keep = 1.0 / (1.0 + np.exp((a - b) / temperature))
        return y.at[i].set(keep * a + (1.0 - keep) * b).at[i + 1].set(keep * b + (1.0 - keep) * a)

    def more(carry):
        i, _ = carry
        return i < 5

    def round_of(r, y):
        _, y = cg.while_loop(more, lambda c: (c[0] + 2, exchange(*c)), (r % 2, y))
        return y

    return cg.fori_loop(0, 6, round_of, x)


@soft_sorting_network.twin
def _(x, temperature):
    y = x.copy()
    for r in range(6):
        for i in range(r % 2, 5, 2):
            a, b = y[i], y[i + 1]
            keep = 1.0 / (1.0 + np.exp((a - b) / temperature))
            y[i], y[i + 1] = keep * a + (1.0 - keep) * b, keep * b + (1.0 - keep) * a
    return y


@program(normal(64, 4, 4), normal(65, 4))
def conjugate_gradients(m, b):
    a = m @ m.T / 4.0 + np.eye(4)

    def step(carry):
        x, r, p = carry
        ap = a @ p
        rr = r @ r
        alpha = rr / (p @ ap)
        x, r = x + alpha * p, r - alpha * ap
        return x, r, r + (r @ r) / rr * p

    x, _, _ = cg.while_loop(lambda c: np.sum(c[1] ** 2) > 0.05, step, (np.zeros(4), b, b))
    return x


@conjugate_gradients.twin
def _(m, b):
    a = m @ m.T / 4.0 + np.eye(4)
    x, r, p = np.zeros(4), b, b
    while r @ r > 0.05:
        ap, rr = a @ p, r @ r
        alpha = rr / (p @ ap)
        x, r = x + alpha * p, r - alpha * ap
        p = r + (r @ r) / rr * p
    return x


@program(normal(66, 3, 4))
def sinkhorn_balancing(scores):
    """Rows and columns are normalised in turn until the rows are nearly right."""

    def more(m):
        return np.sum((np.sum(np.exp(m), axis=1) - 1.0) ** 2) > 1e-3

    def step(m):
        m = m - cnp.logsumexp(m, axis=1, keepdims=True)
        return m - cnp.logsumexp(m, axis=0, keepdims=True) + np.log(3.0 / 4.0)

    return np.exp(cg.while_loop(more, step, scores))


@sinkhorn_balancing.twin
def _(scores):
    p = np.exp(scores)
    while np.sum((np.sum(p, axis=1) - 1.0) ** 2) > 1e-3:
        p = p / np.sum(p, axis=1, keepdims=True)
        p = p / np.sum(p, axis=0, keepdims=True) * 0.75
    return p


@program(scalar(1.0), scalar(3.4))
def arithmetic_geometric_mean(a, b):
    def step(carry):
        a, b = carry
        return 0.5 * (a + b), np.sqrt(a * b)

    return cg.while_loop(lambda c: np.abs(c[0] - c[1]) > 1e-2, step, (a, b))


@arithmetic_geometric_mean.twin
def _(a, b):
    while abs(a - b) > 1e-2:
        a, b = 0.5 * (a + b), np.sqrt(a * b)
    return a, b


@program(scalar(2.7), scalar(0.3))
def series_until_the_term_is_small(x, scale):
    """The exponential series: the trip count depends on the size of the terms."""

    def step(carry):
        n, term, total = carry
        term = term * x * scale / n
        return n + 1.0, term, total + term

    _, _, total = cg.while_loop(lambda c: np.abs(c[1]) > 1e-4, step, (1.0, 1.0, 1.0))
    return total


@series_until_the_term_is_small.twin
def _(x, scale):
    n, term, total = 1.0, 1.0, 1.0
    while abs(term) > 1e-4:
        term = term * x * scale / n
        n, total = n + 1.0, total + term
    return total


@program(scalar(1.3), count(5))
def power_by_squaring(x, n):
    """An integer carry that steers: bits of the exponent choose the branch."""

    def step(carry):
        n, base, result = carry
        result = cg.cond(n % 2 == 1, lambda: result * base, lambda: result)
        return n // 2, base * base, result

    _, _, result = cg.while_loop(lambda c: c[0] > 0, step, (n, x, 1.0))
    return result


@power_by_squaring.twin
def _(x, n):
    return x ** int(n)


@program(normal(67, 3), between(0.5, 1.5, 68, 3))
def gradient_descent_by_its_own_gradient(start, curvature):
    """A loop whose body takes a gradient: its derivative is a second derivative already."""

    def objective(w):
        return np.sum(curvature * w * w + 0.3 * np.sin(w))

    def step(i, w):
        return w - 0.2 * cg.grad(objective)(w)

    return cg.fori_loop(0, 3, step, start)


@gradient_descent_by_its_own_gradient.twin
def _(start, curvature):
    w = start
    for _ in range(3):
        w = w - 0.2 * (2.0 * curvature * w + 0.3 * np.cos(w))
    return w


@program(scalar(0.6), scalar(1.1))
def gradient_of_a_loop_in_a_loop(x, w):
    """The body differentiates another while loop."""

    def energy(y):
        return cg.while_loop(lambda z: z * z < 9.0, lambda z: z * 1.5 + np.sin(y * w), y)

    return cg.fori_loop(0, 2, lambda i, y: y + 0.1 * cg.grad(energy)(y), x)


@gradient_of_a_loop_in_a_loop.twin
def _(x, w):
    y = x
    for _ in range(2):
        z, dz = y, 1.0
        while z * z < 9.0:
            z, dz = z * 1.5 + np.sin(y * w), dz * 1.5 + w * np.cos(y * w)
        y = y + 0.1 * dz
    return y
