"""Functions with derivative rules of their own, `jax.custom_jvp` and `jax.custom_vjp`: the rules are kept.

JAX applies a rule where the equation is differentiated. So the rule is read off by differentiating the equation alone,
`jax.jvp` or `jax.vjp` of it, while JAX traces: what comes out is the rule as a jaxpr, whose own calls of functions with
rules are equations again. It is traced when a derivative is asked for, not before: a rule may call its own function.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

import ctrlgrad.numpy as cnp
from ctrlgrad.frontend.rules import Custom, Later, Moving, Results, emit_call, trace_rule
from ctrlgrad.frontend.tracer import leaves_of
from ctrlgrad.interop.avals import is_float
from ctrlgrad.interop.primitives import Equation, entry
from ctrlgrad.ir import Graph, close

Rules = Callable[[Results, Moving], list[Graph]]


class _Alone:
    """An equation with a rule, as a JAX function of its operands; results that nothing uses are left out.

    Derivatives are taken with respect to `moving`, places among the operands (None: all floats): rules of JAX may ask
    which they are, and refuse some.
    """

    def __init__(self, equation: Equation, moving: Moving) -> None:
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


def _recorded(equation: Equation, kind: str, operands: Sequence[Any], rules: Rules) -> Any:
    """A call with a rule that is traced when it is needed."""
    inputs = leaves_of(operands, [None] * len(operands))
    region = trace_rule(kind, lambda xs: equation.read(_called(equation), *xs), inputs)
    results, closed = Results.of(region), close([region.finish()])
    custom = Custom(object(), f"JAX's {kind}", rules)
    later = Later(custom, results, closed.captures, equation.source)
    return emit_call(kind, closed, operands, equation.source, later)


def _push_rule(equation: Equation, alone: _Alone, operands: Sequence[Any], results: Results) -> Graph:
    """JAX's `jvp` of the equation: from operands and tangents to tangents."""
    count = len(alone.inputs)

    def pushed(*values: Any) -> Any:
        primals, tangents = values[:count], values[count:]
        function = lambda *floats: alone.of_floats(primals)(*floats)[0]
        return jax.jvp(function, tuple(alone.operands(primals)), tuple(tangents))[1]

    jaxpr = equation.trace(pushed, *alone.inputs, *alone.operands(alone.inputs))

    def push(values: list[Any]) -> Any:
        found = equation.read(jaxpr, *values[:count], *alone.operands(values[count:]))
        return _placed(found, alone.float_results, results)

    inputs = leaves_of(operands, [None] * count)
    return trace_rule("push", push, [*inputs, *inputs]).finish()


def _pull_rules(equation: Equation, alone: _Alone, operands: Sequence[Any], results: Results) -> list[Graph]:
    """JAX's `vjp` of the equation: its forward pass with residuals, and its pullback."""
    kept: list[Any] = []

    def forward(*values: Any) -> Any:
        _, pullback, found = jax.vjp(alone.of_floats(values), *alone.operands(values), has_aux=True)
        residuals, treedef = jax.tree_util.tree_flatten(pullback)
        kept[:] = [treedef]
        return found, residuals

    ahead = equation.trace(forward, *alone.inputs)
    saved = list(ahead.out_avals[len(alone.used) :])

    def backward(*values: Any) -> Any:
        pullback = jax.tree_util.tree_unflatten(kept[0], values[: len(saved)])
        return pullback(list(values[len(saved) :]))

    seeds = [equation.outputs[i] for i in alone.float_results]
    back = equation.trace(backward, *saved, *seeds)
    inputs = leaves_of(operands, [None] * len(operands))

    def first(values: list[Any]) -> Any:
        found = equation.read(ahead, *values)
        own = _placed(found[: len(alone.used)], alone.used, results)
        return own, found[len(alone.used) :]

    there = trace_rule("forward", first, inputs)
    ahead_graph = there.finish()
    residuals = leaves_of(there.result[1], ["residual"] * len(saved))
    differentiable = [i for i, x in enumerate(results.leaves) if x.type.is_differentiable]

    def second(values: list[Any]) -> Any:
        cotangents = dict(zip(differentiable, values[len(saved) :], strict=True))
        found = equation.read(back, *values[: len(saved)], *(cotangents[i] for i in alone.float_results))
        return _placed(found, alone.floats, Results(inputs, results.treedef))

    given = [*residuals, *(results.leaves[i] for i in differentiable)]
    return [ahead_graph, trace_rule("backward", second, given).finish()]


@entry("custom_jvp_call", "custom_jvp_call_jaxpr")
def _custom_jvp(equation: Equation, *operands: Any) -> Any:
    rules: Rules = lambda results, moving: [_push_rule(equation, _Alone(equation, moving), operands, results)]
    return _recorded(equation, "custom_jvp", operands, rules)


@entry("custom_vjp_call", "custom_vjp_call_jaxpr")
def _custom_vjp(equation: Equation, *operands: Any) -> Any:
    rules: Rules = lambda results, moving: _pull_rules(equation, _Alone(equation, moving), operands, results)
    return _recorded(equation, "custom_vjp", operands, rules)


def with_rules_of_jax(equation: Equation, operands: Sequence[Any], places: Collection[int]) -> Any:
    """An equation whose value is its primitive's implementation, and whose derivatives are the primitive's rules, both
    written in JAX; of the operands those at these places have derivatives."""

    def rules(results: Results, moving: Moving) -> list[Graph]:
        alone = _Alone(equation, places if moving is None else {*places}.intersection(moving))
        push = _push_rule(equation, alone, operands, results)
        return [*_pull_rules(equation, alone, operands, results), push]

    return _recorded(equation, "custom_vjp", operands, rules)


def _placed(found: Sequence[Any], places: Sequence[int], like: Results) -> list[Any]:
    """Values at their places among values like others; zeros at the rest."""
    given = dict(zip(places, found, strict=True))
    return [
        given[i] if i in given else cnp.broadcast_to(np.zeros((), leaf.type.dtype), leaf.type.shape)  # type: ignore[union-attr]
        for i, leaf in enumerate(like.leaves)
    ]
