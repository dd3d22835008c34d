"""Sums over iterations: what a loop does nothing with but add it to a carry, like the gradients of its parameters.

Of a product `left.T @ right` the factors are collected, and what all iterations of a chunk add is one product of the
collected factors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import field

from ctrlgrad.ir import Loop, Node, StackType, Value, definitions, uses
from ctrlgrad.passes.heavy import pays_as_sum
from ctrlgrad.records import record


@record
class Product:
    """A product of matrices that is only added to the carry at `position`."""

    position: int
    node: Node


@record(frozen=False)
class Sums:
    """Terms that are added to carries, and the ones that can leave the loop."""

    # Per carry that is only added to: the terms.
    terms: dict[int, list[Value]] = field(default_factory=dict)
    products: list[Product] = field(default_factory=list)

    @property
    def left(self) -> dict[int, list[Value]]:
        """Per carry that something leaves: what is still added to it inside the loop."""
        gone = {p.node.result for p in self.products}
        return {i: [v for v in self.terms[i] if v not in gone] for i in sorted({p.position for p in self.products})}


def find_sums(loop: Loop, placed: Collection[Node]) -> Sums:
    """The sums over a loop's iterations; the products in them that can leave it and are not `placed` elsewhere."""
    found = Sums()
    producers, count, tested = definitions(loop.body), uses(loop.body), uses(loop.cond)
    for position, c in enumerate(loop.carries):
        carry, out = c.in_body, c.next
        if isinstance(carry.type, StackType) or count[carry] != 1 or tested[c.in_cond]:
            continue
        terms = _terms(out, producers, count)
        if carry not in terms or count[out] != 1:
            continue
        found.terms[position] = [v for v in terms if v is not carry]
        for v in terms:
            if (
                v in producers
                and pays_as_sum(producers[v])
                and count[v] == 1
                and producers[v] not in placed
                and carry.type == v.type
            ):
                found.products.append(Product(position, producers[v]))
    return found


def _terms(value: Value, producers: dict[Value, Node], count: Counter[Value]) -> list[Value]:
    """The terms of a sum, through sums that are used nowhere else."""
    node = producers.get(value)
    if node is None or node.op.name != "add" or count[value] != 1 or any(v.type != value.type for v in node.operands):
        return [value]
    return [term for v in node.operands for term in _terms(v, producers, count)]
