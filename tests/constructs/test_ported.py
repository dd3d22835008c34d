"""A program written for `jax.lax` gives the same values with ctrlgrad, after its imports are changed."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from instruments.comparing import assert_same_trees

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad import tree
from ctrlgrad.verify.jax_translation import x64

from .ported import PORTED

every_program = pytest.mark.parametrize("name", PORTED)


@functools.cache
def jax_values(name):
    fn, args = PORTED[name]
    with x64():
        return jax.tree.map(np.asarray, jax.jit(lambda *xs: fn(jax.lax, jnp, *xs))(*args))


assert_same = functools.partial(assert_same_trees, rtol=1e-13, atol=1e-14)


@every_program
def test_traced_values_are_those_of_jax(name):
    fn, args = PORTED[name]
    assert_same(cg.function(lambda *xs: fn(cg, cnp, *xs))(*args), jax_values(name))


@every_program
def test_untraced_values_are_those_of_jax(name):
    fn, args = PORTED[name]
    assert_same(fn(cg, cnp, *args), jax_values(name))


# JAX cannot reverse these: a loop whose length it does not know.
UNBOUNDED = ["loop_over_a_pytree", "loop_that_does_not_start", "counted_loop", "branches_in_nested_loops"]


def total(xp, result):
    leaves = [x for x in tree.leaves(result) if np.dtype(x.dtype).kind == "f"]
    return sum(xp.sum(xp.sin(x)) for x in leaves)


@pytest.mark.parametrize("name", [name for name in PORTED if name not in UNBOUNDED])
def test_gradients_are_those_of_jax(name):
    fn, args = PORTED[name]
    ours = cg.grad(lambda x, *rest: total(cnp, fn(cg, cnp, x, *rest)))(*args)
    with x64():
        theirs = jax.jit(jax.grad(lambda x, *rest: total(jnp, fn(jax.lax, jnp, x, *rest))))(*args)
    assert_same(ours, np.asarray(theirs), rtol=1e-11)


@pytest.mark.parametrize("name", UNBOUNDED)
def test_loops_that_jax_cannot_reverse_are_reversed(name):
    fn, args = PORTED[name]
    with x64(), pytest.raises(ValueError, match="Reverse-mode differentiation does not work"):
        jax.jit(jax.grad(lambda x, *rest: total(jnp, fn(jax.lax, jnp, x, *rest))))(*map(jnp.asarray, args))
    cg.check_grads(lambda *xs: fn(cg, cnp, *xs), args, order=2)
