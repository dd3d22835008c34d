"""Activity analysis: the values that a derivative has to visit.

A value is *varied* when it depends differentiably on an input that is differentiated. It is *active* when, besides, a
cotangent reaches it from an output that has one. For a loop both are least fixpoints over its carry: a value that goes
round the loop once may reach any carry in the next iteration.

A fixpoint asks the nodes in its loop the same question again and again, and each of these may be a loop. So the answer
of a node is cached for each set of its operands and results: nested loops cost time linear in the number of nodes.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from collections.abc import Set as AbstractSet

from ctrlgrad.gradients.table import operand_reached
from ctrlgrad.ir import Branch, Call, Graph, Loop, Node, Value, view
from ctrlgrad.ir.control import Capture, Carry
from ctrlgrad.records import record

_Positions = frozenset[int]


@record
class ActiveLoop:
    """The carries and captures of a loop that get cotangents, and the varied values of its body."""

    carries: list[Carry]
    captures: list[Capture]
    varied: set[Value]


class Activity:
    """The activity of a graph and of its regions, with the answers that nodes have given so far."""

    def __init__(self) -> None:
        # Varied operands -> varied results.
        self._varied: dict[tuple[Node, _Positions], _Positions] = {}
        # Varied operands and active results -> active operands.
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

    def _varied_results(self, node: Node, positions: _Positions) -> _Positions:
        varied = {node.operands[j] for j in positions}
        found: set[int] = set()
        match view(node):
            case Loop() as loop:
                return _positions(node.results, {c.result for c in self.varied_carries(loop, varied)})
            case Branch() as branch:
                for region in branch.branches:
                    inside = self.varied_values(region, _entered(branch, region, varied))
                    found.update(_positions(region.outputs, inside))
            case Call() as call if call.rule is not None:
                found.update(_varied_by_rule(call, varied))
            case Call():
                found.update(range(len(node.results)))
            case _ if any(operand_reached(node, j) for j in positions):
                found.update(range(len(node.results)))
        return frozenset(i for i in found if node.results[i].type.is_differentiable)

    def varied_carries(self, loop: Loop, varied: Container[Value]) -> list[Carry]:
        """The carries of a loop that are varied, given which of its operands are."""
        shared = [c.in_body for c in loop.captures if c.outer in varied]
        found = [c for c in loop.carries if c.init in varied]
        while True:
            inside = self.varied_values(loop.body, [*shared, *(c.in_body for c in found)])
            more = [c for c in loop.carries if c in found or (c.next in inside and c.in_body.type.is_differentiable)]
            if more == found:
                return found
            found = more

    def active_loop(self, loop: Loop, varied: Container[Value], active: Container[Value]) -> ActiveLoop:
        """The activity of a loop, given which operands are varied and which results have cotangents."""
        moving = self.varied_carries(loop, varied)
        shared = [c.in_body for c in loop.captures if c.outer in varied]
        inside = self.varied_values(loop.body, [*shared, *(c.in_body for c in moving)])
        found = [c for c in moving if c.result in active]
        while True:
            live = self._active_values(loop.body, inside, [c.next for c in found])
            more = [c for c in moving if c in found or c.in_body in live]
            if more == found:
                return ActiveLoop(found, [c for c in loop.captures if c.in_body in live], inside)
            found = more

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

    def _active_operands(self, node: Node, positions: _Positions, results: _Positions) -> _Positions:
        varied = {node.operands[j] for j in positions}
        match view(node):
            case Loop() as loop:
                found = self.active_loop(loop, varied, {node.results[i] for i in results})
                reached = {*(c.outer for c in found.captures), *(c.init for c in found.carries)}
            case Branch() as branch:
                reached = set()
                for region in branch.branches:
                    inside = self.varied_values(region, _entered(branch, region, varied))
                    live = self._active_values(region, inside, [region.outputs[i] for i in results])
                    reached.update(v for v, inner in zip(branch.operands, region.inputs, strict=True) if inner in live)
            case Call():
                return positions
            case _:
                return frozenset(j for j in positions if operand_reached(node, j))
        return positions & _positions(node.operands, reached)


def _varied_by_rule(call: Call, varied: Container[Value]) -> Sequence[int]:
    """Positions of the varied results of a function with a rule."""
    perturbed = tuple(i for i, v in enumerate(call.arguments) if v in varied)
    closes_over_varied = any(v in varied for v in call.captured_by(call.function))
    if call.kind == "custom_jvp" and call.rule.symbolic_zeros and perturbed and not closes_over_varied:
        # The rule itself says which tangents are zero.
        found: Sequence[int] = call.rule.push(perturbed).found
        return found
    return range(len(call.results)) if perturbed or closes_over_varied else ()


def _entered(branch: Branch, region: Graph, varied: Container[Value]) -> list[Value]:
    """The inputs of a branch's region that stand for varied operands."""
    return [inner for v, inner in zip(branch.operands, region.inputs, strict=True) if v in varied]


def _positions(values: Sequence[Value], among: AbstractSet[Value]) -> _Positions:
    """The positions of the values that are in a set."""
    return frozenset(i for i, v in enumerate(values) if v in among)
