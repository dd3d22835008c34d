"""Optimistix, Diffrax and Optax: loops of their own, differentiated themselves or by the libraries' rules."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from interop.libraries import JAX_REFUSES, check, close, directional

import ctrlgrad as cg

THETA = np.array([2.0, 0.3])


def through_the_loop() -> Any:
    """An adjoint of Optimistix that leaves the solver's loop as it is."""
    optimistix = pytest.importorskip("optimistix")
    internal = pytest.importorskip("equinox.internal")

    class Direct(optimistix.AbstractAdjoint):  # type: ignore[name-defined, misc]
        def apply(self, primal_fn: Any, rewrite_fn: Any, inputs: Any, tags: Any) -> Any:
            return primal_fn((*inputs, functools.partial(internal.while_loop, kind="lax")))

    return Direct()


def newton(theta: Any, adjoint: Any) -> Any:
    import optimistix

    equations = lambda y, a: jnp.stack([y[0] ** 2 + a[1] * y[1] - a[0], y[1] - jnp.sin(y[0])])
    solver = optimistix.Newton(rtol=1e-10, atol=1e-10)
    found = optimistix.root_find(equations, solver, jnp.array([1.0, 1.0]), theta, adjoint=adjoint)
    return jnp.sum(found.value * jnp.array([1.0, 2.0]))


def bfgs(theta: Any, adjoint: Any) -> Any:
    import optimistix

    valley = lambda y, a: (a[0] - y[0]) ** 2 + a[1] * (y[1] - y[0] ** 2) ** 2
    solver = optimistix.BFGS(rtol=1e-3, atol=1e-3)
    found = optimistix.minimise(valley, solver, jnp.array([-1.0, 1.0]), theta, adjoint=adjoint)
    return jnp.sum(found.value * jnp.array([1.0, 2.0]))


def levenberg_marquardt(theta: Any, adjoint: Any) -> Any:
    import optimistix

    x = np.linspace(0, 1, 6)
    residuals = lambda y, a: jnp.exp(-y[0] * x) + y[1] * x - a
    measured = jnp.exp(-theta[0] * x) + theta[1]
    solver = optimistix.LevenbergMarquardt(rtol=1e-4, atol=1e-4)
    found = optimistix.least_squares(residuals, solver, jnp.array([1.0, 1.0]), measured, adjoint=adjoint)
    return jnp.sum(found.value * jnp.array([1.0, 2.0]))


@pytest.mark.parametrize("solve", [newton, bfgs, levenberg_marquardt])
def test_the_loop_of_a_solver_is_differentiated(solve: Any) -> None:
    """The number of iterations counts: BFGS and Levenberg-Marquardt stop before the derivative has converged."""
    adjoint = through_the_loop()
    check(lambda theta: solve(theta, adjoint), THETA)


@pytest.mark.parametrize(
    "solve",
    [newton, pytest.param(bfgs, marks=pytest.mark.long), pytest.param(levenberg_marquardt, marks=pytest.mark.long)],
)
@pytest.mark.parametrize("kind", ["ImplicitAdjoint", "RecursiveCheckpointAdjoint"])
def test_the_adjoints_of_optimistix_are_kept(solve: Any, kind: str) -> None:
    optimistix = pytest.importorskip("optimistix")
    fn = lambda theta: solve(theta, getattr(optimistix, kind)())
    with jax.enable_x64(True), cg.options(engine="reference"):
        close(cg.grad(cg.from_jax(fn))(THETA), jax.grad(fn)(THETA), 1e-9)


def test_lineaxs_solutions_have_forward_mode_and_second_derivatives() -> None:
    lineax = pytest.importorskip("lineax")

    def fn(a: Any) -> Any:
        return jnp.sum(jnp.sin(lineax.linear_solve(lineax.MatrixLinearOperator(a), a[0] * a[1]).value))

    a = np.array([[2.0, 0.3], [-0.4, 1.5]])
    with jax.enable_x64(True), cg.options(engine="reference"):
        read, along = cg.from_jax(fn), np.array([[0.3, -1.0], [0.5, 0.2]])
        close(cg.grad(read)(a), jax.grad(fn)(a))
        close(cg.jvp(read, (a,), (along,)), jax.jvp(fn, (a,), (along,)))
        close(cg.hessian(read)(a), jax.hessian(fn)(a), 1e-8)
        close(cg.vmap(cg.grad(read))(np.stack([a, a.T])), jax.vmap(jax.grad(fn))(np.stack([a, a.T])))


def test_what_an_equinox_program_refuses_is_raised_while_it_runs() -> None:
    equinox = pytest.importorskip("equinox")

    def fn(x: Any) -> Any:
        return equinox.error_if(x, x < 0, "x must not be negative") * 2.0

    with jax.enable_x64(True), cg.options(engine="reference"):
        read = cg.from_jax(fn)
        assert float(read(np.float64(3.0))) == 6.0
        assert float(cg.grad(read)(np.float64(3.0))) == 2.0
        with pytest.raises(RuntimeError, match="x must not be negative"):
            read(np.float64(-1.0))


def pendulum(theta: Any, adjoint: Any, max_steps: int | None = None) -> Any:
    import diffrax

    field = lambda t, y, a: jnp.stack([y[1] * a[0], -a[1] * jnp.sin(y[0])])
    found = diffrax.diffeqsolve(
        diffrax.ODETerm(field),
        diffrax.Tsit5(),
        0.0,
        1.0,
        None,
        jnp.array([1.0, 0.0]) * theta[0],
        args=theta,
        stepsize_controller=diffrax.PIDController(rtol=1e-5, atol=1e-5),
        adjoint=adjoint,
        max_steps=max_steps,
    )
    return jnp.sum(found.ys * jnp.array([1.0, 2.0]))


def test_an_adaptive_solver_of_an_unbounded_loop_is_differentiated() -> None:
    """Diffrax stops the gradient at the size of its steps, so differences agree to its tolerance alone."""
    diffrax = pytest.importorskip("diffrax")
    fn = lambda theta: pendulum(theta, diffrax.ForwardMode())
    with jax.enable_x64(True), cg.options(engine="reference"):
        read = cg.from_jax(fn)
        close(read(THETA), jax.jit(fn)(THETA))
        with pytest.raises(ValueError, match=JAX_REFUSES):
            jax.grad(fn)(THETA)
        gradient = cg.grad(read)(THETA)
        close(gradient, jax.jacfwd(fn)(THETA), 1e-9)
        difference, found = directional(jax.jit(fn), (THETA,), (gradient,))
        assert found == pytest.approx(difference, rel=1e-3)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["RecursiveCheckpointAdjoint", "BacksolveAdjoint"])
def test_the_adjoints_of_diffrax_are_kept(kind: str) -> None:
    diffrax = pytest.importorskip("diffrax")
    fn = lambda theta: pendulum(theta, getattr(diffrax, kind)(), 4096)
    with jax.enable_x64(True), cg.options(engine="reference"):
        close(cg.grad(cg.from_jax(fn))(THETA), jax.grad(fn)(THETA), 1e-9)


def test_adam_of_optax_in_a_loop_until_the_gradient_is_small() -> None:
    optax = pytest.importorskip("optax")
    matrix = np.array([[2.0, 0.3, 0.1], [0.3, 1.5, -0.2], [0.1, -0.2, 1.0]])
    loss = lambda x: 0.5 * x @ matrix @ x - jnp.sum(x)

    def trained(rate: Any, x: Any) -> Any:
        optimiser = optax.adam(rate)

        def step(carry: Any) -> Any:
            n, x, state = carry
            updates, state = optimiser.update(jax.grad(loss)(x), state, x)
            return n + 1, optax.apply_updates(x, updates), state

        goes_on = lambda carry: (carry[0] < 40) & (jnp.linalg.norm(jax.grad(loss)(carry[1])) > 0.1)
        return loss(jax.lax.while_loop(goes_on, step, (0, x, optimiser.init(x)))[1])

    check(trained, np.float64(0.05), np.ones(3))
