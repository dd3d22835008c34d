"""The flat dataflow graph: one level of nodes, in which five primitives say what loops and branches are.

    Switch(p, d)      -> one result per branch, d on the side that p chooses, dead elsewhere (0 is false, 1 is true)
    Merge(d0, d1, ..) -> the operand that is alive
    Enter(d)          -> d in iteration 0 of a child `frame`, or, `constant`, in all of its iterations
    NextIteration(d)  -> d in the next iteration of the frame
    Exit(d)           -> d in the parent frame

`LoopCond` marks the predicate of a frame. `Send` and `Recv` are the two ends of an edge between devices. `Cluster` is
several ordinary ops that run as one piece, the nodes of its region. Every other node is an ordinary op of
`ctrlgrad.ops`.

Nodes stand in an order in which every operand is defined before it is used, but for the second operand of a loop's
Merge, which a NextIteration defines later. A node may also wait for values that are no operands of it: `controls`,
whose deadness it shares, and `orders`, which only say that a reader comes before what overwrites its operand.

As text a flat graph has one node a line, the same on every run:

    flat count(n: i64[]) {
      zero = constant 0 : i64[]
      i = Enter zero [loop] : i64[]
      i_1 = Merge i, i_2 : i64[]
      ...
    }

`^v` is a control, `>v` an order. A device stands at the end, as `@cpu:1`.

Source: "Implementation of Control Flow in TensorFlow" (whitepaper, 2017).
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from ctrlgrad.errors import VerificationError
from ctrlgrad.ir import Graph, Node, Op, Type, Value, attributes, printer
from ctrlgrad.ir.attributes import Attributes
from ctrlgrad.ir.printer import Printer, format_attrs
from ctrlgrad.ir.types import RegionType
from ctrlgrad.ir.walk import has_effect
from ctrlgrad.records import record

# Default of `tf.while_loop` and `ctrlgrad.while_loop`.
PARALLEL_ITERATIONS = 32


@record(kw_only=True)
class Enter(Attributes):
    frame: str
    # True if the value is in all iterations of the frame, not in the first alone.
    constant: bool
    # How many iterations of the frame may be in flight.
    parallel_iterations: int
    # True if the value is the number of iterations of a reversed loop.
    count: bool = False
    # True if it opens a loop that only controls the device's ops in the frame.
    control: bool = False


@record(kw_only=True)
class LoopCond(Attributes):
    # The loop that the frame was lowered from; errors name it.
    loop: Node | None = None
    maximum_iterations: int | None = None


@record(kw_only=True)
class Message(Attributes):
    # The number of an edge of the partition.
    edge: int


@record(kw_only=True)
class Send(Message):
    receiver: str


@record(kw_only=True)
class Recv(Message):
    sender: str


@record(kw_only=True)
class Cluster(Attributes):
    # True if its last operand and result are effect tokens.
    effect: bool


def _not_inferred(operands: Sequence[Type], attrs: Attributes, regions: Sequence[RegionType]) -> Sequence[Type]:
    raise VerificationError(
        "the results of a primitive do not follow from its operands alone",
        expected="result types from `FlatBuilder`, which the verifier checks",
    )


SWITCH = Op("Switch", 2, _not_inferred)
MERGE = Op("Merge", None, _not_inferred)
ENTER = Op("Enter", 1, _not_inferred, family=Enter)
EXIT = Op("Exit", 1, _not_inferred)
NEXT_ITERATION = Op("NextIteration", 1, _not_inferred)
LOOP_COND = Op("LoopCond", 1, _not_inferred, family=LoopCond)
SEND = Op("Send", 1, _not_inferred, family=Send)
RECV = Op("Recv", 0, _not_inferred, family=Recv)
CLUSTER = Op("Cluster", None, _not_inferred, family=Cluster)
PRIMITIVES = {op.name: op for op in (SWITCH, MERGE, ENTER, EXIT, NEXT_ITERATION, LOOP_COND, SEND, RECV, CLUSTER)}


@record(eq=False)
class FlatNode(Node):
    """One node. `device` is None where the placement has not been decided."""

    controls: tuple[Value, ...] = ()
    orders: tuple[Value, ...] = ()
    device: str | None = None

    @property
    def inputs(self) -> tuple[Value, ...]:
        """All that the node waits for."""
        return (*self.operands, *self.controls, *self.orders)

    @property
    def is_primitive(self) -> bool:
        return self.op.name in PRIMITIVES

    @property
    def is_constant(self) -> bool:
        return self.op.name == "constant"

    @property
    def is_constant_enter(self) -> bool:
        return self.op is ENTER and Enter.of(self).constant

    @property
    def is_effectful(self) -> bool:
        """Return true if an ordinary op does something besides computing: its last operand and result are effect
        tokens."""
        return not self.is_primitive and has_effect(self.op, self.regions)

    def __repr__(self) -> str:
        return f"FlatNode({self.op.name}: {', '.join(str(v.type) for v in self.operands)})"


@record(eq=False)
class FlatGraph(Graph):
    """A function on values as a flat graph."""

    nodes: tuple[FlatNode, ...]

    def __str__(self) -> str:
        return "\n".join(FlatPrinter().graph(self))

    def __repr__(self) -> str:
        return f"FlatGraph({self.name!r}: {len(self.nodes)} nodes)"


def producers(graph: FlatGraph) -> dict[Value, FlatNode]:
    """The node that defines each value."""
    return {value: node for node in graph.nodes for value in node.results}


def consumers(graph: FlatGraph) -> dict[Value, list[FlatNode]]:
    """The nodes that have each value as an operand, one entry per node."""
    found: dict[Value, list[FlatNode]] = {}
    for node in graph.nodes:
        for value in dict.fromkeys(node.operands):
            found.setdefault(value, []).append(node)
    return found


def is_loop_merge(node: FlatNode, producer_of: Mapping[Value, FlatNode]) -> bool:
    """Return true if a node is the Merge at the head of a loop's carry: of an Enter and a NextIteration."""
    if node.op is not MERGE or len(node.operands) != 2:
        return False
    back = producer_of.get(node.operands[1])
    return back is not None and back.op is NEXT_ITERATION


def carry_switches(
    head: FlatNode, condition: FlatNode, consumers_of: Mapping[Value, Sequence[FlatNode]]
) -> list[FlatNode]:
    """The Switches of a loop's carry, by its Merge: of the Merge itself, or of what the condition computes from it.

    The condition computes a new one of the token of effects alone.
    """
    seen: set[FlatNode] = set()
    values = [head.result]
    while values:
        users = [n for v in values for n in consumers_of.get(v, ()) if n not in seen]
        found = [n for n in users if n.op is SWITCH and n.operands[0] is condition.result and n.operands[1] in values]
        if found:
            return found
        seen.update(users)
        values = [v for n in users if n.op not in (LOOP_COND, NEXT_ITERATION) for v in n.results]
    return []


def in_order(nodes: Sequence[FlatNode]) -> list[FlatNode]:
    """The nodes in topological order; ties keep the given order."""
    position = {node: i for i, node in enumerate(nodes)}
    producer_of = {v: node for node in nodes for v in node.results}
    waits: dict[FlatNode, int] = {}
    after: dict[FlatNode, list[FlatNode]] = {}
    for node in nodes:
        values = node.inputs[:1] if is_loop_merge(node, producer_of) else node.inputs
        before = {producer_of[v] for v in values if v in producer_of}
        waits[node] = len(before)
        for other in before:
            after.setdefault(other, []).append(node)
    ready = [position[node] for node in nodes if not waits[node]]
    heapq.heapify(ready)
    ordered = []
    while ready:
        node = nodes[heapq.heappop(ready)]
        ordered.append(node)
        for other in after.get(node, ()):
            waits[other] -= 1
            if not waits[other]:
                heapq.heappush(ready, position[other])
    assert len(ordered) == len(nodes), "a cycle without a NextIteration"
    return ordered


class FlatPrinter(Printer):
    """Writes flat graphs; gives each value one name as long as it lives."""

    kind = "flat"

    def __init__(self) -> None:
        super().__init__(sources=False)

    def node(self, node: printer.Node) -> list[str]:
        """The line of a node; a cluster has one more for each op in it."""
        if not isinstance(node, FlatNode):
            return super().node(node)
        results = self.join(node.results)
        waits = [f"^{self.name(v)}" for v in node.controls] + [f">{self.name(v)}" for v in node.orders]
        what = (
            [self.indexed(node)]
            if isinstance(node.attrs, attributes.Index)
            else [self.join(node.operands), label_of(node)]
        )
        text = " ".join([f"{results} =" if results else "", node.op.name, *filter(None, what), *waits]).strip()
        types = ", ".join(str(v.type) for v in node.results)
        line = text + (f" : {types}" if types else "") + (f" @{node.device}" if node.device else "")
        if node.op is not CLUSTER:
            return [line]
        (region,) = node.regions
        self.names.update(zip(region.inputs, map(self.name, node.operands), strict=True))
        return [f"{line} {{", *self.body(region, "  ", "yield"), "}"]


def label_of(node: FlatNode) -> str:
    """Label of a node, beside its operands."""
    if node.op is ENTER:
        entered = Enter.of(node)
        words = [entered.frame, "constant" if entered.constant else ""]
        window = entered.parallel_iterations
        words.append(f"window {window}" if window != PARALLEL_ITERATIONS else "")
        return f"[{', '.join(filter(None, words))}]"
    if node.op is LOOP_COND:
        maximum = LoopCond.of(node).maximum_iterations
        return f"[at most {maximum}]" if maximum is not None else ""
    if node.op is SEND:
        return f"[edge {Send.of(node).edge} to {Send.of(node).receiver}]"
    if node.op is RECV:
        return f"[edge {Recv.of(node).edge} from {Recv.of(node).sender}]"
    if node.is_primitive:
        return ""
    shown = format_attrs(node)
    return shown if node.is_constant or not shown else f"[{shown}]"
