"""Derivative rules of a JAX program are kept under every transform and inside every construct."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from interop.libraries import close
from jax import lax

import ctrlgrad as cg
import ctrlgrad.numpy as cnp

Function = Callable[[Any], Any]
X = np.array([1.2, 2.0, 3.5])


@jax.custom_jvp
def seven(x: Any) -> Any:
    """Sine, with the derivative 7."""
    return jnp.sin(x)


seven.defjvp(lambda primals, tangents: (jnp.sin(primals[0]), 7.0 * tangents[0]))


@jax.custom_vjp
def five(x: Any) -> Any:
    """Sine, with the derivative 5 x."""
    return jnp.sin(x)


five.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (5.0 * ct * x,))


@jax.custom_vjp
def uneven(x: Any, y: Any) -> Any:
    """Product, with the derivatives 3 y and 2 x, by a rule that asks which arguments are differentiated."""
    return x * y


def _uneven_forward(x: Any, y: Any) -> Any:
    return x.value * y.value, (x.value, y.value)


uneven.defvjp(_uneven_forward, lambda saved, ct: (3.0 * ct * saved[1], 2.0 * ct * saved[0]), symbolic_zeros=True)


@jax.custom_batching.custom_vmap
def mapped(x: Any) -> Any:
    return seven(x)


mapped.def_vmap(lambda size, batched, x: (seven(x), True))


def linear(x: Any) -> Any:
    solve = lambda matvec, b: b / (x + 0.1)
    return lax.custom_linear_solve(lambda v: x * v + 0.1 * v, jnp.sin(x), solve, solve)


def root(x: Any) -> Any:
    def solve(f: Function, start: Any) -> Any:
        return lax.while_loop(lambda y: jnp.max(jnp.abs(f(y))) > 1e-12, lambda y: y - f(y) / (2 * y), start)

    return lax.custom_root(lambda y: y * y - x, jnp.ones_like(x), solve, lambda g, y: y / g(jnp.ones_like(y)))


FUNCTIONS = {
    "custom_jvp": seven,
    "custom_vjp": five,
    "symbolic_zeros": lambda x: uneven(x, x),
    "custom_linear_solve": linear,
    "custom_root": root,
}


def _scanned(f: Function) -> Function:
    return lambda x: lax.scan(lambda c, _: (f(c), c), x, length=3)[0]


PLACES: dict[str, Callable[[Function], Function]] = {
    "alone": lambda f: f,
    "vmap": jax.vmap,
    "scan": _scanned,
    "vmap of scan": lambda f: jax.vmap(_scanned(f)),
    "cond": lambda f: lambda x: lax.cond(x[0] > 1.0, f, jnp.cos, x),
    "vmap of cond": lambda f: jax.vmap(lambda x: lax.cond(x > 1.5, f, jnp.cos, x)),
    "scan of vmap of cond": lambda f: _scanned(jax.vmap(lambda x: lax.cond(x > 1.5, f, lambda x: 1.2 * x, x))),
    "checkpoint": jax.checkpoint,
}


def total(f: Function) -> Function:
    return lambda x: jnp.sum(f(x))


def same_gradient(f: Function, x: Any = X) -> None:
    with jax.enable_x64(True):
        wanted = jax.grad(f)(x)
        assert np.abs(wanted).max() > 0
        np.testing.assert_allclose(cg.grad(cg.from_jax(f))(x), wanted, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_rule_is_kept(name: str, place: str) -> None:
    same_gradient(total(PLACES[place](FUNCTIONS[name])))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_rule_is_kept_in_a_while_loop(name: str) -> None:
    f = FUNCTIONS[name]
    loop = lambda x: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, f(c[1])), (0, x))[1]
    with jax.enable_x64(True):
        found = cg.grad(cg.from_jax(total(loop)))(X)
        np.testing.assert_allclose(found, jax.grad(total(_scanned(f)))(X), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("place", ["vmap", "vmap of scan", "vmap of cond", "scan of vmap of cond"])
def test_a_rule_for_rows_is_kept(place: str) -> None:
    same_gradient(total(PLACES[place](mapped)))


def inexact(library: Any, functions: Any) -> Function:
    """A cube whose rule returns the sine, with a tangent of neither."""

    def cube(x: Any) -> Any:
        return x * x * x

    ruled = library.custom_jvp(cube)
    ruled.defjvp(lambda primals, tangents: (functions.sin(primals[0]), functions.exp(0.5 * primals[0]) * tangents[0]))
    return ruled


def around_inexact(library: Any, functions: Any) -> dict[str, Function]:
    f, steps = inexact(library, functions), np.arange(1.0, 3.0)
    return {
        "plain": f,
        "products": lambda x: f(x) * f(x) * x,
        "nested": lambda x: f(f(x)),
        "scan": lambda x: library.lax.scan(lambda c, r: (f(c) * r, c), x, steps)[0],
        "fori_loop": lambda x: library.lax.fori_loop(0, 2, lambda i, c: f(c) * x, x),
        "while_loop": lambda x: library.lax.while_loop(lambda c: c < 2.0, lambda c: f(c) + c, x),
        "cond": lambda x: library.lax.cond(x > 0.1, lambda y: f(y) * y, lambda y: y, x),
        "vmap": lambda x: library.vmap(f)(x * functions.arange(1.0, 4.0)).sum(),
        "an auxiliary result": lambda x: x * x + library.lax.stop_gradient(f(x)) * x,
    }


DERIVATIVES: dict[str, Callable[[Any, Function], Function]] = {
    "value": lambda library, f: lambda x: library.jvp(f, (x,), (1.0,))[0],
    "value of value_and_grad": lambda library, f: lambda x: library.value_and_grad(f)(x)[0],
    "forward": lambda library, f: library.jacfwd(f),
    "reverse": lambda library, f: library.grad(f),
    "forward over forward": lambda library, f: library.jacfwd(library.jacfwd(f)),
    "reverse over forward": lambda library, f: library.jacrev(library.jacfwd(f)),
    "reverse over reverse": lambda library, f: library.grad(library.grad(f)),
    "hessian": lambda library, f: library.hessian(f),
    "third": lambda library, f: library.jacfwd(library.jacfwd(library.jacfwd(f))),
    "third, in reverse": lambda library, f: library.grad(library.grad(library.grad(f))),
    "gradient of the value": lambda library, f: library.grad(lambda x: library.value_and_grad(f)(x)[0]),
}
# Where JAX has no reverse mode of a loop, it has the same derivative by forward mode.
IN_FORWARD = {
    "value of value_and_grad": "value",
    "reverse": "forward",
    "reverse over forward": "forward over forward",
    "reverse over reverse": "forward over forward",
    "hessian": "forward over forward",
    "third, in reverse": "third",
}


@pytest.mark.parametrize("name", around_inexact(jax, jnp))
def test_higher_derivatives_of_inexact_forward_rules_agree_with_jax(name: str) -> None:
    """Derivatives of an inexact forward rule are those of the result that the rule returns, not of the function."""
    x = 0.7
    with jax.enable_x64(True), cg.options(engine="reference"):
        theirs, ours = around_inexact(jax, jnp)[name], around_inexact(cg, cnp)[name]
        close(cg.from_jax(theirs)(x), theirs(x))
        for derivative, of in DERIVATIVES.items():
            if name == "while_loop" and derivative == "gradient of the value":
                continue
            judge = DERIVATIVES[IN_FORWARD.get(derivative, derivative)] if name == "while_loop" else of
            expected = jax.jit(judge(jax, theirs))(x)
            for mine in (ours, cg.from_jax(theirs)):
                close(of(cg, mine)(x), expected)
