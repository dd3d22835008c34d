"""Joins: an array of zeros of which every part is added to once is the concatenation of what is added.

The gradient of slicing an array into parts adds each part's cotangent to an array of zeros, one part after the other.
Where the parts are fixed slices along one axis that cover it, nothing needs zeros or sums.

In: any graph. Out: a `concat` in place of each chain of `additem` nodes on zeros of a float or complex dtype, whose
fixed slices cover one axis of a known shape, and of which none but the last is used elsewhere. That an array is zeros
is seen of constants, of those in other shapes, and of both where a loop captures them or a branch is given them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.ir import Branch, Graph, Loop, Node, Rewriter, Trait, Value, attributes, definitions, uses, view
from ctrlgrad.ops.traits import is_total
from ctrlgrad.records import record


def join_updates(graph: Graph) -> Graph:
    """The graph with chains of updates of zeros replaced by concatenations, inside regions too."""
    return _Joining(graph).run()


@record
class _Part:
    """One update: the axis it slices, from where to where, and what it adds."""

    axis: int
    start: int
    stop: int
    value: Value


class _Joining(Rewriter):
    def __init__(self, graph: Graph, outer: _Joining | None = None, owner: Node | None = None) -> None:
        super().__init__(graph, outer, owner)
        self._producers = definitions(graph)
        self._count = uses(graph)
        self._zeros: set[Value] = set()
        if outer is not None and owner is not None:
            self._zeros = {inner for before, inner in _entering(owner, graph) if before in outer._zeros}

    def visit(self, node: Node) -> Sequence[Value] | None:
        constant = attributes.Constant.find(node)
        if constant is not None and dtype_kind(constant.value.dtype) in "fc" and not np.any(constant.value):
            # The sign of a zero shows in no sum but that with another zero.
            self._zeros.add(node.result)
        elif Trait.VIEW in node.op.traits and is_total(node) and node.operands[0] in self._zeros:
            self._zeros.add(node.result)
        parts = _chain(node, self._producers, self._count, self._zeros)
        if parts is None:
            return None
        return self.builder.emit_all("concat", [self.value(p.value) for p in parts], {"axis": parts[0].axis})


def _entering(node: Node, region: Graph) -> Iterable[tuple[Value, Value]]:
    """The captures of a loop and the operands of a branch, each with its input of the region."""
    match view(node):
        case Loop() as loop:
            return zip((c.outer for c in loop.captures), region.inputs, strict=False)
        case Branch() as branch:
            return zip(branch.operands, region.inputs, strict=True)
    return ()


def _chain(node: Node, producers: dict[Value, Node], count: dict[Value, int], zeros: set[Value]) -> list[_Part] | None:
    """The parts of a chain of updates that ends at this node, in the order of their slices."""
    parts: list[_Part] = []
    while True:
        part = _part(node)
        if part is None:
            return None
        parts.append(part)
        base = node.operands[0]
        if base in zeros:
            break
        if base not in producers or count[base] != 1:
            return None
        node = producers[base]
    parts.sort(key=lambda p: p.start)
    return parts if _cover(parts, node.result.tensor.shape) else None


def _part(node: Node) -> _Part | None:
    if node.op.name != "additem" or len(node.operands) != 2 or not node.result.tensor.is_static:
        return None
    shape, key, value = node.result.tensor.shape, attributes.Index.of(node).key, node.operands[1]
    cut = [a for a, item in enumerate(key) if item != slice(None)]
    if len(key) != len(shape) or len(cut) != 1:
        return None
    (axis,) = cut
    item, size = key[axis], shape[axis]
    assert size is not None
    if not isinstance(item, slice) or any(not isinstance(p, int | None) for p in (item.start, item.stop, item.step)):
        return None
    numbers = range(*item.indices(size))
    if numbers.step != 1 or value.tensor.shape != (*shape[:axis], len(numbers), *shape[axis + 1 :]):
        return None
    return _Part(axis, numbers.start, numbers.stop, value)


def _cover(parts: Sequence[_Part], shape: Sequence[int | None]) -> bool:
    """Whether parts lie end to end along one axis."""
    axis = parts[0].axis
    ends = [0, *(p.stop for p in parts)]
    return (
        all(p.axis == axis and p.start == end for p, end in zip(parts, ends, strict=False)) and ends[-1] == shape[axis]
    )
