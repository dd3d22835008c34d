"""The flat dataflow graph: one level of nodes, in which five primitives say what loops and branches are.

    Switch(p, d)      -> one result per branch, d on the side that p chooses, dead on the others (0 is false, 1 is true)
    Merge(d0, d1, ..) -> the operand that is alive
    Enter(d)          -> d in iteration 0 of a child frame (`attrs["frame"]`), or in all of its iterations ("constant")
    NextIteration(d)  -> d in the next iteration of the frame
    Exit(d)           -> d in the parent frame

`LoopCond` marks the predicate of a frame. `Send` and `Recv` are the two ends of an edge between devices. `Cluster` is
several ordinary ops that run as one piece, the nodes of its region. Every other node is an ordinary op of
`ctrlgrad.ops`.

Nodes stand in an order in which every operand is defined before it is used, but for the second operand of a loop's
Merge, which a NextIteration defines later. A node may also wait for values that it does not take: `controls`, whose
deadness it shares, and `orders`, which only say that a reader comes before what overwrites its operand.

Source: "Implementation of Control Flow in TensorFlow" (whitepaper, 2017).
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ctrlgrad.ir import OPS, Graph, Value
from ctrlgrad.ir.attributes import NO_ATTRS
from ctrlgrad.ir.caching import Cache, Recent
from ctrlgrad.ir.effects import has_effect
from ctrlgrad.source import Source

SWITCH, MERGE, ENTER, EXIT = "Switch", "Merge", "Enter", "Exit"
NEXT_ITERATION, LOOP_COND = "NextIteration", "LoopCond"
SEND, RECV, CLUSTER = "Send", "Recv", "Cluster"

# What `tf.while_loop` and `ctrlgrad.while_loop` have as their default.
PARALLEL_ITERATIONS = 32
PRIMITIVES = frozenset({SWITCH, MERGE, ENTER, EXIT, NEXT_ITERATION, LOOP_COND, SEND, RECV, CLUSTER})


@dataclass(frozen=True, eq=False, slots=True)
class FlatNode:
    """One node. `device` is None where the placement has not been decided."""

    op: str
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    # Of an op of `ctrlgrad.ops` what it declares; names and values of a primitive.
    attrs: Any = NO_ATTRS
    controls: tuple[Value, ...] = ()
    orders: tuple[Value, ...] = ()
    regions: tuple[Graph, ...] = ()
    source: Source | None = None
    device: str | None = None

    @property
    def result(self) -> Value:
        """The only result."""
        (value,) = self.results
        return value

    @property
    def inputs(self) -> tuple[Value, ...]:
        """All that the node waits for."""
        return (*self.operands, *self.controls, *self.orders)

    @property
    def is_primitive(self) -> bool:
        return self.op in PRIMITIVES

    @property
    def is_constant_enter(self) -> bool:
        return self.op == ENTER and bool(self.attrs["constant"])

    def __repr__(self) -> str:
        return f"FlatNode({self.op}: {', '.join(str(v.type) for v in self.operands)})"


@dataclass(frozen=True, eq=False, slots=True)
class FlatGraph:
    """A function on values as a flat graph."""

    inputs: tuple[Value, ...]
    nodes: tuple[FlatNode, ...]
    outputs: tuple[Value, ...]
    name: str = "graph"
    caches: dict[Cache[Any, Any], Recent[Any, Any]] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        from ctrlgrad.dataflow.printer import format_flat  # the printer needs this module first

        return format_flat(self)

    def __repr__(self) -> str:
        return f"FlatGraph({self.name!r}: {len(self.nodes)} nodes)"


def makers(graph: FlatGraph) -> dict[Value, FlatNode]:
    """The node that defines each value."""
    return {value: node for node in graph.nodes for value in node.results}


def takers(graph: FlatGraph) -> dict[Value, list[FlatNode]]:
    """The nodes that take each value as an operand, one entry per node."""
    found: dict[Value, list[FlatNode]] = {}
    for node in graph.nodes:
        for value in dict.fromkeys(node.operands):
            found.setdefault(value, []).append(node)
    return found


def is_loop_merge(node: FlatNode, made_by: Mapping[Value, FlatNode]) -> bool:
    """Whether a node is the Merge at the head of a loop's carry: of an Enter and a NextIteration."""
    if node.op != MERGE or len(node.operands) != 2:
        return False
    back = made_by.get(node.operands[1])
    return back is not None and back.op == NEXT_ITERATION


def carry_switches(head: FlatNode, condition: FlatNode, taken_by: Mapping[Value, Sequence[FlatNode]]) -> list[FlatNode]:
    """The Switches of a loop's carry, by its Merge: of the Merge itself, or of what the condition made of it.

    What the condition makes anew is the token of effects alone.
    """
    seen: set[FlatNode] = set()
    values = [head.result]
    while values:
        takers = [n for v in values for n in taken_by.get(v, ()) if n not in seen]
        found = [n for n in takers if n.op == SWITCH and n.operands[0] is condition.result and n.operands[1] in values]
        if found:
            return found
        seen.update(takers)
        values = [v for n in takers if n.op not in (LOOP_COND, NEXT_ITERATION) for v in n.results]
    return []


def is_effectful(node: FlatNode) -> bool:
    """Whether an ordinary op does something besides computing: it takes a token last and gives the next one."""
    return not node.is_primitive and has_effect(OPS[node.op], node.regions)


def in_order(nodes: Sequence[FlatNode]) -> list[FlatNode]:
    """The nodes with each after those that it takes from, otherwise as they stand."""
    position = {node: i for i, node in enumerate(nodes)}
    made_by = {v: node for node in nodes for v in node.results}
    waits: dict[FlatNode, int] = {}
    after: dict[FlatNode, list[FlatNode]] = {}
    for node in nodes:
        values = node.inputs[:1] if is_loop_merge(node, made_by) else node.inputs
        before = {made_by[v] for v in values if v in made_by}
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


__all__ = [
    "CLUSTER",
    "ENTER",
    "EXIT",
    "LOOP_COND",
    "MERGE",
    "NEXT_ITERATION",
    "PARALLEL_ITERATIONS",
    "PRIMITIVES",
    "RECV",
    "SEND",
    "SWITCH",
    "FlatGraph",
    "FlatNode",
    "carry_switches",
    "in_order",
    "is_effectful",
    "is_loop_merge",
    "makers",
    "takers",
]
