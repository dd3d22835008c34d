"""What a checkpoint with a policy computes again, and what it saves.

From the residuals of the function's derivative back through what makes them, as far as a value that the policy saves,
or an input. What lies before is computed again from these; what is not on the way is not, effects included. A policy
sees the values of the function itself, not those inside its loops and branches: of these the results are values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ctrlgrad.gradients.adjoint import Pullback
from ctrlgrad.ir import Graph, Node, TensorType, Trait, Value
from ctrlgrad.ir.attributes import Barrier, Saveable, Saving
from ctrlgrad.records import record

_ARRANGING = frozenset({Trait.VIEW, Trait.MOVES})


@record
class Recomputation:
    """The values of the function that are saved, and the graph of (inputs, saved values) to the residuals."""

    inputs: tuple[Value, ...]
    saved: tuple[Value, ...]
    graph: Graph

    @staticmethod
    def of(halves: Pullback, function: Graph, policy: Sequence[Saving]) -> Recomputation:
        """That of `function`, whose derivative is `halves`."""
        forward = halves.forward
        residuals = forward.outputs[len(forward.outputs) - halves.residuals :]
        producers = {v: node for node in forward.nodes for v in node.results}
        saveable = _saveable(function, policy)
        saved, nodes = dict[Value, None](), set[Node]()
        pending, seen = list(residuals), set[Value]()
        while pending:
            value = pending.pop()
            if value in seen:
                continue
            seen.add(value)
            if value in saveable:
                saved[value] = None
            elif value in producers:
                nodes.add(producers[value])
                pending += producers[value].operands
        inputs = tuple(v for v in forward.inputs if v in seen)
        # A node with a saved result may be computed again for another one.
        renamed = {v: Value(v.type, v.hint) for v in saved}
        body = [
            Node(
                node.op,
                tuple(renamed.get(v, v) for v in node.operands),
                node.results,
                node.attrs,
                node.regions,
                node.source,
            )
            for node in forward.nodes
            if node in nodes
        ]
        outputs = tuple(renamed.get(v, v) for v in residuals)
        graph = Graph((*inputs, *renamed.values()), tuple(body), outputs, f"{function.name}_again")
        return Recomputation(inputs, tuple(saved), graph)


def _saveable(function: Graph, policy: Sequence[Saving]) -> set[Value]:
    """The values of a function that a policy saves; constants, and others made of nothing, never.

    A name is that of the value it was given to: where the derivative uses either, the same is saved once.
    """
    names: dict[Value, set[str]] = {}
    for node in function.nodes:
        barrier = Barrier.find(node)
        if barrier is not None and barrier.name is not None:
            names.setdefault(node.operands[0], set()).add(barrier.name)
    found: set[Value] = set()
    for saving in policy:
        found |= _saved(function, saving, names)
    return {v for v in found if isinstance(v.type, TensorType)}


def _saved(function: Graph, saving: Saving, names: Mapping[Value, set[str]]) -> set[Value]:
    given = set(saving.names)
    nodes = [node for node in function.nodes if node.operands]
    values = [v for node in nodes for v in node.results]
    match saving.kind:
        case Saveable.NAMES:
            return {v for v in values if names.get(v, set()) & given}
        case Saveable.OTHER_NAMES:
            return {v for v in values if names.get(v, set()) - given}
        case Saveable.PRODUCTS:
            return {node.result for node in nodes if node.op.name == "matmul"}
        case Saveable.UNBATCHED_PRODUCTS:
            products = [node for node in nodes if node.op.name == "matmul"]
            return {node.result for node in products if min(v.tensor.rank for v in node.operands) <= 2}
        case Saveable.VALUES:
            refused = {v for v in names if names[v] & given}
            for node in nodes:
                # To save what only arranges a value would be to save it.
                if not _ARRANGING.isdisjoint(node.op.traits) and not refused.isdisjoint(node.operands):
                    refused.update(node.results)
            return set(values) - refused
