"""Properties of each node of a flat graph: its own rules, the frame that it is in, and the condition of its being
alive.

`check_node` refuses a node that is not what its op says: a primitive is as its line in `graph` says, an ordinary op as
its rule in `ctrlgrad.ops` says. An op with an effect has a token as its last operand, and the next one as its last
result.

`frames_of` follows Enter and Exit from the inputs, which are in the root frame, and refuses a graph in which one op
has operands of two frames. `guards_of` says of each value what has to hold for it to be alive, inside its frame: two
values of one frame with equal guards are dead or alive together.
"""

from __future__ import annotations

import graphlib
from collections.abc import Mapping, Sequence
from dataclasses import field
from itertools import pairwise
from typing import Any

from ctrlgrad.dataflow import graph as flat
from ctrlgrad.dataflow.graph import Cluster, Enter, FlatGraph, FlatNode, is_loop_merge, producers
from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.errors import CtrlgradError, VerificationError
from ctrlgrad.ir import BOOL, Op, TensorType, Type, Value
from ctrlgrad.records import record

# How many results a primitive has; None: one or more.
_RESULTS: dict[Op, int | None] = {
    flat.SWITCH: None,
    flat.MERGE: 1,
    flat.ENTER: 1,
    flat.EXIT: 1,
    flat.NEXT_ITERATION: 1,
    flat.LOOP_COND: 1,
    flat.SEND: 0,
    flat.RECV: 1,
}


def describe(node: FlatNode) -> str:
    """Name of a node in an error."""
    of = next((v.hint for v in node.results if v.hint), None)
    if node.op is flat.CLUSTER and node.regions:
        ops = [inner.op.name for inner in node.regions[0].nodes]
        ops = [name for name in ops if name != "constant"] or ops[:1]
        of = ", ".join([*ops[:3], "..."] if len(ops) > 3 else ops)
    entered = Enter.find(node)
    details = [f"of {of}" if of else "", f"into {entered.frame}" if entered is not None and entered.frame else ""]
    text = " ".join([node.op.name, *(d for d in details if d)])
    return f"{text} ({node.source.short})" if node.source else text


def fail(node: FlatNode, problem: str, expected: str, got: str, hint: str | None = None) -> VerificationError:
    """The error of a node that breaks a rule."""
    return VerificationError(f"{describe(node)}: {problem}", source=node.source, expected=expected, got=got, hint=hint)


def check_node(node: FlatNode) -> None:
    """Refuse a node that is not what its op says.

    Raises:
        VerificationError: with the node, what was expected and what it has.
    """
    _arity(node)
    _attributes(node)
    _types(node)


def _arity(node: FlatNode) -> None:
    if node.op not in _RESULTS:
        return
    found_numbers = ("operands", node.op.arity, node.operands), ("results", _RESULTS[node.op], node.results)
    for what, number, found in found_numbers:
        if len(found) != number if number is not None else not found:
            expected = "one or more" if number is None else str(number)
            raise fail(node, f"wrong number of {what}", expected, str(len(found)))


def _attributes(node: FlatNode) -> None:
    if type(node.attrs) is not node.op.family:
        raise fail(node, "attributes of another family", node.op.family.__name__, type(node.attrs).__name__)
    wrong = node.attrs.complaint()
    if wrong is not None:
        name, expected, got = wrong
        raise fail(node, f"the attribute {name!r}", expected, got)
    entered = Enter.find(node)
    if entered is not None and not entered.frame:
        raise fail(node, "the attribute 'frame'", "the name of a frame", "'', which is the root frame's")
    if entered is not None and entered.parallel_iterations < 1:
        got = str(entered.parallel_iterations)
        raise fail(node, "the attribute 'parallel_iterations'", "at least one iteration in flight", got)


def _types(node: FlatNode) -> None:
    if node.op is flat.SWITCH:
        predicate, data = (v.type for v in node.operands)
        if not _is_selector(predicate, len(node.results)):
            raise fail(node, "the predicate", "bool[] for two sides, or an integer scalar", str(predicate))
        _same(node, "result", [data] * len(node.results), node.results)
    elif node.op is flat.LOOP_COND:
        _same(node, "operand", [BOOL], node.operands)
        _same(node, "result", [BOOL], node.results)
    elif node.op in (flat.MERGE, flat.ENTER, flat.EXIT, flat.NEXT_ITERATION):
        for value in node.operands:
            if not node.result.type.accepts(value.type):
                raise fail(node, "the type of an operand", str(node.result.type), str(value.type))
    elif node.op is flat.CLUSTER:
        if len(node.regions) != 1:
            raise fail(node, "wrong number of regions", "1, the ops that it stands for", str(len(node.regions)))
        (region,) = node.regions
        _same(node, "operand", [v.type for v in region.inputs], node.operands)
        token = [BOOL] if Cluster.of(node).effect else []
        _same(node, "result", [*(v.type for v in region.outputs), *token], node.results)
    elif not node.is_primitive:
        _ordinary(node)


def _is_selector(predicate: Type, sides: int) -> bool:
    if predicate == BOOL:
        return sides == 2
    return isinstance(predicate, TensorType) and predicate.rank == 0 and dtype_kind(predicate.dtype) in "iu"


def _same(node: FlatNode, what: str, expected: Sequence[Type], values: Sequence[Value]) -> None:
    if len(values) != len(expected):
        raise fail(node, f"wrong number of {what}s", str(len(expected)), str(len(values)))
    for position, (wanted, value) in enumerate(zip(expected, values, strict=True)):
        if value.type != wanted:
            raise fail(node, f"the type of {what} {position}", str(wanted), str(value.type))


def _ordinary(node: FlatNode) -> None:
    op = node.op
    operands, results = node.operands, node.results
    if node.is_effectful:
        if not operands or not results or operands[-1].type != BOOL or results[-1].type != BOOL:
            got = f"operands {_types_of(operands)}; results {_types_of(results)}"
            expected = (
                "the token of the effects before it as its last operand, the next one as its last result, bool[] both"
            )
            raise fail(node, "an effect without its token", expected, got, "the first token is constant(True)")
        operands, results = operands[:-1], results[:-1]
    if op.arity is not None and len(operands) != op.arity:
        raise fail(node, "wrong number of operands", str(op.arity), str(len(operands)))
    try:
        types = tuple(op.infer([v.type for v in operands], node.attrs, [r.type for r in node.regions]))
    except CtrlgradError as error:
        raise fail(node, error.problem, error.expected or "operands that fit", error.got or "others") from error
    _same(node, "result", types, results)


def _types_of(values: Sequence[Value]) -> str:
    return ", ".join(str(v.type) for v in values) or "none"


# Frames.

ROOT = ""


@record
class Within:
    """Condition that a predicate is at least `low` and at most `high`; None where there is no bound, as at a Switch's
    ends.

    So side 1 of two and side 1 of three are not the same, and sides 0 are.
    """

    predicate: Value
    low: int | None
    high: int | None


# Conjunction of conditions. A value stands for its own being alive, where no simpler condition is known.
Guard = frozenset[Within | Value]
NO_GUARD: Guard = frozenset()


def next_iteration(condition: FlatNode) -> Within:
    """Condition that another iteration follows, by the frame's LoopCond."""
    return Within(condition.result, 1, None)


@record(frozen=False)
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
        """Number of frames around this one, with itself and without the root."""
        return len(self.path(frame))


def _shown(frame: str) -> str:
    return f"the frame {frame}" if frame else "the root frame"


def frames_of(graph: FlatGraph) -> Frames:
    """The frames of a graph.

    Raises:
        VerificationError: a value is used before it is defined; an op takes values of two frames; a frame is entered
            from two frames; an Exit stands in the root frame.
    """
    frames = Frames(dict.fromkeys(graph.inputs, ROOT))
    producer_of = producers(graph)
    backs = [node.operands[1] for node in graph.nodes if is_loop_merge(node, producer_of)]
    late = set(backs)
    for node in graph.nodes:
        frame = _frame_of(node, frames, late)
        frames.of_node[node] = frame
        result = frame
        if node.op is flat.ENTER:
            result = Enter.of(node).frame
            if frames.parent.setdefault(result, frame) != frame:
                raise VerificationError(
                    f"{describe(node)}: the frame is entered from two frames",
                    source=node.source,
                    expected=f"{_shown(frames.parent[result])}, as {describe(frames.opened_by[result])}",
                    got=_shown(frame),
                    hint="give every loop a frame name of its own",
                )
            frames.opened_by.setdefault(result, node)
        elif node.op is flat.EXIT:
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
        if is_loop_merge(node, producer_of) and frames.of_value[node.operands[1]] != frames.of_node[node]:
            raise _mixed(node, node.operands[1], frames)
    return frames


def _frame_of(node: FlatNode, frames: Frames, late: set[Value]) -> str:
    found: str | None = None
    for value in node.inputs:
        if value in late and node.op is flat.MERGE:
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
    producer_of = {v: n for n in frames.of_node for v in n.results}
    lines = [
        f"{describe(producer_of[v]) if v in producer_of else v.hint or 'an input'}: {_shown(frames.of_value[v])}"
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


def check_entered_before_left(graph: FlatGraph, frames: Frames) -> None:
    """Refuse a graph in which something enters a frame that waits for what leaves it."""
    left: set[str] = set()
    late = False
    for node in graph.nodes:
        if node.op is flat.EXIT:
            left.add(frames.of_node[node])
        late = late or (node.op is flat.ENTER and Enter.of(node).frame in left)
    if not late:
        return  # the order of the nodes shows it
    producer_of = producers(graph)
    before: dict[FlatNode | str, list[FlatNode | str]] = {frame: [] for frame in frames.parent}
    for node in graph.nodes:
        values = node.inputs[:1] if is_loop_merge(node, producer_of) else node.inputs
        before[node] = [producer_of[v] for v in values if v in producer_of]
        if node.op is flat.ENTER:
            before[Enter.of(node).frame].append(node)
        elif node.op is flat.EXIT:
            before[node].append(frames.of_node[node])
    try:
        graphlib.TopologicalSorter(before).prepare()
    except graphlib.CycleError as error:
        cycle: list[Any] = [node for node in error.args[1] if isinstance(node, FlatNode)]
        entered = next(node for node in cycle if node.op is flat.ENTER)
        raise fail(
            entered,
            "it waits for what leaves its frame",
            "a value that is there before the loop ends",
            " <- ".join(map(describe, cycle)),
            "give the second loop a frame name of its own",
        ) from None


def guards_of(graph: FlatGraph, frames: Frames) -> dict[Value, Guard]:
    """The guard of each value, within its frame."""
    producer_of = producers(graph)
    guards: dict[Value, Guard] = dict.fromkeys(graph.inputs, NO_GUARD)
    # Guard of a frame's Enters, in the parent frame: its Exits have the same.
    entered: dict[str, Guard] = {}
    for node in graph.nodes:
        above = _above(node, guards, is_loop_merge(node, producer_of))
        if node.op is flat.ENTER:
            entered[Enter.of(node).frame] = entered.get(Enter.of(node).frame, NO_GUARD) | above
            above = NO_GUARD
        elif node.op is flat.EXIT:
            above = entered[frames.of_node[node]]
        for side, value in enumerate(node.results):
            guards[value] = above | _side(node, side) if node.op is flat.SWITCH else above
    return guards


def _above(node: FlatNode, guards: Mapping[Value, Guard], loop_merge: bool) -> Guard:
    if loop_merge:
        return NO_GUARD
    above = [guards[v] for v in node.inputs]
    if node.op is not flat.MERGE:
        return frozenset().union(*above)
    common: Guard = frozenset.intersection(*above)
    return common if _cover([guard - common for guard in above]) else common | {node.result}


def _side(switch: FlatNode, side: int) -> Guard:
    last = len(switch.results) - 1
    if not last:
        return NO_GUARD  # the only side is always chosen
    return frozenset([Within(switch.operands[0], side if side else None, side if side < last else None)])


def _cover(guards: Sequence[Guard]) -> bool:
    """Return true if exactly one of the guards holds in any case: they are all sides of one Switch."""
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
