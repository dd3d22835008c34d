"""What each node of a flat graph has to be by itself: its operands, results, attributes and types.

A primitive is as its line in `graph` says, an ordinary op as its rule in `ctrlgrad.ops` says. An op with an effect
takes a token last, and gives the next one last.
"""

from __future__ import annotations

from collections.abc import Sequence

from ctrlgrad.dataflow import graph as flat
from ctrlgrad.dataflow.graph import FlatNode, is_effectful
from ctrlgrad.dataflow.scopes import describe
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
    flat.SEND: (1, 0),
    flat.RECV: (0, 1),
}

# What is known of a primitive when the graph is built.
_ATTRIBUTES: dict[str, dict[str, type]] = {
    flat.ENTER: {"frame": str, "constant": bool, "parallel_iterations": int},
    flat.SEND: {"edge": int, "to": str},
    flat.RECV: {"edge": int, "from": str},
    flat.CLUSTER: {"effect": bool},
}


def check_node(node: FlatNode) -> None:
    """Refuse a node that is not what its op says.

    Raises:
        VerificationError: with the node, what was expected and what it has.
    """
    _arity(node)
    _attributes(node)
    _types(node)


def fail(node: FlatNode, problem: str, expected: str, got: str, hint: str | None = None) -> VerificationError:
    """The error of a node that breaks a rule."""
    return VerificationError(f"{describe(node)}: {problem}", source=node.source, expected=expected, got=got, hint=hint)


def _arity(node: FlatNode) -> None:
    operands, results = _ARITY.get(node.op, (-1, -1))
    if operands == -1:
        return
    for what, number, found in (("operands", operands, node.operands), ("results", results, node.results)):
        if len(found) != number if number is not None else not found:
            expected = "one or more" if number is None else str(number)
            raise fail(node, f"wrong number of {what}", expected, str(len(found)))


def _attributes(node: FlatNode) -> None:
    for name, kind in _ATTRIBUTES.get(node.op, {}).items():
        value = node.attrs.get(name)
        if type(value) is not kind:
            got = repr(value) if name in node.attrs else "none"
            raise fail(node, f"the attribute {name!r}", f"one of type {kind.__name__}", got)
    if node.op == flat.ENTER:
        if not node.attrs["frame"]:
            raise fail(node, "the attribute 'frame'", "the name of a frame", "'', which is the root frame's")
        if node.attrs["parallel_iterations"] < 1:
            got = str(node.attrs["parallel_iterations"])
            raise fail(node, "the attribute 'parallel_iterations'", "at least one iteration in flight", got)


def _types(node: FlatNode) -> None:
    if node.op == flat.SWITCH:
        predicate, data = (v.type for v in node.operands)
        if not _is_selector(predicate, len(node.results)):
            raise fail(node, "the predicate", "bool[] for two sides, or an integer scalar", str(predicate))
        _same(node, "result", [data] * len(node.results), node.results)
    elif node.op == flat.LOOP_COND:
        _same(node, "operand", [BOOL], node.operands)
        _same(node, "result", [BOOL], node.results)
    elif node.op in (flat.MERGE, flat.ENTER, flat.EXIT, flat.NEXT_ITERATION):
        for value in node.operands:
            if not node.result.type.accepts(value.type):
                raise fail(node, "the type of an operand", str(node.result.type), str(value.type))
    elif node.op == flat.CLUSTER:
        _cluster(node)
    elif not node.is_primitive:
        _ordinary(node)


def _is_selector(predicate: Type, sides: int) -> bool:
    if predicate == BOOL:
        return sides == 2
    return isinstance(predicate, TensorType) and predicate.rank == 0 and predicate.dtype.kind in "iu"


def _same(node: FlatNode, what: str, expected: Sequence[Type], values: Sequence[Value]) -> None:
    if len(values) != len(expected):
        raise fail(node, f"wrong number of {what}s", str(len(expected)), str(len(values)))
    for position, (wanted, value) in enumerate(zip(expected, values, strict=True)):
        if value.type != wanted:
            raise fail(node, f"the type of {what} {position}", str(wanted), str(value.type))


def _cluster(node: FlatNode) -> None:
    if len(node.regions) != 1:
        raise fail(node, "wrong number of regions", "1, the ops that it stands for", str(len(node.regions)))
    (region,) = node.regions
    _same(node, "operand", [v.type for v in region.inputs], node.operands)
    token = [BOOL] if node.attrs["effect"] else []
    _same(node, "result", [*(v.type for v in region.outputs), *token], node.results)


def _ordinary(node: FlatNode) -> None:
    if node.op not in OPS:
        raise fail(node, "there is no such op", "an op of ctrlgrad.ops, or a primitive", node.op)
    op = OPS[node.op]
    operands, results = node.operands, node.results
    if is_effectful(node):
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
        types = tuple(op.infer([v.type for v in operands], node.attrs, node.regions))
    except CtrlgradError as error:
        raise fail(node, error.problem, error.expected or "operands that fit", error.got or "others") from error
    _same(node, "result", types, results)


def _types_of(values: Sequence[Value]) -> str:
    return ", ".join(str(v.type) for v in values) or "none"


__all__ = ["check_node", "fail"]
