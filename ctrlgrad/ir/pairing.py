"""The way of a paired stack through a graph: where it is pushed on and where it is popped.

A stack that the gradient transform makes is pushed on at one place, in some nesting of loops and branches, and
popped at the mirrored place of the backward side. One of the two loops may be split into chunks and the other not: they
still run as often. `way` follows such a stack and returns one event per node that takes it; `mirrored` says what must
follow.
"""

from __future__ import annotations

from dataclasses import dataclass

from ctrlgrad.ir.control import Branch, Loop, view
from ctrlgrad.ir.graph import Graph, Node, Value

# Ops that look at a stack and leave it as it is.
OBSERVERS = frozenset({"stack_concat", "stack_length", "stack_read", "stack_rows", "stack_to_tensor"})


@dataclass(frozen=True)
class Event:
    """A push, a pop, or a loop or branch node with the events inside each of its regions."""

    kind: str
    inside: tuple[tuple[Event, ...], ...] = ()

    def mirrored(self) -> Event:
        other = {"push": "pop", "pop": "push"}.get(self.kind, self.kind)
        return Event(other, tuple(tuple(e.mirrored() for e in reversed(events)) for events in self.inside))

    def __str__(self) -> str:
        if not self.inside:
            return self.kind
        regions = " | ".join(", ".join(map(str, events)) or "-" for events in self.inside)
        return f"{self.kind}({regions})"


@dataclass(frozen=True)
class Way:
    """The events in order, and the output at which the stack leaves the graph, if it does."""

    events: tuple[Event, ...]
    output: int | None


# The kind of the loop over a chunk's iterations.
_CHUNK = "chunk"


class PairingError(Exception):
    """The stack is used in a way that push and pop cannot mirror."""


def way(graph: Graph, stack: Value) -> Way:
    """Follow a stack from the value `stack` to where nothing takes it any more."""
    events: list[Event] = []
    value = stack
    while True:
        takers = [n for n in graph.nodes if value in n.operands and n.op.name not in OBSERVERS]
        places = [i for i, v in enumerate(graph.outputs) if v is value]
        if len(takers) + len(places) > 1:
            raise PairingError(f"it is taken {len(takers) + len(places)} times")
        if places:
            return Way(tuple(events), places[0])
        if not takers:
            return Way(tuple(events), None)
        event, after = _pass(takers[0], value)
        events += event
        if after is None:
            return Way(tuple(events), None)
        value = after


def _repeated(loop: Loop, events: tuple[Event, ...]) -> list[Event]:
    """What the events of its body are for a loop; a loop over chunks around that over a chunk's iterations is one."""
    if loop.attrs.chunks_of is not None and len(events) == 1 and events[0].kind == _CHUNK:
        (events,) = events[0].inside
    return [Event("while" if loop.attrs.chunk is None else _CHUNK, (events,))] if events else []


def _pass(node: Node, value: Value) -> tuple[list[Event], Value | None]:
    """The event of one node, and the stack that comes out of it, if anything wants it."""
    name = node.op.name
    position = node.operands.index(value)
    if name in ("stack_push", "stack_pop") and position == 0:
        return [Event(name.removeprefix("stack_"))], node.results[0]
    match view(node):
        case Loop() as loop:
            carry = next((c for c in loop.carries if c.init is value), None)
            inside = None if carry is None else way(loop.body, carry.in_body)
            if carry is None or inside is None or inside.output is None or loop.carries[inside.output] != carry:
                raise PairingError("a loop does not carry it on in its place")
            return _repeated(loop, inside.events), carry.result
        case Branch() as branch:
            ways = [way(region, region.inputs[branch.operands.index(value)]) for region in branch.branches]
            outputs = {w.output for w in ways}
            if len(outputs) != 1:
                raise PairingError("the branches do not pass it on in one place")
            (output,) = outputs
            events = tuple(w.events for w in ways)
            return ([Event(name, events)] if any(events) else []), None if output is None else branch.results[output]
    raise PairingError(f"{name} takes it")
