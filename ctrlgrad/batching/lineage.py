"""Which stack a stack came from: the input of a region that it is an update of, if it is one."""

from __future__ import annotations

from ctrlgrad.ir import Graph, Value, definitions

_UPDATES = frozenset({"stack_push", "stack_pop", "stack_write", "stack_add", "stack_clear", "stack_resize"})


def origin(graph: Graph, value: Value) -> Value | None:
    """The input of `graph` that the stack `value` is an updated form of, or None where it is made inside."""
    made = definitions(graph)
    while value not in graph.inputs:
        node = made[value]
        position = node.results.index(value)
        if node.op.name in _UPDATES:
            value = node.operands[0]
        elif node.op.name == "while":
            body, captures = node.regions[1], node.attrs["captures"]
            if origin(body, body.outputs[position]) is not body.inputs[captures + position]:
                return None
            value = node.operands[captures + position]
        elif node.op.name == "cond":
            found = {_place(region, region.outputs[position]) for region in node.regions}
            place = found.pop()
            if found or place is None:
                return None
            value = node.operands[1 + place]
        else:
            return None
    return value


def _place(region: Graph, value: Value) -> int | None:
    found = origin(region, value)
    return None if found is None else region.inputs.index(found)
