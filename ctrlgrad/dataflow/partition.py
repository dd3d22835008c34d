"""Partition: one flat graph per device, with Send and Recv where an edge crosses devices.

In: a flat graph with a device on every node. Out, per device: its nodes; a Send for each value that another device
takes, a Recv for each value that it takes from another; and, for each loop that it takes part in, what tells it how
many iterations there are.

A device takes part in a loop if one of its nodes is in the loop's frame, or in a frame inside. The device of the
LoopCond owns the loop. Every other participant gets a control loop,

    Enter -> Merge -> Switch -(true)-> NextIteration -> back to Merge

on a scalar (of a reversed loop: the number of its iterations), whose Switch takes the predicate that the owner sends in
every iteration. An iteration so begins on a device without a central coordinator. The control loop of an inner loop is
entered from the outer one's; where the inner loop stands in a branch, from a token that is dead where the branch is not
taken. A device without a part in a loop knows nothing of it.

A Recv in a loop is started by the control loop's Merge, and may bring a dead value: a Send fires in every iteration.

The owner lets an iteration begin only when every participant is done with the one that is a window back; they report
by `reports`, edges that carry nothing. So a fast device cannot flood a slow one, and the window bounds what is in
flight on all devices together.

Source: Yu et al., "Dynamic Control Flow in Large-Scale Machine Learning", EuroSys 2018, section 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace

import numpy as np

from ctrlgrad.dataflow import graph as flat
from ctrlgrad.dataflow.devices import DEFAULT
from ctrlgrad.dataflow.graph import (
    Cluster,
    Enter,
    FlatGraph,
    FlatNode,
    LoopCond,
    Recv,
    Send,
    in_order,
    is_loop_merge,
    producers,
)
from ctrlgrad.dataflow.scopes import (
    NO_GUARD,
    ROOT,
    Frames,
    Guard,
    fail,
    frames_of,
    guard_of,
    guards_of,
    next_iteration,
)
from ctrlgrad.dataflow.verifier import verify_flat
from ctrlgrad.ir import BOOL, OPS, Graph, Node, Op, Type, Value, attributes
from ctrlgrad.ir.attributes import NO_ATTRS, Attributes
from ctrlgrad.records import record
from ctrlgrad.source import Source


@record
class Edge:
    """A channel from one device to another. `frame` is where it is used; `type` is None for a report."""

    number: int
    sender: str
    receiver: str
    frame: tuple[str, ...]
    type: Type | None


@record
class Part:
    """Part of a graph on one device. `outputs`: positions of its graph's outputs among those of the whole graph."""

    device: str
    graph: FlatGraph
    outputs: tuple[int, ...]
    # The edge to report on, for each loop that another device owns; the edges of the reports, for each that it owns.
    reports: dict[str, Edge]
    reported: dict[str, tuple[Edge, ...]]


@record
class Partition:
    """The parts by device, and all edges between them."""

    parts: dict[str, Part]
    edges: tuple[Edge, ...]


def partition(graph: FlatGraph) -> Partition:
    """Split a placed graph by device; each part passes the verifier.

    Raises:
        VerificationError: there is a Send or Recv in it already.
    """
    for node in graph.nodes:
        if node.op in (flat.SEND, flat.RECV):
            raise fail(
                node,
                "there are no messages before a graph is split by device",
                "a device on the nodes: what goes from one to another is sent",
                f"a {node.op.name} by hand",
                "leave it out, and take the value itself",
            )
    return _Partitioner(graph).run()


@record(frozen=False)
class _Half:
    """Part of one device while it is built."""

    nodes: list[FlatNode] = field(default_factory=list)
    # Nodes that the partition adds; all of their operands are on the device.
    added: list[FlatNode] = field(default_factory=list)
    # Where a value of another device is on this one; and what stands for its being alive, where that is all it is for.
    here: dict[Value, Value] = field(default_factory=dict)
    alive: dict[Value, Value] = field(default_factory=dict)
    # Per frame: what begins with each iteration, and what is alive in its body.
    begun: dict[str, Value] = field(default_factory=dict)
    live: dict[str, Value] = field(default_factory=dict)

    def add(
        self,
        op: Op,
        operands: tuple[Value, ...],
        results: tuple[Value, ...],
        attrs: Attributes,
        controls: tuple[Value, ...],
        source: Source | None,
        device: str,
    ) -> None:
        self.added.append(FlatNode(op, operands, results, attrs, source=source, controls=controls, device=device))


class _Partitioner:
    def __init__(self, graph: FlatGraph) -> None:
        self.graph = graph
        self.frames: Frames = frames_of(graph)
        self.guards = guards_of(graph, self.frames)
        self.producer_of = producers(graph)
        names = sorted({str(node.device) for node in graph.nodes}) or [DEFAULT]
        self.halves = {name: _Half() for name in names}
        self.conditions = {self.frames.of_node[node]: node for node in graph.nodes if node.op is flat.LOOP_COND}
        self.enters: dict[str, list[FlatNode]] = {}
        for node in graph.nodes:
            if node.op is flat.ENTER:
                self.enters.setdefault(Enter.of(node).frame, []).append(node)
        self.edges: list[Edge] = []
        self.carries = self._carries()

    def _carries(self) -> dict[tuple[str, str], tuple[Value, Value]]:
        """For each frame and device the Merge and the Switch's true side of a carry that is there, if there is one."""
        found: dict[tuple[str, str], tuple[Value, Value]] = {}
        switched = {(node.operands[1], node.operands[0]): node for node in self.graph.nodes if node.op is flat.SWITCH}
        for node in self.graph.nodes:
            if not is_loop_merge(node, self.producer_of):
                continue
            frame = self.frames.of_node[node]
            switch = switched.get((node.result, self.conditions[frame].result))
            if switch is not None and switch.device == node.device:
                found.setdefault((frame, str(node.device)), (node.result, switch.results[1]))
        return found

    def run(self) -> Partition:
        for node in self.graph.nodes:
            self.halves[str(node.device)].nodes.append(node)
        reports: dict[str, dict[str, Edge]] = {name: {} for name in self.halves}
        reported: dict[str, dict[str, tuple[Edge, ...]]] = {name: {} for name in self.halves}
        participants = self._participants()
        for frame in sorted(self.conditions, key=self.frames.depth):
            owner = str(self.conditions[frame].device)
            for device in sorted(participants[frame]):
                self.begin(frame, device, owner)
                if device != owner:
                    edge = self.edge(device, owner, frame, None)
                    reports[device][frame] = edge
                    reported[owner][frame] = (*reported[owner].get(frame, ()), edge)
        for device, half in self.halves.items():
            half.nodes = [self.localized(node, device) for node in half.nodes]
        outputs = self.outputs()
        parts = {}
        for device, half in self.halves.items():
            places = tuple(i for i, home in enumerate(outputs) if home == device)
            values = tuple(half.here.get(self.graph.outputs[i], self.graph.outputs[i]) for i in places)
            part = FlatGraph(self.graph.inputs, tuple(in_order([*half.nodes, *half.added])), values, self.graph.name)
            verify_flat(part)
            parts[device] = Part(device, part, places, reports[device], reported[device])
        return Partition(parts, tuple(self.edges))

    def outputs(self) -> list[str]:
        """The device that each output is on; one that is an input is anywhere."""
        homes = []
        for value in self.graph.outputs:
            node = self.producer_of.get(value)
            homes.append(next(iter(self.halves)) if node is None else str(node.device))
        return homes

    def _participants(self) -> dict[str, set[str]]:
        """The devices that take part in each loop: those of the nodes in its frame and in the frames inside."""
        found: dict[str, set[str]] = {frame: set() for frame in self.frames.parent}
        for node in self.graph.nodes:
            frame = Enter.of(node).frame if node.op is flat.ENTER else self.frames.of_node[node]
            if frame != ROOT:
                found[frame].add(str(node.device))
        for frame in sorted(found, key=self.frames.depth, reverse=True):
            outer = self.frames.parent[frame]
            if outer != ROOT:
                found[outer] |= found[frame]
        return found

    def edge(self, sender: str, receiver: str, frame: str, type: Type | None) -> Edge:
        edge = Edge(len(self.edges), sender, receiver, self.frames.path(frame), type)
        self.edges.append(edge)
        return edge

    # Start of an iteration on a device.

    def begin(self, frame: str, device: str, owner: str) -> None:
        """Give a device what begins each iteration of a loop: a carry that is there, or a control loop."""
        half, condition = self.halves[device], self.conditions[frame]
        enters = self.enters[frame]
        # A reversed loop counts down from a number that callbacks and errors on every device ask for.
        count = next((n for n in enters if Enter.of(n).count and n.device != device), None)
        carry = self.carries.get((frame, device))
        if device == owner and carry is not None and count is None:
            half.begun[frame], half.live[frame] = carry
            return
        source = condition.source
        controls = self.trigger(frame, device, enters[0])
        if count is None:
            entering, controls = self.signal(device, controls, enters[0]), ()
        else:
            entering = self.there(count.operands[0], device)
        hint = f"control_{frame}"
        first, back, head = (Value(entering.type, hint) for _ in range(3))
        last, current = (Value(entering.type, f"{hint}_{side}") for side in ("false", "true"))
        window = Enter.of(enters[0]).parallel_iterations
        attrs = Enter(frame=frame, constant=False, parallel_iterations=window, control=True, count=count is not None)
        half.add(flat.ENTER, (entering,), (first,), attrs, controls, source, device)
        half.add(flat.MERGE, (first, back), (head,), NO_ATTRS, (), source, device)
        half.begun[frame] = head
        predicate = condition.result
        if device != owner:
            arrived = self.bring(predicate, device)
            predicate = Value(BOOL, predicate.hint)
            half.add(
                flat.LOOP_COND, (arrived,), (predicate,), LoopCond(loop=LoopCond.of(condition).loop), (), source, device
            )
            half.here[condition.result] = predicate
        half.add(flat.SWITCH, (predicate, head), (last, current), NO_ATTRS, (), source, device)
        half.add(flat.NEXT_ITERATION, (current,), (back,), NO_ATTRS, (), source, device)
        half.live[frame] = current

    def trigger(self, frame: str, device: str, entered: FlatNode) -> tuple[Value, ...]:
        """Values on the device that are alive together exactly where the loop is entered."""
        guard = guard_of(entered, self.guards)
        outer = self.frames.parent[frame]
        own = self.pivot(outer, device, guard)
        if own is not None:
            return (own,)
        if outer == ROOT and guard == NO_GUARD:
            return ()
        stands_for = [v for v in entered.inputs if self.guards[v] == guard][:1]
        # Where no input alone says it, all of them do.
        return tuple(self.aliveness(v, device, entered) for v in stands_for or entered.inputs)

    def pivot(self, frame: str, device: str, guard: Guard) -> Value | None:
        """Value that the device already has in a frame and that is alive where `guard` holds; None if there is none."""
        half = self.halves[device]
        if frame not in half.begun:
            return None
        if guard == NO_GUARD:
            return half.begun[frame]
        return half.live[frame] if guard == {next_iteration(self.conditions[frame])} else None

    def signal(self, device: str, controls: Sequence[Value], like: FlatNode) -> Value:
        """A scalar that is true, and alive where the controls are."""
        array = np.array(True)
        array.flags.writeable = False
        value = Value(BOOL, "alive")
        constant = Node(OPS["constant"], (), (value,), attributes.Constant(value=array), (), like.source)
        body = Graph((), (constant,), (value,), "cluster")
        self.halves[device].added.append(
            FlatNode(
                flat.CLUSTER,
                (),
                (value,),
                Cluster(effect=False),
                (body,),
                like.source,
                controls=tuple(controls),
                device=device,
            )
        )
        self.frames.of_value[value] = self.frames.of_node[like]
        return value

    # Values that come from another device.

    def home(self, value: Value) -> str | None:
        """The device that makes a value; None for an input, which is everywhere."""
        node = self.producer_of.get(value)
        return None if node is None else str(node.device)

    def localized(self, node: FlatNode, device: str) -> FlatNode:
        """The node with each operand as this device has it."""
        operands = tuple(self.there(v, device) for v in node.operands)
        controls = tuple(dict.fromkeys(self.aliveness(v, device, node) for v in node.controls))
        orders = tuple(v for v in node.orders if self.home(v) in (None, device))
        if (operands, controls, orders) == (node.operands, node.controls, node.orders):
            return node
        return replace(node, operands=operands, controls=controls, orders=orders)

    def there(self, value: Value, device: str) -> Value:
        if self.home(value) in (None, device):
            return value
        return self.halves[device].here.get(value) or self.bring(value, device)

    def aliveness(self, value: Value, device: str, consumer: FlatNode) -> Value:
        """Something on the device that is alive where `value` is, without the value itself."""
        if self.home(value) in (None, device):
            return value
        half = self.halves[device]
        if value in half.here:
            return half.here[value]
        own = self.pivot(self.frames.of_value[value], device, self.guards[value])
        if own is not None:
            return own
        if value not in half.alive:
            token = self.signal(str(self.home(value)), (value,), consumer)
            self.frames.of_value[token] = self.frames.of_value[value]
            half.alive[value] = self.bring(token, device, str(self.home(value)))
        return half.alive[value]

    def bring(self, value: Value, device: str, home: str | None = None) -> Value:
        """Send a value from where it is computed to a device; returns it there."""
        home = home or str(self.home(value))
        frame = self.frames.of_value[value]
        edge = self.edge(home, device, frame, value.type)
        brought = Value(value.type, value.hint)
        producer = self.producer_of.get(value)
        source = None if producer is None else producer.source
        sent, got = Send(edge=edge.number, receiver=device), Recv(edge=edge.number, sender=home)
        # A constant of a frame does not say that an iteration has begun.
        each = (self.halves[home].begun[frame],) if producer is not None and producer.is_constant_enter else ()
        self.halves[home].add(flat.SEND, (value,), (), sent, each, source, home)
        start = (self.halves[device].begun[frame],) if frame != ROOT else ()
        self.halves[device].add(flat.RECV, (), (brought,), got, start, source, device)
        self.halves[device].here[value] = brought
        return brought
