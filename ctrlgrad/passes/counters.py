"""Counters leave checkpoints: what a function that is computed again only counts is counted beside it.

A loop whose whole body is a checkpoint carries its counter through the call. Counted outside, it is seen to follow from
the number of the iteration, and the gradient saves nothing for it.

In: any graph. Out: nothing uses a result of a checkpoint that is an int64 scalar and made of its operands and constants
by sums and differences; such a result stays, unused.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ctrlgrad.ir import (
    INDEX,
    Builder,
    Call,
    Counting,
    Graph,
    Loop,
    Node,
    Rewriter,
    Value,
    attributes,
    copy_node,
    definitions,
    is_call,
    is_loop,
    rewrite,
)

# Counts: what the counter of a loop ends with is computed from the loop's bound, not asked of the loop.
#
# Nothing that comes later then depends on the loop for it, and a gradient that needs it in every iteration of a loop
# around computes it again, where it would have to save a result.
#
# In: any graph. Out: no used result of a loop is its counter, if the loop counts (`ir.Counting`) and has no
# `maximum_iterations`.


def know_counts(graph: Graph) -> Graph:
    """The graph with such results computed beside the loops, in all regions."""
    return _KnowingCounts(graph).run()


class _KnowingCounts(Rewriter):
    def __init__(self, graph: Graph, outer: Rewriter | None = None, owner: Node | None = None) -> None:
        super().__init__(graph, outer, owner)
        self._used = {v for node in graph.nodes for v in node.operands}.union(graph.outputs)

    def visit(self, node: Node) -> Sequence[Value] | None:
        if not is_loop(node) or self._used.isdisjoint(node.results):
            return None
        loop = Loop.of(node)
        # Without a use of its results a loop goes, and with it the error of one that may run too often.
        counting = Counting.of(loop, self._number) if loop.attrs.maximum_iterations is None else None
        if counting is None or counting.carry.result not in self._used:
            return None
        self.builder.keep(node)
        last = counting.last(self.builder, self._number)
        return [last if c.result is counting.carry.result else c.result for c in loop.carries]

    def _number(self, value: Value) -> np.ndarray | None:
        node = next((n for n in self.builder.nodes if value in n.results), None)
        constant = None if node is None else attributes.Constant.find(node)
        return None if constant is None else constant.value


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
