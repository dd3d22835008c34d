"""Which values a derivative has to visit.

A value is *varied* when it depends differentiably on an input that is differentiated. It is *active* when,
besides, a cotangent reaches it from an output that has one. For a loop both are least fixpoints over its carry:
what goes round the loop once may reach any carry in the next iteration.
"""

from __future__ import annotations

from collections.abc import Iterable

from ctrlgrad.gradients.table import operand_reached
from ctrlgrad.ir import Graph, Node, Value


def varied_values(graph: Graph, inputs: Iterable[Value]) -> set[Value]:
    """The varied values of a graph, given which of its inputs are."""
    varied = {v for v in inputs if v.type.is_differentiable}
    for node in graph.nodes:
        varied.update(_varied_results(node, varied))
    return varied


def _varied_results(node: Node, varied: set[Value]) -> list[Value]:
    if not any(v in varied for v in node.operands):
        return []
    if node.op.name == "while":
        carried = varied_carry(node, varied)
        return [v for position, v in enumerate(node.results) if position in carried]
    if node.op.name == "cond":
        found: set[int] = set()
        for region in node.regions:
            inside = varied_values(region, _facing(node, region, 1, varied))
            found.update(i for i, v in enumerate(region.outputs) if v in inside)
        return [v for position, v in enumerate(node.results) if position in found and v.type.is_differentiable]
    if node.op.name == "call":
        return [v for v in node.results if v.type.is_differentiable]
    if any(v in varied and operand_reached(node, i) for i, v in enumerate(node.operands)):
        return [v for v in node.results if v.type.is_differentiable]
    return []


def _facing(node: Node, region: Graph, first: int, values: set[Value]) -> list[Value]:
    """The region's inputs that face operands in `values`; operand `first` faces input 0."""
    return [inner for outer, inner in zip(node.operands[first:], region.inputs, strict=True) if outer in values]


def varied_carry(node: Node, varied: set[Value]) -> set[int]:
    """The positions of a loop's carry that are varied."""
    body, captures = node.regions[1], node.attrs["captures"]
    carry = body.inputs[captures:]
    shared = [inner for outer, inner in zip(node.operands, body.inputs[:captures], strict=False) if outer in varied]
    found = {i for i, v in enumerate(node.operands[captures:]) if v in varied}
    while True:
        inside = varied_values(body, [*shared, *(carry[i] for i in found)])
        more = found | {i for i, v in enumerate(body.outputs) if v in inside and carry[i].type.is_differentiable}
        if more == found:
            return found
        found = more


def active_values(graph: Graph, varied: set[Value], outputs: Iterable[Value]) -> set[Value]:
    """The varied values that a cotangent reaches, given the outputs that have one."""
    active = {v for v in outputs if v in varied}
    for node in reversed(graph.nodes):
        if any(v in active for v in node.results):
            active.update(_active_operands(node, varied, active))
    return active


def _active_operands(node: Node, varied: set[Value], active: set[Value]) -> list[Value]:
    if node.op.name == "while":
        captures = node.attrs["captures"]
        loop = active_loop(node, varied, {i for i, v in enumerate(node.results) if v in active})
        positions = [*loop.captures, *(captures + i for i in loop.carry)]
        return [node.operands[i] for i in positions if node.operands[i] in varied]
    if node.op.name == "cond":
        wanted = [i for i, v in enumerate(node.results) if v in active]
        reached: list[Value] = []
        for region in node.regions:
            inside = varied_values(region, _facing(node, region, 1, varied))
            live = active_values(region, inside, [region.outputs[i] for i in wanted])
            reached += [o for o, inner in zip(node.operands[1:], region.inputs, strict=True) if inner in live]
        return reached
    if node.op.name == "call":
        return [v for v in node.operands if v in varied]
    return [v for i, v in enumerate(node.operands) if v in varied and operand_reached(node, i)]


class ActiveLoop:
    """The carry and capture positions of a loop that get cotangents, and the varied values of its body."""

    def __init__(self, carry: list[int], captures: list[int], varied: set[Value]) -> None:
        self.carry = carry
        self.captures = captures
        self.varied = varied


def active_loop(node: Node, varied: set[Value], results: set[int]) -> ActiveLoop:
    """The activity of a loop, given which of its results have cotangents."""
    body, captures = node.regions[1], node.attrs["captures"]
    carry = body.inputs[captures:]
    moving = varied_carry(node, varied)
    shared = [inner for outer, inner in zip(node.operands, body.inputs[:captures], strict=False) if outer in varied]
    inside = varied_values(body, [*shared, *(carry[i] for i in moving)])
    found = results & moving
    while True:
        live = active_values(body, inside, [body.outputs[i] for i in found])
        more = found | {i for i in moving if carry[i] in live}
        if more == found:
            break
        found = more
    reached = [j for j, v in enumerate(body.inputs[:captures]) if v in live]
    return ActiveLoop(sorted(found), reached, inside)
