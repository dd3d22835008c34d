"""Descriptions of the rows that a loop pushes, and of their origin: for reports, profiles and errors."""

from __future__ import annotations

from collections.abc import Mapping

from ctrlgrad.engines.reference.control_kernels import loop_name
from ctrlgrad.ir import Graph, Loop, Node, StackType, Use, attributes, definitions, is_loop
from ctrlgrad.ir.caching import Cache
from ctrlgrad.ir.flow import in_an_iteration
from ctrlgrad.records import record


@record
class Pushed:
    """The values that go on one stack: a name, why they are saved, and where the user wrote them."""

    name: str
    reason: str
    source: str

    @property
    def label(self) -> str:
        return f"{self.name}{self.source}"


def describe(node: Node, number: int) -> Pushed:
    """Description of one of the stacks that a loop carries, the one with position `number` among them."""
    loop = Loop.of(node)
    carry = [c for c in loop.carries if isinstance(c.init.type, StackType)][number]
    name = carry.in_body.hint or "stack"
    push = next((event.node for event in in_an_iteration(loop, carry) if event.kind == "push"), None)
    if push is None:
        return Pushed(name, "pushed in a branch or a loop inside", _at(node))
    producer = definitions(loop.body).get(push.operands[1])
    if producer is None:
        return Pushed(name, "a value that the loop carries, needed backwards", _at(push))
    return Pushed(name, f"the result of {producer.op.name}, needed backwards", _at(producer))


def _at(node: Node) -> str:
    return f" (at {node.source})" if node.source is not None else ""


# Pushes that are run one by one.


@record
class RowPush:
    """A push by itself: the names of its loop and of what it saves, and what the loop's `swap_memory` says."""

    loop: str
    label: str
    swap: bool | None


def row_push(node: Node, producer: Node | None = None, loop: Node | None = None, swap: bool | None = None) -> RowPush:
    """Description of a push: the node that makes the row, and the loop around, as far as they are known."""
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
    producers = definitions(graph)
    for node in graph.nodes:
        if node.op.has_use(Use.PUSH):
            found[node] = row_push(node, producers.get(node.operands[1]), loop, swap)
        inner, option = (node, attributes.Loop.of(node).swap_memory) if is_loop(node) else (loop, None)
        for region in node.regions:
            add_row_pushes(found, region, inner, swap if option is None else option)
