"""What a loop's recurrence does not touch: values that could be computed for many iterations before the first."""

from __future__ import annotations

from dataclasses import dataclass

from ctrlgrad.ir import INDEX, Graph, StackType, Trait, Value
from ctrlgrad.ops.indexing import DYNAMIC


@dataclass(frozen=True)
class Row:
    """A value that is row `counter` of a captured array, in the iteration in which `counter` has its value."""

    array: Value
    counter: Value


def counters(body: Graph, captures: int) -> set[Value]:
    """The carries that each iteration adds 1 to."""
    made = {v: node for node in body.nodes for v in node.results}
    found = set()
    for carry, out in zip(body.inputs[captures:], body.outputs, strict=True):
        step = made.get(out)
        if step is None or step.op.name != "add" or carry.type != INDEX or carry not in step.operands:
            continue
        (other,) = [v for v in step.operands if v is not carry] or [carry]
        constant = made.get(other)
        if constant is not None and constant.op.name == "constant" and constant.attrs["value"] == 1:
            found.add(carry)
    return found


def rows(body: Graph, captures: int) -> dict[Value, Row]:
    """The values that are rows of captured arrays, or such rows in another shape."""
    counting, shared = counters(body, captures), set(body.inputs[:captures])
    found: dict[Value, Row] = {}
    for node in body.nodes:
        name = node.op.name
        if name == "getitem" and node.operands[0] in shared and len(node.operands) == 2:
            first, *rest = node.attrs["key"]
            whole = all(item == slice(None) for item in rest)
            if first is DYNAMIC and whole and node.operands[1] in counting:
                found[node.result] = Row(node.operands[0], node.operands[1])
        elif name in ("expand_dims", "squeeze") and node.operands[0] in found:
            found[node.result] = found[node.operands[0]]
    return found


def outside_recurrence(body: Graph, captures: int) -> set[Value]:
    """The values that depend on captures, constants and rows of captures alone."""
    outside = {v for v in body.inputs[:captures] if not isinstance(v.type, StackType)}
    row_values = rows(body, captures)
    for node in body.nodes:
        if node.regions or Trait.EFFECT in node.op.traits:
            continue
        if (node.result in row_values if len(node.results) == 1 else False) or (
            all(v in outside for v in node.operands) and not any(isinstance(v.type, StackType) for v in node.results)
        ):
            outside.update(node.results)
    return outside
