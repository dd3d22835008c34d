"""Looking through a graph: every node of every region, definitions, uses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain

from ctrlgrad.ir.graph import Graph, Node, Value


def walk(graph: Graph) -> Iterator[Node]:
    """Every node, those of regions right after the node that owns them."""
    for node in graph.nodes:
        yield node
        for region in node.regions:
            yield from walk(region)


def definitions(graph: Graph) -> dict[Value, Node]:
    """The node that defines each value of this graph (not of its regions)."""
    return {value: node for node in graph.nodes for value in node.results}


def uses(graph: Graph) -> Counter[Value]:
    """Number of times that each value is an operand or output of this graph."""
    return Counter(chain(graph.outputs, chain.from_iterable(node.operands for node in graph.nodes)))


def count_ops(graph: Graph) -> Counter[str]:
    """Number of nodes of each op in the graph and its regions."""
    return Counter(node.op.name for node in walk(graph))
