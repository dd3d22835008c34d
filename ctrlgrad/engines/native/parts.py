"""Split a straight-line graph into reference ops and parts, each part one compiled function.

In: a straight-line graph. Out: one with the same inputs and outputs whose nodes are the reference engine's own and
nodes of the op `PART`, whose region becomes a plan; None where no part would pay.

- A part takes all nodes that a plan has a form for and that are ready once the nodes before it have run.
- Views and constants cost nothing: each side that reads one has its own.
- Updates stay with the reference kernels, which overwrite an array that has no other reference; so do stacks. A plan
  never writes its arguments, so there an update would cost the array instead of the row.
- Nodes that may fail keep their order, so that the first to fail is the one that the reference engine names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ctrlgrad.ir import Graph, Node, Op, TensorType, Trait, Type, Use, Value
from ctrlgrad.ir.attributes import Attributes
from ctrlgrad.ir.types import RegionType
from ctrlgrad.ops.arrays import is_total
from ctrlgrad.plan.elementwise import DTYPES, has_expression
from ctrlgrad.plan.lowering.lower import RULES

# In nanoseconds. What a part saves: a node's step in the interpreter, a call of a NumPy function, the moving of a byte
# that stays in a register. What it costs: a call of compiled code, each array among its inputs and outputs. Measured as
# the least thread time of many short runs of a part and of the reference kernels in turn, on chains of 2 to 12
# elementwise nodes with 2 to 8 inputs and 1 to 4 outputs; what counts is the ratio to a node's step.
STEP, CALL, BYTE = 350.0, 500.0, 0.01
ENTRY, ARRAY = 11000.0, 2300.0


def _part_types(operands: Sequence[Type], attrs: Attributes, regions: Sequence[RegionType]) -> Sequence[Type]:
    return regions[0].outputs


PART = Op("part", None, _part_types)
"""A node whose region is one compiled function. It stands in pieces alone and is no op of the language."""


def parted(region: Graph) -> Graph | None:
    """The region with parts; None where none would pay."""
    split = _Split(region)
    while True:
        batches = split.batches()
        poor = [batch for batch in batches if batch.is_native and gain(split.part(batch.nodes, batches)) <= 0]
        if not poor:
            return split.graph(batches) if any(batch.is_native for batch in batches) else None
        for batch in poor:
            split.native.difference_update(batch.nodes)


def has_native_form(node: Node) -> bool:
    """Return true if a plan has a form for a node that is no slower than NumPy."""
    name = node.op.name
    types = [v.type for v in (*node.operands, *node.results)]
    if not all(isinstance(t, TensorType) and t.dtype in DTYPES for t in types):
        return False
    if Trait.ELEMENTWISE in node.op.traits:
        return has_expression(name, [v.tensor.dtype for v in node.operands], node.result.tensor.dtype)
    return name in RULES and not node.op.updates


def is_free(node: Node) -> bool:
    """Return true if a node computes nothing: a view whose place is known, a constant, a size."""
    if node.op.name == "getitem":
        return is_total(node) and len(node.operands) == 1 and node.result.tensor.rank > 0
    is_size = node.op.has_use(Use.MEASURE) and isinstance(node.operands[0].type, TensorType)
    return is_size or node.op.name == "constant" or Trait.VIEW in node.op.traits


def _may_fail(node: Node) -> bool:
    """Return true if a run can make a node fail; a push or a pop fails only where the graph is wrong."""
    return not (is_total(node) or node.op.has_use(Use.PUSH, Use.POP) or node.op.name == "stack_new")


def gain(part: Graph) -> float:
    """Nanoseconds that a part saves in a run, arrays of unknown size counting as tiny."""
    saved = -ENTRY - ARRAY * sum(v.tensor.rank > 0 for v in (*part.inputs, *part.outputs))
    kept = set(part.outputs)
    for node in part.nodes:
        if node.op.name == "constant":
            continue
        saved += STEP
        if not is_free(node) and node.result.tensor.rank:
            saved += CALL
            if node.result not in kept and (Trait.ELEMENTWISE in node.op.traits or _is_added(node, part)):
                saved += BYTE * 2 * _known_bytes(node.result)
    return saved


def _is_added(product: Node, part: Graph) -> bool:
    """Return true if a node is a matrix product whose only use is one addition."""
    consumers = [n.op.name for n in part.nodes if product.result in n.operands]
    return product.op.name == "matmul" and consumers == ["add"]


def _known_bytes(value: Value) -> int:
    total = value.tensor.dtype.itemsize
    for size in value.tensor.shape:
        total *= size or 1
    return total


@dataclass(frozen=True)
class Batch:
    """Nodes that run one after the other on one side."""

    is_native: bool
    nodes: tuple[Node, ...]


class _Split:
    """Native nodes of a region, and the batches in which they run."""

    def __init__(self, region: Graph) -> None:
        self.region = region
        self.producer_of = {v: node for node in region.nodes for v in node.results}
        self.free = {node for node in region.nodes if is_free(node)}
        self.computing = [node for node in region.nodes if node not in self.free]
        # The computing nodes whose results a node uses, directly or through views.
        self.producers = {node: self._producers(node) for node in self.computing}
        self.native = {node for node in self.computing if has_native_form(node)}
        self.native -= self._rows_apart()
        self.waits = self._waits()

    def _producers(self, node: Node) -> set[Node]:
        found: set[Node] = set()
        pending = [self.producer_of[v] for v in node.operands if v in self.producer_of]
        while pending:
            producer = pending.pop()
            if producer in self.free:
                pending += [self.producer_of[v] for v in producer.operands if v in self.producer_of]
            else:
                found.add(producer)
        return found

    def _rows_apart(self) -> set[Node]:
        """Reads of rows that nothing else native touches; the reference kernel copies no more of them than it must."""
        touched: set[Node] = set()
        for node in self.native:
            near = self.producers[node] & self.native
            touched |= near | {node} if near else set()
        return {node for node in self.native if node.op.name == "getitem" and node not in touched}

    def _waits(self) -> dict[Node, set[Node]]:
        waits, last = {}, None
        for node in self.computing:
            waits[node] = set(self.producers[node])
            if _may_fail(node):
                if last is not None:
                    waits[node].add(last)
                last = node
        return waits

    def batches(self) -> list[Batch]:
        """The computing nodes in an order that changes sides seldom."""
        done: set[Node] = set()
        found: list[Batch] = []
        is_native = False
        while len(done) < len(self.computing):
            nodes = []
            for node in self.computing:
                if node not in done and (node in self.native) is is_native and self.waits[node] <= done:
                    nodes.append(node)
                    done.add(node)
            if nodes:
                found.append(Batch(is_native, tuple(nodes)))
            is_native = not is_native
        return found

    def part(self, nodes: Sequence[Node], batches: Sequence[Batch]) -> Graph:
        """The graph of a native batch: what it takes from outside, its nodes and the views between, what is needed."""
        body = self._with_views(nodes)
        defined = {v for node in body for v in node.results}
        inputs = dict.fromkeys(v for node in body for v in node.operands if v not in defined)
        needed = self._needed_outside(nodes, batches)
        outputs = tuple(v for node in nodes for v in node.results if v in needed)
        return Graph(tuple(inputs), tuple(body), outputs, self.region.name)

    def _with_views(self, nodes: Sequence[Node]) -> list[Node]:
        """Nodes with the views that they take, in the region's order."""
        wanted = set(nodes)
        pending = list(nodes)
        while pending:
            for v in pending.pop().operands:
                producer = self.producer_of.get(v)
                if producer in self.free and producer not in wanted:
                    wanted.add(producer)
                    pending.append(producer)
        return [node for node in self.region.nodes if node in wanted]

    def _needed_outside(self, nodes: Sequence[Node], batches: Sequence[Batch]) -> set[Value]:
        """Values used outside of a batch, be it through views, which are computed there."""
        needed: set[Value] = set()
        own = set(nodes)
        pending = list(self.region.outputs)
        for batch in batches:
            for node in batch.nodes:
                if node not in own:
                    pending += node.operands
        seen: set[Node] = set()
        while pending:
            v = pending.pop()
            needed.add(v)
            producer = self.producer_of.get(v)
            if producer in self.free and producer not in seen:
                assert producer is not None
                seen.add(producer)
                pending += producer.operands
        return needed

    def graph(self, batches: Sequence[Batch]) -> Graph:
        """The region with a node for each native batch."""
        nodes: list[Node] = []
        for batch in batches:
            if batch.is_native:
                part = self.part(batch.nodes, batches)
                nodes.append(Node(PART, part.inputs, part.outputs, regions=(part,), source=batch.nodes[0].source))
            else:
                nodes += batch.nodes
        nodes += self._views_between(nodes)
        return Graph(self.region.inputs, tuple(_in_order(nodes)), self.region.outputs, self.region.name)

    def _views_between(self, nodes: Sequence[Node]) -> list[Node]:
        """The views and constants that are needed outside of parts."""
        found: dict[Node, None] = {}
        pending = [*self.region.outputs, *(v for node in nodes for v in node.operands)]
        while pending:
            producer = self.producer_of.get(pending.pop())
            if producer in self.free and producer not in found:
                assert producer is not None
                found[producer] = None
                pending += producer.operands
        return [node for node in self.region.nodes if node in found]


def _in_order(nodes: Sequence[Node]) -> list[Node]:
    """Views go as late as the first node that takes them."""
    producer_of = {v: node for node in nodes for v in node.results}
    ordered: dict[Node, None] = {}

    def put(node: Node) -> None:
        for v in node.operands:
            if v in producer_of and producer_of[v] not in ordered:
                put(producer_of[v])
        ordered[node] = None

    for node in nodes:
        if node not in ordered:
            put(node)
    return list(ordered)
