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

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ctrlgrad.ir import Branch, Call, Graph, Loop, Node, Value, view
from ctrlgrad.ir.effects import must_run
from ctrlgrad.records import record


def remove_dead_code(graph: Graph) -> Graph:
    """The graph without what its outputs do not need."""
    nodes, _ = _Pruning().live_nodes(graph, graph.outputs)
    return Graph(graph.inputs, nodes, graph.outputs, graph.name)


class _Pruning:
    """The nodes that have been pruned, by which of their results were needed."""

    def __init__(self) -> None:
        self._known: dict[tuple[Node, frozenset[int]], Node] = {}

    def live_nodes(self, graph: Graph, outputs: Iterable[Value]) -> tuple[tuple[Node, ...], set[Value]]:
        """The nodes that `outputs` need, pruned themselves, and all values that are needed."""
        live = set(outputs)
        kept: list[Node] = []
        for node in reversed(graph.nodes):
            if live.isdisjoint(node.results) and not must_run(node):
                continue
            if node.regions:
                node = self._node(node, frozenset(i for i, v in enumerate(node.results) if v in live))
            live.update(node.operands)
            kept.append(node)
        return tuple(reversed(kept)), live

    def _node(self, node: Node, needed: frozenset[int]) -> Node:
        if (node, needed) not in self._known:
            match view(node):
                case Loop() as loop:
                    pruned = self._loop(loop, needed).node
                case Branch() as branch:
                    pruned = self._branch(branch, needed).node
                case Call(kind="checkpoint") as call:
                    pruned = self._checkpoint(call, needed).node
                case _:
                    return node
            self._known[node, needed] = pruned
        return self._known[node, needed]

    def _loop(self, loop: Loop, results: frozenset[int]) -> Loop:
        cond, in_cond = self.live_nodes(loop.cond, [loop.predicate])
        needed = {i for i, c in enumerate(loop.carries) if i in results or c.in_cond in in_cond}
        while True:
            carries = [loop.carries[i] for i in sorted(needed)]
            body, in_body = self.live_nodes(loop.body, [c.next for c in carries])
            more = {i for i, c in enumerate(loop.carries) if c.in_body in in_body} - needed
            if not more:
                break
            needed |= more
        captures = [c for c in loop.captures if c.in_body in in_body or c.in_cond in in_cond]
        return loop.rebuilt(captures=captures, carries=carries, cond=cond, body=body)

    def _branch(self, branch: Branch, results: frozenset[int]) -> Branch:
        needed = sorted(results)
        pruned = [self._pruned(region, needed) for region in branch.branches]
        kept = [j for j in range(len(branch.operands)) if any(j in p.used for p in pruned)]
        return replace(
            branch,
            operands=tuple(branch.operands[j] for j in kept),
            branches=tuple(p.over(kept) for p in pruned),
            results=tuple(branch.results[i] for i in needed),
        )

    def _checkpoint(self, call: Call, results: frozenset[int]) -> Call:
        needed = sorted(results)
        pruned = self._pruned(call.function, needed)
        count = len(call.captures)
        return replace(
            call,
            captures=tuple(v for j, v in enumerate(call.captures) if j in pruned.used),
            arguments=tuple(v for j, v in enumerate(call.arguments, count) if j in pruned.used),
            regions=(pruned.over(sorted(pruned.used)),),
            results=tuple(call.results[i] for i in needed),
        )

    def _pruned(self, region: Graph, needed: Sequence[int]) -> _Pruned:
        outputs = tuple(region.outputs[i] for i in needed)
        nodes, live = self.live_nodes(region, outputs)
        used = frozenset(j for j, v in enumerate(region.inputs) if v in live)
        return _Pruned(region, nodes, outputs, used)


@record
class _Pruned:
    """What is left of a region, and the positions of the inputs that this uses."""

    region: Graph
    nodes: tuple[Node, ...]
    outputs: tuple[Value, ...]
    used: frozenset[int]

    def over(self, inputs: Sequence[int]) -> Graph:
        """The region with these of its inputs alone."""
        return Graph(tuple(self.region.inputs[j] for j in inputs), self.nodes, self.outputs, self.region.name)
