"""Common subexpressions: of nodes that compute the same from the same values, one is kept.

In: any graph. Out: no two pure nodes of one region have the same op, operands and attributes. Regions are
treated one by one; nothing moves between regions. Loops, branches and calls stay as they are, and so do barriers,
constants of more than `LARGEST` elements, and what makes a stack: two stacks that start alike are still two.
"""

from __future__ import annotations

from collections.abc import Sequence

from ctrlgrad.ir import Graph, Node, Rewriter, StackType, Trait, Value, attributes

# Larger constants are not compared.
LARGEST = 64

_Key = tuple[str, tuple[Value, ...], str]


def merge_common(graph: Graph) -> Graph:
    """The graph with repeated computations merged."""
    return _Merging(graph).run()


class _Merging(Rewriter):
    def __init__(self, graph: Graph, outer: Rewriter | None = None, owner: Node | None = None) -> None:
        super().__init__(graph, outer, owner)
        self._seen: dict[_Key, Node] = {}

    def visit(self, node: Node) -> Sequence[Value] | None:
        key = _key(node)
        known = node if key is None else self._seen.setdefault(key, node)
        return None if known is node else known.results


def _key(node: Node) -> _Key | None:
    """What two nodes must share to be one; None for nodes that are not compared."""
    if node.regions or Trait.EFFECT in node.op.traits or node.op.name == "barrier":
        return None
    if any(isinstance(v.type, StackType) for v in node.results):
        return None
    if node.op.name == "constant":
        value = attributes.Constant.of(node).value
        if value.size > LARGEST:
            return None
        return ("constant", (), f"{value.dtype}{value.shape}{value.tobytes()!r}")
    return (node.op.name, node.operands, repr(node.attrs))
