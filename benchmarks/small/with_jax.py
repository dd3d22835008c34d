"""The small programs in JAX."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.program import Program
from benchmarks.small.library import Library
from benchmarks.small.programs import PROGRAMS, read

jax.config.update("jax_enable_x64", True)


def _while_loop(going_on: Callable[..., Any], body: Callable[..., Any], init: Any, most: int) -> Any:
    """By a scan of so many steps, which has a reverse mode; those after the end change nothing."""

    def step(carry: Any, _: Any) -> tuple[Any, None]:
        goes_on = going_on(carry)
        return jax.tree.map(lambda new, old: jnp.where(goes_on, new, old), body(carry), carry), None

    return lax.scan(step, init, length=most)[0]


LIBRARY = Library(jnp, lax.fori_loop, lax.scan, _while_loop, lax.cond, jax.vmap, jax.nn.softmax, jax.nn.logsumexp)


def gradient(name: str, size: Mapping[str, Any]) -> Program:
    small = PROGRAMS[name](LIBRARY, **size)
    slope = jax.value_and_grad(small.loss, argnums=tuple(range(small.by)))
    step = jax.jit(jax.vmap(slope) if small.is_mapped else slope)
    arrays = jax.tree.map(jnp.asarray, small.arrays)
    return Program(step=lambda: jax.block_until_ready(step(*arrays)), read=lambda result: read(jax.tree.leaves(result)))


def value(name: str, size: Mapping[str, Any]) -> Program:
    small = PROGRAMS[name](LIBRARY, **size)
    step = jax.jit(jax.vmap(small.loss) if small.is_mapped else small.loss)
    arrays = jax.tree.map(jnp.asarray, small.arrays)
    return Program(step=lambda: jax.block_until_ready(step(*arrays)), read=lambda result: read(jax.tree.leaves(result)))
