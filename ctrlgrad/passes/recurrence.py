"""Values outside of a loop's recurrence, which could be computed for many iterations before or after the loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import field

from ctrlgrad.ir import INDEX, Graph, Loop, Node, StackType, TensorType, Trait, Value, attributes, definitions, uses
from ctrlgrad.ir.attributes import DYNAMIC
from ctrlgrad.ir.walk import has_effect
from ctrlgrad.passes.heavy import is_heavy, pays_as_tail
from ctrlgrad.records import record
from ctrlgrad.stacks.choice import bytes_of

# Tails: a product, and all that follows from it, where none of it feeds the recurrence of the loop.
#
# An output layer is such a tail, `ys[t] = h @ V`; so is the cotangent of a loop's inputs, `d_xs[t] += d_z @ W.T`. The
# loop can run without it for a whole chunk, if it collects the left factor of the product. Then the products of all
# iterations are one, and what follows from them runs in a loop of its own over the rows of that one.
#
# What a tail needs besides is had again where that is cheap (constants, counters, rows of captured arrays, and cheap
# ops on those), and collected otherwise; it is no tail if that were more bytes than the products have.


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


@record
class Row:
    """A value that is a row of a captured array.

    `counter` is the carry that tells which: the row of its own value, which goes up by 1, or, where the loop
    `counts_down` from the number of its iterations, the row before.
    """

    array: Value
    counter: Value
    counts_down: bool = False


def counters(loop: Loop) -> set[Value]:
    """The carries that each iteration adds 1 to."""
    producers = definitions(loop.body)
    found = set()
    for carry, out in zip(loop.carried, loop.body.outputs, strict=True):
        step = producers.get(out)
        if step is None or step.op.name != "add" or carry.type != INDEX or carry not in step.operands:
            continue
        (other,) = [v for v in step.operands if v is not carry] or [carry]
        constant = producers.get(other)
        if constant is not None and constant.op.name == "constant" and attributes.Constant.of(constant).value == 1:
            found.add(carry)
    return found


def rows(loop: Loop) -> dict[Value, Row]:
    """The values that are rows of captured arrays, or such rows in another shape."""
    counting = {v: (v, False) for v in counters(loop)}
    if loop.counts_down:
        counting[loop.carries[0].next] = (loop.carries[0].in_body, True)
    shared = set(loop.shared)
    found: dict[Value, Row] = {}
    for node in loop.body.nodes:
        name = node.op.name
        if name == "getitem" and node.operands[0] in shared and len(node.operands) == 2:
            first, *rest = attributes.Index.of(node).key
            whole = all(item == slice(None) for item in rest)
            if first is DYNAMIC and whole and node.operands[1] in counting:
                found[node.result] = Row(node.operands[0], *counting[node.operands[1]])
        elif name in ("expand_dims", "squeeze") and node.operands[0] in found:
            found[node.result] = found[node.operands[0]]
    return found


def outside_recurrence(loop: Loop) -> set[Value]:
    """The values that depend on captures, constants and rows of captures alone."""
    outside = {v for v in loop.shared if not isinstance(v.type, StackType)}
    row_values = rows(loop)
    for node in loop.body.nodes:
        if node.regions or Trait.EFFECT in node.op.traits:
            continue
        if (node.result in row_values if len(node.results) == 1 else False) or (
            all(v in outside for v in node.operands) and not any(isinstance(v.type, StackType) for v in node.results)
        ):
            outside.update(node.results)
    return outside


def inductions(loop: Loop) -> dict[int, Node]:
    """Carries that are counted up or down by a constant or a capture: their positions, and the nodes that count."""
    producers, shared = definitions(loop.body), set(loop.shared)
    found = {}
    for position, (carry, out) in enumerate(zip(loop.carried, loop.body.outputs, strict=True)):
        node = producers.get(out)
        if node is None or node.op.name not in ("add", "subtract") or carry.type != INDEX:
            continue
        first, second = node.operands
        step = first if second is carry and node.op.name == "add" else second if first is carry else carry
        if step is not carry and (step in shared or (step in producers and producers[step].op.name == "constant")):
            found[position] = node
    return found


def readers(loop: Loop) -> dict[Value, list[Node | int]]:
    """For each value of a loop's body, the nodes that read it, and the positions of carries whose next value it is."""
    found: dict[Value, list[Node | int]] = {}
    for node in loop.body.nodes:
        for v in node.operands:
            found.setdefault(v, []).append(node)
    for position, carry in enumerate(loop.carries):
        found.setdefault(carry.next, []).append(position)
    return found


def downstream(loop: Loop, value: Value, readers: Mapping[Value, list[Node | int]]) -> tuple[set[Node], set[int]]:
    """The nodes and the positions of carries that a value of one iteration reaches, in that one or in a later one."""
    waiting = [value]
    nodes: set[Node] = set()
    positions: set[int] = set()
    while waiting:
        for reader in readers.get(waiting.pop(), ()):
            if isinstance(reader, int):
                if reader not in positions:
                    positions.add(reader)
                    waiting.append(loop.carries[reader].in_body)
            elif reader not in nodes:
                nodes.add(reader)
                waiting += reader.results
    return nodes, positions


def upstream(loop: Loop, values: Iterable[Value]) -> set[Value]:
    """The values that these of one iteration depend on, in that one or in an earlier one; themselves included."""
    needed = set(values)
    while True:
        for node in reversed(loop.body.nodes):
            if not needed.isdisjoint(node.results):
                needed.update(node.operands)
        more = {c.next for c in loop.carries if c.in_body in needed} - needed
        if not more:
            return needed
        needed |= more
