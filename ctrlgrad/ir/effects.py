"""Effects: what a node does besides computing its results, itself or inside its regions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ctrlgrad.ir.attributes import Loop
from ctrlgrad.ir.graph import Graph, Node
from ctrlgrad.ir.op import Op, Trait
from ctrlgrad.ir.walk import walk


def has_effect(op: Op, regions: Iterable[Graph]) -> bool:
    """Return true if an op with these regions has an effect besides its results."""
    return Trait.EFFECT in op.traits or any(
        Trait.EFFECT in node.op.traits for region in regions for node in walk(region)
    )


def must_run(node: Node) -> bool:
    """True if a node does more than compute its results: an effect, or a promise whose violation is an error."""
    if Trait.EFFECT in node.op.traits:
        return True
    return bool(node.regions) and (_promises(node) or any(map(must_run, _inside(node))))


def _promises(node: Node) -> bool:
    loop = Loop.find(node)
    return loop is not None and loop.maximum_iterations is not None


def _inside(node: Node) -> Iterator[Node]:
    return (inner for region in node.regions for inner in region.nodes)


def nodes_with_effects(graph: Graph) -> set[Node]:
    """All nodes of a graph and of its regions where that is so; each is looked at once."""
    found: set[Node] = set()
    for node in graph.nodes:
        inside = [nodes_with_effects(region) for region in node.regions]
        if Trait.EFFECT in node.op.traits or any(inside):
            found.add(node)
        found.update(*inside)
    return found
