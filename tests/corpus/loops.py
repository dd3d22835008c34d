"""Loops at their edges: trip counts, carries and captures of every kind."""

from __future__ import annotations

import numpy as np

import ctrlgrad as cg
from corpus.program import count, normal, program, scalar


@program(normal(1, 3), normal(2, 3))
def zero_iterations(x, w):
    def more(carry):
        _, y = carry
        return np.sum(y) > 1e6

    def step(carry):
        i, y = carry
        return i + 1, y * w

    i, y = cg.while_loop(more, step, (0, x))
    return np.sum(y * y) + 0.0 * i


@zero_iterations.twin
def _(x, w):
    return np.sum(x * x)


@program(normal(3, 3), normal(4, 3))
def one_iteration(x, w):
    _, y = cg.while_loop(lambda c: c[0] < 1, lambda c: (c[0] + 1, np.tanh(c[1] * w)), (0, x))
    return np.sum(y * y)


@one_iteration.twin
def _(x, w):
    return np.sum(np.tanh(x * w) ** 2)


@program(scalar(0.7), count(4))
def unused_output(x, n):
    def step(carry):
        i, y, z = carry
        return i + 1, np.sin(y) + x, z * y

    _, y, _ = cg.while_loop(lambda c: c[0] < n, step, (0, x, x))
    return y * y


@unused_output.twin
def _(x, n):
    y = x
    for _ in range(n):
        y = np.sin(y) + x
    return y * y


@program(scalar(0.7), scalar(0.3))
def unused_output_that_feeds_another(x, w):
    def step(carry):
        i, y, z = carry
        return i + 1, y * np.cos(z), z * w + y

    _, y, _ = cg.while_loop(lambda c: c[0] < 5, step, (0, x, w))
    return y


@unused_output_that_feeds_another.twin
def _(x, w):
    y, z = x, w
    for _ in range(5):
        y, z = y * np.cos(z), z * w + y
    return y


@program(normal(5, 4))
def integer_carry(x):
    def step(carry):
        i, total, y = carry
        return i + 1, total + i * i, y + total * x / (1.0 + i)

    i, total, y = cg.while_loop(lambda c: c[1] < 20, step, (0, 1, x))
    return np.sum(np.sin(y)) * i + total


@integer_carry.twin
def _(x):
    i, total, y = 0, 1, x
    while total < 20:
        i, total, y = i + 1, total + i * i, y + total * x / (1.0 + i)
    return np.sum(np.sin(y)) * i + total


@program(scalar(0.4), scalar(1.3))
def boolean_carry(x, w):
    def step(carry):
        i, odd, y = carry
        return i + 1, np.logical_not(odd), np.where(odd, y * w, np.sin(y) + x)

    _, odd, y = cg.while_loop(lambda c: c[0] < 5, step, (0, False, x))
    return np.where(odd, y, -y) * y


@boolean_carry.twin
def _(x, w):
    odd, y = False, x
    for _ in range(5):
        odd, y = not odd, (y * w if odd else np.sin(y) + x)
    return y * y if odd else -y * y


@program(scalar(0.6))
def aliased_carry(x):
    def step(carry):
        i, a, b = carry
        return i + 1, a * b, b + 0.1 * a

    _, a, b = cg.while_loop(lambda c: c[0] < 4, step, (0, x, x))
    return a + b


@aliased_carry.twin
def _(x):
    a = b = x
    for _ in range(4):
        a, b = a * b, b + 0.1 * a
    return a + b


@program(scalar(0.6))
def one_value_to_two_carries(x):
    def step(carry):
        i, a, b = carry
        c = np.sin(a * b)
        return i + 1, c, c

    _, a, b = cg.while_loop(lambda c: c[0] < 3, step, (0, x, x + 1.0))
    return a * b


@one_value_to_two_carries.twin
def _(x):
    a, b = x, x + 1.0
    for _ in range(3):
        a = b = np.sin(a * b)
    return a * b


@program(normal(6, 3))
def carry_is_a_capture(x):
    _, y = cg.while_loop(lambda c: c[0] < 4, lambda c: (c[0] + 1, np.tanh(c[1] * x) + x), (0, x))
    return y


@carry_is_a_capture.twin
def _(x):
    y = x
    for _ in range(4):
        y = np.tanh(y * x) + x
    return y


@program(scalar(0.8), normal(7, 2))
def carry_passed_through(x, p):
    def step(carry):
        i, y, kept = carry
        return i + 1, y * np.cos(y) + np.sum(kept), kept

    _, y, kept = cg.while_loop(lambda c: c[0] < 3, step, (0, x, p))
    return y * np.sum(kept * kept)


@carry_passed_through.twin
def _(x, p):
    y = x
    for _ in range(3):
        y = y * np.cos(y) + np.sum(p)
    return y * np.sum(p * p)


@program(scalar(0.5), scalar(1.5))
def swapped_carries(a, b):
    _, a, b = cg.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[2], c[1]), (0, a, b))
    return a * a * a + 2.0 * b


@swapped_carries.twin
def _(a, b):
    return b**3 + 2.0 * a


@program(scalar(0.5), scalar(0.8), scalar(1.1))
def rotated_carries(a, b, c):
    def step(carry):
        i, a, b, c = carry
        return i + 1, b, c * np.sin(a), a

    _, a, b, c = cg.while_loop(lambda carry: carry[0] < 4, step, (0, a, b, c))
    return a + b * c


@rotated_carries.twin
def _(a, b, c):
    for _ in range(4):
        a, b, c = b, c * np.sin(a), a
    return a + b * c


@program(scalar(0.5), scalar(2.9))
def capture_in_cond_and_body(x, w):
    return cg.while_loop(lambda y: y * w < 8.0, lambda y: y + 0.3 * w * np.cos(0.1 * y), x)


@capture_in_cond_and_body.twin
def _(x, w):
    y = x
    while y * w < 8.0:
        y = y + 0.3 * w * np.cos(0.1 * y)
    return y


@program(normal(8, 3), normal(9, 3, 3, scale=0.5), count(4))
def invariant_matrix(x, w, n):
    _, y = cg.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, np.tanh(w @ c[1])), (0, x))
    return np.sum(y)


@invariant_matrix.twin
def _(x, w, n):
    for _ in range(n):
        x = np.tanh(w @ x)
    return np.sum(x)
