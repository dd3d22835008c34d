"""A branch's result that is the same unmapped value whichever branch a row takes has no rows, as in JAX."""

from __future__ import annotations

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.errors import TypeMismatchError

Y = np.array([1.0, 2.0, 3.0])
TAKEN = np.array([True, False, True])


def both(p, y):
    return cg.cond(p, lambda x, y: (x, y), lambda x, y: (x * 2.0, y), 3.0, y)


def nested(p, y):
    inner = lambda: cg.cond(p, lambda: (3.0, y), lambda: (0.0, y))
    return cg.cond(p, inner, lambda: (6.0, y))


def switched(p, y):
    return cg.switch(cnp.where(p, 0, 2), [lambda: (3.0, y), lambda: (0.0, y), lambda: (6.0, y)])


def in_a_loop(p, y):
    return cg.fori_loop(0, 2, lambda i, c: cg.cond(p, lambda: (3.0, c[1]), lambda: (6.0, c[1])), (0.0, y))


PROGRAMS = (both, nested, switched, in_a_loop)
programs = pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)


@programs
def test_a_value_that_every_branch_passes_on_has_no_rows(program):
    x, y = cg.vmap(program, in_axes=(0, None), out_axes=(0, None))(TAKEN, Y)
    np.testing.assert_array_equal(x, [3.0, 6.0, 3.0])
    np.testing.assert_array_equal(y, Y)


def test_jax_says_so_too():
    jax = pytest.importorskip("jax")
    f = lambda p, y: jax.lax.cond(p, lambda x, y: (x, y), lambda x, y: (x * 2.0, y), 3.0, y)
    x, y = jax.vmap(f, in_axes=(0, None), out_axes=(0, None))(TAKEN, Y)
    np.testing.assert_array_equal(x, [3.0, 6.0, 3.0])
    np.testing.assert_array_equal(y, Y)


@programs
def test_with_rows_wanted_it_is_repeated(program):
    _, y = cg.vmap(program, in_axes=(0, None))(TAKEN, Y)
    np.testing.assert_array_equal(y, np.tile(Y, (3, 1)))


def test_equal_constants_have_no_rows():
    assert float(cg.vmap(lambda p: cg.cond(p, lambda: 2.0, lambda: 2.0), out_axes=None)(TAKEN)) == 2.0


def test_a_carry_that_a_loop_in_the_branches_leaves_as_it_is_has_no_rows():
    branch = lambda y: cg.scan(lambda y, _: (y, None), y, None, length=1)[0]
    y = cg.vmap(lambda p, y: cg.cond(p, branch, branch, y), in_axes=(0, None), out_axes=None)(TAKEN, Y)
    np.testing.assert_array_equal(y, Y)


def test_values_that_differ_between_the_branches_have_rows():
    for other in (lambda y: 2.0 * y, lambda y: y[::-1]):
        with pytest.raises(TypeMismatchError, match="differs from row to row"):
            cg.vmap(lambda p, y: cg.cond(p, lambda: y, lambda: other(y)), in_axes=(0, None), out_axes=None)(TAKEN, Y)  # noqa: B023


def test_the_derivative_goes_around_the_branches():
    loss = lambda y, p: cnp.sum(both(p, y)[1] ** 2)
    gradient = cg.vmap(cg.grad(loss), in_axes=(None, 0), out_axes=None)
    np.testing.assert_array_equal(gradient(Y, TAKEN), 2 * Y)
