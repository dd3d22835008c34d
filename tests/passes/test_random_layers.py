"""Loop distribution on random recurrent loops: the same values, gradients and second derivatives.

A loop is a list of instructions by chance: products of rows, states, slices and concatenations with weights; sums of
outer products and of rows; rows written, added to and pushed; branches; loops inside with products of their own.
CTRLGRAD_RANDOM_LAYERS says how many (6).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from corpus.program import normal
from instruments.checked import checked
from instruments.comparing import assert_same_bits

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines import without_passes
from ctrlgrad.execution import run_on
from ctrlgrad.ir import verify, walk
from ctrlgrad.passes import OPTIMISATIONS, distribute, optimise

COUNT = int(os.environ.get("CTRLGRAD_RANDOM_LAYERS", "6"))
STEPS, BATCH, WIDTH = 5, 2, 4


class Layer:
    """One loop by chance: instructions `(name, numbers)`, run by `step` on a pool of `[BATCH, WIDTH]` values."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        names = ["product", "tanh", "add", "multiply", "wide", "cut", "outer", "bias", "row", "push", "where", "back"]
        names.append("inner")
        self.instructions = [
            (str(rng.choice(names)), [int(n) for n in rng.integers(0, 1000, 3)]) for _ in range(rng.integers(6, 14))
        ]
        self.following = [int(n) for n in rng.integers(0, 1000, 2)]
        self.is_bounded, self.is_checkpointed, self.ends_early = (bool(n == 0) for n in rng.integers(3, size=3))
        self.steps = int(rng.integers(0, STEPS + 1))

    def __call__(self, xs: Any, ws: Any, wide: Any, b: Any) -> Any:
        zero = cnp.zeros((BATCH, WIDTH))
        start: tuple[Any, ...] = (0, zero, zero + 0.1, cnp.zeros((WIDTH, WIDTH)), cnp.zeros(WIDTH), cnp.zeros(xs.shape))
        if not self.is_checkpointed:  # what changes in the loop around cannot be computed again
            array = cg.TensorArray("float64", size=STEPS * 4, element_shape=(BATCH, WIDTH), rewritable=True)
            start = (*start, array)
        body = lambda c: self.step(c, xs, ws, wide, b)
        options = {"maximum_iterations": STEPS} if self.is_bounded else {}
        body = cg.checkpoint(body) if self.is_checkpointed else body
        _, h, g, outer, bias, rows, *arrays = cg.while_loop(self.goes_on, body, start, **options)
        total = cnp.sum(h * g) + cnp.sum(np.sin(outer)) + cnp.sum(np.sin(bias)) + cnp.sum(np.sin(rows))
        return total + sum(cnp.sum(np.cos(a.stack())) for a in arrays)

    def goes_on(self, carry: Any) -> Any:
        t, _, _, outer, *_ = carry
        return (t < self.steps) & (cnp.sum(outer) < 0.5) if self.ends_early else t < self.steps

    def step(self, carry: Any, xs: Any, ws: Any, wide: Any, b: Any) -> Any:
        t, h, g, outer, bias, rows, *arrays = carry
        pool = [h, g, xs[t]]
        pushed = 0
        for name, (i, j, k) in self.instructions:
            x, y = pool[i % len(pool)], pool[j % len(pool)]
            if name == "product":
                pool.append(x @ ws[k % len(ws)])
            elif name == "tanh":
                pool.append(np.tanh(x + b))
            elif name == "add":
                pool.append(x + y * 0.5)
            elif name == "multiply":
                pool.append(x * np.sin(y))
            elif name == "wide":
                pool.append(cnp.concat([x, y], axis=1) @ wide)
            elif name == "cut":
                both = x @ wide.T
                pool += [both[:, :WIDTH], both[:, WIDTH:]]
            elif name == "outer":
                outer = outer + x.T @ y
            elif name == "bias":
                bias = bias + cnp.sum(x, axis=0)
            elif name == "row":
                rows = rows.at[t].add(x) if k % 2 else rows.at[t].set(x * xs[t])
            elif name == "push":
                arrays = [a.write(4 * t + pushed % 4, x) for a in arrays]
                pushed += 1
            elif name == "inner":
                pool.append(self.inner(x, y, xs, ws[k % len(ws)], k % 4))
            elif name == "where":
                pool.append(np.where(t % 2 == 0, x, y))
            elif k % 4 == 0:
                pool.append(rows[t - 1] + x)
        h, g = (np.tanh(pool[n % len(pool)]) for n in self.following)
        return t + 1, h, g, outer, bias, rows, *arrays

    @staticmethod
    def inner(h: Any, row: Any, xs: Any, w: Any, steps: int) -> Any:
        """A recurrent loop over rows: one product leaves it before an iteration, in the gradient two after it."""
        body = lambda c: (c[0] + 1, np.tanh(xs[c[0]] @ w + c[1] @ w.T + row))
        return cg.while_loop(lambda c: c[0] < steps, body, (0, h))[1]


SHAPES = ((STEPS, BATCH, WIDTH), (3, WIDTH, WIDTH), (2 * WIDTH, WIDTH), (WIDTH,))
ARGUMENTS = tuple(normal(seed, *shape, scale=0.4) for seed, shape in enumerate(SHAPES))


def derivatives(function: Callable[..., Any]) -> list[Callable[..., Any]]:
    everything = (0, 1, 2, 3)
    gradient = cg.grad(function, argnums=everything)
    slope = lambda *values: sum(cnp.sum(np.sin(g)) for g in gradient(*values))
    return [function, gradient, cg.grad(slope, argnums=everything)]


@pytest.mark.parametrize("seed", range(COUNT))
def test_distributed(seed: int) -> None:
    for order, function in enumerate(derivatives(Layer(seed))):
        graph = cg.function(function).graph(*ARGUMENTS)
        expected = run_on("reference", graph, ARGUMENTS)
        plain = optimise(graph, {"distribute"})
        for chunk in (1, 3, 64):
            distributed = verify(distribute(plain, chunk))
            engine = "native" if (seed + order) % 4 == 0 and chunk == 3 else "reference"
            with checked(), without_passes(*(name for name, _ in OPTIMISATIONS)):
                found = run_on(engine, distributed, ARGUMENTS)
            for a, b in zip(expected, found, strict=True):
                np.testing.assert_allclose(b, a, rtol=1e-11, atol=1e-12 * max(1.0, np.max(np.abs(a))))


@pytest.mark.parametrize("seed", range(COUNT))
def test_chunks_of_any_length_give_the_same_bits(seed: int) -> None:
    """In machine code: a budget decides nothing but the length of chunks."""
    for order, function in enumerate(derivatives(Layer(seed))[1:]):
        plain = optimise(cg.function(function).graph(*ARGUMENTS), {"distribute"})
        with without_passes(*(name for name, _ in OPTIMISATIONS)):
            first, *others = (run_on("native", distribute(plain, n), ARGUMENTS) for n in (64, 1 + (seed + order) % 3))
        for found in others:
            assert_same_bits(found, first)


def test_most_are_distributed() -> None:
    """Of the gradients of twelve loops, most have products batched."""
    products = 0
    for seed in range(12):
        graph = optimise(cg.function(derivatives(Layer(seed))[1]).graph(*ARGUMENTS))
        chunks = [n.regions[1] for n in walk(graph) if "chunks_of" in n.attrs.given()]
        products += any(n.op.name == "matmul" for body in chunks for n in body.nodes)
    assert products >= 8
