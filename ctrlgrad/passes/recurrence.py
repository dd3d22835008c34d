"""Values outside of a loop's recurrence, which could be computed for many iterations before the loop."""

from __future__ import annotations

from ctrlgrad.ir import INDEX, Loop, StackType, Trait, Value, attributes, definitions
from ctrlgrad.ir.attributes import DYNAMIC
from ctrlgrad.records import record


@record
class Row:
    """A value that is a row of a captured array.

    `counter` is the carry that tells which: the row of its own value, which goes up by 1, or, where the loop
    `counts_down` from the number of its iterations, the row before.
    """

    array: Value
    counter: Value
    counts_down: bool = False


def counters(loop: Loop) -> set[Value]:
    """The carries that each iteration adds 1 to."""
    producers = definitions(loop.body)
    found = set()
    for carry, out in zip(loop.carried, loop.body.outputs, strict=True):
        step = producers.get(out)
        if step is None or step.op.name != "add" or carry.type != INDEX or carry not in step.operands:
            continue
        (other,) = [v for v in step.operands if v is not carry] or [carry]
        constant = producers.get(other)
        if constant is not None and constant.op.name == "constant" and attributes.Constant.of(constant).value == 1:
            found.add(carry)
    return found


def rows(loop: Loop) -> dict[Value, Row]:
    """The values that are rows of captured arrays, or such rows in another shape."""
    counting = {v: (v, False) for v in counters(loop)}
    if loop.counts_down:
        counting[loop.carries[0].next] = (loop.carries[0].in_body, True)
    shared = set(loop.shared)
    found: dict[Value, Row] = {}
    for node in loop.body.nodes:
        name = node.op.name
        if name == "getitem" and node.operands[0] in shared and len(node.operands) == 2:
            first, *rest = attributes.Index.of(node).key
            whole = all(item == slice(None) for item in rest)
            if first is DYNAMIC and whole and node.operands[1] in counting:
                found[node.result] = Row(node.operands[0], *counting[node.operands[1]])
        elif name in ("expand_dims", "squeeze") and node.operands[0] in found:
            found[node.result] = found[node.operands[0]]
    return found


def outside_recurrence(loop: Loop) -> set[Value]:
    """The values that depend on captures, constants and rows of captures alone."""
    outside = {v for v in loop.shared if not isinstance(v.type, StackType)}
    row_values = rows(loop)
    for node in loop.body.nodes:
        if node.regions or Trait.EFFECT in node.op.traits:
            continue
        if (node.result in row_values if len(node.results) == 1 else False) or (
            all(v in outside for v in node.operands) and not any(isinstance(v.type, StackType) for v in node.results)
        ):
            outside.update(node.results)
    return outside
