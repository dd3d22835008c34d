"""Arrays that loops read, write and grow: rows, slots, scatters, scans."""

from __future__ import annotations

import numpy as np

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from corpus.program import count, normal, program, scalar


@program(normal(31, 2), scalar(0.8), count(5))
def tensor_array_writes_then_stack(x, w, n):
    def step(carry):
        i, y, rows = carry
        y = np.sin(y * w) + 0.1 * i
        return i + 1, y, rows.write(i, y)

    _, _, rows = cg.while_loop(lambda c: c[0] < n, step, (0, x, cg.TensorArray(np.float64, 5, (2,))))
    return np.sum(rows.stack() ** 2, axis=0)


@tensor_array_writes_then_stack.twin
def _(x, w, n):
    rows = np.zeros((5, 2))
    for i in range(n):
        x = np.sin(x * w) + 0.1 * i
        rows[i] = x
    return np.sum(rows**2, axis=0)


@program(normal(32, 2), scalar(0.8))
def tensor_array_written_forwards_read_backwards(x, w):
    def write(i, carry):
        y, rows = carry
        y = np.cos(y * w)
        return y, rows.write(i, y)

    _, rows = cg.fori_loop(0, 4, write, (x, cg.TensorArray(np.float64, 4, (2,))))
    return np.sum(cg.fori_loop(0, 4, lambda i, total: total * w + rows.read(3 - i) ** 2, x))


@tensor_array_written_forwards_read_backwards.twin
def _(x, w):
    rows, y = [], x
    for _ in range(4):
        y = np.cos(y * w)
        rows.append(y)
    total = x
    for row in reversed(rows):
        total = total * w + row**2
    return np.sum(total)


@program(normal(33, 2), scalar(0.8))
def tensor_array_written_backwards(x, w):
    def write(i, carry):
        y, rows = carry
        return y * w + 0.1, rows.write(3 - i, np.sin(y))

    y, rows = cg.fori_loop(0, 4, write, (x, cg.TensorArray(np.float64, 4, (2,))))
    total = cg.fori_loop(0, 3, lambda i, total: total + rows.read(i) * rows.read(i + 1), y)
    return np.sum(total)


@tensor_array_written_backwards.twin
def _(x, w):
    rows, y = np.zeros((4, 2)), x
    for i in range(4):
        rows[3 - i] = np.sin(y)
        y = y * w + 0.1
    return np.sum(y + sum(rows[i] * rows[i + 1] for i in range(3)))


@program(scalar(0.5), scalar(0.7), scalar(0.4))
def recurrence_over_two_steps(first, second, w):
    """x_t from x_{t-1} and x_{t-2}, both read back from the array that is being written."""
    start = cg.TensorArray(np.float64, 8, ()).write(0, first).write(1, second)

    def step(carry):
        t, xs = carry
        return t + 1, xs.write(t, np.sin(xs.read(t - 1)) + w * xs.read(t - 2) * xs.read(t - 1))

    _, xs = cg.while_loop(lambda c: c[0] < 8, step, (2, start))
    return xs.read(7) + np.sum(xs.stack() ** 2)


@recurrence_over_two_steps.twin
def _(first, second, w):
    xs = [first, second]
    for t in range(2, 8):
        xs.append(np.sin(xs[t - 1]) + w * xs[t - 2] * xs[t - 1])
    return xs[7] + np.sum(np.square(xs))


@program(scalar(0.5), scalar(0.7))
def tensor_array_slot_written_twice(x, w):
    def step(i, carry):
        y, slots = carry
        slots = slots.write(i % 3, y * w)
        return np.sin(y) + slots.read(i % 3), slots

    y, slots = cg.fori_loop(0, 7, step, (x, cg.TensorArray(np.float64, 3, (), rewritable=True)))
    return y + np.sum(slots.stack() ** 3)


@tensor_array_slot_written_twice.twin
def _(x, w):
    slots, y = np.zeros(3), x
    for i in range(7):
        slots[i % 3] = y * w
        y = np.sin(y) + slots[i % 3]
    return y + np.sum(slots**3)


@program(scalar(0.5), scalar(0.7))
def tensor_array_updated_two_ways(x, w):
    """Arrays are values: writing one twice makes two arrays, and the first stays as it was."""
    base = cg.TensorArray(np.float64, 3, (), rewritable=True).write(0, x)

    def step(i, carry):
        a, b = carry
        changed = a.write(1, np.sin(a.read(0) * w))
        return changed, b.write(i % 3, changed.read(1) + a.read(1))

    a, b = cg.fori_loop(0, 4, step, (base, base.write(2, w)))
    return np.sum(a.stack() ** 2) + np.sum(b.stack() ** 3) + np.sum(base.stack())


@tensor_array_updated_two_ways.twin
def _(x, w):
    a, b = np.array([x, 0.0, 0.0]), np.array([x, 0.0, w])
    for i in range(4):
        old = a[1]
        a[1] = np.sin(a[0] * w)
        b[i % 3] = a[1] + old
    return np.sum(a**2) + np.sum(b**3) + x


@program(scalar(0.35), scalar(1.4))
def tensor_array_of_unknown_size(x, w):
    """One row per iteration, as many as the data says; then read in another loop."""

    def step(carry):
        i, y, rows = carry
        return i + 1, y * w + 0.1, rows.write(i, np.sin(y))

    n, _, rows = cg.while_loop(lambda c: c[1] < 3.0, step, (0, x, cg.TensorArray(np.float64, element_shape=())))
    return cg.fori_loop(0, n, lambda i, total: total * 0.5 + rows.read(i) * rows.size(), x)


@tensor_array_of_unknown_size.twin
def _(x, w):
    rows, y = [], x
    while y < 3.0:
        rows.append(np.sin(y))
        y = y * w + 0.1
    total = x
    for row in rows:
        total = total * 0.5 + row * len(rows)
    return total


@program(normal(34, 5, 3), normal(35, 3), count(5))
def row_reads(xs, h, n):
    _, h = cg.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, np.tanh(0.5 * c[1] + xs[c[0]])), (0, h))
    return np.sum(h)


@row_reads.twin
def _(xs, h, n):
    for t in range(n):
        h = np.tanh(0.5 * h + xs[t])
    return np.sum(h)


@program(normal(36, 4, 3))
def row_reads_at_computed_indices(xs):
    """Rows read out of order and more than once, by an index that the data decides."""

    def step(carry):
        i, t, y = carry
        row = xs[t]
        return i + 1, np.remainder(3 * t + np.argmax(row), 4), y * 0.5 + np.sin(row) * xs[-1]

    _, _, y = cg.while_loop(lambda c: c[0] < 6, step, (0, 1, xs[0]))
    return y


@row_reads_at_computed_indices.twin
def _(xs):
    t, y = 1, xs[0]
    for _ in range(6):
        row = xs[t]
        t, y = int((3 * t + np.argmax(row)) % 4), y * 0.5 + np.sin(row) * xs[-1]
    return y


@program(normal(37, 3), scalar(0.6))
def row_writes(x, w):
    def step(carry):
        t, y, ys = carry
        y = np.sin(y) + w
        return t + 1, y, ys.at[t].set(y)

    _, _, ys = cg.while_loop(lambda c: c[0] < 4, step, (0, x, cnp.zeros((4, 3))))
    return np.sum(ys**3, axis=1)


@row_writes.twin
def _(x, w):
    ys = np.zeros((4, 3))
    for t in range(4):
        x = np.sin(x) + w
        ys[t] = x
    return np.sum(ys**3, axis=1)


@program(normal(38, 4), scalar(0.6))
def rows_written_over_a_differentiated_array(x, w):
    def step(t, ys):
        return ys.at[t + 1].set(np.sin(ys[t]) * w + ys[t + 1])

    return np.sum(cg.fori_loop(0, 3, step, x) ** 2)


@rows_written_over_a_differentiated_array.twin
def _(x, w):
    x = x.copy()
    for t in range(3):
        x[t + 1] = np.sin(x[t]) * w + x[t + 1]
    return np.sum(x**2)


@program(normal(39, 4), normal(40, 5), np.array([0, 2, 2, 1, 2]))
def scatter_add_with_repeats(x, v, index):
    def step(i, x):
        return x.at[index].add(np.sin(v) * x[i])

    return cg.fori_loop(0, 3, step, x)


@scatter_add_with_repeats.twin
def _(x, v, index):
    x = x.copy()
    for i in range(3):
        np.add.at(x, index, np.sin(v) * x[i])
    return x


@program(normal(41, 6, 2), np.array([[0, 3], [5, 3], [1, 1]]))
def gather_with_index_arrays(table, index):
    def step(t, h):
        return np.tanh(h + np.sum(table[index[t]], axis=0))

    return cg.fori_loop(0, 3, step, table[2])


@gather_with_index_arrays.twin
def _(table, index):
    h = table[2]
    for t in range(3):
        h = np.tanh(h + np.sum(table[index[t]], axis=0))
    return h


@program({"a": normal(42, 4, 2), "b": normal(43, 4)}, (normal(44, 2), scalar(0.3)))
def scan_over_pytrees(xs, init):
    def step(carry, x):
        h, c = carry
        h = np.tanh(h * x["b"] + x["a"])
        return (h, c + np.sum(h)), {"y": h * c, "z": np.sum(h * h)}

    return cg.scan(step, init, xs)


@scan_over_pytrees.twin
def _(xs, init):
    h, c = init
    ys, zs = [], []
    for a, b in zip(xs["a"], xs["b"], strict=True):
        h = np.tanh(h * b + a)
        ys.append(h * c)
        zs.append(np.sum(h * h))
        c = c + np.sum(h)
    return (h, c), {"y": np.array(ys), "z": np.array(zs)}


@program(normal(45, 5, 2), normal(46, 2))
def scan_in_reverse(xs, init):
    return cg.scan(lambda h, x: (np.sin(h) + x, h * x), init, xs, reverse=True)


@scan_in_reverse.twin
def _(xs, init):
    h, ys = init, np.zeros((5, 2))
    for t in reversed(range(5)):
        h, ys[t] = np.sin(h) + xs[t], h * xs[t]
    return h, ys


@program(normal(47, 3, 2), normal(48, 2))
def scan_in_a_scan(xs, init):
    def outer(h, x):
        inner, rows = cg.scan(lambda a, b: (np.sin(a * b), a + b), h, xs)
        return inner * x, np.sum(rows, axis=0)

    return cg.scan(outer, init, xs)


@scan_in_a_scan.twin
def _(xs, init):
    h, sums = init, []
    for x in xs:
        a, total = h, 0.0
        for b in xs:
            a, total = np.sin(a * b), total + a + b
        h = a * x
        sums.append(total)
    return h, np.array(sums)


@program(normal(49, 3), normal(50, 2, 1), scalar(0.4))
def broadcasting_in_the_body(x, y, w):
    def step(i, z):
        return np.sin(z * w + x) * y + i * w

    return cg.fori_loop(0, 3, step, x + y)


@broadcasting_in_the_body.twin
def _(x, y, w):
    z = x + y
    for i in range(3):
        z = np.sin(z * w + x) * y + i * w
    return z


@program(normal(51, 3, 4))
def reductions_in_the_body(x):
    def step(i, y):
        y = y - np.max(y, axis=1, keepdims=True)
        y = y / np.sum(np.exp(y), axis=1, keepdims=True) + x * np.mean(y, axis=0)
        return y + 0.1 * np.prod(1.0 + 0.1 * y, axis=1, keepdims=True) + 0.1 * np.cumsum(y, axis=0)

    return np.sum(cg.fori_loop(0, 2, step, x), axis=0)


@reductions_in_the_body.twin
def _(x):
    y = x
    for _ in range(2):
        y = y - np.max(y, axis=1, keepdims=True)
        y = y / np.sum(np.exp(y), axis=1, keepdims=True) + x * np.mean(y, axis=0)
        y = y + 0.1 * np.prod(1.0 + 0.1 * y, axis=1, keepdims=True) + 0.1 * np.cumsum(y, axis=0)
    return np.sum(y, axis=0)


@program(normal(52, 2, 2), normal(53, 2, 4, scale=0.5))
def concat_and_split_in_the_body(x, w):
    def step(i, x):
        a, b = np.split(np.concatenate([x, np.sin(x)], axis=1) @ w.T, 2, axis=1)
        return np.stack([np.flip(a[:, 0]), b[:, 0]], axis=1).reshape(2, 2).T

    return cg.fori_loop(0, 3, step, x)


@concat_and_split_in_the_body.twin
def _(x, w):
    for _ in range(3):
        a, b = np.split(np.concatenate([x, np.sin(x)], axis=1) @ w.T, 2, axis=1)
        x = np.stack([np.flip(a[:, 0]), b[:, 0]], axis=1).reshape(2, 2).T
    return x
