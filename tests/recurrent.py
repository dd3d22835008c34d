"""A recurrent layer whose gradient saves much: what the tests of memory sessions run."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

import ctrlgrad as cg
import ctrlgrad.numpy as cnp


@functools.cache
def lstm(engine: str, loop: Callable[..., Any] = cg.while_loop) -> Any:
    """The gradient of a layer of 16 units, batch 8, by its weights; compiled once for all tests of a process."""

    def loss(w: Any, xs: Any) -> Any:
        def body(carry: Any) -> Any:
            t, h, c, total = carry
            i, f, g, o = cnp.split(cnp.concat([xs[t], h], axis=1) @ w, 4, axis=1)
            c = cnp.sigmoid(f) * c + cnp.sigmoid(i) * cnp.tanh(g)
            h = cnp.sigmoid(o) * cnp.tanh(c)
            return t + 1, h, c, total + cnp.sum(h * h)

        zeros = np.zeros((8, 16), np.float32)
        return loop(lambda c: c[0] < xs.shape[0], body, (0, zeros, zeros, np.float32(0)))[3]

    return cg.function(cg.value_and_grad(loss), engine=engine)


def sequence(steps: int) -> list[Any]:
    """The weights, and inputs of so many steps."""
    rng = np.random.default_rng(0)
    return [rng.normal(size=(24, 64)).astype("f") / 5, rng.normal(size=(steps, 8, 8)).astype("f")]


def swapping(*args: Any) -> Any:
    return cg.while_loop(*args, swap_memory=True)


def recomputing(*args: Any) -> Any:
    return cg.while_loop(*args, checkpoint=True)
