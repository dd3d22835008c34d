"""Solvers of JAX libraries: loops of their own, differentiated themselves or by the libraries' rules.

Optimistix, Diffrax, Optax, JAXopt, qpax, JAX-MD and MPAX.
"""

from __future__ import annotations

import functools
import importlib
import warnings
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


def test_equinox_errors_are_raised_at_run_time() -> None:
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


def valley(y: Any, a: Any) -> Any:
    return (a[0] - y[0]) ** 2 + a[1] * (y[1] - y[0] ** 2) ** 2


def lbfgs_of_optax(theta: Any, search: Any = None) -> Any:
    """Minimise with a line search until the gradient is small; Optax would stop the gradient of its first scale."""
    import optax

    step = optax.lbfgs(linesearch=search, scale_init_precond=False) if search else optax.lbfgs(scale_init_precond=False)
    objective = lambda y: valley(y, theta)

    def body(carry: Any) -> Any:
        y, state = carry
        value, grad = optax.value_and_grad_from_state(objective)(y, state=state)
        updates, state = step.update(grad, state, y, value=value, grad=grad, value_fn=objective)
        return optax.apply_updates(y, updates), state

    def goes_on(carry: Any) -> Any:
        count, grad = (optax.tree_utils.tree_get(carry[1], name) for name in ("count", "grad"))
        return (count == 0) | ((count < 15) & (jnp.linalg.norm(grad) > 1e-3))

    start = jnp.array([-1.0, 1.0])
    return jnp.sum(jax.lax.while_loop(goes_on, body, (start, step.init(start)))[0] * jnp.array([1.0, 2.0]))


def backtracking_of_optax(theta: Any) -> Any:
    import optax

    return lbfgs_of_optax(theta, optax.scale_by_backtracking_linesearch(max_backtracking_steps=15, store_grad=True))


def of_jaxopt(name: str, **options: Any) -> Any:
    def minimised(theta: Any) -> Any:
        solver = getattr(importlib.import_module("jaxopt"), name)
        found = solver(valley, maxiter=12, tol=1e-3, implicit_diff=False, **options).run(jnp.array([-1.0, 1.0]), theta)
        return jnp.sum(found.params * jnp.array([1.0, 2.0]))

    return minimised


def quadratic_program(theta: Any, backend: str) -> Any:
    """A program of three unknowns of which one bound is active, its solution and its multipliers."""
    import qpax

    cost = jnp.array([[2.0, 0.3, 0.1], [0.3, 1.5, -0.2], [0.1, -0.2, 1.0]]) * theta[1]
    bounds = jnp.concatenate([-jnp.eye(3), jnp.eye(3)]), jnp.array([0.0, 0.0, 0.0, 0.9, 0.5, 0.8])
    equation = jnp.ones((1, 3)), theta[:1]
    found = qpax.solve_qp(cost, -theta[0] * jnp.arange(1.0, 4.0), *equation, *bounds, backend=backend, solver_tol=1e-8)
    return jnp.sum(found[0] * jnp.arange(1.0, 4.0)) + 0.1 * jnp.sum(found[2])


def molecules(theta: Any, potential: str, minimises: bool) -> Any:
    """Six soft or Lennard-Jones particles, moved for a time or until they are at rest."""
    from jax_md import energy, minimize, simulate, space

    displacement, shift = space.periodic(3.0)
    places = jnp.array([[0.5, 0.5], [1.6, 0.4], [2.5, 0.9], [0.6, 1.7], [1.5, 1.6], [2.6, 2.3]])
    pair = getattr(energy, potential)(displacement, sigma=theta[0], epsilon=theta[1])
    if minimises:
        init, apply = minimize.fire_descent(pair, shift, dt_start=0.05)
        goes_on = lambda c: (c[0] < 40) & (jnp.max(jnp.abs(c[1].force)) > 0.05)
        state = jax.lax.while_loop(goes_on, lambda c: (c[0] + 1, apply(c[1])), (0, init(places)))[1]
    else:
        init, apply = simulate.nve(pair, shift, 1e-3)
        state = jax.lax.fori_loop(0, 12, lambda i, s: apply(s), init(jax.random.key(0), places, kT=0.1))
    return pair(state.position) + 0.1 * jnp.sum(jnp.sin(state.position))


def linear_program(theta: Any) -> Any:
    import mpax

    problem = mpax.create_lp(
        theta[0] * jnp.array([1.0, 2.0, 1.5]),
        jnp.ones((1, 3)),
        theta[1:],
        jnp.array([[1.0, -1.0, 0.0], [0.0, 1.0, 2.0]]) * theta[0],
        jnp.array([-0.5, 0.3]),
        jnp.zeros(3),
        2 * jnp.ones(3),
        use_sparse_matrix=True,
    )
    solver = mpax.r2HPDHG(eps_abs=1e-3, eps_rel=1e-3, iteration_limit=10, unroll=False, verbose=False)
    return jnp.sum(solver.optimize(problem).primal_solution * jnp.arange(1.0, 4.0))


# The library, the program, its argument, and whether JAX has its reverse mode (NaN where a line search is guarded).
OUTSIDE: dict[str, tuple[str, Any, tuple[float, float], bool]] = {
    "optax.lbfgs": ("optax", lbfgs_of_optax, (1.2, 3.0), False),
    "optax.lbfgs, backtracking": ("optax", backtracking_of_optax, (1.2, 3.0), False),
    "jaxopt.LBFGS": ("jaxopt", of_jaxopt("LBFGS", unroll=False), (1.2, 3.0), False),
    "jaxopt.LBFGS, unrolled": ("jaxopt", of_jaxopt("LBFGS", unroll=True), (1.2, 3.0), False),
    "jaxopt.LBFGS, Hager-Zhang": (
        "jaxopt",
        of_jaxopt("LBFGS", unroll=False, linesearch="hager-zhang"),
        (1.2, 3.0),
        False,
    ),
    "jaxopt.BFGS": ("jaxopt", of_jaxopt("BFGS", unroll=False), (1.2, 3.0), False),
    "jaxopt.NonlinearCG": ("jaxopt", of_jaxopt("NonlinearCG", unroll=False), (1.2, 3.0), False),
    "qpax, explicit": ("qpax", functools.partial(quadratic_program, backend="e"), (1.2, 3.0), False),
    "qpax, implicit": ("qpax", functools.partial(quadratic_program, backend="i"), (1.2, 3.0), False),
    "jax-md, at rest": (
        "jax_md",
        functools.partial(molecules, potential="soft_sphere_pair", minimises=True),
        (1.1, 1.5),
        False,
    ),
    "jax-md, in time": (
        "jax_md",
        functools.partial(molecules, potential="soft_sphere_pair", minimises=False),
        (1.1, 1.5),
        True,
    ),
    "jax-md, Lennard-Jones": (
        "jax_md",
        functools.partial(molecules, potential="lennard_jones_pair", minimises=False),
        (0.6, 0.1),
        False,
    ),
    "mpax.r2HPDHG": ("mpax", linear_program, (1.1, 1.5), False),
}
SHORT = ("optax.lbfgs, backtracking", "qpax, implicit", "jax-md, Lennard-Jones")


@pytest.mark.parametrize(
    "name", [name if name in SHORT else pytest.param(name, marks=pytest.mark.long) for name in OUTSIDE]
)
def test_the_gradient_of_a_solver_from_outside_is_finite_and_that_of_forward_mode(name: str) -> None:
    library, fn, given, jax_can = OUTSIDE[name]
    with warnings.catch_warnings():
        # Older libraries use names that JAX will drop.
        warnings.simplefilter("ignore")
        pytest.importorskip(library)
        with jax.enable_x64(True), cg.options(engine="reference"):
            theta = np.array(given)
            compiled, read = jax.jit(fn), cg.from_jax(fn)
            close(read(theta), compiled(theta))
            gradient = cg.grad(read)(theta)
            close(gradient, np.array([cg.jvp(read, (theta,), (e,))[1] for e in np.eye(2)]), 1e-9)
            close(gradient, jax.jit(jax.jacfwd(fn))(theta), 1e-6)
            if jax_can:
                close(gradient, jax.jit(jax.grad(fn))(theta), 1e-6)
            difference, found = directional(compiled, (theta,), (gradient,))
    assert found == pytest.approx(difference, rel=1e-5)
