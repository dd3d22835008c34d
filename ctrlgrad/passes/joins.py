"""Joins: an array of zeros of which every part is added to once is the concatenation of what is added.

The gradient of slicing an array into parts adds each part's cotangent to an array of zeros, one part after the other.
Where the parts are fixed slices along one axis that cover it, nothing needs zeros or sums.

In: any graph. Out: a `concat` in place of each chain of `additem` nodes on zeros of a float or complex dtype, whose
fixed slices cover one axis of a known shape, and of which none but the last is used elsewhere. That an array is zeros
is seen of constants, of those in other shapes, and of both where a loop captures them or a branch is given them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ctrlgrad.ir import Builder, Graph, Node, Value, copy_node, uses


def join_updates(graph: Graph) -> Graph:
    """The graph with chains of updates of zeros replaced by concatenations, inside regions too."""
    return _join(graph, frozenset())


@dataclass(frozen=True)
class _Part:
    """One update: the axis it slices, from where to where, and what it adds."""

    axis: int
    start: int
    stop: int
    value: Value


def _join(graph: Graph, zero_inputs: frozenset[Value]) -> Graph:
    zeros = set(zero_inputs)
    made = {v: node for node in graph.nodes for v in node.results}
    count = uses(graph)
    builder = Builder(name=graph.name)
    went: dict[Value, Value] = {v: _input(builder, v) for v in graph.inputs}
    for node in graph.nodes:
        name = node.op.name
        if name == "constant" and node.attrs["value"].dtype.kind in "fc" and not np.any(node.attrs["value"]):
            # The sign of a zero shows in no sum but that with another zero.
            zeros.add(node.result)
        elif name in ("broadcast_to", "expand_dims", "reshape") and node.operands[0] in zeros:
            zeros.add(node.result)
        parts = _chain(node, made, count, zeros)
        if parts is not None:
            builder.source = node.source
            went[node.result] = builder.emit("concat", [went[p.value] for p in parts], {"axis": parts[0].axis})
            continue
        regions = tuple(_join(region, _zeros_inside(node, region, zeros)) for region in node.regions)
        copy_node(builder, Node(node.op, node.operands, node.results, node.attrs, regions, node.source), went)
    return builder.finish(went[v] for v in graph.outputs)


def _input(builder: Builder, value: Value) -> Value:
    return builder.input(value.type, value.hint)


def _zeros_inside(node: Node, region: Graph, zeros: set[Value]) -> frozenset[Value]:
    """The inputs of a region that are zeros: captures of a loop, operands of a branch."""
    if node.op.name == "while":
        pairs = zip(node.operands[: node.attrs["captures"]], region.inputs, strict=False)
    elif node.op.name == "cond":
        pairs = zip(node.operands[1:], region.inputs, strict=False)
    else:
        return frozenset()
    return frozenset(inner for outer, inner in pairs if outer in zeros)


def _chain(node: Node, made: dict[Value, Node], count: dict[Value, int], zeros: set[Value]) -> list[_Part] | None:
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
        if base not in made or count[base] != 1:
            return None
        node = made[base]
    parts.sort(key=lambda p: p.start)
    return parts if _cover(parts, node.result.tensor.shape) else None


def _part(node: Node) -> _Part | None:
    if node.op.name != "additem" or len(node.operands) != 2 or not node.result.tensor.is_static:
        return None
    shape, key, value = node.result.tensor.shape, node.attrs["key"], node.operands[1]
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
