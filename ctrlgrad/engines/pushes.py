"""What a loop pushes, and why: for reports, profiles and errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ctrlgrad.engines.reference.control_kernels import loop_name
from ctrlgrad.ir import Graph, Node, Value, attributes, definitions, is_loop
from ctrlgrad.ir.caching import Cache


@dataclass(frozen=True)
class Pushed:
    """The values that go on one stack: a name, why they are saved, and where the user wrote them."""

    name: str
    reason: str
    source: str

    @property
    def label(self) -> str:
        return f"{self.name}{self.source}"


def describe(loop: Node, position: int) -> Pushed:
    """What stands behind the stack at a position of a loop's operands."""
    body = loop.regions[1]
    stack = body.inputs[position]
    name = stack.hint or "stack"
    producers = definitions(body)
    for node in body.nodes:
        if node.op.name == "stack_push" and node.operands[0] is stack:
            producer = producers.get(node.operands[1])
            if producer is None:
                return Pushed(name, "a value that the loop carries, needed backwards", _at(node))
            return Pushed(name, f"the result of {producer.op.name}, needed backwards", _at(producer))
    return Pushed(name, "pushed in a branch or a loop inside", _at(loop))


def _at(node: Node) -> str:
    return f" (at {node.source})" if node.source is not None else ""


# Pushes that are run one by one.


@dataclass(frozen=True)
class RowPush:
    """A push by itself: the names of its loop and of what it saves, and what the loop's `swap_memory` says."""

    loop: str
    label: str
    swap: bool | None


def row_push(node: Node, producer: Node | None = None, loop: Node | None = None, swap: bool | None = None) -> RowPush:
    """What stands behind a push: the node that makes the row, and the loop that it is in, as far as they are known."""
    name = node.operands[0].hint or node.result.hint or "stack"
    where = f"pushes{_at(node)}" if loop is None else loop_name(loop)
    return RowPush(where, f"{name}{_at(producer or node)}", swap)


_ROW_PUSHES: Cache[None, Mapping[Node, RowPush]] = Cache(1)


def row_pushes_of(graph: Graph) -> Mapping[Node, RowPush]:
    """All pushes of a graph, found once and kept with it."""

    def find() -> dict[Node, RowPush]:
        found: dict[Node, RowPush] = {}
        add_row_pushes(found, graph, None, None)
        return found

    return _ROW_PUSHES.get(graph, None, find)


def add_row_pushes(found: dict[Node, RowPush], graph: Graph, loop: Node | None, swap: bool | None) -> None:
    """Add the pushes of a graph that stands in a loop; of several options around a push the nearest one holds."""
    producers: Mapping[Value, Node] | None = None
    for node in graph.nodes:
        if node.op.name == "stack_push":
            producers = producers or definitions(graph)
            found[node] = row_push(node, producers.get(node.operands[1]), loop, swap)
        elif is_loop(node):
            option = attributes.Loop.of(node).swap_memory
            for region in node.regions:
                add_row_pushes(found, region, node, swap if option is None else option)
        else:
            for region in node.regions:
                add_row_pushes(found, region, loop, swap)


__all__ = ["Pushed", "RowPush", "add_row_pushes", "describe", "row_push", "row_pushes_of"]
