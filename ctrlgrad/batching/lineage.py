"""Which stack a stack came from: the input of a region that it is an update of, if it is one."""

from __future__ import annotations

from ctrlgrad.ir import Branch, Graph, Loop, Value, definitions, view
from ctrlgrad.ir.control import Carry

_UPDATES = frozenset({"stack_push", "stack_pop", "stack_write", "stack_add", "stack_clear", "stack_resize"})


def origin(graph: Graph, value: Value) -> Value | None:
    """The input of `graph` that the stack `value` is an updated form of, or None where it is made inside."""
    made = definitions(graph)
    while value not in graph.inputs:
        node = made[value]
        position = node.results.index(value)
        if node.op.name in _UPDATES:
            value = node.operands[0]
            continue
        match view(node):
            case Loop() as loop:
                carry = loop.carries[position]
                if not stays(loop, carry):
                    return None
                value = carry.init
            case Branch() as branch:
                place = passed_on(branch, position)
                if place is None:
                    return None
                value = branch.operands[place]
            case _:
                return None
    return value


def stays(loop: Loop, carry: Carry) -> bool:
    """Whether the stack that a loop carries is the one it starts with, updated."""
    return origin(loop.body, carry.next) is carry.in_body


def passed_on(branch: Branch, position: int) -> int | None:
    """The operand of a branch that a result is an updated form of, whichever side is taken."""
    places = {_place(region, region.outputs[position]) for region in branch.branches}
    return places.pop() if len(places) == 1 else None


def _place(region: Graph, value: Value) -> int | None:
    found = origin(region, value)
    return None if found is None else region.inputs.index(found)
