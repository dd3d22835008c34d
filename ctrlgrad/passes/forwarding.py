"""Forwarding: what every branch passes on unchanged is taken from in front of the branches.

A result that is the same value whichever branch is taken does not depend on the selector: it has no rows of its own
where only the selector has them (`vmap`), and its derivative goes around the branches.

In: any graph. Out: no used result of a `cond` is, in all of its branches, the same operand (of the result's type)
or the same constant. Stacks stay: their way through the branches pairs their pushes with their pops.
"""

from __future__ import annotations

from ctrlgrad.ir import Graph, Node, TensorType, Value, definitions


def forward_results(graph: Graph) -> Graph:
    """The graph with such results replaced, inner branches first."""
    nodes: list[Node] = []
    renamed: dict[Value, Value] = {}
    for node in graph.nodes:
        operands = tuple(renamed.get(v, v) for v in node.operands)
        regions = tuple(forward_results(region) for region in node.regions)
        if regions or operands != node.operands:
            node = Node(node.op, operands, node.results, node.attrs, regions, node.source)
        if node.op.name == "cond":
            made = [definitions(region) for region in node.regions]
            for position, result in enumerate(node.results):
                found = [_passed_on(node, k, position, made[k]) for k in range(len(node.regions))]
                if isinstance(result.type, TensorType) and _are_one(found):
                    renamed[result] = _in_front(found[0], result, nodes)
        nodes.append(node)
    return Graph(graph.inputs, tuple(nodes), tuple(renamed.get(v, v) for v in graph.outputs), graph.name)


def _passed_on(node: Node, k: int, position: int, made: dict[Value, Node]) -> Value | Node | None:
    """The operand that branch k passes on as a result, or the constant."""
    region = node.regions[k]
    output = region.outputs[position]
    if output.type != node.results[position].type:
        return None
    if output in made:
        return made[output] if made[output].op.name == "constant" else None
    operand = node.operands[1 + region.inputs.index(output)]
    return operand if operand.type == output.type else None


def _are_one(found: list[Value | Node | None]) -> bool:
    first = found[0]
    if isinstance(first, Node):
        value = first.attrs["value"]
        return all(isinstance(x, Node) and x.attrs["value"].tobytes() == value.tobytes() for x in found)
    return first is not None and all(x is first for x in found)


def _in_front(found: Value | Node | None, result: Value, nodes: list[Node]) -> Value:
    if isinstance(found, Node):
        value = Value(result.type, result.hint)
        nodes.append(Node(found.op, (), (value,), found.attrs, (), found.source))
        return value
    assert found is not None
    return found
