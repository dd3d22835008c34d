"""Counters leave checkpoints: what a function that is computed again only counts is counted beside it.

A loop whose whole body is a checkpoint carries its counter through the call. Counted outside, it is seen to follow from
the number of the iteration, and the gradient saves nothing for it.

In: any graph. Out: nothing uses a result of a checkpoint that is an int64 scalar and made of its operands and constants
by sums and differences; such a result stays, unused.
"""

from __future__ import annotations

from ctrlgrad.ir import INDEX, Builder, Graph, Node, Value, copy_node, definitions, walk


def count_outside(graph: Graph) -> Graph:
    """The graph with counters counted outside of its checkpoints, inside regions too."""
    if not any(_is_checkpoint(node) for node in walk(graph)):
        return graph
    builder = Builder(name=graph.name)
    went: dict[Value, Value] = {v: builder.input(v.type, v.hint) for v in graph.inputs}
    for node in graph.nodes:
        regions = tuple(count_outside(region) for region in node.regions)
        copy_node(builder, Node(node.op, node.operands, node.results, node.attrs, regions, node.source), went)
        if _is_checkpoint(node):
            region = node.regions[0]
            inside = dict(zip(region.inputs, (went[v] for v in node.operands), strict=True))
            made = definitions(region)
            for result, output in zip(node.results, region.outputs, strict=True):
                if output.type == INDEX and _is_counted(output, made, inside):
                    went[result] = _count(builder, output, made, inside)
    return builder.finish(went[v] for v in graph.outputs)


def _is_checkpoint(node: Node) -> bool:
    return node.op.name == "call" and node.attrs["kind"] == "checkpoint"


def _is_counted(value: Value, made: dict[Value, Node], inside: dict[Value, Value]) -> bool:
    node = made.get(value)
    if node is None or node.op.name == "constant":
        return value.type == INDEX and (node is not None or value in inside)
    return node.op.name in ("add", "subtract") and all(_is_counted(v, made, inside) for v in node.operands)


def _count(builder: Builder, value: Value, made: dict[Value, Node], inside: dict[Value, Value]) -> Value:
    if value not in inside:
        for v in made[value].operands:
            _count(builder, v, made, inside)
        copy_node(builder, made[value], inside)
    return inside[value]
