"""Dependence analysis: the values that depend on the elements of some inputs, not on their sizes alone.

For a loop this is a least fixpoint over its carry; if the predicate depends on the inputs, all results do. The answer
of a node is cached for each set of its operands, as in `gradients.activity`, so nested loops cost time linear in the
number of nodes.
"""

from __future__ import annotations

from collections.abc import Iterable

from ctrlgrad.ir.control import Branch, Call, Loop, view
from ctrlgrad.ir.graph import Graph, Node, Value
from ctrlgrad.ir.op import Use

_Positions = frozenset[int]


def dependent_outputs(graph: Graph, inputs: Iterable[int]) -> list[int]:
    """The positions of the outputs that depend on the elements of the inputs at these positions."""
    found = _Dependence().values(graph, [graph.inputs[i] for i in inputs])
    return [i for i, v in enumerate(graph.outputs) if v in found]


class _Dependence:
    """The answers of the nodes of a graph and of its regions."""

    def __init__(self) -> None:
        self._known: dict[tuple[Node, _Positions], _Positions] = {}

    def values(self, graph: Graph, start: Iterable[Value]) -> set[Value]:
        """The values of a graph that depend on some of its inputs."""
        found = set(start)
        for node in graph.nodes:
            operands = frozenset(
                i for i, v in enumerate(node.operands) if v in found and node.op.use(i) is not Use.MEASURE
            )
            if operands:
                key = (node, operands)
                if key not in self._known:
                    self._known[key] = self._results(node, operands)
                found.update(node.results[i] for i in self._known[key])
        return found

    def _results(self, node: Node, operands: _Positions) -> _Positions:
        match view(node):
            case Loop() as loop:
                return self._of_loop(loop, operands)
            case Branch() as branch if 0 not in operands:
                regions, entered = branch.branches, [i - 1 for i in operands]
            case Call() as call:
                regions, entered = (call.function,), [*operands]
            case _:
                return frozenset(range(len(node.results)))
        return frozenset(
            i
            for region in regions
            for inside in [self.values(region, [region.inputs[j] for j in entered])]
            for i, v in enumerate(region.outputs)
            if v in inside
        )

    def _of_loop(self, loop: Loop, operands: _Positions) -> _Positions:
        given = {loop.operands[i] for i in operands}
        shared = [c for c in loop.captures if c.outer in given]
        carried = [c for c in loop.carries if c.init in given]
        while True:
            inside = self.values(loop.body, [*(c.in_body for c in shared), *(c.in_body for c in carried)])
            more = [c for c in loop.carries if c in carried or c.next in inside]
            if more == carried:
                break
            carried = more
        if loop.predicate in self.values(loop.cond, [*(c.in_cond for c in shared), *(c.in_cond for c in carried)]):
            return frozenset(range(len(loop.results)))
        return frozenset(i for i, c in enumerate(loop.carries) if c in carried)
