"""Clusters: ordinary ops that run as one piece, so that an executor handles few nodes per iteration.

In: a flat graph with a device on every node. Out: the same with every ordinary op inside a `Cluster`, all of whose ops
sit in one frame on one device, dead or alive together. Nothing leaves a cluster and comes back: a cluster waits for all
that it takes.

Two ways to cut, as a setting says:

- "whole": as few pieces as the control nodes allow. Right for one device, where one thread runs everything anyhow.
- "flowing": two ops share a piece only if they wait for the same values, so no piece waits for more than one of its ops
  would. A loop's counter then runs ahead of the work, and what another device waits for is not held up.

With "none" every op is a piece of its own.

A carried stack counts as there from the start: a push waits for the last push, which is never late. So does a carried
total, to which an iteration adds something and which it needs for nothing else: the sum is in one piece with what is
added. Constants go into the pieces that use them, where something else says when those run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ctrlgrad.dataflow import graph as flat
from ctrlgrad.dataflow.graph import Cluster, Enter, FlatGraph, FlatNode, consumers, in_order, is_loop_merge, producers
from ctrlgrad.dataflow.scopes import Guard, frames_of, guard_of, guards_of
from ctrlgrad.ir import OPS, Graph, Node, StackType, Value

CUTS = ("whole", "flowing", "none")


def cluster(graph: FlatGraph, cut: str) -> FlatGraph:
    """The graph with its ordinary ops in clusters, cut in one of `CUTS`."""
    cutter = _Cutter(graph, cut)
    groups: dict[Any, list[FlatNode]] = {}
    for node in graph.nodes:
        if _is_clustered(node):
            groups.setdefault(cutter.key(node), []).append(node)
    used = _used_outside(cutter, groups)
    nodes = [node for node in graph.nodes if node.is_primitive]
    nodes += [_piece(members, cutter, used) for members in groups.values()]
    nodes += [_piece([n], cutter, used) for n in graph.nodes if n.is_constant and n.result in used]
    position = {v: i for i, node in enumerate(graph.nodes) for v in node.results}
    nodes.sort(key=lambda n: min((position[v] for v in n.results), default=len(position)))
    return FlatGraph(graph.inputs, tuple(in_order(nodes)), graph.outputs, graph.name)


def _is_clustered(node: FlatNode) -> bool:
    """Whether a node goes into a cluster; a constant goes into those that take it, and stands alone for all others."""
    return not node.is_primitive and not node.is_constant


@dataclass
class _Cutter:
    """Says of each ordinary op which cluster it belongs to; asked in the graph's order."""

    graph: FlatGraph
    cut: str
    producer_of: dict[Value, FlatNode] = field(init=False)
    sources: dict[FlatNode, frozenset[Value]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.producer_of = producers(self.graph)
        self.consumers_of = consumers(self.graph)
        self.frames = frames_of(self.graph)
        self.guards = guards_of(self.graph, self.frames)
        self.copied = {node: self._copied(node) for node in self.graph.nodes}
        self.waited = {node: self._waited(node) for node in self.graph.nodes}
        self.levels = self._levels() if self.cut == "whole" else {}

    def key(self, node: FlatNode) -> Any:
        if self.cut == "none" or node.is_effectful:
            return node
        where: tuple[str, str | None, Guard] = self.group(node)
        if self.cut == "whole":
            return (*where, self.levels[node])
        waited = self.waited[node]
        added = [value for value in waited if not self._is_total(value)]
        # What is added comes from somewhere; a counter, to which a constant is added, runs ahead by itself.
        self.sources[node] = self._wait_for(added, node.device) or self._wait_for(waited, node.device)
        return (*where, self.sources[node])

    def group(self, node: FlatNode) -> tuple[str, str | None, Guard]:
        """What all ops of a cluster share in any case."""
        return self.frames.of_node[node], node.device, guard_of(node, self.guards)

    def _wait_for(self, values: Iterable[Value], device: str | None) -> frozenset[Value]:
        return frozenset[Value]().union(*(self._waits_for(value, device) for value in values))

    def _waits_for(self, value: Value, device: str | None) -> frozenset[Value]:
        node = self.producer_of.get(value)
        if node is None or node.is_constant_enter or self._is_carried_stack(value, node):
            return frozenset()
        if node in self.sources and node.device == device:
            return self.sources[node]
        return frozenset([value])

    def _is_carried_stack(self, value: Value, node: FlatNode) -> bool:
        if not isinstance(value.type, StackType):
            return False
        return self._is_loop_switch(node) if node.op is flat.SWITCH else is_loop_merge(node, self.producer_of)

    def _is_loop_switch(self, node: FlatNode) -> bool:
        predicate = self.producer_of.get(node.operands[0])
        return predicate is not None and predicate.op is flat.LOOP_COND

    def _is_total(self, value: Value) -> bool:
        """Whether an iteration takes a carried value for one sum on its device, which only the next one takes."""
        switch, users = self.producer_of.get(value), self.consumers_of.get(value, [])
        if switch is None or switch.op is not flat.SWITCH or not self._is_loop_switch(switch) or len(users) != 1:
            return False
        (total,) = users
        if total.op.name != "add" or total.device != switch.device:
            return False
        return [node.op for node in self.consumers_of.get(total.result, [])] == [flat.NEXT_ITERATION]

    def _levels(self) -> dict[FlatNode, int]:
        """How many control nodes and other clusters lie before each node at the most.

        Every path from one cluster to another raises the level, so clusters of one level never wait for each other.
        What leaves a loop comes after all that enters it, whichever carry it is of.
        """
        levels: dict[FlatNode, int] = dict.fromkeys(self.graph.nodes, 0)
        entered: dict[str, int] = {}
        changes = True
        while changes:
            changes = False
            for node in self.graph.nodes:
                level = entered.get(self.frames.of_node[node], 0) if node.op is flat.EXIT else 0
                for value in self.waited[node]:
                    producer = self.producer_of.get(value)
                    if producer is not None:
                        level = max(level, levels[producer] + self._is_apart(producer, node))
                if level > levels[node]:
                    levels[node] = level
                    changes = True
                if node.op is flat.ENTER:
                    frame = Enter.of(node).frame
                    entered[frame] = max(entered.get(frame, 0), level)
        return levels

    def _copied(self, node: FlatNode) -> frozenset[Value]:
        """The constants that a node's cluster has copies of: where what else the node takes says when it runs too."""
        constants = {v for v in node.operands if v in self.producer_of and self.producer_of[v].is_constant}
        if not constants or not _is_clustered(node):
            return frozenset()
        others = {*node.operands} - constants | {*node.controls, *node.orders}
        guard: Guard = frozenset[Any]().union(*(self.guards[v] for v in others))
        is_driven = any(v not in self.producer_of or not self.producer_of[v].is_constant_enter for v in others)
        return frozenset(
            v for v in constants if self.guards[v] <= guard and (is_driven or not self.producer_of[v].controls)
        )

    def _waited(self, node: FlatNode) -> Sequence[Value]:
        """What a node waits for, what comes around a loop aside."""
        if is_loop_merge(node, self.producer_of):
            return node.inputs[:1]
        waited = (v for v in node.operands if v not in self.copied[node])
        return (*waited, *node.controls, *node.orders)

    def _is_apart(self, producer: FlatNode, node: FlatNode) -> bool:
        """Whether an ordinary op is in another cluster than what it takes from, for certain."""
        if not _is_clustered(node):
            return False
        if not _is_clustered(producer) or producer.is_effectful or node.is_effectful:
            return True
        return self.group(producer) != self.group(node)


def _used_outside(cutter: _Cutter, groups: Mapping[Any, list[FlatNode]]) -> set[Value]:
    """The values that some node takes outside of the cluster that makes them."""
    group_of = {node: key for key, members in groups.items() for node in members}
    group_of_value = {v: key for node, key in group_of.items() for v in node.results}
    used = set(cutter.graph.outputs)
    for node in cutter.graph.nodes:
        waited = (v for v in node.operands if v not in cutter.copied[node])
        for value in (*waited, *node.controls, *node.orders):
            if node not in group_of or value not in group_of_value or group_of_value[value] != group_of[node]:
                used.add(value)
    return used


def _piece(members: list[FlatNode], cutter: _Cutter, used: set[Value]) -> FlatNode:
    """Some ops as one Cluster node."""
    inside = {v for node in members for v in node.results}
    body: list[Node] = []
    operands: dict[Value, None] = {}
    copied: dict[Value, Value] = {}
    effect = members[0].is_effectful
    for node in members:
        arguments = []
        for value in node.operands:
            if value in cutter.copied[node]:
                producer = cutter.producer_of[value]
                if value not in copied:
                    copied[value] = Value(value.type, value.hint)
                    constant = Node(OPS["constant"], (), (copied[value],), producer.attrs, (), producer.source)
                    body.append(constant)
                arguments.append(copied[value])
                continue
            if value not in inside:
                operands[value] = None
            arguments.append(value)
        count = len(arguments) - effect
        results = node.results[:-1] if effect else node.results
        body.append(Node(node.op, tuple(arguments[:count]), results, node.attrs, node.regions, node.source))
    results = tuple(v for node in members for v in node.results if v in used or effect)
    outputs = results[:-1] if effect else results
    apart = inside | set(operands)
    controls = dict.fromkeys(v for node in members for v in node.controls if v not in apart)
    orders = dict.fromkeys(v for node in members for v in node.orders if v not in apart and v not in controls)
    region = Graph(tuple(operands), tuple(body), outputs, "cluster")
    first = members[0]
    return FlatNode(
        flat.CLUSTER,
        tuple(operands),
        results,
        Cluster(effect=effect),
        (region,),
        first.source,
        controls=tuple(controls),
        orders=tuple(orders),
        device=first.device,
    )
