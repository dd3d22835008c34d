"""Sorts, running reductions and bounds by JAX's names give what JAX gives, with its derivatives."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad import lax

rng = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _in_double_precision_by_reference():
    with jax.enable_x64(True), cg.options(engine="reference"):
        yield


@pytest.mark.parametrize("keys", [1, 2, 3])
@pytest.mark.parametrize("dimension", [0, 1])
def test_several_operands_in_the_order_of_several_keys(keys, dimension):
    operands = rng.integers(0, 3, (5, 6)), rng.integers(0, 2, (5, 6)).astype(np.float64), np.arange(30).reshape(5, 6)
    operands[1][0, 0] = np.nan
    found = lax.sort(operands, dimension=dimension, num_keys=keys)
    expected = jax.lax.sort(operands, dimension=dimension, num_keys=keys)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_derivative_of_a_sort_of_several_operands():
    x, y = rng.normal(size=7), rng.normal(size=7)
    weigh = lambda lib, xp: lambda x, y: xp.sum(xp.sin(lib.sort((x, y))[1]) * np.arange(7.0) + lib.sort((x, y))[0] ** 2)
    ours = cg.grad(weigh(lax, cnp), argnums=(0, 1))(x, y)
    theirs = jax.jit(jax.grad(weigh(jax.lax, jax.numpy), argnums=(0, 1)))(x, y)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_the_largest_with_equal_ones_and_nan():
    x = np.array([[2.0, np.nan, 3.0, 3.0, -np.inf], [0.0, 1.0, 0.0, 1.0, 5.0]])
    for a, b in zip(lax.top_k(x, 3), jax.lax.top_k(x, 3), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"])
@pytest.mark.parametrize("reverse", [False, True])
def test_running_reductions_and_their_derivatives(name, reverse):
    x = rng.normal(size=(3, 5))
    x[1, 2] = 0.0
    weights = np.cos(np.arange(15.0)).reshape(3, 5)
    total = lambda lib, xp: lambda x: xp.sum(getattr(lib, name)(x, axis=1, reverse=reverse) * weights)
    ours, theirs = cg.value_and_grad(total(lax, cnp))(x), jax.jit(jax.value_and_grad(total(jax.lax, jax.numpy)))(x)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-12)


def test_bounds_and_their_derivatives():
    low, x, high = np.array([0.0, 0.0, 0.0, 2.0]), np.array([-1.0, 0.0, 0.5, 3.0]), np.array([1.0, 1.0, 1.0, 2.5])
    weigh = lambda lib, xp: lambda a, x, b: xp.sum(lib.clamp(a, x, b) * np.arange(1.0, 5.0))
    ours = cg.value_and_grad(weigh(lax, cnp), argnums=(0, 1, 2))(low, x, high)
    theirs = jax.jit(jax.value_and_grad(weigh(jax.lax, jax.numpy), argnums=(0, 1, 2)))(low, x, high)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b)
    assert np.isnan(lax.clamp(0.0, np.nan, 1.0))
    np.testing.assert_array_equal(lax.clamp(0, np.array([-3, 5]), 2), [0, 2])


@pytest.mark.parametrize("name", ["FFT", "IFFT", "RFFT", "IRFFT"])
def test_fourier_transforms(name):
    x = rng.normal(size=(2, 4, 3 if name == "IRFFT" else 4))
    x = x if name == "RFFT" else x + 1j * rng.normal(size=x.shape)
    kind = getattr(jax.lax.FftType, name)
    np.testing.assert_allclose(lax.fft(x, kind, (4, 4)), jax.lax.fft(x, kind, (4, 4)), atol=1e-12)
