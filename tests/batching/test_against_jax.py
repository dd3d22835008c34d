"""vmap against `jax.vmap` of the same program, values and gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")


@pytest.fixture(autouse=True)
def _doubles() -> Any:
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


X = np.array([0.3, 1.7, 0.9, 1.2])


def _loop(lib: Any, np_like: Any) -> Any:
    step = lambda c: (c[0] + 1.0, np_like.sin(c[1]) * c[0] + 1.0)
    return lambda x: lib.while_loop(lambda c: c[0] < 5 * c[1], step, (1.0 + 0 * x, x))[1]


def _branch(lib: Any, np_like: Any) -> Any:
    return lambda x: lib.cond(x > 1, lambda v: np_like.exp(v) * v, lambda v: np_like.cos(v), x)


def _scan(lib: Any, np_like: Any) -> Any:
    def f(x: Any) -> Any:
        _, ys = lib.scan(lambda c, v: (np_like.tanh(c * v), c * c), x, np_like.arange(1.0, 6.0))
        return (ys * ys).sum()

    return f


def _switch(lib: Any, np_like: Any) -> Any:
    cases = [lambda v: v * v, lambda v: np_like.sin(v), lambda v: v + 2.0]
    return lambda x: lib.switch(np_like.floor(x * 2).astype(int), cases, x)


@pytest.mark.parametrize("make", [_loop, _branch, _scan, _switch], ids=lambda m: m.__name__)
def test_values_and_forward_derivatives(make: Any) -> None:
    ours, theirs = make(cg, cnp), make(jax.lax, jnp)
    t = np.ones_like(X)
    value, slope = jax.jit(lambda x: (jax.vmap(theirs)(x), jax.jvp(jax.vmap(theirs), (x,), (t,))[1]))(X)
    np.testing.assert_allclose(cg.vmap(ours)(X), value, rtol=1e-12)
    np.testing.assert_allclose(cg.jvp(cg.vmap(ours), (X,), (t,))[1], slope, rtol=1e-11)


@pytest.mark.parametrize("make", [_branch, _scan, _switch], ids=lambda m: m.__name__)
def test_gradients(make: Any) -> None:
    ours, theirs = make(cg, cnp), make(jax.lax, jnp)
    np.testing.assert_allclose(cg.vmap(cg.grad(ours))(X), jax.jit(jax.vmap(jax.grad(theirs)))(X), rtol=1e-11)


@pytest.mark.parametrize(("in_axes", "out_axes"), [((0, 1), 0), ((1, None), -1), ((-1, 0), 1)])
def test_axes(in_axes: Any, out_axes: int) -> None:
    a, b = np.arange(9.0).reshape(3, 3), np.arange(9.0, 18.0).reshape(3, 3)
    f = lambda u, v: u @ v.T * 2 if v.ndim == 2 else u * v
    found = cg.vmap(f, in_axes, out_axes)(a, b)
    np.testing.assert_allclose(found, jax.vmap(f, in_axes, out_axes)(a, b), rtol=1e-12)
