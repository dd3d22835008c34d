"""Checks for libraries written with JAX: values against JAX, gradients against finite differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import ctrlgrad as cg

JAX_REFUSES = r"Reverse-mode differentiation does not work for lax\.while_loop"


def close(found: Any, expected: Any, tolerance: float = 1e-10) -> None:
    """Two pytrees of JAX's have the same arrays."""
    found, expected = jax.tree.leaves(found), jax.tree.leaves(expected)
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=tolerance, atol=tolerance)


def directional(
    fn: Callable[..., Any], args: tuple[Any, ...], gradients: Any, step: float = 1e-6
) -> tuple[float, float]:
    """The derivative of a number in a random direction, by central differences and by gradients."""
    leaves, treedef = jax.tree.flatten(args)
    rng = np.random.default_rng(7)
    direction = [rng.normal(size=np.shape(x)) for x in leaves]
    ahead, behind = (
        treedef.unflatten([x + s * d for x, d in zip(leaves, direction, strict=True)]) for s in (step, -step)
    )
    difference = (float(fn(*ahead)) - float(fn(*behind))) / (2 * step)
    return difference, sum(
        float(np.sum(np.asarray(g) * d)) for g, d in zip(jax.tree.leaves(gradients), direction, strict=True)
    )


def check(fn: Callable[..., Any], *args: Any, jax_can: bool = False, tolerance: float = 1e-7) -> Any:
    """Check a scalar function of floats: its value against JAX, its gradient against differences and, where JAX can,
    against JAX.

    Returns the gradients.
    """
    with jax.enable_x64(True), cg.options(engine="reference"):
        compiled, read, places = jax.jit(fn), cg.from_jax(fn), tuple(range(len(args)))
        close(read(*args), compiled(*args))
        gradients = cg.grad(read, argnums=places)(*args)
        difference, found = directional(compiled, args, gradients)
        assert found == pytest.approx(difference, rel=tolerance, abs=tolerance)
        if jax_can:
            close(gradients, jax.grad(compiled, argnums=places)(*args), tolerance)
        else:
            with pytest.raises(ValueError, match=JAX_REFUSES):
                jax.grad(compiled, argnums=places)(*args)
    return gradients
