"""Which loops may stay whole: those that all sit on one device.

A loop that stays is one node: nothing of it overlaps with anything else, and in exchange it runs as one piece, in
machine code where the native engine can. Only the setting `loops="whole"` asks for it.
"""

from __future__ import annotations

from collections.abc import Callable

from ctrlgrad.dataflow.devices import DEFAULT
from ctrlgrad.ir import Graph, Node, walk


def whole_loops(graph: Graph) -> Callable[[Node], str | None]:
    """Says of a loop of the graph on which device it stays whole; None where it sits on several."""
    homes: dict[Node, set[str]] = {}
    for node in walk(graph):
        if node.op.name == "while":
            inside = [n for region in node.regions for n in walk(region) if n.op.name != "constant"]
            homes[node] = {_home(n) for n in inside} or {_home(node)}
    return lambda node: next(iter(homes[node])) if len(homes[node]) == 1 else None


def _home(node: Node) -> str:
    return (node.source.device if node.source is not None else None) or DEFAULT


__all__ = ["whole_loops"]
