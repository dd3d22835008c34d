"""Primitives of Equinox, which Diffrax, Optimistix and Lineax are made of."""

from __future__ import annotations

from typing import Any

import jax

import ctrlgrad.numpy as cnp
from ctrlgrad.interop.custom_rules import with_rules_of_jax
from ctrlgrad.interop.primitives import TABLE, Equation, entry, plain

TABLE |= {
    # A row of a batch that has ended keeps what it has; without a batch the predicate is true.
    "select_if_vmap": plain(lambda pred, x, y: cnp.where(pred, x, y)),
    # `vmap` here masks each row of a loop by its own predicate: a row asks about itself.
    "unvmap_any": plain(cnp.any),
    "unvmap_all": plain(cnp.all),
    "unvmap_max": plain(cnp.max),
    # Equinox has its backward pass fail; here the identity has its derivative.
    "nondifferentiable_backward": plain(lambda x: x),
    "nonbatchable": plain(lambda x: x),
    "nontraceable": plain(lambda x: x),
    "announce_jaxpr": lambda equation, *operands: list(operands),
}


@entry("maybe_set", "vprim", "noinline")
def _by_its_implementation(equation: Equation, *operands: Any) -> Any:
    """Primitives whose implementation is JAX: that is read."""
    found = equation.trace(lambda *xs: equation.jax.primitive.impl(*xs, **equation.params), *equation.inputs)
    return equation.read(found, *operands)


@entry("linear_solve")
def _linear_solve(equation: Equation, *operands: Any) -> Any:
    """Lineax's: an operator, what its solver has made of it, the right side, options, the solver, whether to raise.

    Operator and right side have derivatives, those of the equation and not of how it is solved.
    """
    places = iter(range(len(operands)))
    # In the place of an operand stands an `object()`.
    leaves = [next(places) if type(x) is object else None for x in equation.params["static"]]
    operator, _, vector, *_ = jax.tree_util.tree_unflatten(equation.params["treedef"], leaves)
    return with_rules_of_jax(equation, operands, jax.tree_util.tree_leaves((operator, vector)))
