"""Functions that close over traced values, and pullbacks that are handed on, judged by JAX."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.errors import CtrlgradError


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def root(lib, np_):
    """A function with a rule that calls a function with traced values inside."""

    @functools.partial(lib.custom_vjp, nondiff_argnums=(0,))
    def solved(f, x, *consts):
        return np_.cos(f(x, *consts))

    def forward(f, x, *consts):
        return solved(f, x, *consts), (x, consts)

    def backward(f, kept, ct):
        x, consts = kept
        return (17.0 * ct * x, *(42.0 * ct * c for c in consts))

    solved.defvjp(forward, backward)

    def solve(c, x):
        converted, consts = lib.closure_convert(lambda x: np_.sum((x - c) ** 2), x)
        return solved(converted, x, *consts)

    return solve


def test_closure_convert():
    c, x = np.array([2.0, 1.0]), np.array([0.5, 3.0])
    for argnums in (0, 1, (0, 1)):
        found = cg.grad(root(cg, cnp), argnums)(c, x)
        wanted = jax.grad(root(jax, jnp), argnums)(c, x)
        np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_converted_functions_check_their_arguments():
    def f(w):
        converted, consts = cg.closure_convert(lambda x: w * x, 1.0)
        return converted(5.0, consts)

    with pytest.raises(CtrlgradError, match="closure_convert: "):
        cg.grad(f)(2.0)


def gradients(lib, np_):
    @lib.custom_gradient
    def f(x, y):
        s = np_.sin(x)
        return s * y, lambda ct: (ct * 2.0 * s * y, ct * 3.0 * x)

    @lib.custom_gradient
    def g(x):
        return x**2, lambda ct: ct * x

    return lambda x: f(x, g(x)) + g(f(x, x))


def test_custom_gradient_to_the_second_order():
    found, wanted = gradients(cg, cnp), gradients(jax, jnp)
    assert abs(float(found(0.7)) - float(wanted(0.7))) < 1e-12
    np.testing.assert_allclose(cg.grad(found)(0.7), jax.grad(wanted)(0.7), rtol=1e-12)
    np.testing.assert_allclose(cg.grad(cg.grad(found))(0.7), jax.grad(jax.grad(wanted))(0.7), rtol=1e-12)
    with pytest.raises(CtrlgradError, match="does not return a pair"):
        cg.grad(cg.custom_gradient(lambda x: x))(1.0)


def test_a_pullback_is_a_pytree():
    pullback = cg.function(lambda x: cg.vjp(lambda x: cnp.sin(x) * x, x)[1])(0.7)
    (wanted,) = jax.vjp(lambda x: jnp.sin(x) * x, 0.7)[1](2.0)
    np.testing.assert_allclose(pullback(2.0)[0], wanted, rtol=1e-12)

    @cg.custom_vjp
    def square(x):
        return x**2

    square.defvjp(lambda x: cg.vjp(lambda x: x**2, x), lambda pull, ct: pull(ct))
    np.testing.assert_allclose(cg.grad(square)(3.0), 6.0)
    np.testing.assert_allclose(cg.grad(cg.grad(square))(3.0), 2.0)


def test_rules_are_asked_for_derivatives_alone():
    @cg.custom_jvp
    def f(x):
        return x * 2

    f.defjvp(lambda primals, tangents: 1 / 0)
    assert f(2) == 4
    with pytest.raises(ZeroDivisionError):
        cg.grad(f)(2.0)


@pytest.mark.parametrize("kind", ["custom_jvp", "custom_vjp"])
def test_arguments_without_derivative_by_name(kind):
    f = getattr(cg, kind)(lambda f, x, g: f(x) + g(x), nondiff_argnums=(0,), nondiff_argnames="g")
    if kind == "custom_jvp":
        f.defjvp(lambda f_, g, x, t: (f(f_, x[0], g), 3.0 * t[0]))
    else:
        f.defvjp(lambda f_, x, g: (f(f_, x, g), None), lambda f_, g, _, ct: (3.0 * ct,))
    assert float(cg.grad(lambda x: f(np.sin, x, np.cos))(0.3)) == 3.0
    with pytest.raises(CtrlgradError, match="no such parameter"):
        getattr(cg, kind)(lambda x: x, nondiff_argnames=("y",))


def test_bound_keywords_stay_bound():
    def fun(x, y, a):
        return x + y * a

    bound = functools.partial(fun, a=0.25)
    f = cg.custom_jvp(bound)
    f.defjvp(lambda primals, tangents: cg.jvp(bound, primals, tangents))
    assert [float(g) for g in cg.grad(f, (0, 1))(1.0, 2.0)] == [1.0, 0.25]


def test_tangents_of_integers_hold_nothing():
    value, tangent = cg.jvp(lambda x: (x * x, cnp.argmax(x), 3), (np.array([1.0, 2.0]),), (np.ones(2),))
    assert value[1] == 1 and tangent[1].dtype == cg.float0 and tangent[2].dtype == cg.float0
    _, push = cg.linearize(lambda x: (x * x, cnp.argmax(x)), np.array([1.0, 2.0]))
    assert push(np.ones(2))[1].dtype == cg.float0
    zero = cg.custom_derivatives.zero_from_primal((1.0, 2))
    assert zero[0] == 0.0 and zero[1].dtype == cg.float0


def test_float_bounds_of_a_counted_loop():
    def counted(x):
        return cg.fori_loop(x, x + 2.5, lambda i, c: c * i, x)

    def spelled(x):
        return x * x * (x + 1.0) * (x + 2.0)

    assert float(counted(1.5)) == spelled(1.5)
    np.testing.assert_allclose(cg.grad(counted)(1.5), jax.grad(spelled)(1.5))
    np.testing.assert_allclose(cg.jvp(counted, (1.5,), (1.0,))[1], jax.grad(spelled)(1.5))


@pytest.mark.parametrize(
    "loop",
    [
        lambda n: cg.fori_loop(0, 3, lambda i, c: c, 0, unroll=n),
        lambda n: cg.scan(lambda c, x: (c, x), 0, np.arange(3), unroll=n),
    ],
)
def test_unroll_is_a_number_of_iterations(loop):
    loop(2)
    with pytest.raises(CtrlgradError, match="unroll"):
        loop(-1)
