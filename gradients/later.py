"""Derivatives that are taken later: under `vmap`, a function is batched first and differentiated after that.

The loops of a batched function push one row for all examples at once. If its gradient were batched instead, each
example would have a stack of its own. So where a mapped function differentiates a loop, the transform records calls of
the kind "derivative". `calls.expanded` puts the derivatives in their place when the outermost `vmap` has batched them.
Calls of one pullback have one `name` and the same operands, and share one forward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from enum import Enum, auto

from ctrlgrad.gradients.adjoint import Pullback
from ctrlgrad.gradients.calls import Batch, expanded
from ctrlgrad.gradients.forward import push_forward
from ctrlgrad.gradients.manner import Manner, current_manner, differentiating
from ctrlgrad.gradients.reverse import reverse
from ctrlgrad.ir import Builder, Call, Graph, TensorType, Value, attributes, is_call, is_loop, walk
from ctrlgrad.ir.caching import Cache
from ctrlgrad.ir.rules import Positions
from ctrlgrad.ops.term import Term, transpose
from ctrlgrad.records import record

# Forward passes: the pullback and the results of its forward half, by the builder, the name and the operands.
Forwards = dict[tuple[Builder, object, tuple[Value, ...]], tuple[Pullback, Sequence[Value]]]


class Part(Enum):
    """Results of a call."""

    # The function's own.
    OUTPUTS = auto()
    # Saved values of the forward pass, for a pullback that is called where it has to have them, as in a loop.
    RESIDUALS = auto()
    # Cotangents of the arguments, from those of outputs.
    COTANGENTS = auto()
    # Outputs and their tangents, from those of the arguments.
    TANGENTS = auto()


@record
class Directions:
    """An axis of seeds alone: the rows of a basis, for one."""

    size: int | None


@record(eq=False)
class Derivative:
    """The rule of a call of kind "derivative" (`ir.rules.Derivative`).

    `wrt` are the arguments that are differentiated; `moved` the outputs that have a cotangent, or a tangent. `axes` are
    those that batching has put in front of the seeds, the oldest first: `Directions`, or None for rows of the function.
    """

    part: Part
    # The number of the function's results.
    outputs: int
    wrt: Positions
    moved: Positions
    batch: Batch
    selected: bool = True
    manner: Manner = field(default_factory=current_manner)
    axes: tuple[Directions | None, ...] = ()
    # The halves for the function as it was traced, until it is batched.
    traced: Pullback | None = None
    name: object = field(default_factory=object)

    def __repr__(self) -> str:
        return "later"

    @property
    def shared(self) -> int:
        """The number of results, the first ones, that do not depend on the seeds."""
        return self.outputs if self.part is Part.TANGENTS else 0

    def with_rows(self, size: int | None, seeds_alone: bool) -> Derivative:
        traced = self.traced if seeds_alone else None
        return replace(self, axes=(*self.axes, Directions(size) if seeds_alone else None), traced=traced)

    def halves(self, function: Graph, captures: int) -> Pullback:
        if self.traced is not None:
            return self.traced
        wrt = tuple(captures + i for i in self.wrt)
        return reversed_once(function, wrt, self.moved, self.batch, self.selected, self.manner)

    def graph(self, function: Graph, captures: int) -> Graph:
        """(captures, arguments, seeds) to results, for one function of the call, or for one with rows."""
        if self.part is Part.OUTPUTS:
            return function
        if self.part is Part.TANGENTS:
            return self._along(self._pushed(function, captures), len(function.inputs), self.outputs)
        found = self.halves(function, captures)
        builder = Builder(name=f"{function.name}_{self.part.name.lower()}")
        residuals = builder.inline(found.forward, [builder.input(v.type, v.hint) for v in function.inputs])
        residuals = residuals[self.outputs :]
        if self.part is Part.RESIDUALS:
            return builder.finish(residuals)
        pull = self._along(found.backward, found.residuals)
        seeds = [builder.input(v.type, v.hint) for v in pull.inputs[found.residuals :]]
        return builder.finish(builder.inline(pull, [*residuals, *seeds]))

    def emitted(self, builder: Builder, call: Call, known: Forwards) -> Sequence[Value]:
        """The call's results, computed in place; `known` has the forward passes that were emitted so far."""
        if self.part is Part.TANGENTS:
            return builder.inline(call.function, call.operands)
        key = (builder, self.name, call.differentiated)
        if key not in known:
            found = self.halves(call.primal, len(call.captures))
            known[key] = found, builder.inline(found.forward, call.differentiated)
        found, values = known[key]
        count = self.outputs
        if self.part is Part.COTANGENTS:
            pull = self._along(found.backward, found.residuals)
            return builder.inline(pull, [*values[count:], *call.seeds])
        return values[:count] if self.part is Part.OUTPUTS else values[count:]

    def _pushed(self, function: Graph, captures: int) -> Graph:
        with differentiating(self.manner):
            pushed = push_forward(function, tuple(captures + i for i in self.wrt), self.batch)
        count = self.outputs
        tangents = dict(zip(pushed.tangents, pushed.graph.outputs[count:], strict=True))
        return replace(pushed.graph, outputs=(*pushed.graph.outputs[:count], *(tangents[i] for i in self.moved)))

    def _along(self, graph: Graph, first: int, shared: int = 0) -> Graph:
        """The graph with the axes of directions at its inputs from `first` on, and at its outputs from `shared` on."""
        for axis in self.axes:
            if axis is not None:
                graph = self.batch(graph, range(first, len(graph.inputs)), axis.size, None, shared)
        newest = [*reversed(range(len(self.axes)))]
        inner = sorted(newest, key=lambda axis: self.axes[axis] is None)
        if inner == newest:
            return graph
        builder = Builder(name=graph.name)

        def order(x: Term, now: list[int], then: list[int]) -> Term:
            return transpose(x, [*(now.index(a) for a in then), *range(len(now), x.rank)])

        arguments = []
        for place, v in enumerate(graph.inputs):
            if place < first:
                arguments.append(builder.input(v.type, v.hint))
                continue
            shape = v.tensor.shape
            outside = [*(shape[inner.index(a)] for a in newest), *shape[len(newest) :]]
            x = Term(builder, builder.input(replace(v.tensor, shape=tuple(outside)), v.hint))
            arguments.append(order(x, newest, inner).value)
        results = builder.inline(graph, arguments)
        moved = [order(Term(builder, v), inner, newest).value for v in results[shared:]]
        return builder.finish([*results[:shared], *moved])


def settled(graph: Graph) -> Graph:
    """The graph with those derivatives in place of which it needs the residuals."""
    calls = [Call.of(node) for node in walk(graph) if is_call(node, "derivative")]
    names = {call.rule.name for call in calls if call.rule.part is Part.RESIDUALS}
    return expanded(graph, lambda call: call.rule.name not in names) if names else graph


def is_batched_first(graph: Graph) -> bool:
    """Return true where `vmap` around a derivative should batch the function: where it has a loop, whose saved rows are
    then pushed for all examples at once. A callback that sees cotangents sees those of each row's own iterations."""
    nodes = list(walk(graph))
    tensors = all(isinstance(v.type, TensorType) for v in (*graph.inputs, *graph.outputs))
    return tensors and any(map(is_loop, nodes)) and not any(isinstance(node.attrs, attributes.Hook) for node in nodes)


_HALVES: Cache[tuple[Positions, Positions, bool, Manner], Pullback] = Cache(4)


def reversed_once(
    function: Graph, wrt: Positions, seeded: Positions, batch: Batch, selected: bool, manner: Manner
) -> Pullback:
    """The function differentiated in reverse (see `reverse`); once, where another trace made its graph."""

    def make() -> Pullback:
        with differentiating(manner):
            return reverse(function, wrt, seeded, batch, selected=selected)

    return _HALVES.get(function, (wrt, seeded, selected, manner), make)
