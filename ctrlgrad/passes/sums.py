"""Sums over iterations: what a loop does nothing with but add it to a carry, like the gradients of its parameters.

Of a product `left.T @ right` the factors are collected, and what all iterations of a chunk add is one product of the
collected factors. A value that is collected for a product may also be added itself, or reduced along some of its axes
(the gradient of a bias): then the collected rows are reduced after the chunk. Collecting a value for that alone would
move more bytes than it saves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import field

from ctrlgrad.ir import Graph, Loop, Node, StackType, TensorType, Value, attributes, definitions, uses
from ctrlgrad.passes.heavy import pays_as_sum
from ctrlgrad.records import record


@record
class Product:
    """A product of matrices that is only added to the carry at `position`."""

    position: int
    node: Node


@record
class Total:
    """A term of the carry at `position`: the `collected` value, summed along `axes`."""

    position: int
    term: Value
    collected: Value
    axes: tuple[int, ...]


@record(frozen=False)
class Sums:
    """Terms that are added to carries, and the ones that can leave the loop."""

    # Per carry that is only added to: the terms.
    terms: dict[int, list[Value]] = field(default_factory=dict)
    products: list[Product] = field(default_factory=list)
    totals: list[Total] = field(default_factory=list)

    @property
    def left(self) -> dict[int, list[Value]]:
        """Per carry that something leaves: what is still added to it inside the loop."""
        gone = {(p.position, p.node.result) for p in self.products} | {(t.position, t.term) for t in self.totals}
        positions = dict.fromkeys(position for position, _ in gone)
        return {i: [v for v in self.terms[i] if (i, v) not in gone] for i in sorted(positions)}


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


def find_totals(sums: Sums, body: Graph, collected: Collection[Value]) -> None:
    """Note the terms that are reductions of collected values."""
    producers, count = definitions(body), uses(body)
    products = {p.node.result for p in sums.products}
    for position, terms in sums.terms.items():
        if len(set(terms)) < len(terms):
            continue
        for v in terms:
            total = None if v in products else _total(position, v, producers, count)
            if total is not None and total.collected in collected:
                sums.totals.append(total)


def _terms(value: Value, producers: dict[Value, Node], count: Counter[Value]) -> list[Value]:
    """The terms of a sum, through sums that are used nowhere else."""
    node = producers.get(value)
    if node is None or node.op.name != "add" or count[value] != 1 or any(v.type != value.type for v in node.operands):
        return [value]
    return [term for v in node.operands for term in _terms(v, producers, count)]


def _total(position: int, term: Value, producers: dict[Value, Node], count: Counter[Value]) -> Total | None:
    """A term as a reduction along fixed axes, of sizes that are known."""
    if not isinstance(term.type, TensorType) or not term.type.is_static:
        return None
    node = producers.get(term)
    if node is None or node.op.name not in ("sum", "sum_to") or count[term] != 1:
        return Total(position, term, term, ())
    (x, *_), rank = node.operands, term.tensor.rank
    if not x.tensor.is_static:
        return None
    shape = x.tensor.shape
    if node.op.name == "sum":
        return Total(position, term, x, tuple(sorted(a % len(shape) for a in attributes.Axes.of(node).axes)))
    lead = len(shape) - rank
    narrowed = (lead + a for a, d in enumerate(term.tensor.shape) if d == 1 and shape[lead + a] != 1)
    return Total(position, term, x, (*range(lead), *narrowed))
