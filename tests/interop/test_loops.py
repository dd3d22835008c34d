"""Loops and branches of JAX: values are JAX's, and derivatives exist in reverse, which JAX has not for `while_loop`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import ctrlgrad as cg
import ctrlgrad.numpy as cnp

X = np.array([0.3, -0.7, 1.1])


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    """64-bit types in JAX, and no compiling where a test does not ask for it."""
    with jax.enable_x64(True), cg.options(engine="reference"):
        yield


def newton(a: Any) -> Any:
    return lax.while_loop(lambda x: jnp.abs(x * x - a) > 1e-12, lambda x: 0.5 * (x + a / x), a)


def decay(x: Any) -> Any:
    """An ODE by steps whose number depends on the data."""

    def step(state: Any) -> Any:
        t, y, h = state
        k = -jnp.sin(y) * y
        return t + h, y + h * k, jnp.where(jnp.sum(jnp.abs(k)) > 1, 0.1, 0.3)

    return jnp.sum(lax.while_loop(lambda state: state[0] < 1.0, step, (0.0, x, 0.2))[1])


def rnn(x: Any) -> Any:
    w = jnp.array([[0.4, -0.2, 0.1], [0.3, 0.5, -0.6], [0.0, 0.2, 0.7]])

    def step(h: Any, row: Any) -> Any:
        h = jnp.tanh(w @ h + row * x)
        return h, jnp.sum(h)

    h, ys = lax.scan(step, jnp.zeros(3), jnp.arange(12.0).reshape(4, 3) / 10, reverse=True)
    return jnp.sum(ys * jnp.arange(4)) + h[1]


def nested(x: Any) -> Any:
    def outer(state: Any) -> Any:
        i, y = state
        inner = lax.fori_loop(0, i, lambda k, z: jnp.sin(z) * x + k, y)
        return i + 1, lax.cond(jnp.sum(inner) > 0, lambda z: 0.5 * z, lambda z: z * z, inner)

    return jnp.sum(lax.while_loop(lambda state: (state[0] < 4) & (jnp.sum(state[1]) < 50), outer, (0, x))[1])


def branches(x: Any) -> Any:
    return jnp.sum(lax.fori_loop(0, 5, lambda i, y: lax.switch(i, [jnp.sin, jnp.cos, lambda y: y * x], y), x))


@jax.custom_jvp
def twice_sine(x: Any) -> Any:
    return 2 * jnp.sin(x)


@twice_sine.defjvp
def _(primals: Any, tangents: Any) -> Any:
    # It calls the function whose rule it is.
    (x,), (t,) = primals, tangents
    return twice_sine(x), jnp.sqrt(4 - twice_sine(x) ** 2) * t


@jax.custom_vjp
def clipped(x: Any, bound: int) -> Any:
    return x * 1.0


clipped.defvjp(
    lambda x, bound: (clipped(x, bound), bound), lambda bound, ct: (jnp.clip(ct, -1.0 * bound, 1.0 * bound), None)
)


def rules_in_loops(x: Any) -> Any:
    return jnp.sum(lax.while_loop(lambda y: jnp.sum(y) < 4, lambda y: y + jnp.abs(twice_sine(0.2 * y)) + 0.1, x))


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "newton": lambda x: newton(1 + x[0] ** 2) * x[1],
    "ode": decay,
    "rnn": rnn,
    "nested": nested,
    "branches": branches,
    "rules in loops": rules_in_loops,
    "checkpoint": lambda x: lax.fori_loop(0, 3, lambda i, y: jax.checkpoint(jnp.sin)(y) * x, x).sum(),
    "jit": lambda x: jax.jit(decay)(x) + jax.jit(lambda y: y[1] ** 2)(x),
    "no iteration": lambda x: lax.while_loop(lambda y: y[0] > 9, lambda y: y * 2, x).sum(),
    "batched loop": lambda x: jax.vmap(newton)(1 + x**2).sum(),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_values_and_derivatives_are_jaxs(name: str) -> None:
    """By JAX's forward mode, which has loops."""
    program = PROGRAMS[name]
    ours = cg.from_jax(program)
    judge = lambda x: (program(x), jax.jacfwd(program)(x), jax.jacfwd(jax.jacfwd(program))(x))
    value, gradient, hessian = map(np.asarray, jax.jit(judge)(X))
    np.testing.assert_allclose(ours(X), value, rtol=1e-12)
    np.testing.assert_allclose(cg.grad(ours)(X), gradient, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(cg.jvp(ours, (X,), (X,))[1], gradient @ X, rtol=1e-9)
    np.testing.assert_allclose(cg.hessian(ours)(X), hessian, rtol=1e-7, atol=1e-9)
    rows = np.stack([X, -X])
    found = cg.vmap(cg.grad(ours))(rows)
    np.testing.assert_allclose(found, [cg.grad(ours)(row) for row in rows], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["newton", "ode", "rnn", "rules in loops"])
def test_gradients_are_central_differences(name: str) -> None:
    cg.check_grads(cg.from_jax(PROGRAMS[name]), (X,), order=1, against=("finite_differences",))


def test_machine_code_runs_the_loop() -> None:
    with cg.options(engine="native"):
        f = cg.function(cg.grad(cg.from_jax(newton)))
        assert float(f(4.0)) == pytest.approx(0.25)
        assert [loop.engine for loop in f.explain(4.0).loops] == ["native", "native"]


def test_a_budget_serves_the_loop() -> None:
    def long(x: Any) -> Any:
        return lax.fori_loop(0, 400, lambda i, y: jnp.sin(y) + 0.1 * x, x).sum()

    x = np.linspace(0.0, 1.0, 64)
    gradient = cg.function(cg.grad(cg.from_jax(long)))
    with cg.options(engine="native"):
        free = gradient(x)
        with cg.memory.budget(device="64 KiB"):  # of 200 KiB that the iterations save
            np.testing.assert_allclose(gradient(x), free, rtol=1e-12)


def test_the_function_serves_within_loops_of_ours() -> None:
    step = cg.from_jax(lambda x: jnp.sin(x) + 0.5)
    ours = lambda x: cg.while_loop(lambda y: cnp.sum(y) < 2, lambda y: step(y) + 0.2 * y, x).sum()
    theirs = lambda x: lax.while_loop(lambda y: jnp.sum(y) < 2, lambda y: jnp.sin(y) + 0.5 + 0.2 * y, x).sum()
    np.testing.assert_allclose(cg.grad(ours)(X), jax.jacfwd(theirs)(X), rtol=1e-12)


def test_a_reverse_rule_is_kept() -> None:
    f = lambda x: 100 * clipped(x, 2).sum()
    np.testing.assert_allclose(cg.grad(cg.from_jax(f))(X), jax.grad(f)(X))
    g = lambda x: lax.fori_loop(0, 3, lambda i, y: clipped(y * y, i), x).sum()
    # Bounds that are constant make a scan, which JAX can reverse.
    np.testing.assert_allclose(cg.grad(cg.from_jax(g))(X), jax.grad(g)(X))
    h = lambda x: lax.while_loop(lambda y: jnp.sum(y) < 3, lambda y: clipped(y * 1.5, 1) + 0.5, x).sum() * 4
    # Each of several iterations clips: 4 to 1, then 1.5 to 1, and so on.
    np.testing.assert_allclose(cg.grad(cg.from_jax(h))(X), np.full(3, 1.5))


def test_forward_mode_through_a_reverse_rule_is_an_error() -> None:
    with pytest.raises(cg.CtrlgradError, match="custom_vjp"):
        cg.jvp(cg.from_jax(lambda x: clipped(x, 2)), (X,), (X,))


def test_implicit_functions_are_differentiated_by_their_equation() -> None:
    def root(a: Any) -> Any:
        solve = lambda f, x: lax.while_loop(lambda x: jnp.abs(f(x)) > 1e-12, lambda x: 0.5 * (x + a / x), x)
        return lax.custom_root(lambda x: x * x - a, 1.0, solve, lambda g, y: y / g(1.0))

    assert float(cg.grad(cg.from_jax(root))(4.0)) == pytest.approx(0.25)
    assert float(cg.grad(cg.grad(cg.from_jax(root)))(4.0)) == pytest.approx(-1 / 32)

    def solved(a: Any, b: Any) -> Any:
        matrix = jnp.eye(3) * 3 + jnp.outer(a, a)
        dense = lambda matvec, b: lax.fori_loop(0, 60, lambda i, x: x + 0.2 * (b - matvec(x)), b)
        x = lax.custom_linear_solve(lambda v: matrix @ v, b, dense, symmetric=True)
        return jnp.sum(jnp.sin(x))

    ours = cg.grad(cg.from_jax(solved), (0, 1))(X, X[::-1].copy())
    for found, expected in zip(ours, jax.grad(solved, (0, 1))(X, X[::-1].copy()), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)
