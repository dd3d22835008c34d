"""Which loops may stay whole: those that all sit on one device.

A loop that stays is one node: nothing of it overlaps with anything else, and in exchange it runs as one piece, in
machine code where the native engine can. Only the setting `loops="whole"` asks for it.
"""

from __future__ import annotations

from collections.abc import Callable

from ctrlgrad.dataflow.devices import DEFAULT
from ctrlgrad.dataflow.graph import FlatNode
from ctrlgrad.dataflow.placement import Choice
from ctrlgrad.ir import Graph, Node, is_loop, walk


def whole_loops(graph: Graph, choose: Choice) -> Callable[[Node], str | None]:
    """Says of a loop of the graph on which device it stays whole; None where it sits on several.

    `choose` says where an ordinary op goes, as for `place`. What only holds others, a loop or a branch inside, sits
    with what it holds.
    """
    homes: dict[Node, str | None] = {}
    for node in walk(graph):
        if is_loop(node):
            inside = [n for region in node.regions for n in walk(region) if n.op.name != "constant" and not n.regions]
            found = {_home(n, choose) for n in inside or [node]}
            homes[node] = found.pop() if len(found) == 1 else None
    return lambda node: homes[node]


def _home(node: Node, choose: Choice) -> str:
    attrs, regions, source = node.attrs, node.regions, node.source
    as_flat = FlatNode(node.op.name, node.operands, node.results, attrs, regions=regions, source=source)
    return choose(as_flat) or DEFAULT


__all__ = ["whole_loops"]
