"""Loops whose length depends on data, loops in loops, early ends."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import ctrlgrad as cg
from corpus.program import between, count, normal, program, scalar


@program(scalar(1.37), scalar(0.21))
def nested_data_dependent_counts(x, w):
    def outer(carry):
        i, y = carry
        inner = cg.while_loop(lambda z: z < 4.0 + i, lambda z: z * (1.3 + w) + 0.1 * np.sin(y), y)
        return i + 1, 0.3 * inner + 0.7 * y * w

    _, y = cg.while_loop(lambda c: c[0] < 3, outer, (0, x))
    return y


@nested_data_dependent_counts.twin
def _(x, w):
    y = x
    for i in range(3):
        z = y
        while z < 4.0 + i:
            z = z * (1.3 + w) + 0.1 * np.sin(y)
        y = 0.3 * z + 0.7 * y * w
    return y


@program(scalar(0.9), scalar(0.4))
def inner_loop_of_zero_iterations_at_first(x, w):
    def outer(carry):
        i, y = carry
        _, z = cg.while_loop(lambda c: c[0] < i, lambda c: (c[0] + 1, c[1] * w + np.sin(c[1])), (0, y))
        return i + 1, z + 0.1 * x

    _, y = cg.while_loop(lambda c: c[0] < 4, outer, (0, x))
    return y * y


@inner_loop_of_zero_iterations_at_first.twin
def _(x, w):
    y = x
    for i in range(4):
        z = y
        for _ in range(i):
            z = z * w + np.sin(z)
        y = z + 0.1 * x
    return y * y


@program(scalar(0.8), scalar(0.9))
def triple_nesting(x, w):
    def middle(i, y):
        def step(carry):
            j, z = carry
            _, u = cg.while_loop(lambda c: c[0] < i + j, lambda c: (c[0] + 1, np.sin(c[1] * w) + 0.2 * z), (0, z))
            return j + 1, u * y

        return cg.while_loop(lambda c: c[0] < 2, step, (0, y))[1]

    _, y = cg.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, middle(c[0], c[1]) + x), (0, x))
    return y


@triple_nesting.twin
def _(x, w):
    y = x
    for i in range(3):
        z = y
        for j in range(2):
            u = z
            for _ in range(i + j):
                u = np.sin(u * w) + 0.2 * z
            z = u * y
        y = z + x
    return y


@program(scalar(0.7), normal(10, 3))
def two_loops_in_sequence(x, w):
    n, y = cg.while_loop(lambda c: c[1] < 3.0, lambda c: (c[0] + 1, c[1] * 1.4 + 0.1 * x), (0, x))
    _, z = cg.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, np.sin(c[1] + w * y)), (0, w))
    return np.sum(z) * y


@two_loops_in_sequence.twin
def _(x, w):
    n, y = 0, x
    while y < 3.0:
        n, y = n + 1, y * 1.4 + 0.1 * x
    z = w
    for _ in range(n):
        z = np.sin(z + w * y)
    return np.sum(z) * y


@program(scalar(0.7), scalar(0.2))
def carry_reset_to_a_constant(x, w):
    def step(carry):
        i, y, total = carry
        return i + 1, 0.5, total + np.sin(y * w)

    _, y, total = cg.while_loop(lambda c: c[0] < 3, step, (0, x, w))
    return total * total + y


@carry_reset_to_a_constant.twin
def _(x, w):
    y, total = x, w
    for _ in range(3):
        y, total = 0.5, total + np.sin(y * w)
    return total * total + y


@program(between(0.5, 1.0, 11, 3))
def bound_from_a_float(x):
    n = np.floor(np.sum(x * x) * 2.0 + 0.4).astype(np.int64) + 2
    _, y = cg.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, np.cos(c[1]) * x), (0, x))
    return np.sum(y)


@bound_from_a_float.twin
def _(x):
    y = x
    for _ in range(int(np.floor(np.sum(x * x) * 2.0 + 0.4)) + 2):
        y = np.cos(y) * x
    return np.sum(y)


@program(scalar(0.9), normal(12, 3))
def predicate_on_a_differentiated_value(x, w):
    return cg.while_loop(lambda y: np.sum(y * y) > 0.05, lambda y: 0.6 * y + 0.1 * np.sin(x * y), w * x)


@predicate_on_a_differentiated_value.twin
def _(x, w):
    y = w * x
    while np.sum(y * y) > 0.05:
        y = 0.6 * y + 0.1 * np.sin(x * y)
    return y


@program(scalar(0.37), count(50))
def early_exit(x, n):
    def more(carry):
        i, done, _ = carry
        return np.logical_and(i < n, np.logical_not(done))

    def step(carry):
        i, _, y = carry
        grown = y * 1.3 + 0.1 * np.sin(y)
        return i + 1, grown > 5.0, grown

    i, _, y = cg.while_loop(more, step, (0, False, x))
    return y / i


@early_exit.twin
def _(x, n):
    i, done, y = 0, False, x
    while i < n and not done:
        y = y * 1.3 + 0.1 * np.sin(y)
        i, done = i + 1, y > 5.0
    return y / i


@program(scalar(0.7), scalar(0.2))
def stop_gradient_in_a_loop(x, w):
    def step(carry):
        i, y, z = carry
        return i + 1, np.sin(y) * w + x, z + cg.stop_gradient(y) * w

    _, y, z = cg.while_loop(lambda c: c[0] < 4, step, (0, x, x))
    return y * z


# `stop_gradient` does not change a value; what the gradient must be is tested apart from finite differences.
@stop_gradient_in_a_loop.twin
def _(x, w):
    y = z = x
    for _ in range(4):
        y, z = np.sin(y) * w + x, z + y * w
    return y * z


@program(scalar(0.3), normal(13, 2))
def zero_gradient(x, w):
    i, _ = cg.while_loop(lambda c: c[1] < 20.0, lambda c: (c[0] + 1, c[1] + x + np.sum(w * w)), (0, x))
    return i.astype(np.float64) * 2.5


@zero_gradient.twin
def _(x, w):
    i, y = 0, x
    while y < 20.0:
        i, y = i + 1, y + x + np.sum(w * w)
    return i * 2.5


@program(scalar(0.8))
def maximum_not_reached(x):
    return cg.while_loop(lambda y: y < 4.0, lambda y: y * y + 0.5, x, maximum_iterations=20)


@maximum_not_reached.twin
def _(x):
    while x < 4.0:
        x = x * x + 0.5
    return x


class Particle(NamedTuple):
    position: Any
    velocity: Any


@program(normal(14, 2), normal(15, 2), scalar(0.3))
def namedtuple_carry(position, velocity, drag):
    def step(carry):
        i, p = carry
        force = -p.position - drag * p.velocity * np.sqrt(1.0 + np.sum(p.velocity**2))
        return i + 1, Particle(p.position + 0.2 * p.velocity, p.velocity + 0.2 * force)

    _, p = cg.while_loop(lambda c: c[0] < 5, step, (0, Particle(position, velocity)))
    return p


@namedtuple_carry.twin
def _(position, velocity, drag):
    for _ in range(5):
        force = -position - drag * velocity * np.sqrt(1.0 + np.sum(velocity**2))
        position, velocity = position + 0.2 * velocity, velocity + 0.2 * force
    return Particle(position, velocity)


@program({"w": normal(16, 3), "b": scalar(0.2)}, scalar(0.5))
def dict_carry(parameters, rate):
    def step(carry):
        p, n = carry["p"], carry["n"]
        moved = {"w": p["w"] - rate * np.sin(p["w"] + p["b"]), "b": p["b"] - rate * np.mean(p["w"]) * p["b"]}
        return {"p": moved, "n": n + 1}

    return cg.while_loop(lambda c: c["n"] < 3, step, {"p": parameters, "n": 0})["p"]


@dict_carry.twin
def _(parameters, rate):
    w, b = parameters["w"], parameters["b"]
    for _ in range(3):
        w, b = w - rate * np.sin(w + b), b - rate * np.mean(w) * b
    return {"w": w, "b": b}


@program(scalar(0.4), normal(17, 3))
def fori_loop_with_traced_bounds(x, w):
    low = np.floor(x).astype(np.int64)
    return np.sum(cg.fori_loop(low + 1, low + 4, lambda i, y: np.sin(y * w) + i * x, w))


@fori_loop_with_traced_bounds.twin
def _(x, w):
    y = w
    for i in range(1, 4):
        y = np.sin(y * w) + i * x
    return np.sum(y)
