"""vmap against `jax.vmap` of the same program, values and gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.ir import count_ops

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


def _newton(lib: Any, np_like: Any) -> Any:
    return lambda x: lib.while_loop(lambda y: abs(y * y - x) > 1e-12, lambda y: 0.5 * (y + x / y), 1.0 + 0 * x)


def _inner_gradient(lib: Any, np_like: Any) -> Any:
    """A loop whose body differentiates another loop."""
    grad = cg.grad if lib is cg else jax.jacfwd
    inner = lambda x: lib.while_loop(lambda y: y < 4 + x, lambda y: y * (1.0 + np_like.sin(x) ** 2) + 0.1, x)
    return lambda x: lib.while_loop(
        lambda c: c[1] < 3 * x, lambda c: (c[0] + 0.1 * grad(inner)(c[0]), c[1] + 1), (x, 0)
    )[0]


def _nested_loops(lib: Any, np_like: Any) -> Any:
    def body(c: Any) -> Any:
        inner = lib.while_loop(lambda y: y < 1 + c[0] * c[0], lambda y: y * 1.5 + 0.2, c[0])
        return np_like.sin(inner) + 0.7, c[1] + 1

    return lambda x: lib.while_loop(lambda c: c[1] < 4 * x, body, (x, 0))[0]


GRADIENTS = [_loop, _newton, _inner_gradient, _nested_loops]


@pytest.mark.parametrize("make", GRADIENTS, ids=lambda m: m.__name__)
def test_a_gradient_of_a_loop_is_taken_after_its_function_is_batched(make: Any) -> None:
    """`vmap` of a gradient is as small as the gradient of `vmap`: rows are pushed for all examples at once. JAX, which
    reverses no such loop, judges by forward mode."""
    ours, theirs = make(cg, cnp), make(jax.lax, jnp)
    mapped, total = cg.vmap(cg.grad(ours)), cg.grad(lambda x: cg.vmap(ours)(x).sum())
    by_rows, at_once = count_ops(cg.function(mapped).graph(X)), count_ops(cg.function(total).graph(X))
    assert by_rows["while"] == at_once["while"] and by_rows["stack_push"] == at_once["stack_push"] > 0
    assert sum(by_rows.values()) <= sum(at_once.values()) + 2
    expected = jax.jit(jax.vmap(jax.jacfwd(theirs)))(X)
    np.testing.assert_allclose(mapped(X), expected, rtol=1e-10)
    twice = cg.vmap(cg.vmap(cg.grad(ours)))(X.reshape(2, 2))
    np.testing.assert_allclose(twice, np.reshape(expected, (2, 2)), rtol=1e-10)
    step = 1e-6
    slope = [(ours(x + step) - ours(x - step)) / (2 * step) for x in X]
    np.testing.assert_allclose(mapped(X), slope, rtol=1e-5)


def _of_two(lib: Any, np_like: Any) -> Any:
    """(w, x): another number of iterations for each x."""
    step = lambda w, x: lambda c: (np_like.tanh(w * c[0] + x), c[1] + 1)
    return lambda w, x: lib.while_loop(lambda c: c[1] < 4 * x.sum(), step(w, x), (x, 0))[0].sum()


def test_gradients_with_respect_to_what_all_rows_share() -> None:
    """Each row has its own; with `has_aux`, several arguments, and values that the function closes over."""
    ours, theirs = _of_two(cg, cnp), _of_two(jax.lax, jnp)
    w, xs = np.array([0.4, 0.8]), np.stack([X[:2], X[1:3], X[2:]])
    axes = {"in_axes": (None, 0)}
    expected = jax.jit(jax.vmap(jax.jacfwd(theirs, (0, 1)), **axes))(w, xs)
    for found, by_jax in zip(cg.vmap(cg.grad(ours, (0, 1)), **axes)(w, xs), expected, strict=True):
        np.testing.assert_allclose(found, by_jax, rtol=1e-11)
    aux = lambda w, x: (ours(w, x), {"twice": 2 * x, "name": "kept"})

    def named(w: Any, x: Any) -> Any:
        (value, beside), slope = cg.value_and_grad(aux, has_aux=True)(w, x)
        assert beside["name"] == "kept"
        return value, beside["twice"], slope

    value, twice, slope = cg.vmap(named, **axes)(w, xs)
    np.testing.assert_allclose(value, [ours(w, x) for x in xs], rtol=1e-12)
    np.testing.assert_array_equal(twice, 2 * xs)
    np.testing.assert_allclose(slope, expected[0], rtol=1e-11)
    closed = cg.vmap(lambda x: cg.grad(lambda w: ours(w, x))(w))(xs)
    np.testing.assert_allclose(closed, expected[0], rtol=1e-11)


RULES = {
    "custom_vjp": lambda f: _with(cg.custom_vjp(f), "defvjp", lambda x: (f(x), x), lambda x, ct: (ct * 3 * f(x),)),
    "custom_jvp": lambda f: _with(cg.custom_jvp(f), "defjvp", lambda x, t: (f(x[0]), t[0] * 3 * f(x[0]))),
    "custom_vmap": lambda f: _with(
        cg.custom_vmap(f), "def_vmap", lambda size, mapped, x: (cg.vmap(f)(x) if mapped[0] else f(x), mapped[0])
    ),
    "checkpoint": cg.checkpoint,
}


def _with(function: Any, setter: str, *rules: Any) -> Any:
    getattr(function, setter)(*rules)
    return function


@pytest.mark.parametrize("name", RULES)
def test_gradients_of_loops_that_call_functions_with_rules(name: str) -> None:
    inner = RULES[name](lambda x: cnp.sin(x) * 0.5)
    f = lambda x: cg.while_loop(lambda c: c[1] < 4 * x, lambda c: (c[0] + inner(c[0] * x), c[1] + 1), (x, 0))[0]
    np.testing.assert_allclose(cg.vmap(cg.grad(f))(X), [cg.grad(f)(x) for x in X], rtol=1e-11)
    second = cg.grad(lambda x: cg.grad(f)(x) ** 2)
    np.testing.assert_allclose(cg.vmap(second)(X), [second(x) for x in X], rtol=1e-10)


def test_gradients_of_loops_that_draw_and_of_rows_that_know_each_other() -> None:
    def drawn(x: Any, key: Any) -> Any:
        step = lambda c: (cnp.sin(c[0] + cg.random.normal(cg.random.fold_in(key, c[1]))), c[1] + 1)
        return cg.while_loop(lambda c: c[1] < 4 * x, step, (x, 0))[0]

    keys = cg.random.split(cg.random.key(3), 4)
    expected = [cg.grad(drawn)(x, key) for x, key in zip(X, keys, strict=True)]
    np.testing.assert_allclose(cg.vmap(cg.grad(drawn))(X, keys), expected, rtol=1e-11)

    def normed(lib: Any, np_like: Any, x: Any) -> Any:
        y = lib.fori_loop(0, 3, lambda i, y: np_like.sin(y) + x, x)
        return y / lib.psum(y * y, "rows")

    ours = cg.vmap(cg.grad(lambda x: normed(cg.lax, cnp, x)), axis_name="rows")(X)
    theirs = jax.vmap(jax.grad(lambda x: normed(jax.lax, jnp, x)), axis_name="rows")(X)
    np.testing.assert_allclose(ours, theirs, rtol=1e-11)
