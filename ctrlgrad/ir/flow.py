"""Flow of stacks: the versions of a stack through loops, branches and calls, and the operations on it there.

An op that changes a stack, or passes it on, takes one version of it and gives the next (`Use`). A node that owns
regions hands versions on: into its regions, around a loop, and out again. `StackFlow` knows these steps for whole
graphs. Its users are the verifier (do the pops mirror the pushes), batching (is it the same stack at the end), the
engines (a loop's operations on the stacks that it carries) and reports (the values that were pushed, and where).

The analysis follows every possible step of a version: through all branches, and around a loop any number of times.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import TypeVar

from ctrlgrad.ir.control import Branch, Call, Carry, Loop, view
from ctrlgrad.ir.graph import Graph, Node, Value
from ctrlgrad.ir.op import Use
from ctrlgrad.ir.types import StackType
from ctrlgrad.records import record

T = TypeVar("T")


@record
class Event:
    """Operation of a node on a stack: a use, or a loop, branch or call with the events inside each of its regions.

    The events of a loop are those of one iteration. A loop over chunks and the loop over a chunk's iterations inside it
    count as one loop.
    """

    kind: str
    node: Node = field(compare=False)
    inside: tuple[tuple[Event, ...], ...] = ()

    def ops(self, is_repeated: bool = False) -> Iterator[tuple[Event, bool]]:
        """The uses in a region, and whether each is inside an inner loop."""
        if not self.node.regions:
            yield self, is_repeated
        for events in self.inside:
            for event in events:
                yield from event.ops(is_repeated or isinstance(view(self.node), Loop))

    def kinds(self) -> set[str]:
        return {op.kind for op, _ in self.ops()}

    def mirrored(self) -> Event:
        """The inverse event: pop for push, and push for pop."""
        other = {"push": "pop", "pop": "push"}.get(self.kind, self.kind)
        return Event(other, self.node, tuple(mirrored(events) for events in self.inside))

    def __str__(self) -> str:
        if not self.inside:
            return self.kind
        regions = " | ".join(", ".join(map(str, events)) or "-" for events in self.inside)
        return f"{self.kind}({regions})"


Events = tuple[Event, ...]


def mirrored(events: Events) -> Events:
    """The inverse events, in reverse order."""
    return tuple(event.mirrored() for event in reversed(events))


# A stack in the analysis: a value, and the number of the region that it is in (`OUTERMOST`: a graph of the analysis).
# Nodes may share a region, as copies of a node do: it then has a number for each of them.
Version = tuple[int, Value]
OUTERMOST = 0


class StackFlow:
    """The steps of all stacks in some graphs and their regions."""

    def __init__(self, *graphs: Graph) -> None:
        # For each version, the earlier and the later versions.
        self.before: defaultdict[Version, list[Version]] = defaultdict(list)
        self.after: defaultdict[Version, list[Version]] = defaultdict(list)
        # Number of nodes and outputs of graphs that consume a version; observers do not count.
        self.consumers: Counter[Version] = Counter()
        # Versions that a loop sees in every iteration alike, and versions that an op has given.
        self.captured: set[Version] = set()
        self.given: set[Version] = set()
        # Numbers of a node's regions, by the number of the region that the node is in.
        self._regions: dict[tuple[int, Node], range] = {}
        self._count = 1
        for graph in graphs:
            self._add(graph, OUTERMOST)

    def _add(self, graph: Graph, here: int) -> None:
        for node in graph.nodes:
            inside = range(self._count, self._count + len(node.regions))
            self._count = inside.stop
            if inside:
                self._regions[here, node] = inside
            for region, number in zip(node.regions, inside, strict=True):
                self._add(region, number)
            for (place, old), (next_place, new) in _steps(node):
                if _is_stack(old):
                    first, second = (here if i is None else inside[i] for i in (place, next_place))
                    self.after[first, old].append((second, new))
                    self.before[second, new].append((first, old))
            if node.op.updates:
                self.given.add((here, node.results[0]))
            loop = view(node)
            if isinstance(loop, Loop):
                self.captured.update((inside[_BODY], c.in_body) for c in loop.captures)
            self.consumers.update({(here, v) for i, v in enumerate(node.operands) if not node.op.use(i).observes})
        self.consumers.update((here, v) for v in graph.outputs)

    def versions(self, *stacks: Value) -> set[Version]:
        """Stacks of an outermost graph, and all that they may become."""
        return reached([(OUTERMOST, v) for v in stacks], self.after)

    def earlier(self, stack: Value) -> set[Version]:
        """A version in an outermost graph, and all that it may have been."""
        return reached([(OUTERMOST, stack)], self.before)

    def origin(self, stack: Value) -> Value | None:
        """Return the version that a stack begins with on every path: made by an op, or given; None for several."""
        found = [version for version in self.earlier(stack) if not self.before[version]]
        return found[0][1] if len(found) == 1 else None

    def steps(self) -> Iterator[tuple[Value, Value]]:
        """Every version, in whichever region, and one that follows from it."""
        return ((old, new) for (_, old), following in self.after.items() for _, new in following)

    def events(
        self, graph: Graph, versions: set[Version], *, observers: bool = False, region: int = OUTERMOST
    ) -> Events:
        """Events of a graph's nodes on versions of a stack, in order; `observers` includes nodes that only read it."""
        found = (self._event(node, versions, observers, region) for node in graph.nodes)
        return tuple(event for event in found if event is not None)

    def _event(self, node: Node, versions: set[Version], observers: bool, here: int) -> Event | None:
        kind, loop = node.op.name, view(node)
        inside = tuple(
            self.events(region, versions, observers=observers, region=self._regions[here, node][i])
            for i, region in enumerate(node.regions)
        )
        if isinstance(loop, Loop):
            cond, body = inside
            kind = "while" if loop.attrs.chunk is None else _CHUNK
            if loop.attrs.chunks_of is not None and len(body) == 1 and body[0].kind == _CHUNK:
                (body,) = body[0].inside
            inside = ((*cond, *body),)
        if node.regions:
            return Event(kind, node, inside) if any(inside) else None
        for position, v in enumerate(node.operands):
            use = node.op.use(position)
            if (here, v) in versions and use is not Use.PASS and (observers or not use.observes):
                return Event(use.name.lower(), node)
        return None

    def obstacle(self, graph: Graph, stack: Value) -> str | None:
        """Why a stack is not handed on from one push or pop to the next, if it is not: they cannot be paired then."""
        versions = self.versions(stack)
        count = max(self.consumers[v] for v in versions)
        if count > 1:
            return f"it is consumed {count} times"
        if not all(versions.issuperset(self.before[v]) for v in versions):
            return "a loop or branch does not pass it on in its place"
        repeated = reached(versions & self.captured, self.after)
        if self.given & repeated:
            return "a loop changes it that does not carry it"
        for event in self.events(graph, versions):
            for op, _ in event.ops():
                if op.kind not in ("push", "pop"):
                    return f"{op.node.op.name} takes it"
        return None


def begins(node: Node) -> bool:
    """Return true if a node makes a new stack."""
    return any(_is_stack(v) for v in node.results) and not any(map(_is_stack, node.operands)) and not node.regions


def _is_stack(value: Value) -> bool:
    return isinstance(value.type, StackType)


# The kind of the loop over a chunk's iterations.
_CHUNK = "chunk"


# A value of a node, or of one of its regions, which the number names.
_Step = tuple[int | None, Value]
_COND, _BODY = 0, 1


def _steps(node: Node) -> Iterator[tuple[_Step, _Step]]:
    """A version that a node is given or has inside, and one that follows from it: for all that has versions."""
    match view(node):
        case Loop() as loop:
            for capture in loop.captures:
                for inside in ((_COND, capture.in_cond), (_BODY, capture.in_body)):
                    yield (None, capture.outer), inside
            for c in loop.carries:
                for old in ((None, c.init), (_BODY, c.next)):
                    yield from ((old, new) for new in ((_COND, c.in_cond), (_BODY, c.in_body), (None, c.result)))
        case Branch() as branch:
            for k, region in enumerate(branch.branches):
                yield from _in_and_out(k, branch.operands, region, branch.results)
        case Call() as call:
            yield from _in_and_out(0, call.operands, call.function, call.results)
        case None:
            if node.op.use(0).goes_on:
                yield (None, node.operands[0]), (None, node.results[0])


def _in_and_out(
    number: int, operands: Sequence[Value], region: Graph, results: Sequence[Value]
) -> Iterator[tuple[_Step, _Step]]:
    for old, new in zip(operands, region.inputs, strict=True):
        yield (None, old), (number, new)
    for old, new in zip(region.outputs, results, strict=True):
        yield (number, old), (None, new)


def reached(starts: Iterable[T], following: Mapping[T, Sequence[T]]) -> set[T]:
    """The starts, and what follows from them in any number of steps."""
    found: set[T] = set()
    waiting = list(starts)
    while waiting:
        value = waiting.pop()
        if value not in found:
            found.add(value)
            waiting += following.get(value, ())
    return found


def stays(loop: Loop, carry: Carry) -> bool:
    """True if a stack that a loop carries is a version of the initial one at every iteration."""
    return StackFlow(loop.body).origin(carry.next) is carry.in_body


def updated_input(graph: Graph, value: Value) -> Value | None:
    """The input of a graph that a value is, elements updated or not, by loops and branches too; None for any other."""
    makers = {v: node for node in graph.nodes for v in node.results}
    while (node := makers.get(value)) is not None:
        match view(node):
            case Loop() as loop:
                carry = loop.carries[loop.results.index(value)]
                if updated_input(loop.body, carry.next) is not carry.in_body:
                    return None
                value = carry.init
            case Branch() as branch:
                place = updated_operand(branch, branch.results.index(value))
                if place is None:
                    return None
                value = branch.operands[place]
            case None if node.op.use(0) is Use.UPDATE:
                value = node.operands[0]
            case _:
                return None
    return value if value in graph.inputs else None


def updated_operand(branch: Branch, position: int) -> int | None:
    """The position of the operand that a result is, with elements updated or not, whichever side is taken."""
    places: set[int | None] = set()
    for region in branch.branches:
        found = updated_input(region, region.outputs[position])
        places.add(None if found is None else region.inputs.index(found))
    return places.pop() if len(places) == 1 else None


def passed_on(branch: Branch, position: int) -> int | None:
    """The operand of a branch that a result is, changed or not, whichever side is taken; None where there is none."""
    places: set[int | None] = set()
    for region in branch.branches:
        origin = StackFlow(region).origin(region.outputs[position])
        places.add(region.inputs.index(origin) if origin in region.inputs else None)
    return places.pop() if len(places) == 1 else None


def in_an_iteration(loop: Loop, carry: Carry) -> Events:
    """Events of one iteration of a loop on a stack that it carries, reads included."""
    flow = StackFlow(loop.cond, loop.body)
    cond = flow.events(loop.cond, flow.versions(carry.in_cond), observers=True)
    return (*cond, *flow.events(loop.body, flow.versions(carry.in_body), observers=True))
