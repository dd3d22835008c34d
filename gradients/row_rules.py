"""Derivatives of `custom_vmap`: those of its function, batched as the derivative of the user's rule.

The derivative of a call is a call of the same kind, of its function's tangents or cotangents. Its batched form is the
derivative of the rule's results, so the order of `vmap` and the derivative makes no difference. Reverse mode computes
the function again: the rule would save values of other types than the function.

A tangent may have rows though its primal has none, and the other way round. The rule is asked about the arguments whose
primal and tangent both have rows. Over the rows of the remaining arguments its derivative is batched as any graph, as
in JAX.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from ctrlgrad.ir import Builder, Call, Graph, TensorType, Value
from ctrlgrad.ir.attributes import DYNAMIC
from ctrlgrad.ir.rules import Answer, Positions
from ctrlgrad.ops.term import Term, broadcast_to, emit, zeros
from ctrlgrad.records import record

# A graph of (inputs, tangents of those at some positions) to (outputs, tangents of all differentiable outputs).
Push = Callable[[Graph, Sequence[int]], Graph]
Batch = Callable[..., Graph]


def with_all_tangents(graph: Graph, outputs: Sequence[Value], found: Collection[int]) -> Graph:
    """A graph that yields outputs and the tangents of those at `found`, with zeros for the tangents of the rest."""
    builder = Builder(name=graph.name)
    results = builder.inline(graph, [builder.input(v.type, v.hint) for v in graph.inputs])
    tangents = dict(zip(found, results[len(outputs) :], strict=True))
    for i, v in enumerate(results[: len(outputs)]):
        if v.type.is_differentiable and i not in tangents:
            tangents[i] = zeros(builder, v.tensor.dtype, Term(builder, v).dims).value
    return builder.finish([*results[: len(outputs)], *(tangents[i] for i in sorted(tangents))])


@record(eq=False)
class PushedRows:
    """The rule of the tangents of a call: `moving` are the arguments that have one, further arguments in that order."""

    call: Call
    moving: tuple[int, ...]
    push: Push
    batch: Batch

    def __repr__(self) -> str:
        return "later"

    def rows(self, size: int | None, mapped: Positions) -> Answer:
        count, shared = len(self.call.arguments), len(self.call.captures)
        tangent = {i: count + k for k, i in enumerate(self.moving)}
        both = tuple(i for i in mapped if i < count and tangent.get(i, i) in mapped)
        inner = self.call.rule.rows(size, both)
        pushed = self.push(inner.graph, [shared + i for i in self.moving])
        of_result = [*range(len(self.call.results))]
        of_result += [i for i, v in enumerate(self.call.results) if v.type.is_differentiable]
        given = {*both, *(tangent[i] for i in both if i in tangent)}
        found = {place for place, i in enumerate(of_result) if i in inner.found}
        further = [i for i in mapped if i not in given]
        if not further:
            return Answer(pushed, mapped, tuple(sorted(found)))
        reached = _reached(pushed, [shared + i for i in further])
        graph = self._over_both(pushed, [shared + i for i in further], size, reached, found)
        return Answer(graph, mapped, tuple(sorted(found | reached)))

    def _over_both(
        self, pushed: Graph, further: Sequence[int], size: int | None, reached: set[int], found: set[int]
    ) -> Graph:
        """The graph with rows for further inputs; what has rows of both kinds has its own of each."""
        batched = self.batch(pushed, further, size, None)
        builder = Builder(name=pushed.name)
        inputs = [builder.input(v.type, v.hint) for v in batched.inputs]
        rows = builder.inline(batched, inputs)
        # Values that do not depend on further rows are computed once, with zeros in place of those rows.
        once = [Term(builder, v) for v in inputs]
        for i in further:
            once[i] = zeros(builder, pushed.inputs[i].tensor.dtype, once[i].dims[1:])
        alone = builder.inline(pushed, [x.value for x in once])
        index = _iota(builder, size, inputs[further[0]])
        outputs = []
        for place, v in enumerate(rows):
            if place not in reached:
                v = alone[place]
            elif place in found:
                key = (DYNAMIC, DYNAMIC, *[slice(None)] * (v.tensor.rank - 2))
                v = emit("getitem", Term(builder, v), index, index, key=key).value
            outputs.append(v)
        return builder.finish(outputs)


def _reached(graph: Graph, inputs: Sequence[int]) -> set[int]:
    """The outputs that depend on some inputs."""
    reached = {graph.inputs[i] for i in inputs}
    for node in graph.nodes:
        if not reached.isdisjoint(node.operands):
            reached.update(node.results)
    return {place for place, v in enumerate(graph.outputs) if v in reached}


def _iota(builder: Builder, size: int | None, rows: Value) -> Term:
    if size is not None:
        return Term(builder, builder.emit("iota", (), {"shape": (size,)}))
    count = builder.emit("dim", [rows], {"axis": 0})
    return Term(builder, builder.emit("iota", [count], {"shape": (None,)}))


@record(eq=False)
class PulledRows:
    """The rule of the cotangents of a call: further arguments are the cotangents of the results at `seeded`, results
    the cotangents of the arguments at `wanted`."""

    call: Call
    wanted: tuple[int, ...]
    seeded: tuple[int, ...]
    reverse: Callable[..., Any]

    def __repr__(self) -> str:
        return "later"

    def rows(self, size: int | None, mapped: Positions) -> Answer:
        count, shared = len(self.call.arguments), len(self.call.captures)
        # Each row has a cotangent of its own, so each wanted argument has rows.
        both = tuple(sorted({*(i for i in mapped if i < count), *self.wanted}))
        inner = self.call.rule.rows(size, both)
        halves = self.reverse(
            _with_rows(inner, self.seeded, size, shared + both[0]), [shared + i for i in self.wanted], self.seeded
        )
        builder, operands = Builder(name=halves.backward.name), list[Value]()
        types = [*(v.type for v in self.call.operands), *(self.call.results[i].type for i in self.seeded)]
        for place, t in enumerate(types):
            if place - shared in mapped:
                assert isinstance(t, TensorType)
                t = TensorType(t.dtype, (size, *t.shape))
            operands.append(builder.input(t))
        first = operands[shared + mapped[0]]
        has_rows = {*both, *range(count, count + len(self.seeded))}
        for place in (shared + i for i in has_rows if i not in mapped):
            operands[place] = _spread(Term(builder, operands[place]), size, first).value
        given, seeds = operands[: shared + count], operands[shared + count :]
        results = builder.inline(halves.forward, given)
        found = builder.inline(halves.backward, [*results[len(results) - halves.residuals :], *seeds])
        return Answer(builder.finish(found), mapped, tuple(range(len(found))))


def _with_rows(rule: Answer, outputs: Sequence[int], size: int | None, rows: int) -> Graph:
    """The graph of a rule with rows in these outputs; its input at `rows` has them."""
    builder = Builder(name=rule.graph.name)
    inputs = [builder.input(v.type, v.hint) for v in rule.graph.inputs]
    results = list(builder.inline(rule.graph, inputs))
    for i in outputs:
        if i not in rule.found:
            results[i] = _spread(Term(builder, results[i]), size, inputs[rows]).value
    return builder.finish(results)


def _spread(x: Term, size: int | None, rows: Value) -> Term:
    """x for each row of another value."""
    count = size if size is not None else Term(x.builder, x.builder.emit("dim", [rows], {"axis": 0}))
    return broadcast_to(x, [count, *x.dims])
