"""Which frame each node of a flat graph is in, and under which predicates it is alive.

`frames_of` follows Enter and Exit from the inputs, which are in the root frame, and refuses a graph in which one op
would take values of two frames. `guards_of` says of each value what has to hold for it to be alive, inside its frame:
two values of one frame with equal guards are dead or alive together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ctrlgrad.dataflow import graph as flat
from ctrlgrad.dataflow.graph import FlatGraph, FlatNode, is_loop_merge, makers
from ctrlgrad.errors import VerificationError
from ctrlgrad.ir import Value

ROOT = ""


@dataclass(frozen=True, slots=True)
class Within:
    """That a predicate is at least `low` and at most `high`; None where there is no bound, as at a Switch's ends.

    So side 1 of two and side 1 of three are not the same, and sides 0 are.
    """

    predicate: Value
    low: int | None
    high: int | None


# What has to hold, all of it. A value stands for its own being alive where nothing simpler says when it is.
Guard = frozenset[Within | Value]
NO_GUARD: Guard = frozenset()


def goes_on(condition: FlatNode) -> Within:
    """That another iteration follows, by the frame's LoopCond."""
    return Within(condition.result, 1, None)


@dataclass
class Frames:
    """The frame of each value and node; an Enter counts to the frame it comes from, an Exit to the one it leaves."""

    of_value: dict[Value, str] = field(default_factory=dict)
    of_node: dict[FlatNode, str] = field(default_factory=dict)
    parent: dict[str, str] = field(default_factory=dict)
    # The node in the frame's name that said where the frame stands, for errors.
    opened_by: dict[str, FlatNode] = field(default_factory=dict)

    def path(self, frame: str) -> tuple[str, ...]:
        """The frames around and including this one, the outermost first, without the root."""
        path: tuple[str, ...] = ()
        while frame != ROOT:
            path = (frame, *path)
            frame = self.parent[frame]
        return path

    def depth(self, frame: str) -> int:
        """How many frames are around this one, itself included and the root not."""
        return len(self.path(frame))


def describe(node: FlatNode) -> str:
    """How an error calls a node."""
    of = next((v.hint for v in node.results if v.hint), None)
    if node.op == flat.CLUSTER and node.regions:
        ops = [inner.op.name for inner in node.regions[0].nodes]
        ops = [name for name in ops if name != "constant"] or ops[:1]
        of = ", ".join([*ops[:3], "..."] if len(ops) > 3 else ops)
    frame = node.attrs.get("frame") if node.op == flat.ENTER else None
    details = [f"of {of}" if of else "", f"into {frame}" if frame else ""]
    text = " ".join([node.op, *(d for d in details if d)])
    return f"{text} ({node.source.short})" if node.source else text


def _shown(frame: str) -> str:
    return f"the frame {frame}" if frame else "the root frame"


def frames_of(graph: FlatGraph) -> Frames:
    """The frames of a graph.

    Raises:
        VerificationError: a value is used before it is defined; an op takes values of two frames; a frame is entered
            from two others; an Exit stands in the root frame.
    """
    frames = Frames(dict.fromkeys(graph.inputs, ROOT))
    made_by = makers(graph)
    backs = [node.operands[1] for node in graph.nodes if is_loop_merge(node, made_by)]
    late = set(backs)
    for node in graph.nodes:
        frame = _frame_of(node, frames, late)
        frames.of_node[node] = frame
        result = frame
        if node.op == flat.ENTER:
            result = node.attrs["frame"]
            if frames.parent.setdefault(result, frame) != frame:
                raise VerificationError(
                    f"{describe(node)}: the frame is entered from two frames",
                    source=node.source,
                    expected=f"{_shown(frames.parent[result])}, as {describe(frames.opened_by[result])}",
                    got=_shown(frame),
                    hint="give every loop a frame name of its own",
                )
            frames.opened_by.setdefault(result, node)
        elif node.op == flat.EXIT:
            if frame == ROOT:
                raise VerificationError(
                    f"{describe(node)}: there is no frame to leave",
                    source=node.source,
                    expected="a value inside a frame",
                    got="a value of the root frame",
                )
            result = frames.parent[frame]
        for value in node.results:
            frames.of_value[value] = result
    for node in graph.nodes:
        if is_loop_merge(node, made_by) and frames.of_value[node.operands[1]] != frames.of_node[node]:
            raise _mixed(node, node.operands[1], frames)
    return frames


def _frame_of(node: FlatNode, frames: Frames, late: set[Value]) -> str:
    found: str | None = None
    for value in node.inputs:
        if value in late and node.op == flat.MERGE:
            continue
        if value not in frames.of_value:
            raise VerificationError(
                f"{describe(node)}: an operand is not defined before it is used",
                source=node.source,
                expected="a cycle that goes through a NextIteration and the second operand of a Merge",
                got=repr(value),
            )
        if found is None:
            found = frames.of_value[value]
        elif frames.of_value[value] != found:
            raise _mixed(node, value, frames)
    return ROOT if found is None else found


def _mixed(node: FlatNode, value: Value, frames: Frames) -> VerificationError:
    made = {v: n for n in frames.of_node for v in n.results}
    lines = [
        f"{describe(made[v]) if v in made else v.hint or 'an input'}: {_shown(frames.of_value[v])}"
        for v in node.inputs
        if v in frames.of_value
    ]
    return VerificationError(
        f"{describe(node)}: its operands are of two frames",
        source=node.source,
        expected="operands of one frame",
        got="\n".join(lines),
        hint="bring an outer value in with Enter(constant=True), and an inner one out with Exit;\n"
        "make a constant inside a frame with controls=[a value of the iteration]",
    )


def guards_of(graph: FlatGraph, frames: Frames) -> dict[Value, Guard]:
    """The guard of each value, within its frame."""
    made_by = makers(graph)
    guards: dict[Value, Guard] = dict.fromkeys(graph.inputs, NO_GUARD)
    # What the Enters of a frame stand under, in the parent frame: what its Exits stand under.
    entered: dict[str, Guard] = {}
    for node in graph.nodes:
        above = _above(node, guards, is_loop_merge(node, made_by))
        if node.op == flat.ENTER:
            entered[node.attrs["frame"]] = entered.get(node.attrs["frame"], NO_GUARD) | above
            above = NO_GUARD
        elif node.op == flat.EXIT:
            above = entered[frames.of_node[node]]
        for side, value in enumerate(node.results):
            guards[value] = above | _side(node, side) if node.op == flat.SWITCH else above
    return guards


def _above(node: FlatNode, guards: Mapping[Value, Guard], loop_merge: bool) -> Guard:
    if loop_merge:
        return NO_GUARD
    above = [guards[v] for v in node.inputs]
    if node.op != flat.MERGE:
        return frozenset().union(*above)
    common: Guard = frozenset.intersection(*above)
    return common if _cover([guard - common for guard in above]) else common | {node.result}


def _side(switch: FlatNode, side: int) -> Guard:
    last = len(switch.results) - 1
    if not last:
        return NO_GUARD  # the only side is always chosen
    return frozenset([Within(switch.operands[0], side if side else None, side if side < last else None)])


def _cover(guards: Sequence[Guard]) -> bool:
    """Whether one of them holds for certain, and one only: the sides of one Switch, all of them."""
    if len(guards) == 1:
        return True
    found = [condition for guard in guards for condition in guard if isinstance(condition, Within)]
    if any(len(guard) != 1 for guard in guards) or len(found) != len(guards) or len({c.predicate for c in found}) != 1:
        return False
    found.sort(key=lambda c: -1 if c.low is None else c.low)
    ends = found[0].low is None and found[-1].high is None
    return ends and all(a.high is not None and b.low == a.high + 1 for a, b in pairwise(found))


def guard_of(node: FlatNode, guards: Mapping[Value, Guard]) -> Guard:
    """The guard under which a node that is no Merge fires alive."""
    return frozenset().union(*(guards[v] for v in node.inputs)) if node.inputs else NO_GUARD
