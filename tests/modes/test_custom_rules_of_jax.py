"""Custom rules in the forms that JAX gives them: a rule for each argument, keywords, zeros known as such."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def same(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-12)


def in_both(make, *arguments):
    """The value and the gradient of the function that `make(library)` returns, here and by JAX."""
    for derive in ("value_and_grad", "jacfwd"):
        ours = getattr(cg, derive)(make(cg, cnp))(*arguments)
        same(ours, getattr(jax, derive)(make(jax, jnp))(*arguments))


def test_defjvps_gives_a_rule_for_each_argument():
    def make(library, xp):
        @library.custom_jvp
        def f(x, y):
            return xp.sin(x) * y

        # The rules are no true derivatives, so a result shows that a rule was used.
        f.defjvps(lambda t, out, x, y: 3.0 * xp.cos(x) * y * t, lambda t, out, x, y: out * t)
        return lambda x: f(x, 2.0 * x) + f(x, 1.0)

    in_both(make, 0.7)


def test_defjvps_leaves_out_what_has_no_rule():
    def make(library, xp):
        @library.custom_jvp
        def f(x, y):
            return x * y

        f.defjvps(None, lambda t, out, x, y: 5.0 * x * t)
        return lambda x: f(x, x * x)

    in_both(make, 0.7)


@pytest.mark.parametrize("call", [lambda f, x: f(x, y=3.0), lambda f, x: f(x=x), lambda f, x: f(y=x, x=2.0)])
def test_arguments_of_custom_rules_by_keyword_and_by_default(call):
    def jvp(library, xp):
        f = library.custom_jvp(lambda x, y=2.0: x * y)
        f.defjvp(lambda primals, tangents: (primals[0] * primals[1], 7.0 * (tangents[0] + 2.0 * tangents[1])))
        return lambda x: call(f, x)

    def vjp(library, xp):
        f = library.custom_vjp(lambda x, y=2.0: x * y)
        f.defvjp(lambda x, y: (x * y, (x, y)), lambda residuals, ct: (7.0 * ct, 14.0 * ct))
        return lambda x: call(f, x)

    in_both(jvp, 0.7)
    same(cg.value_and_grad(vjp(cg, cnp))(0.7), jax.value_and_grad(vjp(jax, jnp))(0.7))


def test_keyword_only_arguments_of_custom_rules_are_refused():
    f = cg.custom_jvp(lambda x, *, y: x * y)
    f.defjvp(lambda primals, tangents: (primals[0], tangents[0]))
    with pytest.raises(cg.errors.TypeMismatchError, match="keyword-only"):
        f(1.0, y=2.0)


def test_symbolic_zeros_tell_a_forward_rule_what_has_no_tangent():
    seen = []
    f = cg.custom_jvp(lambda x, n: x**2 * n)

    def rule(primals, tangents):
        (x, n), (t, t_n) = primals, tangents
        seen.append(type(t_n).__name__)
        return f(x, n), 5.0 * x * n * t

    f.defjvp(rule, symbolic_zeros=True)
    counts = np.array(3)
    same(cg.grad(lambda x, n: f(x, n))(2.0, counts), 30.0)
    assert set(seen) == {"SymbolicZero"}


def test_symbolic_zeros_tell_a_reverse_rule_what_is_differentiated():
    seen = []
    f = cg.custom_vjp(lambda x, n: (x * n, n + 1))

    def forward(x, n):
        seen.append((x.perturbed, n.perturbed))
        return (x.value * n.value, n.value + 1), n.value

    def backward(n, cts):
        seen.append(type(cts[1]).__name__)
        return 11.0 * cts[0] * n, None

    f.defvjp(forward, backward, symbolic_zeros=True)
    same(cg.grad(lambda x, n: f(x, n)[0])(2.0, np.array(3)), 33.0)
    assert (True, False) in seen and "SymbolicZero" in seen


def _cube(library):
    """A linear function whose rule calls it on tangents, and a cube whose rule calls that."""

    @library.custom_jvp
    def tripled(x):
        return 3.0 * x

    tripled.defjvp(lambda primals, tangents: (tripled(primals[0]), tripled(tangents[0])))

    @library.custom_jvp
    def cube(x):
        return x**3

    cube.defjvp(lambda primals, tangents: (cube(primals[0]), primals[0] ** 2 * tripled(tangents[0])))
    return tripled, cube


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_rule_may_call_its_function_on_tangents(times):
    for ours, theirs in zip(_cube(cg), _cube(jax), strict=True):
        for _ in range(times):
            ours, theirs = cg.grad(ours), jax.grad(theirs)
        np.testing.assert_allclose(ours(1.3), theirs(1.3), rtol=1e-12)
        np.testing.assert_allclose(cg.vmap(ours)(np.array([1.3, 0.2])), jax.vmap(theirs)(np.array([1.3, 0.2])))
        found = cg.jvp(ours, (1.3,), (0.7,))[1], jax.jvp(theirs, (1.3,), (0.7,))[1]
        np.testing.assert_allclose(*found, rtol=1e-12)


def test_a_rule_that_calls_its_function_on_tangents_in_a_loop():
    def walk(library, loop):
        tripled, cube = _cube(library)
        return library.grad(lambda x: loop(0, 3, lambda i, y: cube(tripled(y)) + y, x))

    np.testing.assert_allclose(walk(cg, cg.fori_loop)(0.1), walk(jax, jax.lax.fori_loop)(0.1), rtol=1e-12)
