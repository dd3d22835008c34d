"""Programs that failed once, shrunk to what matters."""

from __future__ import annotations

import numpy as np

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from corpus.program import between, count, normal, program

UNKNOWN_LENGTH = (cg.TensorSpec((None,)), cg.TensorSpec((2,)), cg.TensorSpec((), "int64"))


@program(normal(301, 2), normal(302, 2), count(2), signature=UNKNOWN_LENGTH)
def known_sizes_in_an_unknown_carry(x, w, n):
    """The carry's size is unknown, that of the body's result is known: the result's cotangent comes with the carry's
    type, and the shares that the captures get from it must have theirs."""
    return cg.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, np.sin(w + 0.5 * np.sum(w))), (0, x))[1]


@known_sizes_in_an_unknown_carry.twin
def _(x, w, n):
    y = x
    for _ in range(n):
        y = np.sin(w + 0.5 * np.sum(w))
    return y


def _grown(array, x, y):
    """An array of two rows, and beside it the same array made longer by a write at its end; both count."""
    shorter = array.push(np.sin(x)).push(x * y)
    longer = shorter.write(shorter.size(), np.cos(y) * x)
    return np.sum(shorter.stack() ** 2 * np.array([[0.5], [2.0]])) + np.sum(np.sin(longer.stack() ** 2))


def _grown_twin(x, y):
    rows = [np.sin(x), x * y, np.cos(y) * x]
    weights = (0.5, 2.0, 0.0)
    return sum(weight * np.sum(row**2) + np.sum(np.sin(row**2)) for weight, row in zip(weights, rows, strict=True))


@program(normal(303, 2), normal(304, 2))
def a_write_that_appends_to_a_rewritable_array(x, y):
    """The cotangent of the longer array is longer than that of the shorter one, which it is added to."""
    return _grown(cg.TensorArray("float64", rewritable=True), x, y)


@a_write_that_appends_to_a_rewritable_array.twin
def _(x, y):
    return _grown_twin(x, y)


@program(normal(303, 2), normal(304, 2))
def a_write_that_appends(x, y):
    """As before, where each slot may be written once."""
    return _grown(cg.TensorArray("float64"), x, y)


@a_write_that_appends.twin
def _(x, y):
    return _grown_twin(x, y)


@program(normal(305, 3, 2), normal(306, 2))
def a_write_that_appends_to_rows(x, y):
    """The shorter array is a tensor's rows: its cotangent becomes one of the tensor's shape."""
    shorter = cg.TensorArray("float64", rewritable=True).unstack(x)
    longer = shorter.write(3, y * y)
    return np.sum(shorter.stack() ** 3) + np.sum(np.sin(longer.stack() ** 2)), longer.read(1) * longer.read(3)


@a_write_that_appends_to_rows.twin
def _(x, y):
    longer = np.concatenate([x, (y * y)[None]])
    return np.sum(x**3) + np.sum(np.sin(longer**2)), x[1] * y * y


@program(normal(307, 2), normal(308, 2), count(3))
def writes_that_append_in_a_loop(x, y, n):
    """Each iteration looks at the array before and after its write."""

    def body(c):
        i, array, total = c
        longer = array.write(array.size(), np.sin(y + 0.5 * total))
        return i + 1, longer, total + 0.3 * np.sum(longer.stack() ** 2, 0) - 0.2 * np.sum(array.stack(), 0) * y

    start = cg.TensorArray("float64").push(x)
    _, array, total = cg.while_loop(lambda c: c[0] < n, body, (0, start, 0.1 * x))
    return np.sum(array.stack() ** 3, 0), total


@writes_that_append_in_a_loop.twin
def _(x, y, n):
    rows, total = [x], 0.1 * x
    for _ in range(n):
        longer = [*rows, np.sin(y + 0.5 * total)]
        total = total + 0.3 * np.sum(np.stack(longer) ** 2, 0) - 0.2 * np.sum(np.stack(rows), 0) * y
        rows = longer
    return np.sum(np.stack(rows) ** 3, 0), total


@program(normal(309), normal(310))
def a_captured_array_that_is_written_to_and_not_carried(x, y):
    """Each iteration writes to the same array and looks at it; the array before the writes counts afterwards."""
    array = cg.TensorArray("float64", 3, (), rewritable=True).write(0, x).write(1, y)

    def body(i, total):
        longer = array.write(i, np.sin(x) + total)
        return 0.5 * total + longer.read(i) * longer.read((i + 1) % 3) + array.read(i)

    return cg.fori_loop(0, 3, body, 0.1 * y), array.stack() ** 2


@a_captured_array_that_is_written_to_and_not_carried.twin
def _(x, y):
    rows, total = [x, y, 0.0 * x], 0.1 * y
    for i in range(3):
        longer = list(rows)
        longer[i] = np.sin(x) + total
        total = 0.5 * total + longer[i] * longer[(i + 1) % 3] + rows[i]
    return total, np.stack(rows) ** 2


@program(normal(311, 3), normal(312, 2))
def a_scalar_as_a_row_in_an_inner_loop(row, weights):
    """`first[None]` is a new axis of a scalar: its cotangent stays one number, in a loop compiled inside another."""

    def next_row(row, w):
        first = row[0] + 1.05
        _, rest = cg.scan(lambda left, up: (left * up, np.sin(left) + up), first, row[1:])
        return cnp.concatenate([first[None], rest]) * w, None

    return cg.scan(next_row, row, weights)[0]


@a_scalar_as_a_row_in_an_inner_loop.twin
def _(row, weights):
    for k in range(2):
        left = row[0] + 1.05
        new = [left]
        for j in (1, 2):
            left, new = left * row[j], [*new, np.sin(left) + row[j]]
        row = np.stack(new) * weights[k]
    return row


@program(between(0.5, 2.0, 313, 4), np.array([0.0, 1.0, 2.0, 0.0]))
def powers_whose_exponent_is_zero(x, p):
    """The derivative y x^(y-1) is 0 at y = 0, and its derivative by y is not."""
    return cg.fori_loop(0, 2, lambda i, y: y**p + 0.5 * x, x)


@powers_whose_exponent_is_zero.twin
def _(x, p):
    return (x**p + 0.5 * x) ** p + 0.5 * x
