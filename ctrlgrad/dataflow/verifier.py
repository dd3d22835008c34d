"""The rules that every flat graph keeps. They are judged when a graph is built, and before one runs.

1. Single assignment: a value is defined once; cycles go through a NextIteration into a loop's Merge only.
2. Arity, attributes and types: a primitive is as its line in `graph` says, an ordinary op as its rule in `ctrlgrad.ops`
   says. An op with an effect has a token as its last operand, and the next one as its last result.
3. Frames: an op has operands of one frame; a frame is entered from one frame, with one window, and nothing enters it
   that waits for what leaves it; outputs are in the root frame.
4. A frame is a loop: it has one LoopCond. Every Enter that is not constant feeds one Merge, whose other operand is a
   NextIteration, and which feeds one Switch on the LoopCond; the Switch's false side feeds Exits, at least one, and an
   Exit has no other operand. (The control loop that `partition` gives to a device holds no value, and has no Exit.)
5. Inside a frame every node depends on something of the iteration: one with constants alone for operands has a control.
6. A NextIteration's operand is alive only where another iteration follows: it comes from the true side of a Switch on
   the LoopCond.

A device's part of a partitioned graph keeps them too, but for 6: its Recvs stand where the values they bring would be,
and nothing here says when those are alive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ctrlgrad.dataflow import graph as flat
from ctrlgrad.dataflow.graph import Enter, FlatGraph, FlatNode, carry_switches, consumers, is_loop_merge, producers
from ctrlgrad.dataflow.scopes import (
    ROOT,
    Frames,
    check_entered_before_left,
    check_node,
    describe,
    fail,
    frames_of,
    guards_of,
    next_iteration,
)
from ctrlgrad.errors import VerificationError
from ctrlgrad.ir import Value


def verify_flat(graph: FlatGraph) -> Frames:
    """The frames of a graph that keeps the rules; `FlatBuilder.finish` has checked them already.

    Raises:
        VerificationError: it breaks one; the error names the node and what it should be.

    >>> from ctrlgrad.dataflow import lower, verify_flat
    >>> double = lambda n: cg.while_loop(lambda i: i < n, lambda i: i * 2, 1)
    >>> loop = cg.function(double).graph(3)
    >>> verify_flat(lower(loop)).parent
    {'while_1': ''}
    """
    _defined_once(graph)
    for node in graph.nodes:
        check_node(node)
    frames = frames_of(graph)
    producer_of, consumers_of = producers(graph), consumers(graph)
    _outputs(graph, frames, producer_of)
    conditions = _conditions(graph, frames)
    for node in graph.nodes:
        if node.op is flat.EXIT:
            _exit(node, producer_of, conditions[frames.of_node[node]])
    for node in graph.nodes:
        _in_frame(node, frames, conditions, producer_of, consumers_of)
    check_entered_before_left(graph, frames)
    if not any(node.op is flat.RECV for node in graph.nodes):
        _gated(graph, frames, conditions)
    return frames


def _defined_once(graph: FlatGraph) -> None:
    defined = set(graph.inputs)
    for node in graph.nodes:
        for value in node.results:
            if value in defined:
                raise fail(node, "a value is defined twice", "a fresh value per result", repr(value))
            defined.add(value)
    for node in graph.nodes:
        for value in node.inputs:
            if value not in defined:
                raise fail(node, "an operand is defined nowhere", "a result or an input of the graph", repr(value))


def _outputs(graph: FlatGraph, frames: Frames, producer_of: Mapping[Value, FlatNode]) -> None:
    for position, value in enumerate(graph.outputs):
        if value not in frames.of_value:
            raise VerificationError(
                f"output {position} is defined nowhere",
                expected="a result or an input of the graph",
                got=repr(value),
            )
        if frames.of_value[value] != ROOT:
            producer = producer_of[value]
            raise VerificationError(
                f"output {position} is not in the root frame",
                source=producer.source,
                expected="a value that every frame was left for",
                got=f"{describe(producer)}: the frame {frames.of_value[value]}",
                hint="take it out of its frame with Exit",
            )


def _conditions(graph: FlatGraph, frames: Frames) -> dict[str, FlatNode]:
    """The LoopCond of each frame."""
    conditions: dict[str, FlatNode] = {}
    for node in graph.nodes:
        if node.op is flat.LOOP_COND:
            frame = frames.of_node[node]
            if frame == ROOT:
                raise fail(node, "there is no loop in the root frame", "a value inside a frame", "one outside")
            if frame in conditions:
                got = f"{describe(conditions[frame])} in the frame {frame} as well"
                hint = "give every loop a frame name of its own"
                raise fail(node, "a LoopCond too many", "one LoopCond per frame", got, hint)
            conditions[frame] = node
    for frame, entered in frames.opened_by.items():
        if frame not in conditions:
            hint = "the predicate of its Switches is the result of loop_cond(..)"
            raise fail(entered, "the frame has no LoopCond", "one LoopCond in each frame", "none", hint)
    return conditions


def _in_frame(
    node: FlatNode,
    frames: Frames,
    conditions: Mapping[str, FlatNode],
    producer_of: Mapping[Value, FlatNode],
    consumers_of: Mapping[Value, Sequence[FlatNode]],
) -> None:
    """Rules 3 to 5 for one node."""
    frame = frames.of_node[node]
    if node.op is flat.ENTER:
        first = frames.opened_by[Enter.of(node).frame]
        window = Enter.of(first).parallel_iterations
        entered = Enter.of(node)
        if entered.parallel_iterations != window:
            expected = f"parallel_iterations={window}, as {describe(first)}"
            raise fail(node, "a frame with two windows", expected, str(entered.parallel_iterations))
        if not entered.constant and not entered.control:
            _carry(node, producer_of, consumers_of, conditions[Enter.of(node).frame])
    elif node.op is flat.NEXT_ITERATION:
        if frame == ROOT:
            raise fail(node, "there is no iteration in the root frame", "a value inside a frame", "one outside")
        following = consumers_of.get(node.result, [])
        if len(following) != 1 or not is_loop_merge(following[0], producer_of):
            got = ", ".join(map(describe, following)) or "nothing"
            raise fail(node, "what takes it into the next iteration", "one Merge of an Enter and it", got)
    elif is_loop_merge(node, producer_of):
        producer = producer_of.get(node.operands[0])
        if producer is None or producer.op is not flat.ENTER or producer.is_constant_enter:
            got = describe(producer) if producer else "an input"
            raise fail(node, "what it begins with", "an Enter into the frame that is not constant", got)
    if frame != ROOT and node.inputs and all(_is_constant(v, producer_of) for v in node.inputs):
        raise fail(
            node,
            "nothing of the iteration says when it runs",
            "an operand or a control that every iteration has anew",
            "constants of the frame alone",
            "add controls=[a value of the iteration]",
        )


def _is_constant(value: Value, producer_of: Mapping[Value, FlatNode]) -> bool:
    node = producer_of.get(value)
    return node is not None and node.is_constant_enter


def _exit(node: FlatNode, producer_of: Mapping[Value, FlatNode], condition: FlatNode) -> None:
    producer = producer_of.get(node.operands[0])
    if (
        producer is None
        or producer.op is not flat.SWITCH
        or producer.operands[0] is not condition.result
        or producer.results[0] is not node.operands[0]
    ):
        expected = "the false side of a Switch on the frame's LoopCond"
        if producer is None:
            got = "an input"
        elif producer.op is flat.SWITCH and producer.operands[0] is condition.result:
            got = f"the true side of {describe(producer)}"
        else:
            got = describe(producer)
        raise fail(node, "what it takes out", expected, got)


def _carry(
    enter: FlatNode,
    producer_of: Mapping[Value, FlatNode],
    consumers_of: Mapping[Value, Sequence[FlatNode]],
    condition: FlatNode,
) -> None:
    users = consumers_of.get(enter.result, [])
    if len(users) != 1 or not is_loop_merge(users[0], producer_of) or users[0].operands[0] is not enter.result:
        got = ", ".join(map(describe, users)) or "nothing"
        raise fail(enter, "it does not open a loop", "one Merge of it and a NextIteration", got)
    (merge,) = users
    exits = [
        n
        for switch in carry_switches(merge, condition, consumers_of)
        for n in consumers_of.get(switch.results[0], ())
        if n.op is flat.EXIT
    ]
    if not exits:
        got = ", ".join(map(describe, consumers_of.get(merge.result, ()))) or "nothing takes the Merge"
        expected = "its Merge feeds a Switch on the frame's LoopCond, whose false side feeds an Exit"
        raise fail(enter, "an Enter without its Exit", expected, got, "leave every frame with exit(false side)")


def _gated(graph: FlatGraph, frames: Frames, conditions: Mapping[str, FlatNode]) -> None:
    """Rule 6."""
    guards = guards_of(graph, frames)
    for node in graph.nodes:
        if node.op is flat.NEXT_ITERATION:
            condition = conditions[frames.of_node[node]]
            if not any(next_iteration(condition) in guards[v] for v in node.inputs):
                raise fail(
                    node,
                    "it would go on when the loop has ended",
                    f"what follows from the true side of a Switch on {describe(condition)}",
                    "a value that is alive whether another iteration follows or not",
                )
