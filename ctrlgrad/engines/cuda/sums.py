"""Products of matrices that are only added to something: BLAS adds them, in place where nothing else holds the sum.

Where the sum is read by elementwise nodes it costs nothing in their kernel, and stays there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ctrlgrad.engines.cuda.expressions import is_fusible
from ctrlgrad.engines.cuda.placement import DEVICE, Place
from ctrlgrad.ir import Graph, Node, Use, Value, definitions, uses


@dataclass(frozen=True)
class ProductSum:
    """A sum of a product and another value."""

    node: Node
    product: Node
    other: Value

    @property
    def operands(self) -> tuple[Value, ...]:
        """What is added to, and the factors."""
        return (self.other, *self.product.operands)


def product_sums(graph: Graph, places: Mapping[Value, Place]) -> dict[Node, ProductSum]:
    """The sums of a region that BLAS computes, by their nodes."""
    producers, count = definitions(graph), uses(graph)
    fused = {v for node in graph.nodes if node.op.has_use(Use.PUSH) or is_fusible(node) for v in node.operands}
    found: dict[Node, ProductSum] = {}
    added: set[Node] = set()
    for node in graph.nodes:
        if node.op.name != "add" or node.result in fused or places[node.result] is not DEVICE:
            continue
        # Of two products the later one is added to the other.
        for product, other in (node.operands[::-1], node.operands):
            producer = producers.get(product)
            if producer is not None and producer not in added and count[product] == 1 and _fits(node, producer, other):
                found[node] = ProductSum(node, producer, other)
                added.add(producer)
                break
    return found


def _fits(node: Node, product: Node, other: Value) -> bool:
    if product.op.name != "matmul" or other is product.result:
        return False
    t = node.result.tensor
    return (
        t.rank == 2
        and t.is_static
        and t.dtype.kind in "fc"
        and t.dtype.name != "float16"
        and other.type == product.result.type == t
        and all(v.tensor.rank == 2 and v.tensor.is_static for v in product.operands)
    )


__all__ = ["ProductSum", "product_sums"]
