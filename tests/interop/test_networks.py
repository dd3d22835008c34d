"""Recurrent networks of Flax and Equinox: parameters as pytrees, gradients as JAX's."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from interop.libraries import close, directional

import ctrlgrad as cg

X = np.random.default_rng(0).normal(size=(2, 5, 3))


def same_as_jax(loss: Any, params: Any, *args: Any) -> None:
    read = cg.from_jax(loss)
    close(read(params, *args), jax.jit(loss)(params, *args))
    found = cg.grad(read)(params, *args)
    assert jax.tree.structure(found) == jax.tree.structure(params)
    close(found, jax.grad(loss)(params, *args))
    difference, along = directional(lambda p: jax.jit(loss)(p, *args), (params,), found)
    assert along == pytest.approx(difference, rel=1e-6)


def test_an_lstm_of_flax_linen() -> None:
    linen = pytest.importorskip("flax.linen")
    with jax.enable_x64(True), cg.options(engine="reference"):
        network = linen.RNN(linen.LSTMCell(4, dtype=jnp.float64, param_dtype=jnp.float64))
        params = network.init(jax.random.key(0), X)
        same_as_jax(lambda p, x: jnp.sum(network.apply(p, x) ** 2), params, X)


def test_an_lstm_of_flax_nnx() -> None:
    nnx = pytest.importorskip("flax.nnx")
    with jax.enable_x64(True), cg.options(engine="reference"):
        cell = nnx.LSTMCell(3, 4, rngs=nnx.Rngs(0), dtype=jnp.float64, param_dtype=jnp.float64)
        graphdef, params, rest = nnx.split(cell, nnx.Param, ...)
        same_as_jax(lambda p, x: jnp.sum(nnx.RNN(nnx.merge(graphdef, p, rest))(x) ** 2), params, X)


def test_an_lstm_of_equinox_in_a_scan_and_in_a_loop_as_long_as_the_sequence() -> None:
    equinox = pytest.importorskip("equinox")
    with jax.enable_x64(True), cg.options(engine="reference"):
        params, static = equinox.partition(equinox.nn.LSTMCell(3, 4, key=jax.random.key(0)), equinox.is_array)
        zeros = (jnp.zeros(4), jnp.zeros(4))

        def scanned(params: Any, x: Any) -> Any:
            cell = equinox.combine(params, static)
            (h, _), _ = jax.lax.scan(lambda state, x: (cell(x, state), None), zeros, x)
            return jnp.sum(h**2)

        def looped(params: Any, x: Any, length: Any) -> Any:
            cell = equinox.combine(params, static)
            step = lambda s: (s[0] + 1, cell(jax.lax.dynamic_index_in_dim(x, s[0], keepdims=False), s[1]))
            return jnp.sum(jax.lax.while_loop(lambda s: s[0] < length, step, (0, zeros))[1][0] ** 2)

        same_as_jax(scanned, params, X[0])
        gradients = cg.grad(cg.from_jax(looped))(params, X[0], np.int64(3))
        close(gradients, jax.grad(scanned)(params, X[0][:3]))
