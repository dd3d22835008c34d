"""One way to rewrite a graph: node by node, the regions of a node before the node itself.

    def visit(node: Node, builder: Builder) -> Sequence[Value] | None:
        ...  # emit what stands for the node, and return what stands for its results; None: the node stays

    rewrite(graph, visit)

A node is visited with its operands replaced and its regions rewritten. What nothing was done to is the same object as
before: a node, a region, the graph itself. Equal small constants of one graph become one. A pass that knows
something about the graph around a node subclasses `Rewriter`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ctrlgrad.ir.builder import Builder
from ctrlgrad.ir.graph import Graph, Node, Value

Visit = Callable[[Node, Builder], Sequence[Value] | None]


class Rewriter:
    """A graph that is being rewritten; `owner` is the node whose region it is, a node of the graph of `outer`."""

    def __init__(self, graph: Graph, outer: Rewriter | None = None, owner: Node | None = None) -> None:
        self.graph = graph
        self.outer = outer
        self.owner = owner
        self.builder = Builder(name=graph.name)
        self.builder.inputs = list(graph.inputs)
        self._renamed: dict[Value, Value] = {}

    def visit(self, node: Node) -> Sequence[Value] | None:
        """Return the values that replace the node's results, emitted by `self.builder`; None to keep the node."""
        raise NotImplementedError

    def region(self, node: Node, region: Graph) -> Graph:
        """A region of a node of this graph, rewritten."""
        return type(self)(region, self, node).run()

    def arranged(self, nodes: Sequence[Node]) -> Sequence[Node]:
        """The rewritten nodes in the order that they are to have."""
        return nodes

    def value(self, value: Value) -> Value:
        """Return the new graph's value for a value of the old graph."""
        return self._renamed.get(value, value)

    def _arrived(self, node: Node) -> Node:
        """A node with its operands replaced and its regions rewritten."""
        operands = tuple([self._renamed.get(v, v) for v in node.operands])
        regions = tuple([self.region(node, region) for region in node.regions])
        if operands == node.operands and regions == node.regions:
            return node
        return replace(node, operands=operands, regions=regions)

    def run(self) -> Graph:
        for node in self.graph.nodes:
            if self._renamed or node.regions:
                node = self._arrived(node)
            self.builder.source = node.source
            found = self.visit(node)
            if found is None:
                found = self.builder.keep(node)
            if found is not node.results:
                for old, new in zip(node.results, found, strict=True):
                    if old is not new:
                        self._renamed[old] = new
        nodes = tuple(self.arranged(self.builder.nodes))
        outputs = tuple(map(self.value, self.graph.outputs))
        if nodes == self.graph.nodes and outputs == self.graph.outputs:
            return self.graph
        return Graph(self.graph.inputs, nodes, outputs, self.graph.name)


class _Plain(Rewriter):
    def __init__(self, graph: Graph, visit: Visit) -> None:
        super().__init__(graph)
        self._visit = visit

    def visit(self, node: Node) -> Sequence[Value] | None:
        return self._visit(node, self.builder)

    def region(self, node: Node, region: Graph) -> Graph:
        return rewrite(region, self._visit)


def rewrite(graph: Graph, visit: Visit) -> Graph:
    """The graph with what `visit` makes of each of its nodes, and of those in regions."""
    return _Plain(graph, visit).run()
