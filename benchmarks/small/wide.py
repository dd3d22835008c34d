"""Long and wide programs: thousands of operations in a row, and loops and branches of hundreds of values.

A first call of them takes as much longer as they are larger.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.small.library import Library, Small


def scalar_chain(lib: Library, operations: int) -> Small:
    """Arithmetic on two numbers, three operations a line."""

    def loss(x: Any, y: Any) -> Any:
        for _ in range(operations // 3):
            x = lib.array.sin(x) * y + x
        return x

    return Small(loss, (np.asarray(0.3), np.asarray(1e-3)), 2)


def reduced_vectors(lib: Library, operations: int) -> Small:
    """Elementwise arithmetic on a thousand numbers, of which every fifth operation takes a sum."""
    rng = np.random.default_rng(0)

    def loss(x: Any, y: Any) -> Any:
        for _ in range(operations // 5):
            x = lib.array.tanh(x * y + lib.array.sum(x) * 1e-3)
        return lib.array.sum(x * x)

    return Small(loss, (rng.normal(size=1000), rng.normal(size=1000)), 2)


def small_matrices(lib: Library, operations: int) -> Small:
    """Products of 8 x 8 matrices, slices and gathers, six operations a line: little of it is fused."""
    rng = np.random.default_rng(0)
    order = rng.permutation(8)

    def loss(a: Any, x: Any) -> Any:
        for _ in range(operations // 6):
            x = lib.array.concatenate([x[2:], x[:2]])[order] @ a + x
        return lib.array.sum(x * x)

    return Small(loss, (rng.normal(size=(8, 8)) / 8, rng.normal(size=(8, 8))), 2)


def unrolled_cells(lib: Library, layers: int, width: int) -> Small:
    """A stack of gated cells with weights of their own, unrolled over the layers, on four steps of a sequence."""
    rng = np.random.default_rng(0)
    weights = [tuple(rng.normal(size=(width, width)) / np.sqrt(width) for _ in range(3)) for _ in range(layers)]

    def loss(weights: Any, xs: Any) -> Any:
        rows = [xs[k] for k in range(4)]
        for into, again, gate in weights:
            h, after = lib.array.zeros((width,)), []
            for row in rows:
                share = 0.5 + 0.5 * lib.array.tanh(row @ gate)
                h = share * h + (1.0 - share) * lib.array.tanh(row @ into + h @ again)
                after.append(h)
            rows = after
        return lib.array.sum(rows[-1] * rows[-1])

    return Small(loss, (weights, rng.normal(size=(4, width))), 1)


def scan_inputs(lib: Library, inputs: int, steps: int) -> Small:
    """A scan over the rows of many arrays."""
    rng = np.random.default_rng(0)

    def loss(xs: Any) -> Any:
        def step(carry: Any, rows: Any) -> Any:
            for row in rows:
                carry = lib.array.tanh(carry + row)
            return carry, lib.array.sum(carry)

        last, sums = lib.scan(step, lib.array.zeros((4,)), xs)
        return lib.array.sum(last) + lib.array.sum(sums)

    return Small(loss, ([rng.normal(size=(steps, 4)) for _ in range(inputs)],), 1)


def loop_carries(lib: Library, carries: int, steps: int) -> Small:
    """A loop until a bound with many carries, each of which is made of two."""
    rng = np.random.default_rng(0)

    def loss(xs: Any) -> Any:
        def step(carry: Any) -> Any:
            count, xs = carry
            return count + 1, [lib.array.sin(x) * y for x, y in zip(xs, [*xs[1:], xs[0]], strict=True)]

        xs = lib.while_loop(lambda carry: carry[0] < steps, step, (0, xs), steps)[1]
        return sum(lib.array.sum(x) for x in xs)

    return Small(loss, ([rng.normal(size=4) for _ in range(carries)],), 1)


def branch_outputs(lib: Library, outputs: int) -> Small:
    """A branch with many results."""
    rng = np.random.default_rng(0)

    def loss(x: Any, ys: Any) -> Any:
        ys = lib.cond(
            x > 0.0,
            lambda ys: [lib.array.sin(y) * x for y in ys],
            lambda ys: [lib.array.cos(y) + x for y in ys],
            ys,
        )
        return sum(lib.array.sum(y) for y in ys)

    return Small(loss, (np.asarray(0.3), [rng.normal(size=4) for _ in range(outputs)]), 2)


def small_loops(lib: Library, loops: int) -> Small:
    """Small loops one after the other."""
    rng = np.random.default_rng(0)

    def loss(x: Any, y: Any) -> Any:
        for _ in range(loops):
            x = lib.fori_loop(0, 3, lambda _, x: lib.array.sin(x) * y + x, x)
        return lib.array.sum(x)

    return Small(loss, (rng.normal(size=4), rng.normal(size=4)), 2)


WIDE: tuple[Callable[..., Small], ...] = (
    scalar_chain,
    reduced_vectors,
    small_matrices,
    unrolled_cells,
    scan_inputs,
    loop_carries,
    branch_outputs,
    small_loops,
)
