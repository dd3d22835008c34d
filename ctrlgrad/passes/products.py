"""Products in loops come apart where only a part of them is tied to the recurrence.

`concat([x, h]) @ W` becomes `x @ W[:n] + h @ W[n:]` where x does not depend on what the loop carries (but for a
counter) and h does: then the product with x can be computed for many iterations at once (`distribution`). So can, the
other way round, the columns of `z @ W` that the recurrence does not need: where `(z @ W)[:, :n]` only goes to a row of
an array and `(z @ W)[:, n:]` to the next iteration, they become `z @ W[:, :n]` and `z @ W[:, n:]`.

In: any graph. Out: no loop body has, outside of the branches in it, a product of fixed sizes over such a concatenation,
nor one with a captured matrix whose columns are used in slices alone, of which those that the recurrence does not need
are heavy products by themselves and none lies between the others.
"""

from __future__ import annotations

from dataclasses import dataclass

from ctrlgrad.ir import Builder, Graph, Node, Value, copy_node, definitions, uses
from ctrlgrad.passes.heavy import is_heavy
from ctrlgrad.passes.recurrence import outside_recurrence
from ctrlgrad.passes.tails import Loop, can_leave


def split_products(graph: Graph) -> Graph:
    """The graph with such products taken apart, in all of its loops."""
    nodes = []
    for node in graph.nodes:
        regions = tuple(split_products(region) for region in node.regions)
        if node.op.name == "while":
            regions = (regions[0], _split_columns(regions[0], _split(regions[1], node), node))
        if regions:
            node = Node(node.op, node.operands, node.results, node.attrs, regions, node.source)
        nodes.append(node)
    return Graph(graph.inputs, tuple(nodes), graph.outputs, graph.name)


def _split(body: Graph, loop: Node) -> Graph:
    """Products over concatenations taken apart."""
    outside = outside_recurrence(body, loop.attrs["captures"], loop.attrs.get("counts_down", False))
    made = definitions(body)
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


@dataclass(frozen=True)
class _Columns:
    """The columns of a matrix from one number up to another."""

    start: int
    stop: int

    @property
    def width(self) -> int:
        return self.stop - self.start


def _split_columns(cond: Graph, body: Graph, node: Node) -> Graph:
    """Products of which the recurrence needs some columns only taken apart."""
    loop = Loop(cond, body, node.attrs["captures"])
    columns = {product: found for product in body.nodes if (found := _columns(product, loop)) is not None}
    if not columns:
        return body
    builder = Builder(name=body.name)
    went: dict[Value, Value] = {v: builder.input(v.type, v.hint) for v in body.inputs}
    parts = {part: (product, cut) for product, cuts in columns.items() for part, cut in cuts.items()}
    whole: dict[tuple[Node, _Columns], Value] = {}

    def product_of(product: Node, cut: _Columns) -> Value:
        if (product, cut) not in whole:
            left, right = (went[v] for v in product.operands)
            builder.source = product.source
            chosen = builder.emit("getitem", [right], {"key": (slice(None), slice(cut.start, cut.stop))})
            whole[product, cut] = builder.emit("matmul", [left, chosen])
        return whole[product, cut]

    for inner in body.nodes:
        if inner in parts:
            product, cut = parts[inner]
            value = product_of(product, cut)
            mine = _columns_of(inner)
            assert mine is not None
            if mine != cut:
                builder.source = inner.source
                key = (slice(None), slice(mine.start - cut.start, mine.stop - cut.start))
                value = builder.emit("getitem", [value], {"key": key})
            went[inner.result] = value
        elif inner not in columns:
            copy_node(builder, inner, went)
    return builder.finish(went[v] for v in body.outputs)


def _columns(product: Node, loop: Loop) -> dict[Node, _Columns] | None:
    """For each slice of a product's columns those that are computed together; None where it stays whole."""
    shared = set(loop.body.inputs[: loop.captures])
    if not can_leave(product, shared):
        return None
    readers = [n for n in loop.body.nodes if product.result in n.operands]
    cuts = {n: _columns_of(n) for n in readers}
    if len(readers) < uses(loop.body)[product.result] or None in cuts.values():
        return None
    known = {n: c for n, c in cuts.items() if c is not None}
    free = {n: c for n, c in known.items() if loop.follows(n.result, product.operands[0]) is not None}
    tied = [c for n, c in known.items() if n not in free]
    if not free or not tied or not all(is_heavy(product, c.width) for c in free.values()):
        return None
    middle = _Columns(min(c.start for c in tied), max(c.stop for c in tied))
    if any(c.start < middle.stop and middle.start < c.stop for c in free.values()):
        return None
    return {n: free.get(n, middle) for n in known}


def _columns_of(node: Node) -> _Columns | None:
    """The columns that a node takes of a matrix, all rows."""
    if node.op.name != "getitem" or len(node.operands) != 1 or len(node.attrs["key"]) != 2:
        return None
    rows, columns = node.attrs["key"]
    width = node.operands[0].tensor.shape[1]
    if rows != slice(None) or not isinstance(columns, slice) or width is None:
        return None
    if not all(isinstance(p, int | None) for p in (columns.start, columns.stop, columns.step)):
        return None
    start, stop, step = columns.indices(width)
    return _Columns(start, stop) if step == 1 and stop > start else None
