"""The rules that every flat graph keeps. The verifier is their definition; it runs before a graph does.

1. Single assignment: a value is defined once; cycles go through a NextIteration into a loop's Merge only.
2. Arity, attributes and types: each node is what its op says (`node_rules`).
3. Frames: an op takes values of one frame; a frame is entered from one frame, with one window, and nothing enters it
   that waits for what leaves it; outputs are in the root frame.
4. A frame is a loop: it has one LoopCond. Every Enter that is not constant feeds one Merge; the Merge also takes a
   NextIteration and feeds one Switch on the LoopCond; the Switch's false side feeds Exits, at least one, and an Exit
   takes nothing else. (The control loop that `partition` gives to a device holds no value, and has no Exit.)
5. Inside a frame every node depends on something of the iteration: one that takes constants alone has a control.
6. What a NextIteration takes is alive only where another iteration follows: it comes from the true side of a Switch on
   the LoopCond.

A device's part of a partitioned graph keeps them too, but for 6: its Recvs stand where the values they bring would be,
and nothing here says when those are alive.
"""

from __future__ import annotations

import graphlib
from collections.abc import Mapping, Sequence
from typing import Any

from ctrlgrad.dataflow import graph as flat
from ctrlgrad.dataflow.graph import FlatGraph, FlatNode, carry_switches, is_loop_merge, makers, takers
from ctrlgrad.dataflow.node_rules import check_node, fail
from ctrlgrad.dataflow.scopes import ROOT, Frames, describe, frames_of, goes_on, guards_of
from ctrlgrad.errors import VerificationError
from ctrlgrad.ir import Value


def verify_flat(graph: FlatGraph) -> Frames:
    """The frames of a graph that keeps the rules; `FlatBuilder.finish` has checked them already.

    Raises:
        VerificationError: it breaks one; the error names the node and what it should be.

    >>> import ctrlgrad as cg
    >>> from ctrlgrad.dataflow import lower, verify_flat
    >>> loop = cg.function(lambda n: cg.while_loop(lambda i: i < n, lambda i: i + 1, 0)).graph(3)
    >>> verify_flat(lower(loop)).parent
    {'while_1': ''}
    """
    _defined_once(graph)
    for node in graph.nodes:
        check_node(node)
    frames = frames_of(graph)
    made_by, taken_by = makers(graph), takers(graph)
    _outputs(graph, frames, made_by)
    conditions = _conditions(graph, frames)
    for node in graph.nodes:
        if node.op == flat.EXIT:
            _exit(node, made_by, conditions[frames.of_node[node]])
    for node in graph.nodes:
        _in_frame(node, frames, conditions, made_by, taken_by)
    _entered_before_left(graph, frames, made_by)
    if not any(node.op == flat.RECV for node in graph.nodes):
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


def _outputs(graph: FlatGraph, frames: Frames, made_by: Mapping[Value, FlatNode]) -> None:
    for position, value in enumerate(graph.outputs):
        if value not in frames.of_value:
            raise VerificationError(
                f"output {position} is defined nowhere",
                expected="a result or an input of the graph",
                got=repr(value),
            )
        if frames.of_value[value] != ROOT:
            maker = made_by[value]
            raise VerificationError(
                f"output {position} is not in the root frame",
                source=maker.source,
                expected="a value that every frame was left for",
                got=f"{describe(maker)}: the frame {frames.of_value[value]}",
                hint="take it out of its frame with Exit",
            )


def _conditions(graph: FlatGraph, frames: Frames) -> dict[str, FlatNode]:
    """The LoopCond of each frame."""
    conditions: dict[str, FlatNode] = {}
    for node in graph.nodes:
        if node.op == flat.LOOP_COND:
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
    made_by: Mapping[Value, FlatNode],
    taken_by: Mapping[Value, Sequence[FlatNode]],
) -> None:
    """Rules 3 to 5 for one node."""
    frame = frames.of_node[node]
    if node.op == flat.ENTER:
        first = frames.opened_by[node.attrs["frame"]]
        window = first.attrs["parallel_iterations"]
        if node.attrs["parallel_iterations"] != window:
            expected = f"parallel_iterations={window}, as {describe(first)}"
            raise fail(node, "a frame with two windows", expected, str(node.attrs["parallel_iterations"]))
        if not node.attrs["constant"] and not node.attrs.get("control"):
            _carry(node, made_by, taken_by, conditions[node.attrs["frame"]])
    elif node.op == flat.NEXT_ITERATION:
        if frame == ROOT:
            raise fail(node, "there is no iteration in the root frame", "a value inside a frame", "one outside")
        following = taken_by.get(node.result, [])
        if len(following) != 1 or not is_loop_merge(following[0], made_by):
            got = ", ".join(map(describe, following)) or "nothing"
            raise fail(node, "what takes it into the next iteration", "one Merge of an Enter and it", got)
    elif is_loop_merge(node, made_by):
        maker = made_by.get(node.operands[0])
        if maker is None or maker.op != flat.ENTER or maker.is_constant_enter:
            got = describe(maker) if maker else "an input"
            raise fail(node, "what it begins with", "an Enter into the frame that is not constant", got)
    if frame != ROOT and node.inputs and all(_is_constant(v, made_by) for v in node.inputs):
        raise fail(
            node,
            "nothing of the iteration says when it runs",
            "an operand or a control that every iteration has anew",
            "constants of the frame alone",
            "add controls=[a value of the iteration]",
        )


def _is_constant(value: Value, made_by: Mapping[Value, FlatNode]) -> bool:
    node = made_by.get(value)
    return node is not None and node.is_constant_enter


def _exit(node: FlatNode, made_by: Mapping[Value, FlatNode], condition: FlatNode) -> None:
    maker = made_by.get(node.operands[0])
    if (
        maker is None
        or maker.op != flat.SWITCH
        or maker.operands[0] is not condition.result
        or maker.results[0] is not node.operands[0]
    ):
        expected = "the false side of a Switch on the frame's LoopCond"
        if maker is None:
            got = "an input"
        elif maker.op == flat.SWITCH and maker.operands[0] is condition.result:
            got = f"the true side of {describe(maker)}"
        else:
            got = describe(maker)
        raise fail(node, "what it takes out", expected, got)


def _carry(
    enter: FlatNode,
    made_by: Mapping[Value, FlatNode],
    taken_by: Mapping[Value, Sequence[FlatNode]],
    condition: FlatNode,
) -> None:
    takers_of = taken_by.get(enter.result, [])
    if len(takers_of) != 1 or not is_loop_merge(takers_of[0], made_by) or takers_of[0].operands[0] is not enter.result:
        got = ", ".join(map(describe, takers_of)) or "nothing"
        raise fail(enter, "it does not open a loop", "one Merge of it and a NextIteration", got)
    (merge,) = takers_of
    exits = [
        n
        for switch in carry_switches(merge, condition, taken_by)
        for n in taken_by.get(switch.results[0], ())
        if n.op == flat.EXIT
    ]
    if not exits:
        got = ", ".join(map(describe, taken_by.get(merge.result, ()))) or "nothing takes the Merge"
        expected = "its Merge feeds a Switch on the frame's LoopCond, whose false side feeds an Exit"
        raise fail(enter, "an Enter without its Exit", expected, got, "leave every frame with exit(false side)")


def _entered_before_left(graph: FlatGraph, frames: Frames, made_by: Mapping[Value, FlatNode]) -> None:
    """Nothing enters a frame that waits for what leaves it."""
    left: set[str] = set()
    late = False
    for node in graph.nodes:
        if node.op == flat.EXIT:
            left.add(frames.of_node[node])
        late = late or (node.op == flat.ENTER and node.attrs["frame"] in left)
    if not late:
        return  # the order of the nodes shows it
    before: dict[FlatNode | str, list[FlatNode | str]] = {frame: [] for frame in frames.parent}
    for node in graph.nodes:
        values = node.inputs[:1] if is_loop_merge(node, made_by) else node.inputs
        before[node] = [made_by[v] for v in values if v in made_by]
        if node.op == flat.ENTER:
            before[node.attrs["frame"]].append(node)
        elif node.op == flat.EXIT:
            before[node].append(frames.of_node[node])
    try:
        graphlib.TopologicalSorter(before).prepare()
    except graphlib.CycleError as error:
        cycle: list[Any] = [node for node in error.args[1] if isinstance(node, FlatNode)]
        entered = next(node for node in cycle if node.op == flat.ENTER)
        raise fail(
            entered,
            "it waits for what leaves its frame",
            "a value that is there before the loop ends",
            " <- ".join(map(describe, cycle)),
            "give the second loop a frame name of its own",
        ) from None


def _gated(graph: FlatGraph, frames: Frames, conditions: Mapping[str, FlatNode]) -> None:
    """Rule 6."""
    guards = guards_of(graph, frames)
    for node in graph.nodes:
        if node.op == flat.NEXT_ITERATION:
            condition = conditions[frames.of_node[node]]
            if not any(goes_on(condition) in guards[v] for v in node.inputs):
                raise fail(
                    node,
                    "it would go on when the loop has ended",
                    f"what follows from the true side of a Switch on {describe(condition)}",
                    "a value that is alive whether another iteration follows or not",
                )
