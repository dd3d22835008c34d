"""Rules are traced lazily, at differentiation, once the active arguments are known; the variables that a rule closes
over have the values of the time when the function was called."""

# ruff: noqa: B023  (how Python binds the variables of a loop is what is tested)

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.custom_derivatives import SymbolicZero
from ctrlgrad.errors import DifferentiationError, TypeMismatchError

X = np.array([0.3, -0.8, 1.2])


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def numeric(f, x, step=1e-6):
    """The gradient of a scalar function by central differences."""
    shifts = step * np.eye(x.size).reshape(x.size, *x.shape)
    return np.array([(f(x + d) - f(x - d)) / (2 * step) for d in shifts]).reshape(x.shape)


def product(library, xp, log):
    """x * y, whose rules note which tangents and cotangents are zero for certain."""
    zero = library.custom_derivatives.SymbolicZero if library is jax else SymbolicZero

    @library.custom_jvp
    def f(x, y):
        return x * y, xp.sin(x)

    def rule(primals, tangents):
        (x, y), (tx, ty) = primals, tangents
        log.append((type(tx) is zero, type(ty) is zero))
        parts = [a for a in (None if log[-1][0] else tx * y, None if log[-1][1] else x * ty) if a is not None]
        return f(x, y), (sum(parts[1:], parts[0]), tx if log[-1][0] else xp.cos(x) * tx)

    f.defjvp(rule, symbolic_zeros=True)
    return f


LOSSES = {
    "alone": lambda library, xp, f: lambda x, y: xp.sum(f(x, y)[0] ** 2 + f(x, y)[1]),
    "a constant": lambda library, xp, f: lambda x, y: xp.sum(f(x, 2.0 * xp.ones(3))[0]) + 0.0 * xp.sum(y),
    "in a loop": lambda library, xp, f: (
        lambda x, y: xp.sum(library.lax.fori_loop(0, 3, lambda i, c: xp.sin(f(c, y)[0]), x))
    ),
    "under vmap": lambda library, xp, f: lambda x, y: xp.sum(library.vmap(f)(x, y)[0] ** 3),
    "of shared": lambda library, xp, f: lambda x, y: xp.sum(library.vmap(f, in_axes=(0, None))(x, y[0])[1]),
    "its own result": lambda library, xp, f: lambda x, y: xp.sum(f(f(x, y)[0], f(y, y)[1])[0]),
}


@pytest.mark.parametrize("argnum", [0, 1])
@pytest.mark.parametrize("name", LOSSES)
def test_symbolic_zeros_are_those_of_jax_and_the_derivatives_are_true(name, argnum):
    y, seen = X[::-1].copy() + 0.1, {}
    for library, xp in ((cg, cnp), (jax, jnp)):
        logs = seen[library, "zeros"] = []
        loss = LOSSES[name](library, xp, product(library, xp, logs))
        tangents = tuple(np.ones(3) if i == argnum else None for i in range(2))
        one = lambda x, loss=loss: loss(*(x if t is not None else v for t, v in zip(tangents, (X, y), strict=True)))
        primal = (X, y)[argnum]
        seen[library, "jvp"] = library.jvp(one, (primal,), (np.ones(3),))[1]
        seen[library, "first"] = library.grad(one)(primal)
        seen[library, "second"] = library.grad(lambda x: xp.sum(library.grad(one)(x) ** 2))(primal)
        if library is cg:
            np.testing.assert_allclose(seen[cg, "first"], numeric(lambda x: float(one(x)), primal), atol=1e-8)
    for part in ("jvp", "first", "second"):
        np.testing.assert_allclose(seen[cg, part], seen[jax, part], rtol=1e-10)
    # Loops call a rule once for each guess at their carries; JAX and this library guess differently.
    if name != "in a loop":
        assert set(seen[cg, "zeros"]) == set(seen[jax, "zeros"])


def test_a_reverse_rule_is_told_what_is_perturbed_and_which_cotangents_are_zero():
    seen = []

    @cg.custom_vjp
    def f(x, y):
        return x * y, x + y

    def forward(x, y):
        seen.append((x.perturbed, y.perturbed))
        return f(x.value, y.value), (x.value, y.value)

    def backward(kept, cts):
        seen.append(tuple(isinstance(ct, SymbolicZero) for ct in cts))
        x, y = kept
        first, second = cts
        if seen[-1][0]:
            return second, second
        return first * y, first * x

    f.defvjp(forward, backward, symbolic_zeros=True)
    assert float(cg.grad(lambda x, y: f(x, y)[0])(2.0, 3.0)) == 3.0
    assert seen == [(True, False), (False, True)]
    seen.clear()
    rows = cg.grad(lambda x, y: cnp.sum(cg.vmap(f, in_axes=(None, 0))(x, y)[1]), 1)(2.0, np.ones(3))
    np.testing.assert_array_equal(rows, np.ones(3))
    assert seen == [(False, True), (True, False)]
    seen.clear()
    in_loop = lambda x, y: cg.fori_loop(0, 3, lambda i, c: f(c, y)[0], x)
    np.testing.assert_allclose(cg.grad(in_loop)(2.0, 3.0), 27.0)
    assert seen == [(True, False), (False, True)]


def test_a_rule_is_not_traced_where_nothing_is_differentiated():
    calls = []

    def rule(*_):
        calls.append("rule")
        raise AssertionError

    pushed, pulled = cg.custom_jvp(np.sin), cg.custom_vjp(np.sin)
    pushed.defjvp(rule)
    pulled.defvjp(rule, rule)
    f = lambda x, y: pushed(x) * pulled(x) * y
    x = np.array(0.3)
    np.testing.assert_allclose(cg.function(f)(x, 2.0), 2.0 * np.sin(x) ** 2)
    np.testing.assert_allclose(cg.vmap(f)(X, X), np.sin(X) ** 2 * X)
    np.testing.assert_allclose(cg.grad(f, 1)(x, 2.0), np.sin(x) ** 2)
    assert not calls
    with pytest.raises(AssertionError):
        cg.grad(f)(x, 2.0)
    assert calls == ["rule"]


def test_a_rule_sees_its_variables_as_they_were_at_the_call():
    """A rule sees its variables as they were at the call. Python binds late, so each rule could see the loop's last
    value."""

    def loss(x, scales):
        total = 0.0
        for k, scale in enumerate(scales):
            y = x.shape[0] * scale

            @cg.custom_vjp
            def f(z):
                return z * y

            f.defvjp(lambda z: (z * y, None), lambda _, ct, k=k: (ct * y * (k + 1),))

            @cg.custom_jvp
            def g(z):
                return f(z) + y

            g.defjvp(lambda p, t: (f(p[0]) + y, y * t[0]))
            total = total + cnp.sum(f(x) + g(x))
        return total

    expected = sum(3 * scale * (k + 1) + 3 * scale for k, scale in enumerate((2.0, 5.0)))
    np.testing.assert_allclose(cg.grad(loss)(X, (2.0, 5.0)), np.full(3, expected))
    found = cg.function(cg.grad(loss))(X, (np.array(2.0), np.array(5.0)))
    np.testing.assert_allclose(found, np.full(3, expected))


class Holder:
    __slots__ = ("scale",)

    def __init__(self, scale):
        self.scale = scale

    def rule(self, primals, tangents):
        return primals[0] * 2.0, self.scale * tangents[0]


REACHED = {
    "a variable": lambda s: lambda p, t: (p[0] * 2.0, s * t[0]),
    "a default": lambda s: lambda p, t, s=s: (p[0] * 2.0, s * t[0]),
    "a bound argument": lambda s: partial(lambda s, p, t: (p[0] * 2.0, s * t[0]), s),
    "an object": lambda s: Holder(s).rule,
    "a container": lambda s: (lambda kept: lambda p, t: (p[0] * 2.0, kept["s"][0] * t[0]))({"s": [s]}),
    "another function": lambda s: (lambda by: lambda p, t: (p[0] * 2.0, by(t[0])))(lambda t: s * t),
}


@pytest.mark.parametrize("where", REACHED)
def test_traced_values_that_a_rule_reaches_are_at_hand_when_it_is_traced(where):
    def loss(x, n):
        # A value of an enclosing trace that has ended when the derivative is computed.
        scale = cnp.sum(n.astype(float))
        f = cg.custom_jvp(lambda z: z * 2.0)
        f.defjvp(REACHED[where](scale))
        return cnp.sum(cg.fori_loop(0, 2, lambda i, y: f(y), x))

    for derive in (cg.grad, lambda g: lambda x, n: cg.vmap(cg.grad(g), in_axes=(0, None))(x[None], n)[0]):
        np.testing.assert_allclose(derive(loss)(X, np.array([1, 2])), np.full(3, 9.0))


def test_a_traced_value_out_of_reach_is_named():
    kept = type("Module", (), {})

    def loss(x):
        kept.scale = cnp.sum(x)
        f = cg.custom_jvp(lambda z: z * 2.0)
        f.defjvp(lambda p, t: (p[0] * 2.0, kept.scale * t[0]))
        return cnp.sum(f(x))

    with pytest.raises(DifferentiationError, match="uses a traced value that it does not close over") as caught:
        cg.grad(loss)(X)
    assert "test_rules_on_demand.py" in str(caught.value) and "pass the value as an argument" in str(caught.value)


def test_a_symbolic_zero_in_the_wrong_place_is_named():
    f = cg.custom_vjp(lambda x, y: (x, y))
    f.defvjp(lambda x, y: (f(x.value, y.value), None), lambda _, cts: (cts[1], cts[0]), symbolic_zeros=True)
    with pytest.raises(TypeMismatchError, match="the cotangent of argument 0 does not fit") as caught:
        cg.grad(lambda x, y: cnp.sum(f(x, y)[0]), (0, 1))(np.ones(2), np.ones(3))
    assert "None stands for a cotangent of zero" in str(caught.value)
