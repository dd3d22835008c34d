"""Functions with derivative rules of their own, `jax.custom_jvp` and `jax.custom_vjp`: the rules are kept.

JAX applies a rule where the equation is differentiated. So the rule is read off by differentiating the equation alone,
`jax.jvp` or `jax.vjp` of it, while JAX traces: what comes out is the rule as a jaxpr, whose own calls of functions with
rules are equations again. It is traced when a derivative is asked for, not before: a rule may call its own function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

import ctrlgrad.numpy as cnp
from ctrlgrad.frontend.rules import LaterPush, LaterReverse, Results, record, trace_rule
from ctrlgrad.frontend.tracer import leaves_of
from ctrlgrad.interop.avals import is_float
from ctrlgrad.interop.primitives import Equation, entry
from ctrlgrad.ir import Graph
from ctrlgrad.ir.rules import Answer, Positions


class _Alone:
    """An equation with a rule, as a JAX function of its operands; results that nothing uses are left out.

    Derivatives are taken with respect to `moving`, places among the operands, or to all floats.
    """

    def __init__(self, equation: Equation, moving: Sequence[int] | None = None) -> None:
        eqn, called = equation.jax, _called(equation)
        self.inputs = list(called.in_avals)
        self.used = [i for i, v in enumerate(eqn.outvars) if type(v).__name__ != "DropVar"]
        outputs = [eqn.outvars[i] for i in self.used]
        one = eqn.replace(invars=list(called.jaxpr.invars))
        jaxpr = called.jaxpr.replace(constvars=[], invars=list(called.jaxpr.invars), outvars=outputs, eqns=[one])
        self.function = jaxpr_as_fun(ClosedJaxpr(jaxpr, ()))
        floats = [i for i, aval in enumerate(self.inputs) if is_float(aval)]
        self.floats = floats if moving is None else [i for i in floats if i in moving]
        # Among the results, and among those that are used.
        self.float_results = [i for i in self.used if is_float(equation.outputs[i])]
        self.float_outputs = [place for place, i in enumerate(self.used) if i in self.float_results]

    def of_floats(self, operands: Sequence[Any]) -> Callable[..., Any]:
        """The function of the operands that are floats: its float results, and the others beside them."""

        def function(*floats: Any) -> Any:
            given = list(operands)
            for i, x in zip(self.floats, floats, strict=True):
                given[i] = x
            found = self.function(*given)
            return [found[place] for place in self.float_outputs], found

        return function

    def operands(self, operands: Sequence[Any]) -> list[Any]:
        return [operands[i] for i in self.floats]


def _called(equation: Equation) -> Any:
    """The function itself."""
    params = equation.params
    for name in ("call_jaxpr", "fun_jaxpr"):
        if name in params:
            return params[name]
    # A primitive whose implementation is JAX.
    return equation.trace(lambda *xs: equation.jax.primitive.impl(*xs, **params), *equation.inputs)


class _Call:
    """An equation with a rule, as a call that is recorded here."""

    symbolic_zeros = False

    def __init__(self, kind: str, equation: Equation, operands: Sequence[Any], moving: Sequence[int] | None = None):
        self.kind, self.equation, self.source, self.moving = kind, equation, equation.source, moving
        self.leaves = list(operands)
        self.inputs = leaves_of(operands, [None] * len(operands))

    # JAX's rules have no traced values of ours.
    roots: tuple[Any, ...] = ()

    def primal(self, inputs: list[Any]) -> Any:
        return self.equation.read(_called(self.equation), *inputs)

    def recorded(self, later: type[LaterPush]) -> Any:
        return record(later, self, f"JAX's {self.kind}", self)


class _Jvp(_Call):
    def push(self, results: Results, perturbed: Positions) -> Answer:
        alone = _Alone(self.equation, self.moving)
        count = len(alone.inputs)

        def pushed(*values: Any) -> Any:
            primals, tangents = values[:count], values[count:]
            function = lambda *floats: alone.of_floats(primals)(*floats)[0]
            return jax.jvp(function, tuple(alone.operands(primals)), tuple(tangents))[1]

        jaxpr = self.equation.trace(pushed, *alone.inputs, *alone.operands(alone.inputs))

        def push(values: list[Any]) -> Any:
            return self.equation.read(jaxpr, *values[:count], *alone.operands(values[count:]))

        graph = trace_rule("push", push, [*self.inputs, *self.inputs]).finish()
        return Answer(graph, perturbed, tuple(alone.float_results))


class _Vjp(_Call):
    def push(self, results: Results, perturbed: Positions) -> Answer | None:
        """JAX has no forward mode of it either."""
        return None

    def forward(self, results: Results, perturbed: Positions) -> Graph:
        alone = self.alone = _Alone(self.equation, self.moving)

        def forward(*values: Any) -> Any:
            _, pullback, found = jax.vjp(alone.of_floats(values), *alone.operands(values), has_aux=True)
            residuals, self.treedef = jax.tree_util.tree_flatten(pullback)
            return found, residuals

        ahead = self.equation.trace(forward, *alone.inputs)
        self.saved = list(ahead.out_avals[len(alone.used) :])

        def first(values: list[Any]) -> Any:
            found = self.equation.read(ahead, *values)
            own = _placed(found[: len(alone.used)], alone.used, results)
            return own, found[len(alone.used) :]

        traced = trace_rule("forward", first, self.inputs)
        self.residuals = leaves_of(traced.result[1], ["residual"] * len(self.saved))
        return traced.finish()

    def backward(self, results: Results, perturbed: Positions, seeded: Positions) -> Answer:
        alone, saved = self.alone, self.saved

        def backward(*values: Any) -> Any:
            pullback = jax.tree_util.tree_unflatten(self.treedef, values[: len(saved)])
            return pullback(list(values[len(saved) :]))

        jaxpr = self.equation.trace(backward, *saved, *(self.equation.outputs[i] for i in alone.float_results))

        def second(values: list[Any]) -> Any:
            cotangents = dict(zip(seeded, values[len(saved) :], strict=True))
            return self.equation.read(jaxpr, *values[: len(saved)], *(cotangents[i] for i in alone.float_results))

        given = [*self.residuals, *(results.leaves[i] for i in seeded)]
        return Answer(trace_rule("backward", second, given).finish(), seeded, tuple(alone.floats))


class _Both(_Jvp, _Vjp):
    """One with a forward mode beside its reverse mode."""


def with_rules_of_jax(equation: Equation, operands: Sequence[Any], moving: Sequence[int]) -> Any:
    """An equation whose value is its primitive's implementation, and whose derivatives are the primitive's rules, both
    written in JAX; of the operands those at the places of `moving` have derivatives."""
    return _Both("custom_vjp", equation, operands, moving).recorded(LaterReverse)


@entry("custom_jvp_call", "custom_jvp_call_jaxpr")
def _custom_jvp(equation: Equation, *operands: Any) -> Any:
    return _Jvp("custom_jvp", equation, operands).recorded(LaterPush)


@entry("custom_vjp_call", "custom_vjp_call_jaxpr")
def _custom_vjp(equation: Equation, *operands: Any) -> Any:
    return _Vjp("custom_vjp", equation, operands).recorded(LaterReverse)


def _placed(found: Sequence[Any], places: Sequence[int], like: Results) -> list[Any]:
    """Values at their places among values like others; zeros at the rest."""
    given = dict(zip(places, found, strict=True))
    return [
        given[i] if i in given else cnp.broadcast_to(np.zeros((), leaf.type.dtype), leaf.type.shape)  # type: ignore[union-attr]
        for i, leaf in enumerate(like.leaves)
    ]
