"""Products over a concatenation come apart where one part stands outside the recurrence of a loop.

`concat([x, h]) @ W` becomes `x @ W[:n] + h @ W[n:]` where x does not depend on what the loop carries (but for a
counter) and h does: then the product with x can be computed for many iterations at once (`distribution`).

In: any graph. Out: in no loop body is there such a product of fixed sizes.
"""

from __future__ import annotations

from ctrlgrad.ir import Builder, Graph, Node, Value, copy_node
from ctrlgrad.passes.recurrence import outside_recurrence


def split_products(graph: Graph) -> Graph:
    """The graph with such products taken apart, in all of its loops."""
    nodes = []
    for node in graph.nodes:
        regions = tuple(split_products(region) for region in node.regions)
        if node.op.name == "while":
            regions = (regions[0], _split(regions[1], node.attrs["captures"]))
        if regions:
            node = Node(node.op, node.operands, node.results, node.attrs, regions, node.source)
        nodes.append(node)
    return Graph(graph.inputs, tuple(nodes), graph.outputs, graph.name)


def _split(body: Graph, captures: int) -> Graph:
    outside = outside_recurrence(body, captures)
    made = {v: node for node in body.nodes for v in node.results}
    builder = Builder(name=body.name)
    went: dict[Value, Value] = {v: builder.input(v.type, v.hint) for v in body.inputs}
    for node in body.nodes:
        parts = _parts(node, made, outside)
        if parts is None:
            copy_node(builder, node, went)
            continue
        builder.source = node.source
        total: Value | None = None
        start = 0
        for part in parts:
            width = part.tensor.shape[1]
            assert width is not None
            key = (slice(start, start + width), slice(None))
            rows = builder.emit("getitem", [went[node.operands[1]]], {"key": key})
            product = builder.emit("matmul", [went[part], rows])
            total = product if total is None else builder.emit("add", [total, product])
            start += width
        assert total is not None
        went[node.result] = total
    return builder.finish(went[v] for v in body.outputs)


def _parts(node: Node, made: dict[Value, Node], outside: set[Value]) -> tuple[Value, ...] | None:
    """The parts of the concatenation that a product's left side is, if that should come apart."""
    if node.op.name != "matmul" or any(v.tensor.rank != 2 or not v.tensor.is_static for v in node.operands):
        return None
    left = made.get(node.operands[0])
    if left is None or left.op.name != "concat" or left.attrs["axis"] not in (1, -1):
        return None
    kinds = {v in outside for v in left.operands}
    return left.operands if kinds == {True, False} else None
