"""Programs of the corpus whose NumPy twin is not the program itself in Python's control flow.

Most change an array or a list in place, which a traced function cannot. All other programs are traced from the twin
itself, as it stands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import ctrlgrad as cg
import ctrlgrad.numpy as cnp

FORMS: dict[str, Callable[..., Any]] = {}


def form(fn: Callable[..., Any]) -> Callable[..., Any]:
    FORMS[fn.__name__] = fn
    return fn


@form
def tensor_array_writes_then_stack(x, w, n):
    rows = np.zeros((5, 2))
    for i in range(n):
        x = np.sin(x * w) + 0.1 * i
        rows = cnp.at(rows)[i].set(x)
    return np.sum(rows**2, axis=0)


@form
def tensor_array_written_backwards(x, w):
    rows, y = cg.TensorArray(np.float64, 4), x
    for i in range(4):
        rows = rows.write(3 - i, np.sin(y))
        y = y * w + 0.1
    return np.sum(y + sum(rows.read(i) * rows.read(i + 1) for i in range(3)))


@form
def recurrence_over_two_steps(first, second, w):
    xs = cg.TensorArray(np.float64).write(0, first).write(1, second)
    while xs.size() < 8:
        t = xs.size()
        xs = xs.push(np.sin(xs.read(t - 1)) + w * xs.read(t - 2) * xs.read(t - 1))
    return xs.read(7) + np.sum(xs.stack() ** 2)


@form
def tensor_array_slot_written_twice(x, w):
    slots, y = np.zeros(3), x
    for i in range(7):
        slots = cnp.at(slots)[i % 3].set(y * w)
        y = np.sin(y) + slots[i % 3]
    return y + np.sum(slots**3)


@form
def tensor_array_updated_two_ways(x, w):
    a = cnp.at(np.zeros(3))[0].set(x)
    b = a.at[2].set(w)
    for i in range(4):
        old = a[1]
        a = a.at[1].set(np.sin(a[0] * w))
        b = b.at[i % 3].set(a[1] + old)
    return np.sum(a**2) + np.sum(b**3) + x


@form
def tensor_array_of_unknown_size(x, w):
    rows, y = cg.TensorArray(np.float64), x
    while y < 3.0:
        rows = rows.push(np.sin(y))
        y = y * w + 0.1
    total = x
    for row in rows.stack():
        total = total * 0.5 + row * rows.size()
    return total


@form
def row_writes(x, w):
    ys = np.zeros((4, 3))
    for t in range(4):
        x = np.sin(x) + w
        ys = cnp.at(ys)[t].set(x)
    return np.sum(ys**3, axis=1)


@form
def rows_written_over_a_differentiated_array(x, w):
    for t in range(3):
        x = cnp.at(x)[t + 1].set(np.sin(x[t]) * w + x[t + 1])
    return np.sum(x**2)


@form
def scatter_add_with_repeats(x, v, index):
    for i in range(3):
        x = cnp.at(x)[index].add(np.sin(v) * x[i])
    return x


@form
def scan_over_pytrees(xs, init):
    h, c = init
    ys, zs = cg.TensorArray(np.float64), cg.TensorArray(np.float64)
    for a, b in zip(xs["a"], xs["b"], strict=True):
        h = np.tanh(h * b + a)
        ys, zs = ys.push(h * c), zs.push(np.sum(h * h))
        c = c + np.sum(h)
    return (h, c), {"y": ys.stack(), "z": zs.stack()}


@form
def scan_in_reverse(xs, init):
    h, ys = init, np.zeros((5, 2))
    for t in reversed(range(len(xs))):
        h, ys = np.sin(h) + xs[t], cnp.at(ys)[t].set(h * xs[t])
    return h, ys


@form
def scan_in_a_scan(xs, init):
    h, sums = init, cg.TensorArray(np.float64)
    for x in xs:
        a, total = h, np.zeros(2)
        for b in xs:
            a, total = np.sin(a * b), total + a + b
        h = a * x
        sums = sums.push(total)
    return h, sums.stack()


@form
def soft_sorting_network(x, temperature):
    y = x
    for r in range(6):
        for i in range(r % 2, 5, 2):
            a, b = y[i], y[i + 1]
            keep = 1.0 / (1.0 + np.exp((a - b) / temperature))
            y = cnp.at(y)[i].set(keep * a + (1.0 - keep) * b)
            y = cnp.at(y)[i + 1].set(keep * b + (1.0 - keep) * a)
    return y


@form
def masked_rnn(xs, w, u, lengths):
    ends = cg.TensorArray(np.float64)
    for b, length in enumerate(lengths):
        h = np.zeros(3)
        for t in range(length):
            h = np.tanh(h @ w + xs[t, b] @ u)
        ends = ends.push(np.sum(h * h))
    return ends.stack()


@form
def attention_over_a_growing_memory(xs, w, n):
    h, memory = np.zeros(3), cg.TensorArray(np.float64)
    for t in range(n):
        memory = memory.push(np.tanh(xs[t] + h))
        rows = memory.stack()
        scores = rows @ (w @ xs[t])
        weights = np.exp(scores) / np.sum(np.exp(scores))
        h = weights @ rows
    return h


@form
def embedding_and_einsum(w, tokens, table):
    h, losses = np.zeros(2), 0.0
    for token in tokens:
        h = np.tanh(w @ np.stack([h[0], h[1], h[0]]) + table[token])
        losses = losses + np.log(np.sum(np.exp(h)))
    return np.sum(h) + losses / len(tokens)


@form
def stop_gradient_in_a_loop(x, w):
    y = z = x
    for _ in range(4):
        y, z = np.sin(y) * w + x, z + cg.stop_gradient(y) * w
    return y * z


@form
def writes_that_append_in_a_loop(x, y, n):
    array, total = cg.TensorArray("float64").push(x), 0.1 * x
    for _ in range(n):
        longer = array.write(array.size(), np.sin(y + 0.5 * total))
        total = total + 0.3 * np.sum(longer.stack() ** 2, 0) - 0.2 * np.sum(array.stack(), 0) * y
        array = longer
    return np.sum(array.stack() ** 3, 0), total
