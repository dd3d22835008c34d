"""Which values a derivative has to visit.

A value is *varied* when it depends differentiably on an input that is differentiated. It is *active* when,
besides, a cotangent reaches it from an output that has one. For a loop both are least fixpoints over its carry:
what goes round the loop once may reach any carry in the next iteration.

A fixpoint asks the same of the nodes in its loop again and again, and each of these may be a loop. Every node
therefore answers once for each set of operands and results that it is asked about, and the answer is kept: a
nest of loops costs what its nodes cost, not twice as much with every level.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from ctrlgrad.gradients.table import operand_reached
from ctrlgrad.ir import Graph, Node, Value

_Positions = frozenset[int]


@dataclass(frozen=True)
class ActiveLoop:
    """The carry and capture positions of a loop that get cotangents, and the varied values of its body."""

    carry: list[int]
    captures: list[int]
    varied: set[Value]


class Activity:
    """The activity of a graph and of its regions, with the answers that nodes have given so far."""

    def __init__(self) -> None:
        # By the operands that are varied: the results that are.
        self._varied: dict[tuple[Node, _Positions], _Positions] = {}
        # By the operands that are varied and the results that are active: the operands that are.
        self._active: dict[tuple[Node, _Positions, _Positions], _Positions] = {}

    def varied_values(self, graph: Graph, inputs: Iterable[Value]) -> set[Value]:
        """The varied values of a graph, given which of its inputs are."""
        varied = {v for v in inputs if v.type.is_differentiable}
        for node in graph.nodes:
            operands = _positions(node.operands, varied)
            if operands:
                key = (node, operands)
                if key not in self._varied:
                    self._varied[key] = self._varied_results(node, operands)
                varied.update(node.results[i] for i in self._varied[key])
        return varied

    def _varied_results(self, node: Node, varied: _Positions) -> _Positions:
        if node.op.name == "while":
            return frozenset(self.varied_carry(node, varied))
        found: set[int] = set()
        if node.op.name == "cond":
            for region in node.regions:
                inside = self.varied_values(region, [v for j, v in enumerate(region.inputs, 1) if j in varied])
                found.update(_positions(region.outputs, inside))
        elif node.op.name == "call" or any(operand_reached(node, i) for i in varied):
            found.update(range(len(node.results)))
        return frozenset(i for i in found if node.results[i].type.is_differentiable)

    def varied_carry(self, node: Node, varied: AbstractSet[int]) -> set[int]:
        """The positions of a loop's carry that are varied, given which operands are."""
        body, captures = node.regions[1], node.attrs["captures"]
        carry = body.inputs[captures:]
        shared = [v for j, v in enumerate(body.inputs[:captures]) if j in varied]
        found = {j - captures for j in varied if j >= captures}
        while True:
            inside = self.varied_values(body, [*shared, *(carry[i] for i in found)])
            more = found | {i for i in _positions(body.outputs, inside) if carry[i].type.is_differentiable}
            if more == found:
                return found
            found = more

    def active_loop(self, node: Node, varied: AbstractSet[int], results: AbstractSet[int]) -> ActiveLoop:
        """The activity of a loop, given which operands are varied and which results have cotangents."""
        body, captures = node.regions[1], node.attrs["captures"]
        carry = body.inputs[captures:]
        moving = self.varied_carry(node, varied)
        shared = [v for j, v in enumerate(body.inputs[:captures]) if j in varied]
        inside = self.varied_values(body, [*shared, *(carry[i] for i in moving)])
        found = set(results & moving)
        while True:
            live = self._active_values(body, inside, [body.outputs[i] for i in found])
            more = found | {i for i in moving if carry[i] in live}
            if more == found:
                break
            found = more
        reached = [j for j, v in enumerate(body.inputs[:captures]) if v in live]
        return ActiveLoop(sorted(found), reached, inside)

    def _active_values(self, graph: Graph, varied: set[Value], outputs: Iterable[Value]) -> set[Value]:
        """The varied values that a cotangent reaches, given the outputs that have one."""
        active = {v for v in outputs if v in varied}
        for node in reversed(graph.nodes):
            results = _positions(node.results, active)
            if results:
                key = (node, _positions(node.operands, varied), results)
                if key not in self._active:
                    self._active[key] = self._active_operands(*key)
                active.update(node.operands[j] for j in self._active[key])
        return active

    def _active_operands(self, node: Node, varied: _Positions, active: _Positions) -> _Positions:
        if node.op.name == "while":
            captures = node.attrs["captures"]
            loop = self.active_loop(node, varied, active)
            return varied & {*loop.captures, *(captures + i for i in loop.carry)}
        if node.op.name == "cond":
            reached: set[int] = set()
            for region in node.regions:
                inside = self.varied_values(region, [v for j, v in enumerate(region.inputs, 1) if j in varied])
                live = self._active_values(region, inside, [region.outputs[i] for i in active])
                reached.update(j for j, v in enumerate(region.inputs, 1) if v in live)
            return frozenset(reached)
        if node.op.name == "call":
            return varied
        return frozenset(j for j in varied if operand_reached(node, j))


def _positions(values: Sequence[Value], among: AbstractSet[Value]) -> _Positions:
    """The positions of those values that are `among` others."""
    return frozenset(i for i, v in enumerate(values) if v in among)
