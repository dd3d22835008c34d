"""The floor of the recurrent programs: their matrix products and nothing else, in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.program import Program
from benchmarks.recurrent.inputs import GATES, PRODUCTS, by_chance, sequence, weights

CHUNK = 64


def products(cell: str, size: Sequence[int]) -> Program:
    """Every product of a training step, batched over chunks of time wherever the recurrence allows.

    Forward, `x @ wx` a chunk at a time and `h @ wh` a step at a time; backward, `dz @ wh.T` a step at a time and the
    weights' gradients a chunk at a time. The operands are numbers by chance: the products' values mean nothing.
    """
    steps, batch, inputs, hidden = size
    gates = GATES[cell] * hidden
    shared, xs = weights(cell, size), sequence(size)
    hs, dz = (by_chance((steps, batch, n), n) for n in (hidden, gates))
    backward = np.ascontiguousarray(shared["wh"].T)
    z, zh, dh = np.empty((steps, batch, gates), np.float32), np.empty((batch, gates), np.float32), np.empty_like(hs[0])

    def step() -> Any:
        dwx, dwh = np.zeros_like(shared["wx"]), np.zeros_like(shared["wh"])
        for first in range(0, steps, CHUNK):
            part = slice(first, first + CHUNK)
            np.matmul(xs[part].reshape(-1, inputs), shared["wx"], out=z[part].reshape(-1, gates))
            for h in hs[part]:
                np.matmul(h, shared["wh"], out=zh)
            for d in dz[part]:
                np.matmul(d, backward, out=dh)
            flat = dz[part].reshape(-1, gates)
            dwx += xs[part].reshape(-1, inputs).T @ flat
            dwh += hs[part].reshape(-1, hidden).T @ flat
        return z[-1], zh, dh, dwx, dwh

    return Program(step=step, read=lambda result: dict(zip(PRODUCTS, result, strict=True)))
