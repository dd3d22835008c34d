"""Loop invariants: what every iteration would compute alike moves in front of the loop and becomes a capture.

In: any graph. Out: in no cond or body of a loop does a total, pure node depend on captures and constants alone, but
for nodes with regions and what is in branches; no carry is passed through unchanged that starts with its result's type.
Only ops that cannot fail move, since the loop may take no iteration at all. Constants stay: a region may hold its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from ctrlgrad.ir import Graph, Node, Value
from ctrlgrad.ops.traits import is_total


def hoist_invariants(graph: Graph) -> Graph:
    """The graph with invariants hoisted out of all of its loops, inner loops first."""
    nodes: list[Node] = []
    renamed: dict[Value, Value] = {}
    for node in graph.nodes:
        operands = tuple(renamed.get(v, v) for v in node.operands)
        regions = tuple(hoist_invariants(region) for region in node.regions)
        if regions or operands != node.operands:
            node = Node(node.op, operands, node.results, node.attrs, regions, node.source)
        if node.op.name == "while":
            hoisted, node = _hoist_from_loop(_capture_constant_carries(node, renamed))
            nodes += hoisted
        nodes.append(node)
    return Graph(graph.inputs, tuple(nodes), tuple(renamed.get(v, v) for v in graph.outputs), graph.name)


def _capture_constant_carries(node: Node, renamed: dict[Value, Value]) -> Node:
    """Turn each carry that the body passes through unchanged into a capture."""
    body, captures = node.regions[1], node.attrs["captures"]
    still = [
        i
        for i, v in enumerate(body.outputs)
        if v is body.inputs[captures + i] and node.operands[captures + i].type == node.results[i].type
    ]
    if not still:
        return node
    moving = [i for i in range(len(node.results)) if i not in still]
    order = [*range(captures), *(captures + i for i in (*still, *moving))]
    regions = []
    for region in node.regions:
        outputs = tuple(region.outputs[i] for i in moving) if region is body else region.outputs
        regions.append(Graph(tuple(region.inputs[k] for k in order), region.nodes, outputs, region.name))
    for i in still:
        renamed[node.results[i]] = node.operands[captures + i]
    attrs = {**node.attrs, "captures": captures + len(still)}
    operands = tuple(node.operands[k] for k in order)
    results = tuple(node.results[i] for i in moving)
    return Node(node.op, operands, results, attrs, tuple(regions), node.source)


def _hoist_from_loop(node: Node) -> tuple[list[Node], Node]:
    """The nodes to stand in front of the loop, and the loop without them."""
    cond, body = node.regions
    captures = node.attrs["captures"]
    hoisted: list[Node] = []
    added: list[tuple[Value, Value]] = []  # the hoisted value outside, its former self in the region
    kept_nodes = []
    for region in (cond, body):
        outside = dict(zip(region.inputs[:captures], node.operands[:captures], strict=True))
        constants = {n.result: n for n in region.nodes if n.op.name == "constant"}
        copied: dict[Value, Value] = {}
        kept: list[Node] = []
        for inner in region.nodes:
            if not _is_invariant(inner, outside, constants):
                kept.append(inner)
                continue
            for v in inner.operands:
                if v in constants and v not in outside and v not in copied:
                    copied[v] = Value(v.type, v.hint)
                    source = constants[v]
                    hoisted.append(Node(source.op, (), (copied[v],), source.attrs, (), source.source))
            operands = tuple(outside.get(v) or copied[v] for v in inner.operands)
            results = tuple(Value(v.type, v.hint) for v in inner.results)
            hoisted.append(Node(inner.op, operands, results, inner.attrs, (), inner.source))
            outside.update(zip(inner.results, results, strict=True))
            added += zip(results, inner.results, strict=True)
        kept_nodes.append(tuple(kept))
    if not hoisted:
        return [], node
    regions = [
        Graph(_extended(region, captures, added), nodes, region.outputs, region.name)
        for region, nodes in zip((cond, body), kept_nodes, strict=True)
    ]
    operands = (*node.operands[:captures], *(outer for outer, _ in added), *node.operands[captures:])
    attrs = {**node.attrs, "captures": captures + len(added)}
    return hoisted, Node(node.op, operands, node.results, attrs, tuple(regions), node.source)


def _is_invariant(node: Node, outside: dict[Value, Value], constants: dict[Value, Node]) -> bool:
    if node.regions or node.op.name == "constant":
        return False
    # What is computed again behind a barrier is computed again once, in front of the loop.
    if node.op.name != "barrier" and not is_total(node):
        return False
    return all(v in outside or v in constants for v in node.operands)


def _extended(region: Graph, captures: int, added: Sequence[tuple[Value, Value]]) -> tuple[Value, ...]:
    """The region's inputs with one more capture per hoisted value: its own former value, or a fresh one."""
    own = {v for n in region.nodes for v in n.results}
    more = tuple(inner if inner in own else Value(inner.type, inner.hint) for _, inner in added)
    return (*region.inputs[:captures], *more, *region.inputs[captures:])
