"""`custom_jvp`: functions with a forward rule of their own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ctrlgrad import tree
from ctrlgrad.errors import UserInputError
from ctrlgrad.frontend import trace
from ctrlgrad.frontend.apply import float0, is_float0, type_of
from ctrlgrad.frontend.checks import check_function
from ctrlgrad.frontend.functions import FUNCTIONS
from ctrlgrad.frontend.rules import LaterPush, Results, record_call, trace_rule
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.frontend.tracer import in_trace
from ctrlgrad.ir import Builder, TensorType, Value
from ctrlgrad.ir.rules import Answer, Positions
from ctrlgrad.source import Source, here
from ctrlgrad.transforms.custom_calls import (
    CustomCall,
    RuleSetters,
    SymbolicZero,
    by_position,
    may_be_same,
    may_be_tangent,
    nondiff_positions,
    symbolic_zero,
    without_a_rule,
    without_rule,
)


class custom_jvp(RuleSetters):
    """A function with a forward rule of its own; as `jax.custom_jvp`. Reverse mode uses the rule's transpose.

    `defjvp(rule)`: `rule(primals, tangents)` takes two tuples and returns (result, tangent of the result), the
    tangent linear in `tangents`. The rule may call the function itself: it is its derivative of every order. Where the
    function is differentiated, the result that the rule returns takes its result's place, and is differentiated next.
    Arguments at `nondiff_argnums`, or of `nondiff_argnames`, have no tangent: the rule takes them first, before
    `primals`. Python integers, booleans and strings reach function and rule as they are; their tangents are of dtype
    `float0`.

    >>> @cg.custom_jvp
    ... def sign_of(x):
    ...     return np.sign(x)
    >>> _ = sign_of.defjvp(lambda primals, tangents: (np.sign(primals[0]), tangents[0]))
    >>> float(cg.grad(lambda x: 3.0 * sign_of(x))(2.0))
    3.0
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        nondiff_argnums: int | Sequence[int] = (),
        nondiff_argnames: str | Sequence[str] = (),
    ) -> None:
        check_function("custom_jvp", fn)
        functools.update_wrapper(self, fn)
        self.fn = fn
        self.nondiff = nondiff_positions(fn, nondiff_argnums, nondiff_argnames)
        self.rule: Callable[..., Any] | None = None
        self.symbolic_zeros = False

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def defjvp(self, jvp: Callable[..., Any], symbolic_zeros: bool = False) -> Callable[..., Any]:
        """Give the forward rule; with `symbolic_zeros` the tangents that are zero because nothing that is
        differentiated reaches the argument are `SymbolicZero`s, and the rule may return such."""
        self.rule, self.symbolic_zeros = jvp, symbolic_zeros
        return jvp

    def defjvps(self, *jvps: Callable[..., Any] | None) -> None:
        """Give the rule as a function for each argument, `jvp(tangent, result, *primals)`; None: it has no part.

        >>> @cg.custom_jvp
        ... def scaled(x, y):
        ...     return np.sin(x) * y
        >>> scaled.defjvps(lambda t, out, x, y: np.cos(x) * y * t, lambda t, out, x, y: np.sin(x) * t)
        >>> float(cg.grad(scaled, 1)(0.0, 2.0)), float(cg.grad(scaled, 0)(0.0, 2.0))
        (0.0, 2.0)
        """
        if self.nondiff:
            raise UserInputError(
                "custom_jvp: defjvps does not go with nondiff_argnums",
                source=here(),
                expected="a function that is differentiated with respect to all of its arguments",
                got=f"nondiff_argnums={self.nondiff}",
                hint="give one rule for all arguments, by .defjvp(rule)",
            )

        def rule(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> Any:
            result = self(*primals)
            tangent = tree.map(FUNCTIONS["zeros_like"], result)
            for jvp, t in zip(jvps, tangents, strict=True):
                if jvp is not None and not all(map(is_float0, tree.leaves(t))):
                    tangent = tree.map(FUNCTIONS["add"], tangent, jvp(t, result, *primals))
            return result, tangent

        self.defjvp(rule)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.rule is None:
            raise without_a_rule("custom_jvp", self.fn, "defjvp(rule)")
        args = by_position(self.fn, args, kwargs, "custom_jvp")
        if trace.current() is None:
            return without_rule(self.fn, args)
        call = ForwardRule(self, self.rule, args, here(), self.symbolic_zeros)
        return in_trace(lambda: record_call(LaterPush, self, call.label(call.rule), call))


class ForwardRule(CustomCall):
    """A call of a function with a forward rule."""

    def __init__(
        self,
        function: Any,
        rule: Callable[..., Any],
        args: tuple[Any, ...],
        source: Source | None,
        symbolic_zeros: bool = False,
    ) -> None:
        super().__init__("custom_jvp", function.fn, args, function.nondiff, source)
        self.rule = rule
        self.symbolic_zeros = symbolic_zeros

    @property
    def roots(self) -> tuple[Any, ...]:
        return (self.rule, *self.static)

    def push(self, results: Results, perturbed: Positions) -> Answer:
        """The function of the arguments and their tangents, to the rule's results and their tangents."""
        found: list[int] = []

        def push(values: list[Any]) -> Any:
            primals, tangents = values[: len(self.inputs)], values[len(self.inputs) :]
            given = dict(zip(perturbed, tangents, strict=True))
            self.check_rule(self.rule, "the rule", "primals", "tangents")
            returned = self.rule(*self.static, self.differentiable(primals), self._tangents(given))
            result, tangent = self.pair(returned, self.rule, "the rule", "(result, tangent)")
            labels = ("the function's result", "the rule's result")
            primal = self.like(self.rule, result, results, labels, may_be_same)
            tangent, zeros = self._stand_ins(tangent, results)
            labels = ("the function's result", "the rule's tangent")
            leaves = self.like(self.rule, tangent, results, labels, may_be_tangent)
            floats = (i for i, x in enumerate(results.leaves) if x.type.is_differentiable)
            found.extend(i for i in floats if i not in zeros)
            return [*primal, *(leaves[i] for i in found)]

        tangents = [replace(self.inputs[i], hint=f"t_{self.inputs[i].hint}") for i in perturbed]
        known = [*self.leaves, *[None] * len(tangents)]
        graph = trace_rule("push", push, [*self.inputs, *tangents], known).finish()
        return Answer(graph, perturbed, tuple(found))

    def _tangents(self, given: Mapping[int, Tensor]) -> Any:
        """The tangents as the rule takes them, by the arguments that have one."""
        if not self.symbolic_zeros:
            return self.differentiable(list(given.values()), lambda x: np.zeros((), float0))
        tangents = [given.get(i, symbolic_zero(x.type)) for i, x in enumerate(self.inputs)]
        return self.differentiable(tangents, lambda x: None if isinstance(x, str) else symbolic_zero(type_of(x)))

    def _stand_ins(self, tangent: Any, results: Results) -> tuple[Any, set[int]]:
        """The tangent with what has the type of zeros for `SymbolicZero` and `float0`, and where those stood."""
        leaves, treedef = tree.flatten(tangent)
        zeros = {i for i, x in enumerate(leaves) if isinstance(x, SymbolicZero) or is_float0(x)}
        for i in zeros:
            x = leaves[i]
            wanted = results.leaves[i].type if i < len(results.leaves) else None
            dtype = wanted.dtype if isinstance(wanted, TensorType) and is_float0(x) else x.dtype
            leaves[i] = Tensor(Builder(), Value(TensorType(dtype, np.shape(x) if is_float0(x) else x.shape)))
        return tree.unflatten(treedef, leaves), zeros
