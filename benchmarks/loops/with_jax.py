"""The loops in JAX, which reverses only loops of a static length: a `scan`, without a condition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.loops.inputs import Arguments, branch_inputs, map_inputs, read
from benchmarks.program import Program

jax.config.update("jax_enable_x64", True)


def mapped(n: int, width: int | None = None) -> Program:
    def loss(s: Any, a: Any, b: Any) -> Any:
        def body(carry: Any, _: Any) -> Any:
            s, total = carry
            s = a * jnp.sin(s) + b
            return (s, total + s), None

        (_, total), _ = lax.scan(body, (s, jnp.zeros_like(s)), length=n)
        return jnp.sum(total) / n

    return _program(loss, map_inputs(width))


def branching(n: int) -> Program:
    def loss(v: Any, a: Any, r: Any) -> Any:
        def body(carry: Any, _: Any) -> Any:
            v, total = carry
            v = lax.cond(v < 1.0, lambda: v + 0.1 * (a - v), lambda: r * jnp.tanh(v))
            return (v, total + v), None

        return lax.scan(body, (v, 0.0), length=n)[0][1] / n

    return _program(loss, branch_inputs())


def _program(loss: Callable[..., Any], arguments: Arguments) -> Program:
    step = jax.jit(jax.value_and_grad(loss, argnums=tuple(range(len(arguments)))))
    given = [jnp.asarray(x) for x in arguments]
    return Program(step=lambda: jax.block_until_ready(step(*given)), read=read)
