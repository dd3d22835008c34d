"""`jax.vmap` of Lineax's and Optimistix's solvers: derivatives are those of the equation, not of the implementation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ctrlgrad as cg

equinox = pytest.importorskip("equinox")
lineax = pytest.importorskip("lineax")
optimistix = pytest.importorskip("optimistix")


@pytest.fixture(autouse=True)
def with_64_bits() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


MATRICES = np.array([[[3.0, 1.0], [1.0, 2.0]], [[4.0, 0.5], [0.2, 1.0]], [[2.0, 0.0], [1.0, 5.0]]])
RIGHT = np.array([[1.0, 2.0], [3.0, 1.0], [0.5, -1.0]])


def systems_of(solver: Any, map_rows: Any = jax.vmap) -> Any:
    """A loss of solutions of a batch of linear systems."""

    def one(a: Any, b: Any) -> Any:
        return lineax.linear_solve(lineax.MatrixLinearOperator(a), b, solver).value

    return lambda a, b: jnp.sum(jnp.sin(map_rows(one)(a, b)))


def same_in_all_modes(f: Any, *arguments: Any) -> None:
    """First derivatives in both modes, and the gradient of the gradient's sum, are JAX's and not zero."""
    everything = tuple(range(len(arguments)))
    ours = cg.from_jax(f)
    wanted = jax.grad(f, everything)(*arguments)
    assert min(np.abs(x).max() for x in wanted) > 0
    for x, y in zip(cg.grad(ours, everything)(*arguments), wanted, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-9)
    ones = tuple(np.ones_like(x) for x in arguments)
    tangent = jax.jvp(f, arguments, ones)[1]
    np.testing.assert_allclose(cg.jvp(ours, arguments, ones)[1], tangent, rtol=1e-6)
    second = jax.grad(lambda *xs: sum(jnp.sum(x) for x in jax.grad(f, everything)(*xs)))(*arguments)
    found = cg.grad(lambda *xs: sum(x.sum() for x in cg.grad(ours, everything)(*xs)))(*arguments)
    np.testing.assert_allclose(found, second, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["LU", "QR", "SVD", "AutoLinearSolver", "GMRES"])
def test_a_batch_of_linear_systems(name: str) -> None:
    arguments = {"AutoLinearSolver": {"well_posed": True}, "GMRES": {"rtol": 1e-12, "atol": 1e-12}}.get(name, {})
    same_in_all_modes(systems_of(getattr(lineax, name)(**arguments)), MATRICES, RIGHT)


def test_a_batch_of_batches_of_linear_systems() -> None:
    map_rows = lambda one: jax.vmap(jax.vmap(one, in_axes=(None, 0)), in_axes=(0, None))
    same_in_all_modes(systems_of(lineax.LU(), map_rows), MATRICES, RIGHT)


@pytest.mark.parametrize("by", [0, 1])
def test_a_batch_of_operators_or_right_sides_alone(by: int) -> None:
    axes = (0, None) if by == 0 else (None, 0)
    given = (MATRICES, RIGHT[0]) if by == 0 else (MATRICES[0], RIGHT)
    same_in_all_modes(systems_of(lineax.LU(), lambda one: jax.vmap(one, in_axes=axes)), *given)


@pytest.mark.parametrize("name", ["Newton", "Chord", "Dogleg"])
def test_a_batch_of_roots(name: str) -> None:
    solver = getattr(optimistix, name)(rtol=1e-10, atol=1e-10)

    def equations(y: Any, t: Any) -> Any:
        return jnp.stack([y[0] ** 2 - t, y[0] * y[1] - 1.0])

    def one(t: Any) -> Any:
        return optimistix.root_find(equations, solver, jnp.ones(2), t).value

    same_in_all_modes(lambda t: jnp.sum(jax.vmap(one)(t) ** 3), np.array([1.2, 2.0, 3.5]))


def test_a_batch_of_bisections_minima_and_fixed_points() -> None:
    t = np.array([1.2, 2.0, 3.5])
    bisection = optimistix.Bisection(rtol=1e-10, atol=1e-10)
    ends = {"lower": 0.0, "upper": 5.0}
    bisected = lambda t: optimistix.root_find(lambda y, t: y * y - t, bisection, jnp.array(1.0), t, options=ends).value
    valley = lambda y, t: (y[0] - t) ** 2 + (y[0] * y[1] - 1.0) ** 2 + 0.1 * y[1] ** 2
    least = lambda t: optimistix.minimise(valley, optimistix.BFGS(1e-10, 1e-10), jnp.ones(2), t, max_steps=2000).value
    iteration = optimistix.FixedPointIteration(rtol=1e-10, atol=1e-10)
    fixed = lambda t: optimistix.fixed_point(lambda y, t: jnp.cos(y) * t / 4, iteration, jnp.array(1.0), t).value
    for one in (bisected, least, fixed):
        f = lambda t, one=one: jnp.sum(jax.vmap(one)(t) ** 3)
        found, wanted = cg.grad(cg.from_jax(f))(t), jax.grad(f)(t)
        assert np.abs(wanted).max() > 0
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_a_function_that_is_not_inlined() -> None:
    sine, x = equinox.internal.noinline(jnp.sin), np.array([1.2, 2.0])
    f = lambda x: jnp.sum(jax.vmap(lambda x: sine(x) * x)(x))
    np.testing.assert_allclose(cg.grad(cg.from_jax(f))(x), jax.grad(f)(x), rtol=1e-12)
