"""Reads come before updates: what looks at an array or stack does so before another op replaces it, where it can.

An update happens in place where nothing looks at the old value afterwards; otherwise it costs a copy of all of it, and
its gradient a cotangent as large, in every iteration.

In: any graph. Out: no node that reads a part of a value comes after a node of the same region that updates the value,
unless it needs something computed from then on.
"""

from __future__ import annotations

from collections.abc import Sequence

from ctrlgrad.ir import Graph, Node, Rewriter, Value


def read_first(graph: Graph) -> Graph:
    """The graph with reads in front of updates, in all of its regions."""
    return _ReadingFirst(graph).run()


class _ReadingFirst(Rewriter):
    def visit(self, node: Node) -> None:
        return None

    def arranged(self, nodes: Sequence[Node]) -> Sequence[Node]:
        late = _late_reads(nodes)
        moving = {read for reads in late.values() for read in reads}
        ordered: list[Node] = []
        for node in nodes:
            ordered += late.get(node, [])
            if node not in moving:
                ordered.append(node)
        return ordered


def _late_reads(nodes: Sequence[Node]) -> dict[Node, list[Node]]:
    """For each update the reads that come after it and could come before."""
    updated: dict[Value, tuple[int, Node]] = {}
    defined: dict[Value, int] = {}
    # Constants stand where they are first used; they move along.
    constants = {node.result: node for node in nodes if node.op.name == "constant"}
    late: dict[Node, list[Node]] = {}
    for position, node in enumerate(nodes):
        defined.update((v, position) for v in node.results)
        if node.op.updates:
            updated.setdefault(node.operands[0], (position, node))
        elif node.op.use(0).observes and node.operands[0] in updated:
            place, update = updated[node.operands[0]]
            after = [v for v in node.operands if defined.get(v, -1) >= place]
            if all(v in constants for v in after):
                late.setdefault(update, []).extend([*(constants[v] for v in after), node])
                defined.update(dict.fromkeys([*after, node.result], place - 1))
    return late
