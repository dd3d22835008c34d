"""Reverse mode: a graph becomes a forward graph that keeps residuals and a backward graph that uses them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ctrlgrad.gradients import rules  # noqa: F401  (fills the tables)
from ctrlgrad.gradients.activity import Activity
from ctrlgrad.gradients.adjoint import Adjoint, Pullback, Recursion
from ctrlgrad.gradients.branches import reverse_cond
from ctrlgrad.gradients.calls import Batch, expanded, reverse_call
from ctrlgrad.gradients.loops import reverse_while
from ctrlgrad.gradients.manner import Manner, current_manner, differentiating
from ctrlgrad.gradients.strong_zeros import StrongZeros
from ctrlgrad.ir import Builder, Graph, StackType, Value
from ctrlgrad.ir.rules import Positions
from ctrlgrad.ops.term import Term, broadcast_to, constant, ensure_sizes
from ctrlgrad.records import record
from ctrlgrad.stacks.saving import FunctionScope

REGION_RULES = {"call": reverse_call, "cond": reverse_cond, "while": reverse_while}


def reverse(
    graph: Graph,
    wrt: Sequence[int],
    seeded: Sequence[int],
    batch: Batch,
    *,
    linear: bool = False,
    selected: bool = True,
) -> Pullback:
    """Differentiate `graph` in reverse.

    Args:
        wrt: positions of the inputs whose cotangents are wanted; all of differentiable type.
        seeded: positions of the outputs whose cotangents will be given; the others count as zero.
        batch: batches the derivative of one row, for calls of kind "rows".
        linear: the graph is linear in those inputs, a tangent map that is transposed. A function with a forward rule
            that is met on the way is linear too, and its own transpose: the rule, which may call it, is not asked.
        selected: cotangents that will be given may be zeros (see `strong_zeros`).
    """
    graph = expanded(graph)
    backward = Builder(name=f"{graph.name}_backward")
    scope = FunctionScope(graph, backward)
    activity = Activity()
    strong = None
    if current_manner().strong_zeros:
        strong = StrongZeros.of_cotangents(graph, wrt, seeded, selected, activity)
    recursion = Recursion(REGION_RULES, partial(reverse, batch=batch, linear=linear), batch, linear, strong)
    adjoint = Adjoint(scope, activity.varied_values(graph, [graph.inputs[i] for i in wrt]), activity, recursion)
    seeds = [Builder().input(graph.outputs[i].type, f"d_{graph.outputs[i].hint or 'out'}") for i in seeded]
    for i, seed in zip(seeded, seeds, strict=True):
        adjoint.add(graph.outputs[i], Term(backward, seed))
    adjoint.run()
    outputs = tuple(_cotangent(adjoint, graph.inputs[i]).value for i in wrt)

    residual_inputs = tuple(backward.inputs)
    behind = {scope.resolved[v]: v for v in scope.residuals}
    for thread in scope.threads:
        # A stack that nothing was pushed on has not moved.
        behind[thread.backward_in] = thread.forward_out or thread.forward_in
    residuals = tuple(behind[v] for v in residual_inputs)
    nodes = (*scope.new_stacks, *scope.forward_nodes(graph.inputs))
    forward = Graph(graph.inputs, nodes, (*graph.outputs, *residuals), f"{graph.name}_forward")
    return Pullback(
        forward,
        Graph((*residual_inputs, *seeds), tuple(backward.nodes), outputs, backward.name),
        len(residuals),
        tuple(seeded),
        tuple(wrt),
    )


@record
class GradientLater:
    """The rule of a call of kind "gradient" (`ir.rules.Gradient`): reverse mode of its first result, a
    number or one for each row, with respect to the arguments at `wrt`."""

    wrt: Positions
    manner: Manner
    batch: Batch

    def __repr__(self) -> str:
        return "later"

    def graph(self, function: Graph, captures: int) -> Graph:
        with differentiating(self.manner):
            halves = reverse(function, [captures + i for i in self.wrt], (0,), self.batch, selected=False)
        builder = Builder(name=f"{function.name}_gradient")
        results = builder.inline(halves.forward, [builder.input(v.type, v.hint) for v in function.inputs])
        outputs, residuals = results[: len(function.outputs)], results[len(function.outputs) :]
        loss = Term(builder, outputs[0])
        seed = broadcast_to(constant(builder, 1, loss.dtype), loss.dims)
        return builder.finish([*outputs, *builder.inline(halves.backward, [*residuals, seed.value])])


def _cotangent(adjoint: Adjoint, value: Value) -> Term:
    """The cotangent of an input, of its sizes: those that follow from the ops alone are compared with them."""
    found = adjoint.cotangents.get(value)
    if found is None:
        return adjoint.zeros_like(value)
    if isinstance(value.type, StackType) or found.tensor.shape == value.tensor.shape:
        return found
    primal = adjoint.primal(value)
    return ensure_sizes(found, {axis: primal.dim(axis) for axis, d in enumerate(value.tensor.shape) if d is None})
