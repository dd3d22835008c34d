"""Tails: a product, and all that follows from it, where none of it feeds the recurrence of the loop.

An output layer is such a tail, `ys[t] = h @ V`; so is the cotangent of a loop's inputs, `d_xs[t] += d_z @ W.T`. The
loop can run without it for a whole chunk, if it collects the left factor of the product. Then the products of all
iterations are one, and what follows from them runs in a loop of its own over the rows of that one.

What a tail needs besides is had again where that is cheap (constants, counters, rows of captured arrays, and cheap ops
on those), and collected otherwise; it is no tail if that were more bytes than the products have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import field

from ctrlgrad.ir import Graph, Loop, Node, StackType, TensorType, Trait, Value, definitions, uses
from ctrlgrad.ir.walk import has_effect
from ctrlgrad.passes.heavy import is_heavy, pays_as_tail
from ctrlgrad.passes.recurrence import downstream, inductions, readers, rows, upstream
from ctrlgrad.records import record
from ctrlgrad.stacks.choice import bytes_of


@record
class Tail:
    """Part of a loop that runs after the iterations of a chunk."""

    products: tuple[Node, ...] = ()
    # Nodes that depend on the products, and nodes that are computed again for them; each in the order of the body.
    nodes: tuple[Node, ...] = ()
    again: tuple[Node, ...] = ()
    # Positions of the carries that only the tail has, and of the counters that it counts again.
    carries: tuple[int, ...] = ()
    counters: tuple[int, ...] = ()
    # Values that are collected for it, beside the left factors of the products.
    collected: tuple[Value, ...] = ()


@record(frozen=False)
class Recurrence:
    """A loop, and what leaves it otherwise."""

    loop: Loop
    # Nodes that have a place already, and positions of carries that have.
    placed: Collection[Node] = ()
    settled: Collection[int] = ()
    producers: dict[Value, Node] = field(init=False)
    readers: dict[Value, list[Node | int]] = field(init=False)
    # Number of uses of each value in the condition.
    tested: Counter[Value] = field(init=False)

    def __post_init__(self) -> None:
        self.producers = definitions(self.loop.body)
        self.readers = readers(self.loop)
        self.tested = uses(self.loop.cond)

    def follows(self, value: Value, factor: Value) -> tuple[set[Node], set[int]] | None:
        """Return the nodes and carries that depend on a value computed from `factor`; None if the loop needs one."""
        nodes, positions = downstream(self.loop, value, self.readers)
        carries = [self.loop.carries[i] for i in positions]
        if not positions or positions & set(self.settled) or nodes & set(self.placed):
            return None
        if any(self.tested[c.in_cond] for c in carries):
            return None
        if any(node.regions or has_effect(node.op, node.regions) for node in nodes):
            return None
        needed = upstream(self.loop, [factor])
        defined = {v for node in nodes for v in node.results} | {c.in_body for c in carries}
        return None if defined & needed else (nodes, positions)


def can_leave(product: Node, shared: Collection[Value]) -> bool:
    """Return true if the factors of a product allow one product for all iterations."""
    if not is_heavy(product):
        return False
    sized = all(isinstance(v.type, TensorType) and v.type.is_static for v in (*product.operands, *product.results))
    return sized and product.operands[1] in shared and product.operands[0] not in shared


def find_tail(recurrence: Recurrence) -> Tail | None:
    """All tails of a loop as one."""
    loop = recurrence.loop
    shared = set(loop.shared)
    tail: Tail | None = None
    products: list[Node] = []
    nodes: set[Node] = set()
    positions: set[int] = set()
    for product in loop.body.nodes:
        if not can_leave(product, shared) or product in nodes or product in recurrence.placed:
            continue
        if not pays_as_tail(product):
            continue
        found = recurrence.follows(product.result, product.operands[0])
        if found is None or any(p in found[0] for p in products):
            continue
        wider = _tail(recurrence, [*products, product], nodes | found[0], positions | found[1])
        if wider is not None:
            tail = wider
            products.append(product)
            nodes |= found[0]
            positions |= found[1]
    return tail


def _tail(recurrence: Recurrence, products: list[Node], nodes: set[Node], positions: set[int]) -> Tail | None:
    loop, body = recurrence.loop, recurrence.loop.body
    counted = inductions(loop)
    row_values = {v for v, row in rows(loop).items() if not row.counts_down}
    inside = {v for node in (*nodes, *products) for v in node.results}
    inside |= {loop.carries[i].in_body for i in positions}
    factors = {p.operands[0] for p in products}
    at_hand = inside | factors | set(loop.shared)
    counters = {loop.carries[i].in_body: i for i in counted if i not in positions}
    again: dict[Value, Node] = {}

    def is_cheap(value: Value) -> bool:
        """True if a value is available in the tail's own loop, or cheap to recompute there."""
        if value in at_hand or value in counters:
            return True
        node = recurrence.producers.get(value)
        if node is None or node.regions or len(node.results) != 1 or isinstance(value.type, StackType):
            return False
        if Trait.CHEAP not in node.op.traits and node.op.name != "constant" and value not in row_values:
            return False
        return all(is_cheap(v) for v in node.operands)

    def have(value: Value) -> None:
        if value in at_hand or value in again:
            return
        if value in counters:
            node = counted[counters[value]]
        else:
            node = recurrence.producers[value]
            again[value] = node
        for v in node.operands:
            if v is not value:
                have(v)
        if value in counters:
            again[value] = node

    collected: list[Value] = []
    for v in _needed(body, nodes):
        if v in at_hand:
            continue
        if is_cheap(v):
            have(v)
        elif isinstance(v.type, TensorType) and v.type.is_static:
            collected.append(v)
        else:
            return None
    if sum(map(bytes_of, collected)) > sum(bytes_of(p.result) for p in products):
        return None
    computed = set(again.values())
    return Tail(
        tuple(products),
        tuple(n for n in body.nodes if n in nodes),
        tuple(n for n in body.nodes if n in computed),
        tuple(sorted(positions)),
        tuple(sorted(i for v, i in counters.items() if v in again)),
        tuple(collected),
    )


def _needed(body: Graph, nodes: set[Node]) -> Iterable[Value]:
    return dict.fromkeys(v for node in body.nodes if node in nodes for v in node.operands)
