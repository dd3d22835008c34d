"""Rules that disagree with their function, in value and in slope: derivatives of both orders are those of JAX.

The results that a rule returns take the place of its call's results, inside checkpoints as well: further derivatives,
and uses of the result outside of the checkpoint, see them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp

jax = pytest.importorskip("jax")
name_of_jax = pytest.importorskip("jax.ad_checkpoint").checkpoint_name
POINT = 1.1


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


class Ours:
    lib, numpy, name = cg, cnp, staticmethod(cg.ad_checkpoint.checkpoint_name)
    fori_loop, cond, scan = staticmethod(cg.fori_loop), staticmethod(cg.cond), staticmethod(cg.scan)


class Jax:
    """Loops are unrolled: the loops of JAX 0.10 lose the rule of a function that its own rule calls."""

    lib, numpy, name, cond = jax, jax.numpy, staticmethod(name_of_jax), staticmethod(jax.lax.cond)

    @staticmethod
    def fori_loop(first: int, end: int, body: Callable[[int, Any], Any], carry: Any) -> Any:
        for i in range(first, end):
            carry = body(i, carry)
        return carry

    @staticmethod
    def scan(body: Callable[[Any, Any], Any], carry: Any, xs: Any) -> Any:
        results = []
        for x in xs:
            carry, result = body(carry, x)
            results.append(result)
        return carry, jax.numpy.stack(results)


def pulled(m: Any) -> Any:
    """sin, whose rule gives exp and the slope x**3."""
    f = m.lib.custom_vjp(lambda x: m.numpy.sin(x))
    f.defvjp(lambda x: (m.numpy.exp(x), x), lambda x, ct: (x**3 * ct,))
    return f


def pushed(m: Any) -> Any:
    f = m.lib.custom_jvp(lambda x: m.numpy.sin(x))
    f.defjvp(lambda p, t: (m.numpy.exp(p[0]), p[0] ** 3 * t[0]))
    return f


def pushed_by_itself(m: Any) -> Any:
    f = m.lib.custom_jvp(lambda x: m.numpy.sin(x))
    f.defjvp(lambda p, t: (f(p[0]), f(p[0]) * p[0] ** 3 * t[0]))
    return f


def given_beside_the_value(m: Any) -> Any:
    return m.lib.custom_gradient(lambda x: (m.numpy.sin(x), lambda ct: (x**3 * ct,)))


RULES = (pulled, pushed, pushed_by_itself, given_beside_the_value)

# Of the modules and the function with a rule.
PLACES: dict[str, Callable[[Any, Any], Any]] = {
    "alone": lambda m, f: f,
    "checkpoint": lambda m, f: m.lib.checkpoint(f),
    "checkpoint in a checkpoint": lambda m, f: m.lib.checkpoint(lambda x: f(x) * m.lib.checkpoint(f)(0.5 * x)),
    "policy that saves nothing here": lambda m, f: m.lib.checkpoint(
        lambda x: f(x * 1.1) * x, policy=m.lib.checkpoint_policies.dots_saveable
    ),
    "policy that saves a result of the rule": lambda m, f: m.lib.checkpoint(
        lambda x: f(m.name(f(x * 0.4), "a")) * x, policy=m.lib.checkpoint_policies.save_only_these_names("a")
    ),
    "checkpoint of a branch": lambda m, f: m.lib.checkpoint(lambda x: m.cond(x > 0, f, m.numpy.cos, x)),
    "branch of a checkpoint": lambda m, f: lambda x: m.cond(x > 0, m.lib.checkpoint(f), m.numpy.cos, x),
    "checkpoint of a loop": lambda m, f: m.lib.checkpoint(
        lambda x: m.fori_loop(0, 3, lambda i, y: 0.4 * f(y) + 0.1 * x, x)
    ),
    "loop over a checkpoint": lambda m, f: (
        lambda x: m.fori_loop(0, 3, lambda i, y: 0.4 * m.lib.checkpoint(f)(y) + 0.1 * x, x)
    ),
    "scan over a checkpoint": lambda m, f: (
        lambda x: m.scan(m.lib.checkpoint(lambda c, s: (f(c) * s, f(c) + s)), x, m.numpy.array([0.3, 0.8]))[1].sum()
    ),
    "rows of a checkpoint": lambda m, f: lambda x: m.lib.vmap(m.lib.checkpoint(f))(m.numpy.stack([x, 0.4 * x])).sum(),
}

DERIVATIVES: tuple[Callable[[Any, Any], Any], ...] = (
    lambda m, f: m.lib.value_and_grad(f),
    lambda m, f: m.lib.grad(m.lib.grad(f)),
    lambda m, f: lambda x: m.lib.vmap(m.lib.grad(m.lib.grad(f)))(m.numpy.stack([x, 0.5 * x])),
    lambda m, f: lambda x: m.lib.jvp(m.lib.grad(f), (x,), (1.0,))[1],
)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("rule", RULES)
def test_derivatives_are_those_of_jax(rule, place):
    def found(m: Any) -> list[Any]:
        f = PLACES[place](m, rule(m))
        # The result is used outside of the checkpoint, where its value counts.
        loss = lambda x: m.numpy.sin(f(x) * x) + f(x) ** 2
        return [np.asarray(x) for derivative in DERIVATIVES for x in jax.tree.leaves(derivative(m, loss)(POINT))]

    for ours, theirs in zip(found(Ours), found(Jax), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("rule", RULES)
def test_results_without_a_cotangent_are_those_of_jax(rule, place):
    """Results that no cotangent reaches: of `has_aux`, of a comparison, stopped ones."""

    def found(m: Any) -> list[Any]:
        f = PLACES[place](m, rule(m))
        handed_on = m.lib.value_and_grad(lambda x: (x * x, (f(x), m.numpy.floor(2.0 * f(x)))), has_aux=True)
        chosen = m.lib.value_and_grad(lambda x: m.numpy.where(f(x) > 0.9, x * x, 3.0 * x))
        stopped = m.lib.value_and_grad(lambda x: x * x + m.lib.lax.stop_gradient(f(x)))
        points = m.numpy.stack([POINT, 0.5 * POINT])
        given = [handed_on(POINT), chosen(POINT), stopped(POINT), m.lib.vmap(handed_on)(points)]
        return [np.asarray(x) for x in jax.tree.leaves(given)]

    for ours, theirs in zip(found(Ours), found(Jax), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9)


@pytest.mark.parametrize("rule", RULES)
def test_results_of_whole_loops_without_a_cotangent_are_those_of_jax(rule):
    def found(lib: Any, m: Any) -> list[Any]:
        f = rule(m)

        def loss(x: Any) -> Any:
            scanned = lib.lax.scan(lambda c, _: (0.4 * f(c), f(c)), x, None, length=3)
            nested = lib.lax.fori_loop(0, 2, lambda i, c: lib.lax.cond(c > 0, lib.checkpoint(f), m.numpy.cos, c), x)
            waited = lib.lax.while_loop(lambda c: c[1] < 3, lambda c: (0.5 * f(c[0]), c[1] + 1), (x, 0))
            return x * x, (scanned, nested, waited, lib.lax.map(f, m.numpy.stack([x, 0.5 * x])))

        return [np.asarray(x) for x in jax.tree.leaves(lib.value_and_grad(loss, has_aux=True)(POINT))]

    for ours, theirs in zip(found(cg, Ours), found(jax, Jax), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9)


@pytest.mark.parametrize("rule", RULES)
def test_rules_do_not_count_in_the_predicate_of_a_loop_of_rows(rule):
    """Each row runs as often as by itself: the predicate of a loop is not differentiated."""

    def found(lib: Any, m: Any) -> list[Any]:
        f = rule(m)
        loss = lambda x: (
            x * x,
            lib.lax.while_loop(lambda c: f(c[0]) > c[1], lambda c: (0.5 * c[0], c[1] + 0.3), (x, 0.1)),
        )
        slope = lib.value_and_grad(loss, has_aux=True)
        points = m.numpy.stack([POINT, 0.4 * POINT])
        return [np.asarray(x) for x in jax.tree.leaves([slope(POINT), lib.vmap(slope)(points)])]

    for ours, theirs in zip(found(cg, Ours), found(jax, Jax), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9)
