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


def _steps_of_two(lib: Any, np_like: Any) -> Any:
    """Another number of iterations for each row; the result is a vector."""

    def f(x: Any) -> Any:
        step = lambda c: (np_like.sin(c[0]) * x + 0.3 * c[0][::-1] ** 2, c[1] + 1)
        return lib.while_loop(lambda c: c[1] < 4 * x[0], step, (x * x, 0))[0]

    return f


ROWS = np.stack([X[:2], X[1:3], X[2:]])
LATER = {
    "jacrev": lambda cg, f, x: cg.jacrev(f)(x),
    "jacrev of two results": lambda cg, f, x: cg.jacrev(lambda x: (f(x), x.sum() * f(x)[0]))(x),
    "hessian": lambda cg, f, x: cg.hessian(lambda x: (f(x) ** 2).sum())(x),
    "reverse over reverse": lambda cg, f, x: cg.jacrev(cg.grad(lambda x: (f(x) ** 2).sum()))(x),
    "both": lambda cg, f, x: (cg.value_and_grad(lambda x: f(x).sum())(x), cg.jacrev(f)(x)),
}


def _by_forward_mode(jax: Any) -> Any:
    """JAX, which reverses no such loop."""

    class Forward:
        jacrev = grad = staticmethod(jax.jacfwd)
        hessian = staticmethod(lambda f: jax.jacfwd(jax.jacfwd(f)))
        value_and_grad = staticmethod(lambda f: lambda x: (f(x), jax.jacfwd(f)(x)))

    return Forward


@pytest.mark.parametrize("name", LATER)
def test_derivatives_of_loops_are_taken_after_the_function_is_batched(name: str) -> None:
    """Rows are pushed for all examples at once, and each forward pass stands in the graph once."""
    of = LATER[name]
    ours, theirs = _steps_of_two(cg, cnp), _steps_of_two(jax.lax, jnp)
    mapped = cg.vmap(lambda x: of(cg, ours, x))
    expected = jax.jit(jax.vmap(lambda x: of(_by_forward_mode(jax), theirs, x)))(ROWS)
    for found, by_jax in zip(cg.tree.leaves(mapped(ROWS)), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(found, by_jax, rtol=1e-9, atol=1e-9)
    one, all_rows = (
        count_ops(cg.function(f).graph(x)) for f, x in ((lambda x: of(cg, ours, x), ROWS[0]), (mapped, ROWS))
    )
    assert all_rows["while"] == one["while"] and all_rows["stack_push"] >= one["stack_push"] > 0
    twice = cg.vmap(cg.vmap(lambda x: of(cg, ours, x), 1), 2)(ROWS.T[:, :, None])
    for found, by_jax in zip(cg.tree.leaves(twice), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(found[0], by_jax, rtol=1e-9, atol=1e-9)


def test_derivatives_of_mapped_loops_are_those_of_finite_differences() -> None:
    f, step = _steps_of_two(cg, cnp), 1e-6
    basis = step * np.eye(2)
    slopes = lambda g, x: np.stack([(g(x + e) - g(x - e)) / (2 * step) for e in basis], -1)
    np.testing.assert_allclose(cg.vmap(cg.jacrev(f))(ROWS), [slopes(f, x) for x in ROWS], rtol=1e-6, atol=1e-7)
    loss = lambda x: (f(x) ** 2).sum()
    found = cg.vmap(cg.hessian(loss))(ROWS)
    np.testing.assert_allclose(found, [slopes(cg.grad(loss), x) for x in ROWS], rtol=1e-5, atol=1e-6)


def _pulled(x: Any, f: Any) -> Any:
    y, pull = cg.vjp(f, x)
    return y, pull(y), pull(2 * y)[0]


def _pulled_in_a_loop(x: Any, f: Any) -> Any:
    y, pull = cg.vjp(f, x)
    return cg.fori_loop(0, 3, lambda i, v: pull(v * 0.1)[0] + pull(y)[0], x)


def _pulled_in_a_branch(x: Any, f: Any) -> Any:
    y, pull = cg.vjp(f, x)
    return cg.cond(x[0] > 1, lambda: pull(y)[0], lambda: y)


def _carried(x: Any, f: Any) -> Any:
    y, pull = cg.vjp(f, x)
    return cg.fori_loop(0, 2, lambda i, c: (c[0], c[0](c[1])[0]), (pull, y))[1]


def _pushed(x: Any, f: Any) -> Any:
    y, push = cg.linearize(f, x)
    return y, cg.vmap(push)(np.eye(2)), push(y)


def _with_aux(x: Any, f: Any) -> Any:
    y, pull, aux = cg.vjp(lambda x: (f(x), {"twice": 2 * x}), x, has_aux=True)
    return y, pull(aux["twice"])


def _in_directions(x: Any, f: Any) -> Any:
    """Directions of directions, and rows between them."""
    _, pull = cg.vjp(f, x)
    return cg.vmap(lambda s: cg.vmap(lambda d: pull(s * d)[0])(np.eye(2)))(np.array([1.0, -2.0, 0.5]))


def _rows_of_a_derivative(x: Any, f: Any) -> Any:
    return cg.jacrev(lambda x: cg.vmap(lambda s: cg.grad(lambda x: f(s * x).sum())(x))(np.array([0.5, 1.0])))(x)


PULLS = [
    _pulled,
    _pulled_in_a_loop,
    _pulled_in_a_branch,
    _carried,
    _pushed,
    _with_aux,
    _in_directions,
    _rows_of_a_derivative,
]


@pytest.mark.parametrize("pull", PULLS, ids=lambda p: p.__name__)
def test_pullbacks_of_mapped_loops(pull: Any) -> None:
    f = _steps_of_two(cg, cnp)
    found = cg.vmap(lambda x: pull(x, f))(ROWS)
    rows = [pull(x, f) for x in ROWS]
    for at_once, *each in zip(cg.tree.leaves(found), *map(cg.tree.leaves, rows), strict=True):
        np.testing.assert_allclose(at_once, each, rtol=1e-10, atol=1e-10)
    twice = cg.vmap(cg.vmap(lambda x: pull(x, f)))(np.stack([ROWS, ROWS[::-1]]))
    for again, at_once in zip(cg.tree.leaves(twice), cg.tree.leaves(found), strict=True):
        np.testing.assert_allclose(again, [at_once, at_once[::-1]], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", RULES)
def test_jacobians_of_mapped_loops_that_call_functions_with_rules(name: str) -> None:
    inner = RULES[name](lambda x: cnp.sin(x) * 0.5)
    f = lambda x: cg.while_loop(lambda c: c[1] < 4 * x[0], lambda c: (c[0] + inner(c[0] * x), c[1] + 1), (x, 0))[0]
    for of in (cg.jacrev(f), cg.hessian(lambda x: f(x).sum())):
        np.testing.assert_allclose(cg.vmap(of)(ROWS), [of(x) for x in ROWS], rtol=1e-10, atol=1e-12)


def test_jacobians_of_mapped_loops_over_rows_that_know_each_other() -> None:
    def f(lib: Any, np_like: Any, x: Any) -> Any:
        return lib.fori_loop(0, 3, lambda i, y: np_like.sin(y) + x * lib.psum(x[0], "rows"), x)

    ours = cg.vmap(cg.jacrev(lambda x: f(cg.lax, cnp, x)), axis_name="rows")(ROWS)
    theirs = jax.vmap(jax.jacrev(lambda x: f(jax.lax, jnp, x)), axis_name="rows")(ROWS)
    np.testing.assert_allclose(ours, theirs, rtol=1e-11)
