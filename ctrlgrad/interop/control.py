"""Loops, branches and calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad.frontend.branches import cond
from ctrlgrad.frontend.loops import scan
from ctrlgrad.frontend.switches import switch
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.frontend.while_loops import while_loop
from ctrlgrad.interop.primitives import Equation, entry, unsupported
from ctrlgrad.transforms.checkpoint import checkpoint, checkpoint_policies
from ctrlgrad.transforms.grad import stop_gradient
from ctrlgrad.transforms.implicit import custom_linear_solve

Function = Callable[..., Any]


def parts(operands: Sequence[Any], *lengths: int) -> list[list[Any]]:
    """Operands in groups of these lengths, and the rest."""
    bounds = [0, *accumulate(lengths), len(operands)]
    return [list(operands[a:b]) for a, b in pairwise(bounds)]


@entry("while")
def _while(equation: Equation, *operands: Any) -> Any:
    params, read = equation.params, equation.read
    for_cond, for_body, carry = parts(operands, params["cond_nconsts"], params["body_nconsts"])
    goes_on: Function = lambda c: read(params["cond_jaxpr"], *for_cond, *c)[0]
    body: Function = lambda c: read(params["body_jaxpr"], *for_body, *c)
    axes = params["cond_jaxpr"].out_avals[0].ndim
    if not axes:
        return while_loop(goes_on, body, carry)

    # A loop that JAX has mapped over rows: it goes on while one row does, and finished rows keep their values.
    def masked(c: list[Any]) -> list[Any]:
        alive = goes_on(c)
        of_rank: Function = lambda x: cnp.reshape(alive, (*alive.shape, *[1] * (x.ndim - axes)))
        return [cnp.where(of_rank(new), new, old) for old, new in zip(c, body(c), strict=True)]

    return while_loop(lambda c: cnp.any(goes_on(c)), masked, carry)


def _constants_and_carries(params: Mapping[str, Any]) -> tuple[int, int]:
    """Count a scan's constants and carries."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    # A tree of the operands, since JAX 0.11.
    constants, carry, _ = params["ft_in"].unpack()
    return len(constants), len(carry)


@entry("scan")
def _scan(equation: Equation, *operands: Any) -> Any:
    params, read = equation.params, equation.read
    consts, carry, rows = parts(operands, *_constants_and_carries(params))

    def step(c: list[Any], row: list[Any]) -> tuple[list[Any], list[Any]]:
        results = read(params["jaxpr"], *consts, *c, *row)
        return results[: len(carry)], results[len(carry) :]

    last, collected = scan(step, carry, rows, length=params["length"], reverse=params["reverse"])
    return [*last, *collected]


@entry("cond")
def _cond(equation: Equation, which: Any, *operands: Any) -> Any:
    branches, read = equation.params["branches"], equation.read
    if not isinstance(which, Tensor):
        # Known when the program is read, as the platform is: of the other branches nothing is asked.
        return read(branches[int(np.clip(which, 0, len(branches) - 1))], *operands)
    functions = [lambda *xs, branch=branch: read(branch, *xs) for branch in branches]
    if which.dtype == bool:
        return cond(which, functions[1], functions[0], *operands)
    return switch(which, functions, *operands)


@entry("platform_index")
def _platform_index(equation: Equation) -> Any:
    """The branch that is written for the processor."""
    platforms = equation.params["platforms"]
    for i, names in enumerate(platforms):
        if names is not None and "cpu" in names:
            return np.int32(i)
    if None in platforms:
        return np.int32(platforms.index(None))
    raise unsupported(equation, "no branch is for the processor", "give a default to jax.lax.platform_dependent")


@entry("jit", "pjit", "closed_call", "core_call", "call", "core_closed_call", "eval_jaxpr")
def _call(equation: Equation, *operands: Any) -> Any:
    params = equation.params
    return equation.read(params["jaxpr"] if "jaxpr" in params else params["call_jaxpr"], *operands)


@entry("custom_vmap_call")
def _custom_vmap(equation: Equation, *operands: Any) -> Any:
    """Read the function itself: where JAX maps it over rows, its rule stands in the jaxpr instead."""
    return equation.read(equation.params["call"], *operands)


@entry("remat2", "checkpoint", "remat")
def _remat(equation: Equation, *operands: Any) -> Any:
    policy = equation.params["policy"]
    # A policy of JAX's that has no counterpart here changes what is saved, not what is computed.
    known = getattr(policy, "__name__", "") in vars(checkpoint_policies)
    function = lambda *xs: equation.read(equation.params["jaxpr"], *xs)
    return checkpoint(function, policy=policy if known else None)(*operands)


@entry("custom_linear_solve")
def _linear_solve(equation: Equation, *operands: Any) -> Any:
    lengths, jaxprs = equation.params["const_lengths"], equation.params["jaxprs"]
    counts = (lengths.matvec, lengths.vecmat, lengths.solve, lengths.transpose_solve)
    matvec, _, solve, transposed, b = parts(operands, *counts)
    size = len(b)

    def solver(jaxpr: Any, consts: list[Any]) -> Any:
        # The derivative is that of the equation: how it is solved has none.
        kept = stop_gradient(consts)

        def solved(_: Any, y: list[Any]) -> Any:
            results = equation.read(jaxpr, *kept, *y)
            return results[:size], results[size:]

        return solved

    x, aux = custom_linear_solve(
        lambda x: equation.read(jaxprs.matvec, *matvec, *x),
        b,
        solver(jaxprs.solve, solve),
        None if jaxprs.transpose_solve is None else solver(jaxprs.transpose_solve, transposed),
        has_aux=True,
    )
    return [*x, *aux]
