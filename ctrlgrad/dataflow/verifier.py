"""The rules that every flat graph keeps. The verifier is their definition; it runs before a graph does.

1. Single assignment: a value is defined once; cycles go through a NextIteration into a loop's Merge only.
2. Arity and types: each primitive takes and gives what its line in `graph` says; an ordinary op what its rule says.
3. Frames: an op takes values of one frame; a frame is entered from one frame; outputs are in the root frame.
4. A frame is a loop: it has one LoopCond. Every Enter that is not constant feeds one Merge; the Merge also takes a
   NextIteration and feeds one Switch on the LoopCond; the Switch's false side feeds Exits, at least one, and an Exit
   takes nothing else. (The control loop that `partition` gives to a device holds no value, and has no Exit.)
5. Inside a frame every node depends on something of the iteration: one that takes constants alone has a control.

A device's part of a partitioned graph keeps them too: its Recvs stand where the values they bring would be.
"""

from __future__ import annotations

from collections.abc import Sequence

from ctrlgrad.dataflow import graph as flat
from ctrlgrad.dataflow.graph import FlatGraph, FlatNode, carry_switches, is_effectful, is_loop_merge, makers, takers
from ctrlgrad.dataflow.scopes import ROOT, Frames, describe, frames_of
from ctrlgrad.errors import CtrlgradError, VerificationError
from ctrlgrad.ir import BOOL, OPS, TensorType, Type, Value

# How many operands and results a primitive has; None: one or more.
_ARITY: dict[str, tuple[int | None, int | None]] = {
    flat.SWITCH: (2, None),
    flat.MERGE: (None, 1),
    flat.ENTER: (1, 1),
    flat.EXIT: (1, 1),
    flat.NEXT_ITERATION: (1, 1),
    flat.LOOP_COND: (1, 1),
    flat.RECV: (0, 1),
}


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
        _arity(node)
        _types(node)
    frames = frames_of(graph)
    for value in graph.outputs:
        if frames.of_value.get(value) != ROOT:
            raise VerificationError(
                "an output is not in the root frame",
                expected="a value that every frame was left for",
                got=f"frame {frames.of_value[value]}" if value in frames.of_value else "a value that nothing defines",
                hint="take it out of its frame with Exit",
            )
    _loops(graph, frames)
    return frames


def _fail(node: FlatNode, problem: str, expected: str, got: str, hint: str | None = None) -> VerificationError:
    return VerificationError(f"{describe(node)}: {problem}", source=node.source, expected=expected, got=got, hint=hint)


def _defined_once(graph: FlatGraph) -> None:
    defined = set(graph.inputs)
    for node in graph.nodes:
        for value in node.results:
            if value in defined:
                raise _fail(node, "a value is defined twice", "a fresh value per result", repr(value))
            defined.add(value)
    for node in graph.nodes:
        for value in node.inputs:
            if value not in defined:
                raise _fail(node, "an operand is defined nowhere", "a result or an input of the graph", repr(value))


def _arity(node: FlatNode) -> None:
    operands, results = _ARITY.get(node.op, (-1, -1))
    if operands == -1:
        return
    for what, number, found in (("operands", operands, node.operands), ("results", results, node.results)):
        if len(found) != number if number is not None else not found:
            expected = "one or more" if number is None else str(number)
            raise _fail(node, f"wrong number of {what}", expected, str(len(found)))


def _types(node: FlatNode) -> None:
    if node.op == flat.SWITCH:
        predicate, data = (v.type for v in node.operands)
        if not _is_selector(predicate, len(node.results)):
            raise _fail(node, "the predicate", "bool[] for two sides, or an integer scalar", str(predicate))
        _same(node, [data] * len(node.results), node.results)
    elif node.op == flat.LOOP_COND:
        _same(node, [BOOL], node.operands)
        _same(node, [BOOL], node.results)
    elif node.op in (flat.MERGE, flat.ENTER, flat.EXIT, flat.NEXT_ITERATION):
        for value in node.operands:
            if not node.result.type.accepts(value.type):
                raise _fail(node, "the type of an operand", str(node.result.type), str(value.type))
    elif not node.is_primitive:
        _ordinary(node)


def _is_selector(predicate: Type, sides: int) -> bool:
    if predicate == BOOL:
        return sides == 2
    return isinstance(predicate, TensorType) and predicate.rank == 0 and predicate.dtype.kind in "iu"


def _same(node: FlatNode, expected: Sequence[Type], values: Sequence[Value]) -> None:
    for wanted, value in zip(expected, values, strict=True):
        if value.type != wanted:
            raise _fail(node, "a type", str(wanted), str(value.type))


def _ordinary(node: FlatNode) -> None:
    if node.op not in OPS:
        raise _fail(node, "there is no such op", "an op of ctrlgrad.ops, or a primitive", node.op)
    op = OPS[node.op]
    operands, results = node.operands, node.results
    if is_effectful(node):
        # The token of effects comes last.
        operands, results = operands[:-1], results[:-1]
    if op.arity is not None and len(operands) != op.arity:
        raise _fail(node, "wrong number of operands", str(op.arity), str(len(operands)))
    try:
        types = tuple(op.infer([v.type for v in operands], node.attrs, node.regions))
    except CtrlgradError as error:
        raise _fail(node, error.problem, error.expected or "operands that fit", error.got or "others") from error
    _same(node, types, results)


def _loops(graph: FlatGraph, frames: Frames) -> None:
    made_by, taken_by = makers(graph), takers(graph)
    conditions: dict[str, FlatNode] = {}
    for node in graph.nodes:
        frame = frames.of_node[node]
        if node.op == flat.LOOP_COND:
            if frame in conditions or frame == ROOT:
                expected = "one LoopCond per frame, none in the root frame"
                raise _fail(node, "a LoopCond too many", expected, f"another one in {frame or 'the root frame'}")
            conditions[frame] = node
        elif node.op == flat.NEXT_ITERATION and frame == ROOT:
            raise _fail(node, "there is no iteration in the root frame", "a value inside a frame", "one outside")
        elif node.op == flat.EXIT:
            _exit(node, made_by, conditions.get(frame))
        elif frame != ROOT and node.inputs and all(_is_constant(v, made_by) for v in node.inputs):
            raise _fail(
                node,
                "nothing of the iteration says when it runs",
                "an operand or a control that every iteration has anew",
                "constants of the frame alone",
                "add controls=[a value of the iteration]",
            )
    for frame, entered in frames.opened_by.items():
        if frame not in conditions:
            raise _fail(entered, "the frame has no LoopCond", "one LoopCond in each frame", "none")
    for node in graph.nodes:
        if node.op == flat.ENTER and not node.attrs["constant"] and not node.attrs.get("control"):
            _carry(node, made_by, taken_by, conditions[node.attrs["frame"]])
        elif node.op == flat.NEXT_ITERATION and not any(
            is_loop_merge(n, made_by) and n.operands[1] is node.result for n in taken_by.get(node.result, ())
        ):
            raise _fail(node, "nothing takes it into the next iteration", "a Merge of an Enter and it", "none")


def _is_constant(value: Value, made_by: dict[Value, FlatNode]) -> bool:
    node = made_by.get(value)
    return node is not None and node.is_constant_enter


def _exit(node: FlatNode, made_by: dict[Value, FlatNode], condition: FlatNode | None) -> None:
    maker = made_by.get(node.operands[0])
    if (
        condition is None
        or maker is None
        or maker.op != flat.SWITCH
        or maker.operands[0] is not condition.result
        or maker.results[0] is not node.operands[0]
    ):
        expected = "the false side of a Switch on the frame's LoopCond"
        raise _fail(node, "what it takes out", expected, describe(maker) if maker else "an input")


def _carry(
    enter: FlatNode, made_by: dict[Value, FlatNode], taken_by: dict[Value, list[FlatNode]], condition: FlatNode
) -> None:
    takers_of = taken_by.get(enter.result, [])
    if len(takers_of) != 1 or not is_loop_merge(takers_of[0], made_by) or takers_of[0].operands[0] is not enter.result:
        got = ", ".join(map(describe, takers_of)) or "nothing"
        raise _fail(enter, "it does not open a loop", "one Merge of it and a NextIteration", got)
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
        raise _fail(enter, "an Enter without its Exit", expected, got, "leave every frame with exit(false side)")
