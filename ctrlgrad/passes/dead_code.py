"""Dead code: what no output needs is dropped, inside loops and branches too.

In: any graph. Out: the same inputs and outputs; no node without a used result but those that have an effect; no loop
carry that only feeds itself; no capture or branch operand that no region uses; no push on a stack of which nothing is
used. A call with a rule of the user's stays whole.
"""

from __future__ import annotations

from collections.abc import Iterable

from ctrlgrad.ir import Graph, Node, Value
from ctrlgrad.ir.effects import has_effect


def remove_dead_code(graph: Graph) -> Graph:
    """The graph without what its outputs do not need."""
    nodes, _ = _live_nodes(graph, graph.outputs)
    return Graph(graph.inputs, nodes, graph.outputs, graph.name)


def _live_nodes(graph: Graph, outputs: Iterable[Value]) -> tuple[tuple[Node, ...], set[Value]]:
    """The nodes that `outputs` need, pruned themselves, and all values that are needed."""
    live = set(outputs)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if not any(v in live for v in node.results) and not has_effect(node.op, node.regions):
            continue
        pruned = _PRUNE[node.op.name](node, live) if node.op.name in _PRUNE else node
        live.update(pruned.operands)
        kept.append(pruned)
    return tuple(reversed(kept)), live


def _live_inputs(graph: Graph, outputs: Iterable[Value]) -> set[Value]:
    return _live_nodes(graph, outputs)[1]


def _prune_while(node: Node, live: set[Value]) -> Node:
    cond, body = node.regions
    captures = node.attrs["captures"]
    carry = range(len(node.results))
    test_live = _live_inputs(cond, cond.outputs)
    needed = {i for i in carry if node.results[i] in live or cond.inputs[captures + i] in test_live}
    while True:
        body_live = _live_inputs(body, [body.outputs[i] for i in needed])
        more = needed | {i for i in carry if body.inputs[captures + i] in body_live}
        if more == needed:
            break
        needed = more
    shared = [j for j in range(captures) if body.inputs[j] in body_live or cond.inputs[j] in test_live]
    kept = [*shared, *(captures + i for i in sorted(needed))]
    if len(kept) == len(node.operands):
        regions = (remove_dead_code(cond), remove_dead_code(body))
        return Node(node.op, node.operands, node.results, node.attrs, regions, node.source)
    outputs = tuple(body.outputs[i] for i in sorted(needed))
    new_body = Graph(tuple(body.inputs[k] for k in kept), _live_nodes(body, outputs)[0], outputs, body.name)
    new_cond = Graph(tuple(cond.inputs[k] for k in kept), _live_nodes(cond, cond.outputs)[0], cond.outputs, cond.name)
    attrs = {**node.attrs, "captures": len(shared)}
    operands = tuple(node.operands[k] for k in kept)
    results = tuple(node.results[i] for i in sorted(needed))
    return Node(node.op, operands, results, attrs, (new_cond, new_body), node.source)


def _prune_cond(node: Node, live: set[Value]) -> Node:
    needed = [i for i, v in enumerate(node.results) if v in live]
    pruned = []
    used: set[int] = set()
    for region in node.regions:
        outputs = tuple(region.outputs[i] for i in needed)
        nodes, inside = _live_nodes(region, outputs)
        used.update(j for j, v in enumerate(region.inputs) if v in inside)
        pruned.append((region, nodes, outputs))
    kept = sorted(used)
    regions = tuple(
        Graph(tuple(region.inputs[j] for j in kept), nodes, outputs, region.name) for region, nodes, outputs in pruned
    )
    operands = (node.operands[0], *(node.operands[1 + j] for j in kept))
    results = tuple(node.results[i] for i in needed)
    return Node(node.op, operands, results, node.attrs, regions, node.source)


def _prune_call(node: Node, live: set[Value]) -> Node:
    """A checkpoint keeps the results that are used; a rule of the user's stays whole."""
    if node.attrs["kind"] != "checkpoint":
        return node
    region, captures = node.regions[0], node.attrs["captures"]
    needed = [i for i, v in enumerate(node.results) if v in live]
    outputs = tuple(region.outputs[i] for i in needed)
    nodes, inside = _live_nodes(region, outputs)
    kept = [j for j, v in enumerate(region.inputs) if v in inside]
    pruned = Graph(tuple(region.inputs[j] for j in kept), nodes, outputs, region.name)
    attrs = {**node.attrs, "captures": sum(j < captures for j in kept)}
    operands = tuple(node.operands[j] for j in kept)
    results = tuple(node.results[i] for i in needed)
    return Node(node.op, operands, results, attrs, (pruned,), node.source)


_PRUNE = {"while": _prune_while, "cond": _prune_cond, "call": _prune_call}
