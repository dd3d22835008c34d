"""Common subexpressions: of nodes that compute the same from the same values, one is kept.

In: any graph. Out: no two pure nodes of one region have the same op, operands and attributes. Regions are
treated one by one; nothing moves between regions. Loops, branches and calls stay as they are, and so do barriers,
constants of more than `LARGEST` elements, and what makes a stack: two stacks that start alike are still two.
"""

from __future__ import annotations

from ctrlgrad.ir import Graph, Node, StackType, Trait, Value

# Larger constants are not compared.
LARGEST = 64

_Key = tuple[str, tuple[Value, ...], str]


def merge_common(graph: Graph) -> Graph:
    """The graph with repeated computations merged."""
    renamed: dict[Value, Value] = {}
    seen: dict[_Key, Node] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        operands = tuple(renamed.get(v, v) for v in node.operands)
        regions = tuple(merge_common(region) for region in node.regions)
        if regions or operands != node.operands:
            node = Node(node.op, operands, node.results, node.attrs, regions, node.source)
        key = _key(node)
        if key is None:
            nodes.append(node)
        elif key in seen:
            renamed.update(zip(node.results, seen[key].results, strict=True))
        else:
            seen[key] = node
            nodes.append(node)
    return Graph(graph.inputs, tuple(nodes), tuple(renamed.get(v, v) for v in graph.outputs), graph.name)


def _key(node: Node) -> _Key | None:
    """What two nodes must share to be one; None for nodes that are not compared."""
    if node.regions or Trait.EFFECT in node.op.traits or node.op.name == "barrier":
        return None
    if any(isinstance(v.type, StackType) for v in node.results):
        return None
    if node.op.name == "constant":
        value = node.attrs["value"]
        if value.size > LARGEST:
            return None
        return ("constant", (), f"{value.dtype}{value.shape}{value.tobytes()!r}")
    return (node.op.name, node.operands, repr(dict(node.attrs)))
