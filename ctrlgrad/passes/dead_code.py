"""Dead code: what no output needs is dropped, inside loops and branches too.

In: any graph. Out: the same inputs and outputs; no node without a used result but those that must run; no loop
carry that only feeds itself; no capture or branch operand that no region uses; no push on a stack of which nothing is
used. A call with a rule of the user's stays whole.

What must run, used or not, is what has an effect (`Trait.EFFECT`: callbacks) and what makes a promise: a loop with
`maximum_iterations` says that it ends within them or fails, and so does all that holds one in a region. Nothing else
stays for the sake of what it may do. An op that is not `Trait.TOTAL` may fail (an index out of range, sizes that do
not fit), and a loop may never end, but neither was asked to: where no result of it is used, it is not run.

Which carries of a loop are needed is a fixpoint that asks the same of the nodes in its body again and again, and each
may be a loop. A node is pruned once for each set of results that is needed, and the answer is kept: a nest of loops
costs what its nodes cost, not twice as much with every level.
"""

from __future__ import annotations

from collections.abc import Iterable

from ctrlgrad.ir import Graph, Node, Value
from ctrlgrad.ir.effects import must_run


def remove_dead_code(graph: Graph) -> Graph:
    """The graph without what its outputs do not need."""
    return _Pruning().graph(graph, graph.inputs, graph.outputs)


class _Pruning:
    """The nodes that have been pruned, by which of their results were needed."""

    def __init__(self) -> None:
        self._known: dict[tuple[Node, frozenset[int]], Node] = {}

    def graph(self, graph: Graph, inputs: Iterable[Value], outputs: Iterable[Value]) -> Graph:
        """The graph with these inputs and outputs of its own alone."""
        outputs = tuple(outputs)
        return Graph(tuple(inputs), self.live_nodes(graph, outputs)[0], outputs, graph.name)

    def live_nodes(self, graph: Graph, outputs: Iterable[Value]) -> tuple[tuple[Node, ...], set[Value]]:
        """The nodes that `outputs` need, pruned themselves, and all values that are needed."""
        live = set(outputs)
        kept: list[Node] = []
        for node in reversed(graph.nodes):
            needed = frozenset(i for i, v in enumerate(node.results) if v in live)
            if not needed and not must_run(node):
                continue
            pruned = self._node(node, needed)
            live.update(pruned.operands)
            kept.append(pruned)
        return tuple(reversed(kept)), live

    def _node(self, node: Node, needed: frozenset[int]) -> Node:
        prune = {"while": self._while, "cond": self._cond, "call": self._call}.get(node.op.name)
        if prune is None:
            return node
        if (node, needed) not in self._known:
            self._known[node, needed] = prune(node, needed)
        return self._known[node, needed]

    def _live_inputs(self, graph: Graph, outputs: Iterable[Value]) -> set[Value]:
        return self.live_nodes(graph, outputs)[1]

    def _while(self, node: Node, results: frozenset[int]) -> Node:
        cond, body = node.regions
        captures = node.attrs["captures"]
        carry = range(len(node.results))
        test_live = self._live_inputs(cond, cond.outputs)
        needed = {i for i in carry if i in results or cond.inputs[captures + i] in test_live}
        while True:
            body_live = self._live_inputs(body, [body.outputs[i] for i in needed])
            more = needed | {i for i in carry if body.inputs[captures + i] in body_live}
            if more == needed:
                break
            needed = more
        shared = [j for j in range(captures) if body.inputs[j] in body_live or cond.inputs[j] in test_live]
        kept = [*shared, *(captures + i for i in sorted(needed))]
        if len(kept) == len(node.operands):
            regions = tuple(self.graph(region, region.inputs, region.outputs) for region in node.regions)
            return Node(node.op, node.operands, node.results, node.attrs, regions, node.source)
        new_body = self.graph(body, [body.inputs[k] for k in kept], [body.outputs[i] for i in sorted(needed)])
        new_cond = self.graph(cond, [cond.inputs[k] for k in kept], cond.outputs)
        attrs = {**node.attrs, "captures": len(shared)}
        operands = tuple(node.operands[k] for k in kept)
        found = tuple(node.results[i] for i in sorted(needed))
        return Node(node.op, operands, found, attrs, (new_cond, new_body), node.source)

    def _cond(self, node: Node, results: frozenset[int]) -> Node:
        needed = sorted(results)
        pruned = []
        used: set[int] = set()
        for region in node.regions:
            outputs = tuple(region.outputs[i] for i in needed)
            nodes, inside = self.live_nodes(region, outputs)
            used.update(j for j, v in enumerate(region.inputs) if v in inside)
            pruned.append((region, nodes, outputs))
        kept = sorted(used)
        regions = tuple(
            Graph(tuple(region.inputs[j] for j in kept), nodes, outputs, region.name)
            for region, nodes, outputs in pruned
        )
        operands = (node.operands[0], *(node.operands[1 + j] for j in kept))
        return Node(node.op, operands, tuple(node.results[i] for i in needed), node.attrs, regions, node.source)

    def _call(self, node: Node, results: frozenset[int]) -> Node:
        """A checkpoint keeps the results that are used; a rule of the user's stays whole."""
        if node.attrs["kind"] != "checkpoint":
            return node
        region, captures = node.regions[0], node.attrs["captures"]
        needed = sorted(results)
        outputs = tuple(region.outputs[i] for i in needed)
        nodes, inside = self.live_nodes(region, outputs)
        kept = [j for j, v in enumerate(region.inputs) if v in inside]
        pruned = Graph(tuple(region.inputs[j] for j in kept), nodes, outputs, region.name)
        attrs = {**node.attrs, "captures": sum(j < captures for j in kept)}
        operands = tuple(node.operands[j] for j in kept)
        return Node(node.op, operands, tuple(node.results[i] for i in needed), attrs, (pruned,), node.source)
