"""Counts: what the counter of a loop ends with is computed from the loop's bound, not asked of the loop.

Nothing that comes later then depends on the loop for it, and a gradient that needs it in every iteration of a loop
around computes it again, where it would have to save a result.

In: any graph. Out: no used result of a loop is its counter, if the loop counts (`ir.Counting`) and has no
`maximum_iterations`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ctrlgrad.ir import Counting, Graph, Loop, Node, Rewriter, Value, attributes, is_loop


def know_counts(graph: Graph) -> Graph:
    """The graph with such results computed beside the loops, in all regions."""
    return _KnowingCounts(graph).run()


class _KnowingCounts(Rewriter):
    def __init__(self, graph: Graph, outer: Rewriter | None = None, owner: Node | None = None) -> None:
        super().__init__(graph, outer, owner)
        self._used = {v for node in graph.nodes for v in node.operands}.union(graph.outputs)

    def visit(self, node: Node) -> Sequence[Value] | None:
        if not is_loop(node) or self._used.isdisjoint(node.results):
            return None
        loop = Loop.of(node)
        # Without a use of its results a loop goes, and with it the error of one that may run too often.
        counting = Counting.of(loop, self._number) if loop.attrs.maximum_iterations is None else None
        if counting is None or counting.carry.result not in self._used:
            return None
        self.builder.keep(node)
        last = counting.last(self.builder, self._number)
        return [last if c.result is counting.carry.result else c.result for c in loop.carries]

    def _number(self, value: Value) -> np.ndarray | None:
        node = next((n for n in self.builder.nodes if value in n.results), None)
        constant = None if node is None else attributes.Constant.find(node)
        return None if constant is None else constant.value
