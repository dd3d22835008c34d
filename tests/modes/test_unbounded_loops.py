"""Both modes, in every mixture and to third order, on one and the same loop whose length depends on its data.

JAX judges by the same program written with a loop of fixed length that stops updating when it is done.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.verify.jax_translation import x64

X = np.array([0.7, 1.1, -0.4])
V = np.array([0.3, -1.0, 0.5])
STEPS = 12


def going(xp, y):
    return xp.sum(y * y) < 60.0


def step(xp, y, x):
    return y * 1.4 + xp.sin(y) * x


def ours(x):
    """R^3 -> R^3: 4 iterations at X."""
    return cg.while_loop(lambda y: going(cnp, y), lambda y: step(cnp, y, x), x)


def bounded(x):
    """The same for JAX."""

    def advance(y, _):
        return jax.lax.cond(going(jnp, y), lambda y: step(jnp, y, x), lambda y: y, y), None

    return jax.lax.scan(advance, x, None, length=STEPS)[0]


def nested_ours(x):
    """A loop of data-dependent length in another, and a branch in it."""

    def outer(c):
        i, y = c
        z = cg.while_loop(lambda z: cnp.sum(z * z) < 4.0 + i, lambda z: z * 1.5 + 0.1 * cnp.sin(x), y)
        z = cg.cond(cnp.sum(z) > 2.0, lambda: z * z * 0.1, lambda: cnp.sin(z) * x)
        return i + 1.0, z

    return cg.while_loop(lambda c: c[0] < 3.0 + 0.0 * cnp.sum(c[1]), outer, (0.0, x))[1]


def nested_bounded(x):
    def outer(y, i):
        def inner(z, _):
            go = jnp.sum(z * z) < 4.0 + i
            return jax.lax.cond(go, lambda z: z * 1.5 + 0.1 * jnp.sin(x), lambda z: z, z), None

        z = jax.lax.scan(inner, y, None, length=30)[0]
        return jax.lax.cond(jnp.sum(z) > 2.0, lambda z: z * z * 0.1, lambda z: jnp.sin(z) * x, z), None

    return jax.lax.scan(outer, x, jnp.arange(3.0))[0]


PAIRS = {"one loop": (ours, bounded), "nested loops with a branch": (nested_ours, nested_bounded)}
pairs = pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)


def of_jax(fn: Callable, *args):
    with x64():
        return jax.tree.map(np.asarray, jax.jit(fn)(*map(jnp.asarray, args)))


def close(found, expected, rtol=1e-10):
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=1e-11)


def test_the_loop_depends_on_its_data():
    counted = cg.function(
        lambda x: cg.while_loop(lambda c: going(cnp, c[1]), lambda c: (c[0] + 1, step(cnp, c[1], x)), (0, x))[0]
    )
    counts = {int(counted(X * s)) for s in (0.25, 0.5, 1.0, 2.0, 20.0)}
    assert len(counts) >= 3 and 0 in counts and max(counts) <= STEPS


@pairs
def test_values(pair):
    mine, theirs = pair
    for s in (0.5, 1.0, 2.0):
        close(mine(X * s), of_jax(theirs, X * s))


@pairs
def test_both_jacobians(pair):
    mine, theirs = pair
    expected = of_jax(jax.jacfwd(theirs), X)
    close(cg.jacrev(mine)(X), expected)
    close(cg.jacfwd(mine)(X), expected)
    close(of_jax(jax.jacrev(theirs), X), expected)


@pairs
def test_jvp_and_vjp(pair):
    mine, theirs = pair
    value, tangent = cg.jvp(mine, (X,), (V,))
    expected_value, expected = of_jax(lambda x, v: jax.jvp(theirs, (x,), (v,)), X, V)
    close(value, expected_value)
    close(tangent, expected)
    _, pull = cg.vjp(mine, X)
    (cotangent,) = pull(V)
    close(cotangent, of_jax(lambda x, v: jax.vjp(theirs, x)[1](v)[0], X, V))
    assert float(np.dot(V, tangent)) == pytest.approx(float(np.dot(cotangent, V)), rel=1e-12)


def loss(fn, xp):
    return lambda x: xp.sum(xp.sin(fn(x)) + fn(x) ** 2)


@pairs
def test_hessian(pair):
    mine, theirs = pair
    found = cg.hessian(loss(mine, cnp))(X)
    close(found, of_jax(jax.hessian(loss(theirs, jnp)), X))
    close(found, np.transpose(found))


@pairs
def test_hessian_vector_products_four_ways(pair):
    mine, theirs = pair
    f = loss(mine, cnp)
    expected = of_jax(lambda x, v: jax.jvp(jax.grad(loss(theirs, jnp)), (x,), (v,))[1], X, V)
    forward_over_reverse = cg.jvp(cg.grad(f), (X,), (V,))[1]
    reverse_over_forward = cg.grad(lambda x: cg.jvp(f, (x,), (V,))[1])(X)
    reverse_over_reverse = cg.grad(lambda x: cnp.sum(cg.grad(f)(x) * V))(X)
    forward_over_forward = [cg.jvp(lambda x: cg.jvp(f, (x,), (V,))[1], (X,), (unit,))[1] for unit in np.eye(3)]
    for product in (forward_over_reverse, reverse_over_forward, reverse_over_reverse, forward_over_forward):
        close(product, expected)


def test_the_second_derivative_of_a_vector_is_a_tensor():
    close(cg.jacfwd(cg.jacrev(ours))(X), of_jax(jax.jacfwd(jax.jacrev(bounded)), X))
    close(cg.jacrev(cg.jacfwd(ours))(X), of_jax(jax.jacfwd(jax.jacrev(bounded)), X))


@pairs
def test_third_order(pair):
    """grad grad grad along a direction; by JAX along it twice from the gradient, since derivatives are symmetric."""
    mine, theirs = pair
    along = lambda fn: lambda x: cnp.sum(cg.grad(fn)(x) * V)
    pushed = lambda fn: lambda x: jax.jvp(fn, (x,), (V,))[1]
    expected = of_jax(pushed(pushed(jax.grad(loss(theirs, jnp)))), X)
    close(cg.grad(along(along(loss(mine, cnp))))(X), expected, rtol=1e-9)


def test_third_order_with_forward_mode_outside_and_inside():
    f = loss(ours, cnp)
    along = lambda fn: lambda x: cnp.sum(cg.grad(fn)(x) * V)
    expected = cg.grad(along(along(f)))(X)
    close(cg.jvp(cg.grad(along(f)), (X,), (V,))[1], expected, rtol=1e-9)
    inner = lambda x: cg.jvp(f, (x,), (V,))[1]
    close(cg.grad(along(inner))(X), expected, rtol=1e-9)


def test_fourth_order_of_a_scalar_loop():
    """y -> y^2 while y < 100, three times from 1.9: x^8."""
    f = lambda x: cg.while_loop(lambda y: y < 100.0, lambda y: y * y, x)
    derivative, power, factor = f, 8, 1.0
    for _ in range(4):
        derivative, factor, power = cg.grad(derivative), factor * power, power - 1
        assert float(derivative(1.9)) == pytest.approx(factor * 1.9**power, rel=1e-12)


@pytest.mark.parametrize("transform", [cg.jacfwd, cg.jacrev, cg.hessian, cg.grad], ids=lambda t: t.__name__)
def test_several_arguments_and_pytrees(transform):
    def f(params, x):
        y = cg.while_loop(lambda y: cnp.sum(y) < 20.0, lambda y: y * params["a"] + params["b"], x)
        return cnp.sum(y * y) if transform in (cg.grad, cg.hessian) else {"y": y}

    def f_jax(params, x):
        def advance(y, _):
            return jax.lax.cond(jnp.sum(y) < 20.0, lambda y: y * params["a"] + params["b"], lambda y: y, y), None

        y = jax.lax.scan(advance, x, None, length=20)[0]
        return jnp.sum(y * y) if transform in (cg.grad, cg.hessian) else {"y": y}

    params = {"a": np.float64(1.3), "b": np.array([0.5, 1.5])}
    x = np.array([1.0, 2.0])
    theirs = {cg.jacfwd: jax.jacfwd, cg.jacrev: jax.jacrev, cg.hessian: jax.hessian, cg.grad: jax.grad}[transform]
    with x64():
        of_params = jax.jit(theirs(f_jax, argnums=(0, 1)))
        expected = jax.tree.map(np.asarray, of_params(jax.tree.map(jnp.asarray, params), x))
    found = transform(f, argnums=(0, 1))(params, x)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert np.shape(a) == np.shape(b)
        close(a, b)


# A batch of loops that end at different times.


def test_a_batch_of_loops_and_of_their_derivatives():
    batch = X * np.array([[0.25], [1.0], [2.0], [20.0]])
    with x64():
        values, jacobians, hessians = (
            np.asarray(jax.jit(jax.vmap(f))(jnp.asarray(batch)))
            for f in (bounded, jax.jacrev(bounded), jax.hessian(loss(bounded, jnp)))
        )
    close(cg.vmap(ours)(batch), values)
    close(cg.vmap(cg.jacrev(ours))(batch), jacobians)
    close(cg.vmap(cg.jacfwd(ours))(batch), jacobians)
    close(cg.vmap(cg.hessian(loss(ours, cnp)))(batch), hessians, rtol=1e-9)
    close(cg.grad(lambda b: cnp.sum(cg.vmap(ours)(b) ** 2))(batch), 2 * np.einsum("bi,bij->bj", values, jacobians))


def test_a_finished_row_makes_no_nan():
    """A finished row makes no NaN: each row ends before its logarithm has a negative operand, while other rows go
    on."""
    f = lambda x: cg.while_loop(lambda y: y > 0.4, lambda y: cnp.log(y + 1.0) ** 2, x)
    batch = np.array([0.1, 0.9, 1.5, 30.0])
    for transform in (lambda f: f, cg.grad, lambda f: cg.grad(cg.grad(f))):
        rows = cg.vmap(transform(f))(batch)
        assert np.isfinite(rows).all()
        close(rows, [transform(f)(x) for x in batch])
