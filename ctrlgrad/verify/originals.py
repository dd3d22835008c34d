"""JAX functions in a graph that is read for a judge: a call of a `from_jax` function stays whole and keeps it.

A translation of what `from_jax` has read agrees with a derivative that the reader drops. So the judge calls the JAX
function itself, wherever in a graph it is called: within a lambda, a loop, a branch or a `vmap`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

import jax

from ctrlgrad.blocks import holding
from ctrlgrad.frontend.apply import value_in
from ctrlgrad.frontend.rules import emit_call, trace_rule
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.frontend.trace import recorder
from ctrlgrad.frontend.tracer import Leaf
from ctrlgrad.gradients.row_rules import PulledRows, PushedRows
from ctrlgrad.ir import Call, Closed, Graph, TensorType, is_call, walk
from ctrlgrad.ir.rules import Answer, Positions
from ctrlgrad.passes.dead_code import inline_calls
from ctrlgrad.source import here
from ctrlgrad.transforms.vmap import vmap

_KEPT: ContextVar[bool] = ContextVar("calls of from_jax functions stay whole", default=False)


def originals_kept() -> AbstractContextManager[None]:
    """A block in which what is traced keeps the JAX functions that it calls."""
    return holding(_KEPT, True)


def keeps_originals() -> bool:
    """Return true within `originals_kept`."""
    return _KEPT.get()


class Original:
    """The JAX function of a call, as the rule of a `call` of the kind "custom_vmap", whose derivative its graph has.

    Args:
        function: takes and returns JAX's arrays.
        graph: what `from_jax` has read of it.
        x64: whether it was traced with JAX's 64-bit types.
    """

    def __init__(self, function: Callable[..., Sequence[Any]], graph: Graph, x64: bool) -> None:
        self.function, self.graph, self.x64 = function, graph, x64

    def __repr__(self) -> str:
        return "original"

    def call(self, operands: Sequence[Any]) -> list[Tensor]:
        """The results, recorded in the current trace."""
        return emit_call("custom_vmap", Closed((), (self.graph,)), operands, here(), self)

    def rows(self, size: int | None, mapped: Positions) -> Answer:
        """The graph for rows, which keeps the function under `jax.vmap`."""
        axes = tuple(0 if i in mapped else None for i in range(len(self.graph.inputs)))
        types = [v.tensor for v in self.graph.inputs]
        inputs = [Leaf(TensorType(t.dtype, (size, *t.shape)) if i in mapped else t) for i, t in enumerate(types)]
        many = vmap(self._recorded, in_axes=axes, axis_size=size)
        graph = trace_rule("rows", lambda xs: many(*xs), inputs).finish()
        if size is not None and mapped:
            original = Original(jax.vmap(self.function, axes, axis_size=size), graph, self.x64)
            graph = trace_rule("rows", original.call, inputs).finish()
        return Answer(graph, mapped, tuple(range(len(graph.outputs))))

    def _recorded(self, *operands: Any) -> tuple[Tensor, ...]:
        builder = recorder()
        values = builder.inline(self.graph, [value_in(builder, x) for x in operands])
        return tuple(Tensor(builder, v) for v in values)


def original_of(call: Call) -> Original | None:
    """The JAX function that a call keeps: itself, its tangents by `jax.jvp`, or its cotangents by `jax.vjp`."""
    rule = call.rule
    if isinstance(rule, Original):
        return rule
    inner = original_of(rule.call) if isinstance(rule, PushedRows | PulledRows) else None
    if inner is None:
        return None
    derivative = _pushed(rule, inner) if isinstance(rule, PushedRows) else _pulled(rule, inner)
    return Original(derivative, call.function, inner.x64)


def _pushed(rule: PushedRows, inner: Original) -> Callable[..., Sequence[Any]]:
    count = len(rule.call.arguments)

    def pushed(*operands: Any) -> Sequence[Any]:
        function, point = _of(inner, operands[:count], rule.moving)
        results, tangents = jax.jvp(function, point, operands[count:])
        return [*results, *(t for v, t in zip(rule.call.results, tangents, strict=True) if v.type.is_differentiable)]

    return pushed


def _pulled(rule: PulledRows, inner: Original) -> Callable[..., Sequence[Any]]:
    count = len(rule.call.arguments)

    def pulled(*operands: Any) -> Sequence[Any]:
        function, point = _of(inner, operands[:count], rule.wanted)
        _, pull = jax.vjp(lambda *moving: [function(*moving)[i] for i in rule.seeded], *point)
        found: Sequence[Any] = pull(list(operands[count:]))
        return found

    return pulled


def _of(
    inner: Original, operands: Sequence[Any], moving: Sequence[int]
) -> tuple[Callable[..., Sequence[Any]], tuple[Any, ...]]:
    """A JAX function of the operands at some places, and those."""

    def function(*given: Any) -> Sequence[Any]:
        operands_ = list(operands)
        for i, x in zip(moving, given, strict=True):
            operands_[i] = x
        return inner.function(*operands_)

    return function, tuple(operands[i] for i in moving)


def originals(graph: Graph) -> list[Original]:
    """The JAX functions that a graph keeps."""
    found = (original_of(Call.of(node)) for node in walk(graph) if is_call(node))
    return [original for original in found if original is not None]


def without_other_calls(graph: Graph) -> Graph:
    """A graph without calls, but for those that keep a JAX function."""
    return inline_calls(graph, kept=lambda call: original_of(call) is not None)
