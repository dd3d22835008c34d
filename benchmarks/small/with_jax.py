"""The small programs in JAX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.program import Program
from benchmarks.small.programs import PROGRAMS, Library, read

jax.config.update("jax_enable_x64", True)

LIBRARY = Library(jnp, lax.fori_loop, lax.scan, lax.cond, jax.vmap, jax.nn.softmax, jax.nn.logsumexp)


def gradient(name: str, size: Mapping[str, Any]) -> Program:
    small = PROGRAMS[name](LIBRARY, **size)
    step = jax.jit(jax.value_and_grad(small.loss, argnums=tuple(range(small.by))))
    arrays = jax.tree.map(jnp.asarray, small.arrays)
    return Program(step=lambda: jax.block_until_ready(step(*arrays)), read=lambda result: read(jax.tree.leaves(result)))
