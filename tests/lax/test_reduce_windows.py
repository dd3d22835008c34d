"""Reductions of windows and axes are JAX's, with their derivatives, where elements are equal too."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad import lax
from ctrlgrad.errors import UserInputError

rng = np.random.default_rng(0)
X = rng.integers(-2, 3, (4, 9)).astype(np.float64)
STARTS = {"add": 0.0, "max": -np.inf, "min": np.inf, "mul": 1.0}


@pytest.fixture(autouse=True)
def _in_double_precision_by_reference():
    with jax.enable_x64(True), cg.options(engine="reference"):
        yield


@pytest.mark.parametrize("name", ["add", "max", "min"])
@pytest.mark.parametrize(
    "settings",
    [((2, 3), (2, 2), "SAME"), ((3, 2), (1, 2), [(1, 0), (2, 1)], (2, 1), (1, 2))],
    ids=["same", "dilated"],
)
def test_reduced_windows_and_their_derivatives(name, settings):
    weights = np.cos(np.arange(200.0))

    def total(lib, xp):
        def f(x):
            found = lib.reduce_window(x, STARTS[name], getattr(lib, name), *settings)
            return xp.sum(xp.where(xp.isfinite(found), found, 0.0).ravel() * weights[: found.size])

        return f

    if name != "add" and len(settings) > 3:
        # JAX has no derivative of the largest of a dilated window.
        np.testing.assert_allclose(total(lax, cnp)(X), jax.jit(total(jax.lax, jax.numpy))(X), rtol=1e-12)
        return
    ours, theirs = cg.value_and_grad(total(lax, cnp))(X), jax.jit(jax.value_and_grad(total(jax.lax, jax.numpy)))(X)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("window", [3, 11])
def test_windows_of_a_size_that_only_a_run_knows(window):
    ours = lambda x: cnp.sum(lax.reduce_window(x, 0.0, cnp.add, (1, window), (1, 2), "VALID") ** 2)
    theirs = lambda x: jax.numpy.sum(jax.lax.reduce_window(x, 0.0, jax.lax.add, (1, window), (1, 2), "VALID") ** 2)
    f = cg.function(cg.value_and_grad(ours), signature=(cg.TensorSpec((2, None), np.float64),))
    for size in (12, window, 2, 9):
        x = np.random.default_rng(size).normal(size=(2, size))
        (value, gradient), (expected, other) = f(x), jax.value_and_grad(theirs)(x)
        np.testing.assert_allclose(value, expected, rtol=1e-12)
        np.testing.assert_allclose(gradient, other, rtol=1e-12)


def test_long_windows_take_few_steps():
    x = rng.normal(size=200)
    f = cg.function(lambda x: lax.reduce_window(x, 0.0, lax.add, (100,), (3,)))
    np.testing.assert_allclose(f(x), [x[i : i + 100].sum() for i in range(0, 101, 3)], rtol=1e-12)
    assert sum(node.op.name == "add" for node in f.graph(x).nodes) < 12


def test_several_arrays_at_once():
    x, place = rng.normal(size=7), np.arange(7)

    def first(a, b):
        is_larger = a[0] >= b[0]
        return cnp.where(is_larger, a[0], b[0]), cnp.where(is_larger, a[1], b[1])

    value, where = lax.reduce_window((x, place), (-np.inf, 0), first, (3,))
    windows = np.lib.stride_tricks.sliding_window_view(x, 3)
    np.testing.assert_array_equal(value, windows.max(1))
    np.testing.assert_array_equal(where, windows.argmax(1) + np.arange(5))
    whole = lax.reduce((x, place), (-np.inf, 0), first, (0,))
    assert (float(whole[0]), int(whole[1])) == (x.max(), x.argmax())


def test_nan_stays_the_largest():
    assert np.isnan(lax.reduce_window(np.array([1.0, np.nan, 2.0]), -np.inf, lax.max, (3,)))[0]


def test_sums_at_the_largest_of_each_window():
    source = rng.normal(size=(2, 4))
    found = lax.select_and_scatter_add(source, X, lax.ge, (2, 3), (2, 2), [(0, 0), (0, 0)])
    pool = lambda x: jax.lax.reduce_window(x, -np.inf, jax.lax.max, (2, 3), (2, 2), "VALID")
    np.testing.assert_allclose(found, jax.vjp(pool, X)[1](source)[0], atol=1e-12)
    tangent = rng.normal(size=X.shape)
    along = lax.select_and_gather_add(tangent, X, lax.ge, (2, 3), (2, 2))
    np.testing.assert_allclose(along, jax.jvp(pool, (X,), (tangent,))[1], atol=1e-12)
    with pytest.raises(UserInputError, match="`ge` or `le`"):
        lax.select_and_scatter_add(source, X, lax.lt, (2, 3))


def test_reductions_of_axes():
    x = rng.integers(0, 9, (3, 4))
    np.testing.assert_array_equal(lax.reduce(x, 2, lax.mul, (0,)), 2 * x.prod(0))
    np.testing.assert_array_equal(lax.reduce_xor(x, (0, 1)), np.bitwise_xor.reduce(x.ravel()))
    np.testing.assert_array_equal(lax.reduce(np.ones((0, 3)), 2.0, lax.add, (0,)), np.full(3, 2.0))


@pytest.mark.parametrize("config", [(1, -1, 1), (-3, 2, 0), (2, -3, 0), (-1, -1, 2), (-2, 0, 1)])
def test_padding_takes_away_what_it_added(config):
    x = np.array([1.0, 2.0])
    np.testing.assert_array_equal(lax.pad(x, 5.0, [config]), jax.lax.pad(x, 5.0, [config]))
