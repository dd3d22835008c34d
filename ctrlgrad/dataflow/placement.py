"""Placement: every node of a flat graph gets a device.

Where the user said one, that is it: an op's source has it, and what was derived from the op, such as its gradient, has
the same source. For everything else:

- all ops on one stack sit where the values pushed on it are computed;
- the nodes of a loop's carry sit with the op that makes its next value, a LoopCond with the op that makes it;
- a Switch and a Merge sit with what they take;
- a constant, and a constant Enter, is there once on each device that needs it: a loop that uses a captured array on
  another device gets it once, not in every iteration;
- an op that was put nowhere sits on `cpu:0`;
- in a graph that names a rank, what was put on a device without one is on rank 0 (`on_ranks`).

Where the setting `loops="whole"` asks for it, a loop that sits on one device, all of it, stays one node there: nothing
of it overlaps with anything else, and in exchange it runs as one piece, in machine code where the native engine can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from ctrlgrad.dataflow import graph as flat
from ctrlgrad.dataflow.devices import DEFAULT, parse_device
from ctrlgrad.dataflow.graph import FlatGraph, FlatNode, carry_switches, consumers, is_loop_merge, producers
from ctrlgrad.dataflow.scopes import frames_of
from ctrlgrad.errors import UserInputError
from ctrlgrad.ir import Graph, Node, StackType, Use, Value, is_loop, walk
from ctrlgrad.mpi.launch import launched, number_of_ranks

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
        parts = _Parts()
        users: list[tuple[FlatNode, Value]] = []
        for node in self.graph.nodes:
            # A Switch's predicate is no stack; everything else that a node takes and gives of this kind is one stack,
            # but for a sum of two, which sits with the first.
            of_stacks = [v for v in (*node.operands, *node.results) if isinstance(v.type, StackType)]
            for other in of_stacks[1:]:
                parts.join(of_stacks[0], other)
            users += [(node, v) for v in of_stacks[:1]]
        wanted: dict[Value, str] = {}
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


class _Parts:
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


# Loops that stay whole.


def whole_loops(graph: Graph, choose: Choice) -> Callable[[Node], str | None]:
    """Function that says of a loop of the graph on which device it stays whole; None where it sits on several.

    `choose` says where an ordinary op goes, as for `place`. A node that only holds regions, an inner loop or
    branch, sits with the nodes in them.
    """
    homes: dict[Node, str | None] = {}
    for node in walk(graph):
        if is_loop(node):
            inside = [n for region in node.regions for n in walk(region) if n.op.name != "constant" and not n.regions]
            found = {_home(n, choose) for n in inside or [node]}
            homes[node] = found.pop() if len(found) == 1 else None
    return lambda node: homes[node]


def _home(node: Node, choose: Choice) -> str:
    return choose(FlatNode(node.op, node.operands, node.results, node.attrs, node.regions, node.source)) or DEFAULT
