"""Primitives of Equinox, which Diffrax, Optimistix and Lineax are made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

import ctrlgrad.numpy as cnp
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.interop.avals import key_words
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


@entry("maybe_set", "noinline")
def _by_its_implementation(equation: Equation, *operands: Any) -> Any:
    """Read the JAX implementation: these primitives' derivatives are those of their implementations.

    Operands that are known stay known to the implementation: `noinline` finds its function by a number.
    """
    places = [i for i, x in enumerate(operands) if isinstance(x, Tensor) or key_words(equation.inputs[i])]
    given = list(operands)

    def implementation(*traced: Any) -> Any:
        for i, x in zip(places, traced, strict=True):
            given[i] = x
        return equation.jax.primitive.impl(*given, **equation.params)

    found = equation.implementation(implementation, *(equation.inputs[i] for i in places))
    return equation.read(found, *(operands[i] for i in places))


@entry("linear_solve")
def _linear_solve(equation: Equation, *operands: Any) -> Any:
    return with_rules_of_jax(equation, operands, _of_the_system(equation.params))


@entry("vprim")
def _vprim(equation: Equation, *operands: Any) -> Any:
    """Read `vmap` of a primitive that has derivatives of its own, to any depth of `vmap`.

    The primitive's rules are mapped with it: the implementation has other derivatives, or none.
    """
    primitive, params = equation.params["prim"], dict(equation.params["params"])
    while primitive.name == "vprim":
        primitive, params = params["prim"], dict(params["params"])
    if primitive.name == "maybe_set":
        return _by_its_implementation(equation, *operands)
    places = _of_the_system(params) if primitive.name == "linear_solve" else range(len(operands))
    return with_rules_of_jax(equation, operands, places)


def _of_the_system(params: Mapping[str, Any]) -> list[int]:
    """Places of the operands of Lineax's `linear_solve` that have derivatives: the operator and the right side.

    Its operands are the leaves of an operator, the solver's state, the right side, options, the solver and a flag.
    """
    places = iter(range(len(params["static"])))
    # In the place of an operand stands an `object()`.
    leaves = [next(places) if type(x) is object else None for x in params["static"]]
    operator, _, vector, *_ = jax.tree_util.tree_unflatten(params["treedef"], leaves)
    return jax.tree_util.tree_leaves((operator, vector))
