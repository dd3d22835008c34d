"""Branches: alone, in loops, around loops, with sides that are unlike each other."""

from __future__ import annotations

import numpy as np

import ctrlgrad as cg
from corpus.program import count, normal, program, scalar


@program(scalar(0.6), scalar(1.2))
def branch_with_different_captures(a, b):
    return cg.cond(a < b, lambda: a * a + 1.0, lambda: np.sin(b)) * b


@branch_with_different_captures.twin
def _(a, b):
    return (a * a + 1.0 if a < b else np.sin(b)) * b


@program(normal(21, 3))
def branch_with_an_empty_side(x):
    kept = cg.cond(np.sum(x) > 100.0, lambda v: v * v, lambda v: v, x)
    changed = cg.cond(np.sum(x) < 100.0, lambda v: v * v, lambda v: v, x)
    return np.sum(kept * np.sin(changed))


@branch_with_an_empty_side.twin
def _(x):
    return np.sum(x * np.sin(x * x))


@program(scalar(0.6), scalar(0.3))
def branch_with_a_constant_side(x, w):
    def step(i, y):
        return cg.cond(i == 2, lambda y: 0.25, lambda y: y * w + np.sin(x), y)

    return cg.fori_loop(0, 5, step, x)


@branch_with_a_constant_side.twin
def _(x, w):
    y = x
    for i in range(5):
        y = 0.25 if i == 2 else y * w + np.sin(x)
    return y


@program(scalar(0.6), scalar(0.3), count(3))
def branch_with_integer_and_unused_results(x, w, n):
    k, y, _ = cg.cond(n > 2, lambda: (n * 2, x * w, x + w), lambda: (n, x, w * w))
    return np.sin(y) * k


@branch_with_integer_and_unused_results.twin
def _(x, w, n):
    return np.sin(x * w) * n * 2 if n > 2 else np.sin(x) * n


@program(scalar(0.6), scalar(0.3))
def branch_that_swaps(x, w):
    def step(i, c):
        return cg.cond(i % 2 == 0, lambda a, b: (b, a * b), lambda a, b: (a, b), *c)

    a, b = cg.fori_loop(0, 4, step, (x, w))
    return a + b * b


@branch_that_swaps.twin
def _(x, w):
    a, b = x, w
    for i in range(4):
        if i % 2 == 0:
            a, b = b, a * b
    return a + b * b


@program(normal(22, 3), scalar(0.7))
def branch_in_a_loop(x, w):
    def step(carry):
        i, y = carry
        return i + 1, cg.cond(i % 3 == 1, lambda: np.sin(y) * w, lambda: y * y * x + 0.1)

    _, y = cg.while_loop(lambda c: c[0] < 5, step, (0, x))
    return y


@branch_in_a_loop.twin
def _(x, w):
    y = x
    for i in range(5):
        y = np.sin(y) * w if i % 3 == 1 else y * y * x + 0.1
    return y


@program(scalar(0.73))
def branch_on_a_differentiated_value_in_a_loop(x):
    def step(i, y):
        return cg.cond(y > 1.0, lambda y: 0.4 * y * y, lambda y: 2.1 * y + 0.1 * np.cos(y), y)

    return cg.fori_loop(0, 6, step, x)


@branch_on_a_differentiated_value_in_a_loop.twin
def _(x):
    y = x
    for _ in range(6):
        y = 0.4 * y * y if y > 1.0 else 2.1 * y + 0.1 * np.cos(y)
    return y


@program(scalar(0.45), scalar(1.2))
def branch_in_a_branch_in_a_loop(x, w):
    def inner(i, y):
        return cg.cond(i > 2, lambda y: np.sin(y * w), lambda y: y + x * w, y)

    def step(i, y):
        return cg.cond(i % 2 == 0, lambda y: inner(i, y) * y, lambda y: y * w, y)

    return cg.fori_loop(0, 5, step, x)


@branch_in_a_branch_in_a_loop.twin
def _(x, w):
    y = x
    for i in range(5):
        y = y * w if i % 2 else (np.sin(y * w) if i > 2 else y + x * w) * y
    return y


@program(scalar(0.45), scalar(1.2))
def loop_in_a_branch(x, w):
    def looped(y):
        return cg.while_loop(lambda z: z < 4.0, lambda z: z * w + x, y)

    return cg.cond(x < w, looped, lambda y: y * y, x) + cg.cond(x > w, looped, lambda y: y * y, w)


@loop_in_a_branch.twin
def _(x, w):
    z = x
    while z < 4.0:
        z = z * w + x
    return z + w * w


@program(scalar(0.45), scalar(1.2))
def loop_in_a_branch_in_a_loop(x, w):
    def looped(i, y):
        _, z = cg.while_loop(lambda c: c[0] < i, lambda c: (c[0] + 1, np.sin(c[1] * w) + 0.3 * y), (0, y))
        return z

    def step(carry):
        i, y = carry
        return i + 1, cg.cond(i % 2 == 1, lambda y: looped(i, y), lambda y: y * x, y)

    _, y = cg.while_loop(lambda c: c[0] < 5, step, (0, x + 1.0))
    return y


@loop_in_a_branch_in_a_loop.twin
def _(x, w):
    y = x + 1.0
    for i in range(5):
        if i % 2:
            z = y
            for _ in range(i):
                z = np.sin(z * w) + 0.3 * y
            y = z
        else:
            y = y * x
    return y


@program(scalar(0.45), scalar(1.2))
def branch_in_a_loop_in_a_branch_in_a_loop(x, w):
    def inner(j, z):
        return cg.cond(z < 1.0, lambda: z * w + 0.3, lambda: 0.5 * np.sin(z) + 0.1 * x)

    def step(i, y):
        return cg.cond(i < 2, lambda y: cg.fori_loop(0, i + 2, inner, y), lambda y: y * y + w, y)

    return cg.fori_loop(0, 4, step, x)


@branch_in_a_loop_in_a_branch_in_a_loop.twin
def _(x, w):
    y = x
    for i in range(4):
        if i < 2:
            for _ in range(i + 2):
                y = y * w + 0.3 if y < 1.0 else 0.5 * np.sin(y) + 0.1 * x
        else:
            y = y * y + w
    return y
