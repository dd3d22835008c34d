"""Primitives that few programs have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import ctrlgrad as cg
from ctrlgrad.errors import UnsupportedPrimitiveError


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    with jax.enable_x64(True), cg.options(engine="reference"):
        yield


def test_the_largest_and_the_smallest_by_approximate_search_are_all_of_them() -> None:
    x = np.random.default_rng(0).normal(size=(3, 20))
    for search in (lax.approx_max_k, lax.approx_min_k):
        for axis, operand in ((-1, x), (0, x.T)):
            fn = lambda x, search=search, axis=axis: search(x, 4, reduction_dimension=axis)
            for found, expected in zip(cg.from_jax(fn)(operand), fn(operand), strict=True):
                np.testing.assert_array_equal(found, expected)
    smallest = lambda x: jnp.sum(lax.approx_min_k(x, 4)[0] ** 2)
    np.testing.assert_allclose(cg.grad(cg.from_jax(smallest))(x), jax.grad(smallest)(x))


def test_lists_that_are_stacked_and_taken_apart() -> None:
    fn = lambda x, y: jnp.unstack(jnp.stack([x, y * x, y], axis=1), axis=0)
    x, y = np.array([1.0, 2.0]), np.array([3.0, 5.0])
    for found, expected in zip(cg.from_jax(fn)(x, y), fn(x, y), strict=True):
        np.testing.assert_array_equal(found, expected)
    keys = cg.from_jax(lambda key: jax.random.key_data(jnp.stack([key, jax.random.fold_in(key, 1)])[1]))
    key = jax.random.key(3)
    np.testing.assert_array_equal(keys(key), jax.random.key_data(jax.random.fold_in(key, 1)))


@pytest.mark.parametrize("draw", [jax.random.gamma, jax.random.loggamma])
def test_gamma_distributed_numbers_are_jaxs_and_move_with_their_parameter(draw: Any) -> None:
    key, alpha = jax.random.key(2), np.array([[0.3, 1.0, 2.5], [7.0, 0.9, 1.4]])
    fn = lambda a: jnp.sum(jnp.sin(draw(key, a)))
    read = cg.from_jax(fn)
    by_key = lambda a: jax.vmap(draw)(jax.random.split(key, 2), a)
    (total, slope), rows = jax.jit(lambda a: (jax.value_and_grad(fn)(a), by_key(a)))(alpha)
    value, gradient = cg.value_and_grad(read)(alpha)
    np.testing.assert_allclose(value, total, rtol=1e-12)
    np.testing.assert_allclose(gradient, slope, rtol=1e-9)
    np.testing.assert_allclose(cg.from_jax(by_key)(alpha), rows, rtol=1e-12)


@pytest.mark.parametrize("select", [lax.ge, lax.le])
def test_selecting_in_windows_and_adding_there(select: Any) -> None:
    scatter = pytest.importorskip("jax._src.lax.windowed_reductions")._select_and_scatter
    x, source = np.random.default_rng(0).normal(size=(4, 6)), np.arange(6.0).reshape(2, 3)
    windows = ((2, 2), (2, 2), ((0, 0), (0, 0)))
    fn = lambda x, s: scatter(x, select, *windows, s, np.float64(0.5), lax.add)
    np.testing.assert_allclose(cg.from_jax(fn)(x, source), fn(x, source))
    with pytest.raises(UnsupportedPrimitiveError, match="does not add at the largest or the smallest"):
        cg.from_jax(lambda x, s: scatter(x, select, *windows, s, np.float64(1.0), lax.mul))(x, source)


def test_refused_primitives_say_why() -> None:
    with pytest.raises(UnsupportedPrimitiveError, match="its numbers come from hidden state"):
        cg.from_jax(lambda a: lax.rng_uniform(a, 1.0, (3,)))(0.0)
