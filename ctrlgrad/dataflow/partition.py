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

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace

import numpy as np

from ctrlgrad.dataflow import graph as flat
from ctrlgrad.dataflow.devices import DEFAULT, parse_device
from ctrlgrad.dataflow.graph import (
    Cluster,
    Enter,
    FlatGraph,
    FlatNode,
    LoopCond,
    Recv,
    Send,
    carry_switches,
    consumers,
    in_order,
    is_loop_merge,
    producers,
)
from ctrlgrad.dataflow.scopes import NO_GUARD, ROOT, Frames, Guard, fail, frames_of, guard_of, guards_of, next_iteration
from ctrlgrad.dataflow.verifier import verify_flat
from ctrlgrad.errors import UserInputError
from ctrlgrad.ir import BOOL, OPS, Graph, Node, Op, StackType, Type, Use, Value, attributes
from ctrlgrad.ir.attributes import NO_ATTRS, Attributes
from ctrlgrad.mpi.launch import launched, number_of_ranks
from ctrlgrad.records import record
from ctrlgrad.source import Source

# Placement: every node of a flat graph gets a device.
#
# Where the user said one, that is it: an op's source has it, and what was derived from the op, such as its gradient,
# has the same source. For everything else:
#
# - all ops on one stack sit where the values pushed on it are computed;
# - the nodes of a loop's carry sit with the op that makes its next value, a LoopCond with the op that makes it;
# - a Switch and a Merge sit with what they take;
# - a constant, and a constant Enter, is there once on each device that needs it: a loop that uses a captured array on
#   another device gets it once, not in every iteration;
# - an op that was put nowhere sits on `cpu:0`;
# - in a graph that names a rank, what was put on a device without one is on rank 0 (`on_ranks`).


Choice = Callable[[FlatNode], str | None]


def as_written(node: FlatNode) -> str | None:
    """The device that the user put a node on."""
    return node.device or (node.source.device if node.source is not None else None)


def place(graph: FlatGraph, choose: Choice = as_written) -> FlatGraph:
    """The graph with a device on every node, and constants where they are needed.

    `choose` says where an ordinary op goes; None where it does not matter.
    """
    placing = _Placing(graph, choose)
    placing.stacks()
    placing.carries()
    placing.spread()
    return _with_copies(graph, placing.device)


class _Placing:
    def __init__(self, graph: FlatGraph, choose: Choice) -> None:
        self.graph = graph
        self.producer_of, self.consumers_of = producers(graph), consumers(graph)
        self.device: dict[FlatNode, str] = {}
        for node in graph.nodes:
            if node.device is not None:
                self.device[node] = node.device
            elif not node.is_primitive and not node.is_constant:
                self.device[node] = choose(node) or DEFAULT

    def at(self, value: Value) -> str | None:
        """Device that computes a value, if it is decided."""
        node = self.producer_of.get(value)
        return None if node is None or is_copied(node) else self.device.get(node)

    def stacks(self) -> None:
        """One device for each stack, whatever loops and branches it goes through."""
        parts = Parts()
        users: list[tuple[FlatNode, Value]] = []
        for node in self.graph.nodes:
            # A Switch's predicate is no stack; everything else that a node takes and gives of this kind is one stack,
            # but for a sum of two, which sits with the first.
            of_stacks = [v for v in (*node.operands, *node.results) if isinstance(v.type, StackType)]
            for other in of_stacks[1:]:
                parts.join(of_stacks[0], other)
            users += [(node, v) for v in of_stacks[:1]]
        # A plan that stays one node has its stacks where it lies.
        wanted: dict[Value, str] = {}
        for node, value in users:
            if node.device is not None:
                wanted.setdefault(parts.of(value), node.device)
        for node, value in users:
            if node.op.has_use(Use.PUSH):
                home = self.source_of(node.operands[1])
                if home is not None:
                    wanted.setdefault(parts.of(value), home)
        for node, value in users:
            if not node.is_primitive:
                wanted.setdefault(parts.of(value), self.device[node])
        for node, value in users:
            home = wanted.get(parts.of(value))
            if home is not None and node.device is None:
                self.device[node] = home

    def carries(self) -> None:
        """One device for the Enter, Merge, Switch, NextIteration and Exit of each carry."""
        frames = frames_of(self.graph)
        conditions = {frames.of_node[node]: node for node in self.graph.nodes if node.op is flat.LOOP_COND}
        for head in self.graph.nodes:
            if not is_loop_merge(head, self.producer_of):
                continue
            enter, back = (self.producer_of[v] for v in head.operands)
            switches = carry_switches(head, conditions[frames.of_node[head]], self.consumers_of)
            exits = [n for s in switches for n in self.consumers_of.get(s.results[0], ()) if n.op is flat.EXIT]
            group = [enter, head, back, *switches, *exits]
            home = next((self.device[n] for n in group if n in self.device), None) or self.source_of(back.operands[0])
            home = home or self.user_of(head) or DEFAULT
            for node in group:
                self.device.setdefault(node, home)

    def source_of(self, value: Value) -> str | None:
        """Device that computes a value, seen through nodes that only pass it on; later operands are tried first."""
        seen: set[Value] = set()
        waiting = [value]
        while waiting:
            value = waiting.pop()
            node = self.producer_of.get(value)
            if node is None or value in seen or is_copied(node):
                continue
            seen.add(value)
            if node in self.device:
                return self.device[node]
            waiting += node.operands if node.op is not flat.SWITCH else node.operands[1:]
        return None

    def user_of(self, head: FlatNode) -> str | None:
        """Device of a consumer of a carry that no iteration changes."""
        seen: set[FlatNode] = set()
        waiting = [head]
        while waiting:
            node = waiting.pop()
            for value in node.results:
                for consumer in self.consumers_of.get(value, ()):
                    if consumer in seen:
                        continue
                    if consumer in self.device:
                        return self.device[consumer]
                    seen.add(consumer)
                    if consumer.op is not flat.LOOP_COND:
                        waiting.append(consumer)
        return None

    def spread(self) -> None:
        """Place each remaining node with its operands; if none of these is placed, with its consumers."""
        for node in self.graph.nodes:
            if node not in self.device and not is_copied(node):
                data = node.operands[1:] if node.op is flat.SWITCH else node.operands
                self.settle(node, (self.at(v) for v in data))
        for node in reversed(self.graph.nodes):
            if node not in self.device and not is_copied(node):
                self.settle(node, (self.device.get(n) for v in node.results for n in self.consumers_of.get(v, ())))
        for node in self.graph.nodes:
            if not is_copied(node):
                self.device.setdefault(node, DEFAULT)

    def settle(self, node: FlatNode, wishes: Iterable[str | None]) -> None:
        found = next((wish for wish in wishes if wish is not None), None)
        if found is not None:
            self.device[node] = found


class Parts:
    """Values that belong together: a union-find."""

    def __init__(self) -> None:
        self.above: dict[Value, Value] = {}

    def of(self, value: Value) -> Value:
        while value in self.above:
            value = self.above[value]
        return value

    def join(self, a: Value, b: Value) -> None:
        a, b = self.of(a), self.of(b)
        if a is not b:
            self.above[b] = a


def is_copied(node: FlatNode) -> bool:
    """Return true if a node has a copy on each device that needs it."""
    return node.device is None and (node.is_constant or node.is_constant_enter)


def _with_copies(graph: FlatGraph, device: Mapping[FlatNode, str]) -> FlatGraph:
    """Every node with its device, the copied ones once for each device of their consumers."""
    needed: dict[Value, list[str]] = {}
    producer_of = producers(graph)

    def need(value: Value, place: str) -> None:
        node = producer_of.get(value)
        if node is not None and is_copied(node):
            places = needed.setdefault(value, [])
            if place not in places:
                places.append(place)

    for node in reversed(graph.nodes):
        places = needed.get(node.results[0], []) if is_copied(node) else [device[node]]
        for place in places:
            for value in node.inputs:
                need(value, place)
    for value in graph.outputs:
        if not needed.get(value):
            need(value, DEFAULT)
    return _copied(graph, device, needed)


def _copied(graph: FlatGraph, device: Mapping[FlatNode, str], needed: Mapping[Value, list[str]]) -> FlatGraph:
    copies: dict[tuple[Value, str], Value] = {}
    nodes: list[FlatNode] = []

    def there(values: tuple[Value, ...], place: str) -> tuple[Value, ...]:
        return tuple(copies.get((v, place), v) for v in values)

    for node in graph.nodes:
        for count, place in enumerate(needed.get(node.results[0], []) if is_copied(node) else [device[node]]):
            results = node.results
            if count:
                results = tuple(Value(v.type, v.hint) for v in node.results)
                copies.update(((v, place), new) for v, new in zip(node.results, results, strict=True))
            nodes.append(
                replace(
                    node,
                    device=place,
                    operands=there(node.operands, place),
                    results=results,
                    controls=there(node.controls, place),
                    orders=there(node.orders, place),
                )
            )
    return FlatGraph(graph.inputs, tuple(nodes), graph.outputs, graph.name)


# Ranks.


def names_ranks(devices: Iterable[str]) -> bool:
    """Return true if a device's name has a rank."""
    return any(parse_device(name).rank is not None for name in devices)


def on_ranks(graph: FlatGraph) -> FlatGraph:
    """A placed graph in which every device has a rank, if any has; started alone, rank 0 is this process.

    Raises:
        UserInputError: a rank does not exist, or a device is simulated; on all ranks.
    """
    if not names_ranks(str(node.device) for node in graph.nodes):
        return graph
    size, is_alone = number_of_ranks(), launched() is None
    nodes: list[FlatNode] = []
    for node in graph.nodes:
        name = parse_device(node.device, node.source)
        rank = name.rank or 0
        if rank >= size or name.kind == "sim":
            # A copied constant does not say where the user wrote it.
            like = (n for n in graph.nodes if n.device == node.device and n.source is not None)
            raise _refused(next(like, node), rank, size)
        nodes.append(replace(node, device=str(replace(name, rank=None if is_alone else rank))))
    return FlatGraph(graph.inputs, tuple(nodes), graph.outputs, graph.name)


def _refused(node: FlatNode, rank: int, size: int) -> UserInputError:
    if rank >= size:
        return UserInputError(
            f"the device {node.device} does not exist here",
            source=node.source,
            expected=f"/rank:R/cpu:N or /rank:R/cuda:N with R below {size}, the number of ranks",
            got=str(node.device),
            hint=f"start enough ranks, with mpirun -n {rank + 1} in front of the command",
        )
    return UserInputError(
        f"the device {node.device} cannot be used over ranks: its latency is simulated inside of one process",
        source=node.source,
        expected="/rank:R/cpu:N or /rank:R/cuda:N in a graph that names ranks",
        got=str(node.device),
        hint="give it a device cpu:N, or leave /rank:R/ out of all names",
    )


def flat_node(node: Node) -> FlatNode:
    """A node of a structured graph, as a function that places ops takes it."""
    return FlatNode(node.op, node.operands, node.results, node.attrs, node.regions, node.source)


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
        # For each frame and device the Merge and the Switch's true side of a carry that is there, if there is one.
        found: dict[tuple[str, str], tuple[Value, Value]] = {}
        switched = {(node.operands[1], node.operands[0]): node for node in self.graph.nodes if node.op is flat.SWITCH}
        for node in self.graph.nodes:
            if not is_loop_merge(node, self.producer_of):
                continue
            frame = self.frames.of_node[node]
            switch = switched.get((node.result, self.conditions[frame].result))
            if switch is not None and switch.device == node.device:
                found.setdefault((frame, str(node.device)), (node.result, switch.results[1]))
        self.carries = found

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
        """A value that the device has in a frame and that is alive if `guard` holds; None if no value is."""
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
