"""Calls dissolved: what was kept whole for its derivative's sake is put in place before a graph runs.

In: any graph. Out: no `call` node anywhere, or none of the given kinds.
"""

from __future__ import annotations

from collections.abc import Collection

from ctrlgrad.ir import Builder, Graph, Node, Value, copy_node, walk
from ctrlgrad.ops.call import KINDS


def inline_calls(graph: Graph, kinds: Collection[str] = KINDS) -> Graph:
    """The graph with every call of these kinds replaced by its first region."""
    if not _has_call(graph, kinds):
        return graph
    builder = Builder(name=graph.name)
    went: dict[Value, Value] = {v: builder.input(v.type, v.hint) for v in graph.inputs}
    for node in graph.nodes:
        if node.op.name == "call" and node.attrs["kind"] in kinds:
            operands = [went[v] for v in node.operands]
            results = builder.inline(inline_calls(node.regions[0], kinds), operands)
            went.update(zip(node.results, results, strict=True))
        else:
            regions = tuple(inline_calls(region, kinds) for region in node.regions)
            copy_node(builder, Node(node.op, node.operands, node.results, node.attrs, regions, node.source), went)
    return builder.finish(went[v] for v in graph.outputs)


def without_calls(graph: Graph) -> Graph:
    """What an engine runs of a graph that was not simplified: made once, however often it runs."""
    if "without calls" not in graph.compiled:
        dissolved = inline_calls(graph)
        if dissolved is graph:
            return graph
        graph.compiled["without calls"] = dissolved
    found: Graph = graph.compiled["without calls"]
    return found


def _has_call(graph: Graph, kinds: Collection[str]) -> bool:
    return any(node.op.name == "call" and node.attrs["kind"] in kinds for node in walk(graph))
