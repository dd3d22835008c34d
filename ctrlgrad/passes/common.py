"""Common subexpressions: of nodes that compute the same from the same values, one is kept.

In: any graph. Out: no two pure nodes of one region have the same op, operands, attributes and regions. Regions are
treated one by one; nothing moves between regions. A function that is called twice, as by two derivatives, leaves its
loops twice: of loops and of branches that say the same, one runs. Calls stay as they are, and so do barriers, constants
of more than `LARGEST` elements, and what makes or takes a stack: two stacks that start alike are still two.
"""

from __future__ import annotations

from collections.abc import Sequence

from ctrlgrad.ir import Graph, Node, Rewriter, StackType, Trait, Value, attributes, is_branch, is_loop
from ctrlgrad.ir.interning import fingerprint
from ctrlgrad.ir.walk import has_effect

# Larger constants are not compared. The zeros that loops begin with are mostly below it.
LARGEST = 4096

_Key = tuple[str, tuple[Value, ...], str | bytes]


def merge_common(graph: Graph) -> Graph:
    """The graph with repeated computations merged."""
    return _Merging(graph).run()


class _Merging(Rewriter):
    def __init__(self, graph: Graph, outer: Rewriter | None = None, owner: Node | None = None) -> None:
        super().__init__(graph, outer, owner)
        self._seen: dict[_Key, list[Node]] = {}

    def visit(self, node: Node) -> Sequence[Value] | None:
        key = _key(node)
        if key is None:
            return None
        alike = self._seen.setdefault(key, [])
        for known in alike:
            if _have_equal_regions(known, node):
                return known.results
        alike.append(node)
        return None


def _have_equal_regions(known: Node, node: Node) -> bool:
    """True if the regions of two nodes are equal and have no effect; nodes without regions have equal ones."""
    if not node.regions:
        return True
    if has_effect(node.op, node.regions) or [v.type for v in known.results] != [v.type for v in node.results]:
        return False
    digests = [fingerprint(region) for region in node.regions]
    return None not in digests and digests == [fingerprint(region) for region in known.regions]


def _key(node: Node) -> _Key | None:
    """Key that two nodes must share to be merged, besides equal regions; None for nodes that are never merged."""
    if Trait.EFFECT in node.op.traits or node.op.name == "barrier":
        return None
    if node.regions and not (is_loop(node) or is_branch(node)):
        return None
    stacks = (*node.operands, *node.results) if node.regions else node.results
    if any(isinstance(v.type, StackType) for v in stacks):
        return None
    if node.op.name == "constant":
        constant = attributes.Constant.of(node)
        value = constant.value
        if value.size > LARGEST or constant.varies:
            return None
        return (f"constant {value.dtype}{value.shape}", (), value.tobytes())
    return (node.op.name, node.operands, repr(node.attrs))
