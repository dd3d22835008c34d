"""The loops in Equinox: a `while_loop` whose reverse mode recomputes from checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox.internal as eqxi
import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.loops import LIMIT, TOLERANCE
from benchmarks.loops.inputs import Arguments, branch_inputs, map_inputs, nested_inputs, read
from benchmarks.program import Program

jax.config.update("jax_enable_x64", True)

MOST_NEWTON_STEPS = 16


def mapped(n: int, width: int | None = None) -> Program:
    def loss(s: Any, a: Any, b: Any, length: Any) -> Any:
        def unfinished(carry: Any) -> Any:
            i, s, _ = carry
            return (i < length) & ((s if width is None else s[0]) < LIMIT)

        def body(carry: Any) -> Any:
            i, s, total = carry
            s = a * jnp.sin(s) + b
            return i + 1, s, total + s

        init = (0, s, jnp.zeros_like(s))
        total = eqxi.while_loop(unfinished, body, init, max_steps=n, kind="checkpointed")[2]
        return jnp.sum(total) / length

    return _program(loss, map_inputs(width), n)


def branching(n: int) -> Program:
    def loss(v: Any, a: Any, r: Any, length: Any) -> Any:
        def body(carry: Any) -> Any:
            i, v, total = carry
            v = lax.cond(v < 1.0, lambda: v + 0.1 * (a - v), lambda: r * jnp.tanh(v))
            return i + 1, v, total + v

        def unfinished(carry: Any) -> Any:
            return (carry[0] < length) & (carry[1] < LIMIT)

        return eqxi.while_loop(unfinished, body, (0, v, 0.0), max_steps=n, kind="checkpointed")[2] / length

    return _program(loss, branch_inputs(), n)


def nested(n: int) -> Program:
    def solve(y: Any, a: Any) -> Any:
        def residual(z: Any) -> Any:
            return z - y - 0.1 * (a * jnp.cos(z) - z**3)

        def improve(z: Any) -> Any:
            return z - residual(z) / (1.0 + 0.1 * (a * jnp.sin(z) + 3.0 * z**2))

        def unsolved(z: Any) -> Any:
            return jnp.abs(residual(z)) > TOLERANCE

        return eqxi.while_loop(unsolved, improve, y, max_steps=MOST_NEWTON_STEPS, kind="checkpointed")

    def loss(y: Any, a: Any, length: Any) -> Any:
        def body(carry: Any) -> Any:
            i, y, total = carry
            y = solve(y, a)
            return i + 1, y, total + y

        def unfinished(carry: Any) -> Any:
            return (carry[0] < length) & (carry[1] < LIMIT)

        return eqxi.while_loop(unfinished, body, (0, y, 0.0), max_steps=n, kind="checkpointed")[2] / length

    return _program(loss, nested_inputs(), n)


def _program(loss: Callable[..., Any], arguments: Arguments, n: int) -> Program:
    step = jax.jit(jax.value_and_grad(loss, argnums=tuple(range(len(arguments)))))
    given = [jnp.asarray(x) for x in arguments]
    return Program(step=lambda: jax.block_until_ready(step(*given, n)), read=read)
