"""Splitting of products in loops, when only a part of them depends on the recurrence.

`concat([x, h]) @ W` becomes `x @ W[:n] + h @ W[n:]` if h depends on the loop's carries (other than a counter), x does
not, and it pays to compute the product with x for many iterations at once (`distribution`).

In: any graph. Out: no loop body, outside of its branches, has a product of fixed sizes over such a concatenation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ctrlgrad.ir import Builder, Graph, Loop, Node, Rewriter, Value, attributes, definitions, is_loop, rewrite
from ctrlgrad.passes.heavy import pays_as_rows
from ctrlgrad.passes.recurrence import outside_recurrence


def split_products(graph: Graph) -> Graph:
    """The graph with such products taken apart, in all of its loops."""
    return rewrite(graph, _split_in_loop)


def _split_in_loop(node: Node, builder: Builder) -> Sequence[Value] | None:
    if not is_loop(node):
        return None
    loop = Loop.of(node)
    body = _Splitting(loop).run()
    if body is loop.body:
        return None
    carries = (replace(c, next=v) for c, v in zip(loop.carries, body.outputs, strict=True))
    return builder.keep(loop.rebuilt(carries=carries, body=body.nodes).node)


class _Splitting(Rewriter):
    """Takes products over concatenations in the body of a loop apart, without the regions in it."""

    def __init__(self, loop: Loop) -> None:
        super().__init__(loop.body)
        self._outside = outside_recurrence(loop)
        self._producers = definitions(loop.body)

    def region(self, node: Node, region: Graph) -> Graph:
        return region

    def visit(self, node: Node) -> Sequence[Value] | None:
        parts = _parts(node, self._producers, self._outside)
        if parts is None:
            return None
        total: Value | None = None
        start = 0
        for part in parts:
            width = part.tensor.shape[1]
            assert width is not None
            key = (slice(start, start + width), slice(None))
            rows = self.builder.emit("getitem", [node.operands[1]], {"key": key})
            product = self.builder.emit("matmul", [self.value(part), rows])
            total = product if total is None else self.builder.emit("add", [total, product])
            start += width
        assert total is not None
        return (total,)


def _parts(node: Node, producers: dict[Value, Node], outside: set[Value]) -> tuple[Value, ...] | None:
    """The parts of the concatenation that a product's left side is, if that should come apart."""
    if node.op.name != "matmul" or any(v.tensor.rank != 2 or not v.tensor.is_static for v in node.operands):
        return None
    left = producers.get(node.operands[0])
    if left is None or left.op.name != "concat" or attributes.Axis.of(left).axis not in (1, -1):
        return None
    leaves = any(v in outside and pays_as_rows(node, v.tensor.shape[1]) for v in left.operands)
    return left.operands if leaves and not outside.issuperset(left.operands) else None
