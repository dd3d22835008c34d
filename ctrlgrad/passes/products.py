"""Splitting of products in loops, when only a part of them depends on the recurrence.

`concat([x, h]) @ W` becomes `x @ W[:n] + h @ W[n:]` if h depends on the loop's carries (other than a counter), x does
not, and it pays to compute the product with x for many iterations at once (`distribution`). The same holds for
columns of `z @ W` that the recurrence does not need: if `(z @ W)[:, :n]` only goes to a row of an array and `(z @ W)[:,
n:]` to the next iteration, they become `z @ W[:, :n]` and `z @ W[:, n:]`.

In: any graph. Out: no loop body, outside of its branches, has a product of fixed sizes over such a concatenation. Nor
has it a product with a captured matrix whose columns are only used in slices, if the slices that the recurrence does
not need are heavy products by themselves and none lies between the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ctrlgrad.ir import Builder, Graph, Loop, Node, Rewriter, Value, attributes, definitions, is_loop, rewrite, uses
from ctrlgrad.passes.heavy import is_heavy, pays_as_rows, pays_as_tail
from ctrlgrad.passes.recurrence import Recurrence, can_leave, outside_recurrence
from ctrlgrad.records import record


def split_products(graph: Graph) -> Graph:
    """The graph with such products taken apart, in all of its loops."""
    return rewrite(graph, _split_in_loop)


def _split_in_loop(node: Node, builder: Builder) -> Sequence[Value] | None:
    if not is_loop(node):
        return None
    loop = Loop.of(node)
    split = _SplittingColumns(_SplittingRows(loop).loop()).loop()
    return None if split is loop else builder.keep(split.node)


class _OfBody(Rewriter):
    """Rewrites the body of a loop, without the regions in it."""

    def __init__(self, loop: Loop) -> None:
        super().__init__(loop.body)
        self._loop = loop

    def region(self, node: Node, region: Graph) -> Graph:
        return region

    def loop(self) -> Loop:
        """The loop with the rewritten body."""
        body = self.run()
        if body is self._loop.body:
            return self._loop
        carries = (replace(c, next=v) for c, v in zip(self._loop.carries, body.outputs, strict=True))
        return self._loop.rebuilt(carries=carries, body=body.nodes)


class _SplittingRows(_OfBody):
    """Products over concatenations taken apart."""

    def __init__(self, loop: Loop) -> None:
        super().__init__(loop)
        self._outside = outside_recurrence(loop)
        self._producers = definitions(loop.body)

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


@record
class _Columns:
    """The columns of a matrix from one number up to another."""

    start: int
    stop: int

    @property
    def width(self) -> int:
        return self.stop - self.start


class _SplittingColumns(_OfBody):
    """Products of which the recurrence needs some columns only taken apart."""

    def __init__(self, loop: Loop) -> None:
        super().__init__(loop)
        recurrence = Recurrence(loop)
        columns = {node: found for node in loop.body.nodes if (found := _columns(node, recurrence)) is not None}
        self._products = {product.result for product in columns}
        self._parts = {part.result: (product, cut) for product, cuts in columns.items() for part, cut in cuts.items()}
        self._whole: dict[tuple[Node, _Columns], Value] = {}

    def visit(self, node: Node) -> Sequence[Value] | None:
        if len(node.results) == 1 and node.result in self._products:
            return node.results  # nothing takes it any more
        if len(node.results) != 1 or node.result not in self._parts:
            return None
        product, cut = self._parts[node.result]
        value = self._product_of(product, cut)
        mine = _columns_of(node)
        assert mine is not None
        if mine == cut:
            return (value,)
        key = (slice(None), slice(mine.start - cut.start, mine.stop - cut.start))
        return (self.builder.emit("getitem", [value], {"key": key}),)

    def _product_of(self, product: Node, cut: _Columns) -> Value:
        if (product, cut) not in self._whole:
            left, right = map(self.value, product.operands)
            key = (slice(None), slice(cut.start, cut.stop))
            chosen = self.builder.emit("getitem", [right], {"key": key}, source=product.source)
            self._whole[product, cut] = self.builder.emit("matmul", [left, chosen], source=product.source)
        return self._whole[product, cut]


def _columns(product: Node, recurrence: Recurrence) -> dict[Node, _Columns] | None:
    """For each slice of a product's columns those that are computed together; None where it stays whole."""
    body = recurrence.loop.body
    if not is_heavy(product) or not can_leave(product, set(recurrence.loop.shared)):
        return None
    readers = [n for n in body.nodes if product.result in n.operands]
    cuts = {n: _columns_of(n) for n in readers}
    if len(readers) < uses(body)[product.result] or None in cuts.values():
        return None
    known = {n: c for n, c in cuts.items() if c is not None}
    free = {n: c for n, c in known.items() if recurrence.follows(n.result, product.operands[0]) is not None}
    tied = [c for n, c in known.items() if n not in free]
    if not free or not tied or not all(pays_as_tail(product, c.width) for c in free.values()):
        return None
    middle = _Columns(min(c.start for c in tied), max(c.stop for c in tied))
    if any(c.start < middle.stop and middle.start < c.stop for c in free.values()):
        return None
    return {n: free.get(n, middle) for n in known}


def _columns_of(node: Node) -> _Columns | None:
    """The columns that a node takes of a matrix, all rows."""
    if node.op.name != "getitem" or len(node.operands) != 1 or len(attributes.Index.of(node).key) != 2:
        return None
    rows, columns = attributes.Index.of(node).key
    width = node.operands[0].tensor.shape[1]
    if rows != slice(None) or not isinstance(columns, slice) or width is None:
        return None
    if not all(isinstance(p, int | None) for p in (columns.start, columns.stop, columns.step)):
        return None
    start, stop, step = columns.indices(width)
    return _Columns(start, stop) if step == 1 and stop > start else None
