"""The loops in ctrlgrad."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from benchmarks.loops import LIMIT, TOLERANCE
from benchmarks.loops.inputs import Arguments, branch_inputs, map_inputs, nested_inputs, read
from benchmarks.program import Program


def mapped_loss(width: int | None) -> Callable[..., Any]:
    """The mean of a map's iterates, of numbers or of vectors."""

    def loss(s: Any, a: Any, b: Any, n: Any) -> Any:
        def unfinished(carry: Any) -> Any:
            i, s, _ = carry
            return (i < n) & ((s if width is None else s[0]) < LIMIT)

        def body(carry: Any) -> Any:
            i, s, total = carry
            s = a * cnp.sin(s) + b
            return i + 1, s, total + s

        total = cg.while_loop(unfinished, body, (0, s, cnp.zeros_like(s)))[2]
        return cnp.sum(total) / n

    return loss


def mapped(n: int, width: int | None = None, engine: str = "auto") -> Program:
    return _program(mapped_loss(width), map_inputs(width), n, engine)


def branching(n: int, engine: str = "auto") -> Program:
    def loss(v: Any, a: Any, r: Any, n: Any) -> Any:
        def body(carry: Any) -> Any:
            i, v, total = carry
            v = cg.cond(v < 1.0, lambda: v + 0.1 * (a - v), lambda: r * cnp.tanh(v))
            return i + 1, v, total + v

        return cg.while_loop(lambda c: (c[0] < n) & (c[1] < LIMIT), body, (0, v, 0.0))[2] / n

    return _program(loss, branch_inputs(), n, engine)


def nested(n: int, engine: str = "auto") -> Program:
    def solve(y: Any, a: Any) -> Any:
        def residual(z: Any) -> Any:
            return z - y - 0.1 * (a * cnp.cos(z) - z**3)

        def improve(z: Any) -> Any:
            return z - residual(z) / (1.0 + 0.1 * (a * cnp.sin(z) + 3.0 * z**2))

        return cg.while_loop(lambda z: cnp.abs(residual(z)) > TOLERANCE, improve, y)

    def loss(y: Any, a: Any, n: Any) -> Any:
        def body(carry: Any) -> Any:
            i, y, total = carry
            y = solve(y, a)
            return i + 1, y, total + y

        return cg.while_loop(lambda c: (c[0] < n) & (c[1] < LIMIT), body, (0, y, 0.0))[2] / n

    return _program(loss, nested_inputs(), n, engine)


def _program(loss: Callable[..., Any], arguments: Arguments, n: int, engine: str) -> Program:
    step = cg.function(cg.value_and_grad(loss, argnums=tuple(range(len(arguments)))), engine=engine)
    return Program(step=lambda: step(*arguments, np.int64(n)), read=read)
