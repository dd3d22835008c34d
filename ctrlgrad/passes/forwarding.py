"""Forwarding: what every branch, or a loop's body, passes on unchanged is taken from in front of them.

A result that is the same value whichever branch is taken does not depend on the selector: it has no rows of its own
where only the selector has them (`vmap`), and its derivative goes around the branches.

In: any graph. Out: no used result of a `cond` is, in all of its branches, the same operand (of the result's type)
or the same constant; none of a `while` is a carry that the body leaves as it is. Stacks stay: their way through the
branches pairs their pushes with their pops.
"""

from __future__ import annotations

from collections.abc import Sequence

from ctrlgrad.ir import (
    Branch,
    Builder,
    Graph,
    Loop,
    Node,
    TensorType,
    Value,
    attributes,
    definitions,
    is_branch,
    is_loop,
    rewrite,
)
from ctrlgrad.ir.control import Carry


def forward_results(graph: Graph) -> Graph:
    """The graph with such results replaced, inner branches first."""
    return rewrite(graph, _forward)


def _forward(node: Node, builder: Builder) -> Sequence[Value] | None:
    if is_loop(node):
        builder.keep(node)
        return [_before(carry) for carry in Loop.of(node).carries]
    if not is_branch(node):
        return None
    branch = Branch.of(node)
    producers = [definitions(region) for region in branch.branches]
    forwarded = []
    for position, result in enumerate(branch.results):
        found = [_passed_on(branch, k, position, producers[k]) for k in range(len(branch.branches))]
        is_forwarded = isinstance(result.type, TensorType) and _are_one(found)
        forwarded.append(_in_front(found[0], builder) if is_forwarded else result)
    builder.keep(node)
    return forwarded


def _before(carry: Carry) -> Value:
    is_kept = carry.next is carry.in_body and carry.init.type == carry.result.type
    return carry.init if is_kept and isinstance(carry.result.type, TensorType) else carry.result


def _passed_on(branch: Branch, k: int, position: int, producers: dict[Value, Node]) -> Value | Node | None:
    """The operand that branch k passes on as a result, or the constant."""
    region = branch.branches[k]
    output = region.outputs[position]
    if output.type != branch.results[position].type:
        return None
    if output in producers:
        return producers[output] if producers[output].op.name == "constant" else None
    operand = branch.operands[region.inputs.index(output)]
    return operand if operand.type == output.type else None


def _are_one(found: list[Value | Node | None]) -> bool:
    first = found[0]
    if isinstance(first, Node):
        value = attributes.Constant.of(first).value
        return all(isinstance(x, Node) and attributes.Constant.of(x).value.tobytes() == value.tobytes() for x in found)
    return first is not None and all(x is first for x in found)


def _in_front(found: Value | Node | None, builder: Builder) -> Value:
    if isinstance(found, Node):
        return builder.constant_again(attributes.Constant.of(found))
    assert found is not None
    return found
