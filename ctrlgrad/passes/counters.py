"""Counters leave checkpoints: what a function that is computed again only counts is counted beside it.

A loop whose whole body is a checkpoint carries its counter through the call. Counted outside, it is seen to follow from
the number of the iteration, and the gradient saves nothing for it.

In: any graph. Out: nothing uses a result of a checkpoint that is an int64 scalar and made of its operands and constants
by sums and differences; such a result stays, unused.
"""

from __future__ import annotations

from collections.abc import Sequence

from ctrlgrad.ir import INDEX, Builder, Call, Graph, Node, Value, copy_node, definitions, is_call, rewrite


def count_outside(graph: Graph) -> Graph:
    """The graph with counters counted outside of its checkpoints, inside regions too."""
    return rewrite(graph, _count_results)


def _count_results(node: Node, builder: Builder) -> Sequence[Value] | None:
    if not is_call(node, "checkpoint"):
        return None
    call = Call.of(node)
    inside = dict(zip(call.function.inputs, call.operands, strict=True))
    producers = definitions(call.function)
    builder.keep(node)
    return [
        _count(builder, output, producers, inside)
        if output.type == INDEX and _is_counted(output, producers, inside)
        else result
        for result, output in zip(call.results, call.function.outputs, strict=True)
    ]


def _is_counted(value: Value, producers: dict[Value, Node], inside: dict[Value, Value]) -> bool:
    node = producers.get(value)
    if node is None or node.op.name == "constant":
        return value.type == INDEX and (node is not None or value in inside)
    return node.op.name in ("add", "subtract") and all(_is_counted(v, producers, inside) for v in node.operands)


def _count(builder: Builder, value: Value, producers: dict[Value, Node], inside: dict[Value, Value]) -> Value:
    if value not in inside:
        for v in producers[value].operands:
            _count(builder, v, producers, inside)
        copy_node(builder, producers[value], inside)
    return inside[value]
