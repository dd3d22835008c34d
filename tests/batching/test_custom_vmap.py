"""Functions that say themselves how they are batched: the rule is what `vmap` runs, and what derivatives go through."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.errors import DifferentiationError, TypeMismatchError, UserInputError

A = np.random.default_rng(0).normal(size=(4, 3))
B = np.random.default_rng(1).normal(size=(4, 3))


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def marked(log):
    """sum(sin(a) * b), whose rule gives three times that: so one sees whether it was used."""

    @cg.custom_vmap
    def f(a, b):
        return cnp.sum(cnp.sin(a) * b), a

    @f.def_vmap
    def rule(axis_size, in_batched, a, b):
        log.append((axis_size, in_batched))
        return (3.0 * cnp.sum(cnp.sin(a) * b, -1), a), (any(in_batched), in_batched[0])

    return f


def plain(a, b, scale=3.0):
    return scale * jnp.sum(jnp.sin(a) * b), a


@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 0)])
def test_vmap_runs_the_rule_and_tells_it_what_has_rows(axes):
    log = []
    given = [x if axis == 0 else x[0] for x, axis in zip((A, B), axes, strict=True)]
    found = cg.vmap(marked(log), in_axes=axes)(*given)
    for x, y in zip(found, jax.vmap(plain, in_axes=axes)(*given), strict=True):
        np.testing.assert_allclose(x, y)
    assert log == [(4, [axis == 0 for axis in axes])]
    assert float(marked(log)(A[0], B[0])[0]) == pytest.approx(np.sum(np.sin(A[0]) * B[0]))


@pytest.mark.parametrize("wrap", [lambda g: g, cg.function], ids=["traced at once", "compiled"])
@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 0)])
def test_derivatives_go_through_the_rule_whichever_comes_first(axes, wrap):
    f = marked([])
    given = [x if axis == 0 else x[0] for x, axis in zip((A, B), axes, strict=True)]
    tangents = [np.cos(x) for x in given]

    def outside(lib, f):
        """The derivative of the sum over all rows."""
        loss = lambda a, b: lib.vmap(f, in_axes=axes)(a, b)[0] @ np.arange(1.0, 5.0)
        pushed = lib.jvp(lib.vmap(f, in_axes=axes), tuple(given), tuple(tangents))[1]
        first = lib.grad(loss, (0, 1))
        square = lambda a, b: sum((x**2).sum() for x in first(a, b))
        return first(*given), pushed[0], lib.grad(square, (0, 1))(*given)

    def inside(lib, f):
        """The rows of derivatives."""
        scalar = lambda a, b: f(a, b)[0]
        rows = lib.vmap(lib.grad(scalar, (0, 1)), in_axes=axes)(*given)
        pushed = lib.vmap(lambda a, b, ta, tb: lib.jvp(f, (a, b), (ta, tb))[1], in_axes=axes * 2)(*given, *tangents)
        second = lib.vmap(lib.hessian(scalar), in_axes=axes)(*given)
        return rows, pushed, second

    for derive in (outside, inside):
        ours = wrap(lambda derive=derive: derive(cg, f))()
        for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(jax.jit(partial(derive, jax, plain))()), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-12)


def test_tangents_with_rows_of_their_own_are_not_mixed_up():
    """The rule is not asked for rows that only a tangent, or only its primal, has."""
    log = []
    f = marked(log)
    pushed = lambda a, b, t: cg.jvp(lambda a: f(a, b), (a,), (t,))
    theirs = lambda a, b, t: jax.jvp(lambda a: plain(a, b), (a,), (t,))
    for axes, asked, given in (
        ((None, 0, 0), [False, True], (A[0], B, A)),
        ((0, None, None), [False, False], (A, B[0], A[0])),
        ((0, 0, None), [False, True], (A, B, A[0])),
        ((0, 0, 0), [True, True], (A, B, B)),
    ):
        log.clear()
        ours = cg.vmap(pushed, in_axes=axes)(*given)
        expected = jax.vmap(theirs, in_axes=axes)(*given)
        for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(x, y)
        assert log == [(4, asked)]


def test_nested_vmap_batches_the_rule():
    f, x = marked([]), np.stack([A, B])
    ours = cg.vmap(cg.vmap(lambda a: f(a, a)[0]))(x)
    np.testing.assert_allclose(ours, 3.0 * np.sum(np.sin(x) * x, -1))
    rows = cg.vmap(cg.vmap(cg.grad(lambda a: f(a, a)[0])))(x)
    np.testing.assert_allclose(rows, 3.0 * (np.cos(x) * x + np.sin(x)))


def test_a_rule_in_loops_and_branches():
    f = marked([])

    def steps(a, b):
        return cg.fori_loop(0, 3, lambda i, c: cg.cond(c < 1.0, lambda c: f(a * c, b)[0], lambda c: 0.5 * c, c), 0.3)

    def theirs(a, b):
        body = lambda i, c: jax.lax.cond(c < 1.0, lambda c: plain(a * c, b)[0], lambda c: 0.5 * c, c)
        return jax.lax.fori_loop(0, 3, body, 0.3)

    np.testing.assert_allclose(cg.vmap(steps)(A, B), jax.vmap(theirs)(A, B))
    ours = cg.grad(lambda a, b: cnp.sum(cg.vmap(steps)(a, b)), (0, 1))(A, B)
    forward = lambda lib, fn: [lib.vmap(lib.jacfwd(fn, n))(A, B) for n in (0, 1)]
    for x, y, z in zip(ours, forward(cg, steps), forward(jax, theirs), strict=True):
        np.testing.assert_allclose(x, z, rtol=1e-9)
        np.testing.assert_allclose(y, z, rtol=1e-9)


def test_a_number_of_rows_that_a_run_tells():
    f = marked([])
    rows = cg.function(lambda a, b: cg.vmap(f)(a, b)[0], signature=(cg.TensorSpec((None, 3)),) * 2)
    slopes = cg.function(cg.vmap(cg.grad(lambda a, b: f(a, b)[0])), signature=(cg.TensorSpec((None, 3)),) * 2)
    for n in (4, 2):
        np.testing.assert_allclose(rows(A[:n], B[:n]), 3.0 * np.sum(np.sin(A[:n]) * B[:n], -1))
        np.testing.assert_allclose(slopes(A[:n], B[:n]), 3.0 * np.cos(A[:n]) * B[:n])


def test_a_function_with_several_rules():
    @cg.custom_vjp
    @cg.custom_vmap
    def f(x, y):
        return cnp.sin(x) * y

    f.def_vmap(lambda size, batched, x, y: (cnp.cos(x) * y, True))
    f.defvjp(lambda x, y: (f(x, y), y), lambda y, ct: (5.0 * y * ct, None))
    np.testing.assert_allclose(cg.vmap(f)(A, B), np.cos(A) * B)
    np.testing.assert_allclose(cg.vmap(cg.grad(f))(A[:, 0], B[:, 0]), 5.0 * B[:, 0])


def test_sequential_vmap_is_a_loop_over_the_rows():
    f = cg.custom_batching.sequential_vmap(lambda a, b: cg.while_loop(lambda c: c < b, lambda c: 2.0 * c, a))
    a, b = np.array([0.3, 1.0, 5.0]), 4.0
    np.testing.assert_array_equal(cg.vmap(f, in_axes=(0, None))(a, b), [4.8, 4.0, 5.0])
    np.testing.assert_array_equal(cg.vmap(cg.grad(f), in_axes=(0, None))(a, b), [16.0, 4.0, 1.0])


def test_mistakes_of_a_rule_are_named():
    def with_rule(rule):
        f = cg.custom_vmap(lambda x: cnp.sin(x))
        f.def_vmap(rule)
        return f

    def wrong_shape(size, batched, x):
        return x[0], True

    def wrong_structure(size, batched, x):
        return (x, x), (True, True)

    def wrong_flags(size, batched, x):
        return x, (True, True)

    for rule in (wrong_shape, wrong_structure, wrong_flags, lambda size, batched, x: x):
        with pytest.raises(TypeMismatchError, match=r"custom_vmap <lambda> \(rule") as caught:
            cg.vmap(with_rule(rule))(A[0])
        assert "test_custom_vmap.py" in str(caught.value) and rule.__name__ in str(caught.value)
    with pytest.raises(UserInputError, match="has no rule yet"):
        cg.custom_vmap(cnp.sin)(1.0)


def test_values_that_a_function_closes_over_are_passed_as_arguments():
    def closing(x):
        f = cg.custom_vmap(lambda y: x * y)
        f.def_vmap(lambda size, batched, y: (y, True))
        return f(2.0 * x)

    with pytest.raises(TypeMismatchError, match="closes over a value that is mapped over"):
        cg.vmap(closing)(A[0])
    with pytest.raises(DifferentiationError, match="closes over a value that is being differentiated"):
        cg.grad(closing)(2.0)
