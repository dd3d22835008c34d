"""Programs as one writes them for `jax.lax`: `lax` and `xp` are the only names that a port changes.

`PORTED` maps a name to (program, arguments); a program takes the two modules and then its arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

PORTED: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {}


def program(*args: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a program with its arguments."""

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        assert fn.__name__ not in PORTED
        PORTED[fn.__name__] = (fn, args)
        return fn

    return register


X = np.array([0.3, -1.2, 2.0, 0.7])
MATRIX = np.arange(12.0).reshape(4, 3) / 7.0


def sweep(lax: Any, xp: Any, x: Any, index: Any) -> Any:
    return lax.switch(index, [lambda x: x + 1.0, lambda x: x * x, lambda x: -x], x)


for _index in (-5, -1, 0, 1, 2, 3, 99):
    PORTED[f"switch_{_index}"] = (sweep, (X, np.int32(_index)))


@program(X, np.int64(7))
def switch_of_one_branch(lax, xp, x, index):
    return lax.switch(index, [lambda x: xp.sin(x)], x)


@program(X, np.uint8(2))
def switch_with_several_operands_and_a_pytree(lax, xp, x, index):
    branches = [
        lambda a, b: {"u": a["p"] + b, "n": xp.asarray(1)},
        lambda a, b: {"u": a["p"] * b, "n": xp.asarray(2)},
        lambda a, b: {"u": a["q"] - b, "n": xp.asarray(3)},
    ]
    return lax.switch(index, branches, {"p": x, "q": 2.0 * x}, xp.cos(x))


@program(X)
def cond_with_operands(lax, xp, x):
    return lax.cond(xp.sum(x) > 1.0, lambda a, b: a @ b, lambda a, b: xp.sum(a) + xp.max(b), x, xp.exp(x))


@program(X)
def map_of_a_function_of_scalars(lax, xp, x):
    return lax.map(lambda row: xp.tanh(row) * 2.0, x)


@program(MATRIX, X)
def map_over_a_pytree(lax, xp, m, x):
    return lax.map(lambda row: (row["m"] * row["x"], xp.sum(row["m"])), {"m": m, "x": x})


@program(X)
def scan_of_scalars(lax, xp, x):
    return lax.scan(lambda c, row: (c * 0.5 + row, c * row), 1.0, x)


@program(MATRIX, X)
def scan_over_pytrees(lax, xp, m, x):
    def step(carry, row):
        h, n = carry["h"], carry["n"]
        h = xp.tanh(h + row[0] * row[1])
        return {"h": h, "n": n + 1}, (xp.sum(h), {"last": h[-1], "n": n})

    return lax.scan(step, {"h": xp.zeros(3), "n": 0}, (m, x))


@program(MATRIX)
def scan_in_reverse(lax, xp, m):
    return lax.scan(lambda c, row: (c + row * row, c), xp.zeros(3), m, reverse=True)


@program(X)
def scan_in_reverse_collects_in_the_order_of_the_rows(lax, xp, x):
    return lax.scan(lambda n, row: (n + 1, n * row), 0, x, reverse=True)


@program(X)
def scan_without_rows(lax, xp, x):
    return lax.scan(lambda c, row: (xp.sin(c), c * 2.0), x, None, length=5)


@program(X)
def scan_that_collects_nothing(lax, xp, x):
    return lax.scan(lambda c, row: (c + row, None), 0.0, x, length=4)


@program(X)
def scan_over_no_rows(lax, xp, x):
    return lax.scan(lambda c, row: (c + row, xp.sin(row)), 1.5, x[:0])


@program(MATRIX)
def scan_in_a_scan(lax, xp, m):
    def row_sum(c, row):
        total, parts = lax.scan(lambda s, v: (s * 0.5 + v, s), c, row, reverse=True)
        return total, parts

    return lax.scan(row_sum, 0.0, m)


@program(X, np.int64(3))
def loop_over_a_pytree(lax, xp, x, n):
    def step(carry):
        return {"i": carry["i"] + 1, "y": (xp.sin(carry["y"][0]) + x, carry["y"][1] * 0.5)}

    return lax.while_loop(lambda carry: carry["i"] < n, step, {"i": 0, "y": (x, 2.0)})


@program(X)
def loop_that_does_not_start(lax, xp, x):
    return lax.while_loop(lambda y: xp.sum(y) < -100.0, lambda y: y * 2.0, x)


@program(X, np.int64(2), np.int64(6))
def counted_loop(lax, xp, x, low, high):
    return lax.fori_loop(low, high, lambda i, y: y * 0.5 + i * x, x)


@program(X)
def counted_loop_that_counts_down_does_nothing(lax, xp, x):
    return lax.fori_loop(5, 2, lambda i, y: y * 0.0, x)


@program(np.float64(1.1), np.float64(20.0))
def branches_in_nested_loops(lax, xp, x, limit):
    def outer(carry):
        i, y = carry
        y = lax.while_loop(
            lambda z: z < limit, lambda z: lax.cond(z > 5.0, lambda z: z * 1.5, lambda z: z * x + i + 0.5, z), y
        )
        return i + 1, y / (3.0 + i)

    return lax.while_loop(lambda carry: carry[0] < 3, outer, (0, x))
