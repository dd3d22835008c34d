"""Walks over the operations of a graph: regions, effects, dependence, and copies with changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from ctrlgrad.ir import attributes
from ctrlgrad.ir.builder import Builder
from ctrlgrad.ir.control import Branch, Call, Loop, view
from ctrlgrad.ir.graph import Graph, Node, Value
from ctrlgrad.ir.op import Op, Trait, Use


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


# Effects: what a node does besides computing its results, itself or inside its regions.


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
    loop = attributes.Loop.find(node)
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


# Dependence analysis: the values that depend on the elements of some inputs, not on their sizes alone.
#
# For a loop this is a least fixpoint over its carry; if the predicate depends on the inputs, all results do. The
# answer of a node is cached for each set of its operands, as in `gradients.activity`, so nested loops cost time
# linear in the number of nodes.
#
# Elements count as finite: `isfinite` is true, and `dead and not isfinite(x)`, the condition of a strong zero
# (`gradients.strong_zeros`), is false whatever `dead` depends on.


_Positions = frozenset[int]


def dependent_outputs(graph: Graph, inputs: Iterable[int]) -> list[int]:
    """The positions of the outputs that depend on the elements of the inputs at these positions."""
    found = _Dependence().values(graph, [graph.inputs[i] for i in inputs])
    return [i for i, v in enumerate(graph.outputs) if v in found]


class _Dependence:
    """The answers of the nodes of a graph and of its regions."""

    def __init__(self) -> None:
        self._known: dict[tuple[Node, _Positions], _Positions] = {}

    def values(self, graph: Graph, start: Iterable[Value]) -> set[Value]:
        """The values of a graph that depend on some of its inputs."""
        found = set(start)
        true: set[Value] = set()
        false: set[Value] = set()
        for node in graph.nodes:
            if node.op.name == "isfinite":
                true.add(node.result)
                continue
            if node.op.name == "logical_not" and node.operands[0] in true:
                false.add(node.result)
            if node.op.name == "logical_and" and not false.isdisjoint(node.operands):
                false.add(node.result)
                continue
            operands = frozenset(
                i for i, v in enumerate(node.operands) if v in found and node.op.use(i) is not Use.MEASURE
            )
            if operands:
                key = (node, operands)
                if key not in self._known:
                    self._known[key] = self._results(node, operands)
                found.update(node.results[i] for i in self._known[key])
        return found

    def _results(self, node: Node, operands: _Positions) -> _Positions:
        match view(node):
            case Loop() as loop:
                return self._of_loop(loop, operands)
            case Branch() as branch if 0 not in operands:
                regions, entered = branch.branches, [i - 1 for i in operands]
            case Call() as call:
                regions, entered = (call.function,), [*operands]
            case _:
                return frozenset(range(len(node.results)))
        return frozenset(
            i
            for region in regions
            for inside in [self.values(region, [region.inputs[j] for j in entered])]
            for i, v in enumerate(region.outputs)
            if v in inside
        )

    def _of_loop(self, loop: Loop, operands: _Positions) -> _Positions:
        given = {loop.operands[i] for i in operands}
        shared = [c for c in loop.captures if c.outer in given]
        carried = [c for c in loop.carries if c.init in given]
        while True:
            inside = self.values(loop.body, [*(c.in_body for c in shared), *(c.in_body for c in carried)])
            more = [c for c in loop.carries if c in carried or c.next in inside]
            if more == carried:
                break
            carried = more
        if loop.predicate in self.values(loop.cond, [*(c.in_cond for c in shared), *(c.in_cond for c in carried)]):
            return frozenset(range(len(loop.results)))
        return frozenset(i for i, c in enumerate(loop.carries) if c in carried)


# One way to rewrite a graph: node by node, the regions of a node before the node itself.
#
#     def visit(node: Node, builder: Builder) -> Sequence[Value] | None:
#         ...  # emit what stands for the node, and return what stands for its results; None: the node stays
#
#     rewrite(graph, visit)
#
# A node is visited with its operands replaced and its regions rewritten. What nothing was done to is the same object
# as before: a node, a region, the graph itself. Equal small constants of one graph become one. A pass that knows
# something about the graph around a node subclasses `Rewriter`.


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
