"""Programs of one row to a float scalar, each with rows that go different ways."""

from __future__ import annotations

from typing import Any

import numpy as np

import ctrlgrad as cg
import ctrlgrad.numpy as cnp


def _rows(*shape: int) -> Any:
    return np.random.default_rng(11).uniform(0.2, 1.8, shape)


def counted_down(x: Any) -> Any:
    """Rows with 0 to 7 iterations; past a row's end the logarithm is that of a negative number."""
    return cg.while_loop(lambda c: c[0] > 0.5, lambda c: (c[0] - 1, c[1] + cnp.log(c[0]) * c[0]), (x, x * x))[1]


def root_past_the_end(x: Any) -> Any:
    """sqrt at 0 exactly where a row is done: its derivative is infinite there."""
    return cg.while_loop(
        lambda c: c[0] < 4, lambda c: (c[0] + 1, c[1] + cnp.sqrt(4.0 - c[0]) * c[1] * 0.25), (cnp.floor(x), x)
    )[1]


def division_past_the_end(x: Any) -> Any:
    n = cnp.floor(x * 3).astype(int)
    body = lambda c: (c[0] + 1, c[1] + x / (n - c[0]).astype(float))
    return cg.while_loop(lambda c: c[0] < n, body, (0, x))[1]


def index_past_the_end(x: Any) -> Any:
    """Reads items[i] until it meets the end, which differs: the next index would not exist."""
    items = cnp.sin(cnp.arange(1.0, 5.0) * x)
    start = cnp.floor(x * 2).astype(int)
    return cg.while_loop(lambda c: c[0] < 4, lambda c: (c[0] + 1, c[1] * (1 + items[c[0]])), (start, x))[1]


def newton(x: Any) -> Any:
    """A square root by Newton's iteration, to a tolerance that rows meet at different times."""
    step = lambda y: 0.5 * (y + x / y)
    return cg.while_loop(lambda y: abs(y * y - x) > 1e-9, step, x)


def nested(x: Any) -> Any:
    """Inner trip counts depend on the row and on the outer iteration."""

    def outer(c: Any) -> Any:
        i, y = c
        inner = cg.while_loop(lambda d: d[0] < i * x, lambda d: (d[0] + 1, d[1] * cnp.cos(d[1] + x)), (0.0, y))
        return i + 1, inner[1] + 0.1 * i

    return cg.while_loop(lambda c: c[0] < 3 * x, outer, (0.0, x))[1]


def shared_in_own(x: Any) -> Any:
    """A loop that all rows share, inside one that they leave at different times."""
    body = lambda c: (c[0] + 1.0, cg.fori_loop(0, 3, lambda i, y: y + cnp.log(x - c[0] + 0.7) * y * 0.1, c[1]))
    return cg.while_loop(lambda c: c[0] < x, body, (0.0, x))[1]


def own_in_shared(x: Any) -> Any:
    body = lambda i, y: cg.while_loop(lambda c: c[0] > i + 0.5, lambda c: (c[0] - 1, c[1] * c[0] * 0.7), (3 * x, y))[1]
    return cg.fori_loop(0, 3, body, x)


def scanned(x: Any) -> Any:
    """x: a vector; scan with collected results."""
    last, ys = cg.scan(lambda c, v: (cnp.tanh(c * v + 0.5), c * c), x[0], x)
    return last + (ys * x).sum()


def scan_in_own(x: Any) -> Any:
    """A stack made and emptied within an iteration that some rows do not make."""

    def body(c: Any) -> Any:
        i, y = c
        _, ys = cg.scan(lambda s, v: (s * v, cnp.log(s + v + i)), y, x)
        return i + 1, ys.sum() * 0.3

    return cg.while_loop(lambda c: c[0] < 3 * x[0], body, (0.0, x[1]))[1]


def collected(x: Any) -> Any:
    """Writes a TensorArray of a fixed size as far as each row gets."""
    array = cg.TensorArray("float64", size=6, element_shape=())
    body = lambda c: (c[0] + 1, c[1] * 0.8, c[2].write(c[0], cnp.log(c[1])))
    _, _, array = cg.while_loop(lambda c: c[1] > 0.5, body, (0, x, array))
    return (array.stack() * cnp.arange(1.0, 7.0)).sum()


def pushed_and_read(x: Any) -> Any:
    """A TensorArray that grows to a length of each row's own and is read back from its end."""
    array = cg.TensorArray("float64", element_shape=())
    _, array = cg.while_loop(lambda c: c[0] < 4 * x, lambda c: (c[0] + 1, c[1].push(cnp.sin(c[0] * x))), (0.0, array))
    n = array.size()
    return cg.fori_loop(0, n, lambda i, y: y * 0.5 + array.read(n - 1 - i) * (i + 1), x)


def rewritten(x: Any) -> Any:
    """Reads a slot, divides by it, and clears it: what a row that is done would meet is a zero."""
    array = cg.TensorArray("float64", rewritable=True).unstack(x)

    def body(c: Any) -> Any:
        i, y, a = c
        v = a.read(i)
        return i + 1, y + x[0] / v, a.write(i, v * 0.0)

    _, y, array = cg.while_loop(lambda c: (c[1] < 2.5) & (c[0] < 4), body, (0, x[0], array))
    return y + (array.stack() ** 2).sum()


def branches(x: Any) -> Any:
    """Each side is invalid for the rows of the other: a logarithm and a root of negative numbers."""
    return cg.cond(x > 1, lambda: cnp.log(x - 1) * x, lambda: cnp.sqrt(1 - x) * 3)


def branch_index(x: Any) -> Any:
    """A branch whose index does not exist for the rows that do not take it."""
    items = cnp.arange(1.0, 4.0) * x
    i = cnp.floor(x * 3).astype(int)
    return cg.cond(i < 3, lambda: items[i] ** 2, lambda: x / (i - 2).astype(float))


def branch_in_loop(x: Any) -> Any:
    def body(c: Any) -> Any:
        i, y = c
        side = lambda: cg.cond(i > x, lambda: cnp.log(i - x) * y, lambda: y * cnp.sqrt(x - i))
        return i + 1, cg.cond(y > 0.8, lambda: y * 0.7 + side(), lambda: 1 / (1 - y) * 0.2 + i)

    return cg.while_loop(lambda c: c[0] < 3 * x, body, (0.5, x * 0.9))[1]


def loop_in_branch(x: Any) -> Any:
    grow = lambda: cg.while_loop(lambda y: y < 3.0, lambda y: y * y + 0.1, x)
    shrink = lambda: cg.while_loop(lambda y: y > 0.3, lambda y: y * cnp.sqrt(1.05 - y) * 0.8, x)
    return cg.cond(x > 1.0, grow, shrink)


def branch_on_stacks(x: Any) -> Any:
    """Branches in a loop that write the same array in different places."""
    array = cg.TensorArray("float64", size=8, element_shape=(), rewritable=True)

    def body(i: Any, a: Any) -> Any:
        low = lambda: a.write(i, cnp.sqrt(1.0 - x * 0.5) * x)
        high = lambda: a.write(7 - i, cnp.log(x) + a.read(i) * 2)
        return cg.cond(cnp.sin(i * x) > 0.3, high, low)

    return (cg.fori_loop(0, 8, body, array).stack() * cnp.arange(1.0, 9.0)).sum()


def only_one_branch_writes(x: Any) -> Any:
    array = cg.TensorArray("float64", element_shape=())
    body = lambda c: (
        c[0] + 1,
        cg.cond(cnp.cos(c[0] * x) > 0, lambda: c[1].push(c[0] * x * x), lambda: c[1]),
    )
    _, array = cg.while_loop(lambda c: c[0] < 5 * x, body, (0.0, array))
    return cg.fori_loop(0, array.size(), lambda i, y: cnp.sin(y + array.read(i)), x)


def appended(x: Any) -> Any:
    """An array and the same made longer by a write at its end, of as many slots in every row."""
    shorter = cg.TensorArray("float64", rewritable=True).push(cnp.sin(x)).push(x * x)
    longer = shorter.write(shorter.size(), cnp.cos(x))
    return (shorter.stack() ** 2).sum() + cnp.sin(longer.stack() ** 2 * np.array([1.0, 0.5, 2.0])).sum()


def appended_by_own_counts(x: Any) -> Any:
    """Writes at the end and pushes by turns, as often as each row goes on; both arrays are read."""

    def body(c: Any) -> Any:
        i, array, y = c
        longer = array.write(array.size(), cnp.sin(y + i))
        y = y + array.read(array.size() - 1) * longer.read(longer.size() - 1) + longer.read(0)
        return i + 1, longer.push(0.5 * y), 0.5 * y

    start = cg.TensorArray("float64", rewritable=True).push(x * x)
    _, array, y = cg.while_loop(lambda c: c[0] < 3 * x, body, (0.0, start, x))
    return cg.fori_loop(0, array.size(), lambda i, z: cnp.sin(z + array.read(i)), y)


def updates(x: Any) -> Any:
    """Indexed reads and updates at places of each row's own."""
    i = cnp.floor(x[0] * 2).astype(int)
    y = x.at[i].set(x[1] * x[1])
    y = y.at[cnp.stack([i, i - 1])].add(x[2:4])
    return (y * cnp.arange(1.0, y.shape[0] + 1.0)).sum() + y[i] ** 3


def products(x: Any) -> Any:
    w = np.random.default_rng(3).standard_normal((4, 4))
    h = cnp.tanh(w @ x)
    m = cnp.outer(h, x)
    return (m @ w @ m).sum() + cnp.einsum("i,ij,j", x, m, h)


def changing_matrix(x: Any) -> Any:
    """A matrix of each row's own, captured by a loop of each row's own length."""
    a = cnp.outer(x, x) + 2 * cnp.eye(4)
    body = lambda c: (c[0] + 1, cnp.tanh(a @ c[1] * 0.3) + x * 0.1)
    return cg.while_loop(lambda c: c[0] < 4 * x[0], body, (0.0, x))[1].sum()


def shapes(x: Any) -> Any:
    """Reshapes, reductions, flips, cumulative sums and joins."""
    m = x.reshape(2, 2)
    y = cnp.concatenate([m.T.ravel(), cnp.cumsum(x), x[::-1], x[1:3]])
    z = cnp.stack([y, y * 2], axis=1)[:, None, :]
    return (z.sum(axis=(0, 1)) ** 2).sum() + y.max() * y.min() + m.max(axis=1).prod()


SCALAR = (
    counted_down,
    root_past_the_end,
    division_past_the_end,
    index_past_the_end,
    newton,
    nested,
    shared_in_own,
    own_in_shared,
    collected,
    pushed_and_read,
    branches,
    branch_index,
    branch_in_loop,
    loop_in_branch,
    branch_on_stacks,
    only_one_branch_writes,
    appended,
    appended_by_own_counts,
)
VECTOR = (scanned, scan_in_own, rewritten, updates, products, changing_matrix, shapes)

SCALAR_ROWS = np.array([0.3, 1.7, 0.45, 0.9, 1.3])
VECTOR_ROWS = _rows(5, 4)
