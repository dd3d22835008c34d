"""Passes that make reads and writes of slices cheaper."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.ir import (
    Branch,
    Graph,
    Loop,
    Node,
    Rewriter,
    TensorType,
    Trait,
    Value,
    attributes,
    definitions,
    uses,
    view,
)
from ctrlgrad.ops.arrays import is_total
from ctrlgrad.records import record

# Reads come before updates: what looks at an array or stack does so before another op replaces it, where it can.
#
# An update happens in place where nothing looks at the old value afterwards; otherwise it costs a copy of all of it,
# and its gradient a cotangent as large, in every iteration.
#
# In: any graph. Out: no node that reads a part of a value comes after a node of the same region that updates the
# value, unless it needs something computed from then on.


def read_first(graph: Graph) -> Graph:
    """The graph with reads in front of updates, in all of its regions."""
    return _ReadingFirst(graph).run()


class _ReadingFirst(Rewriter):
    def visit(self, node: Node) -> None:
        return None

    def arranged(self, nodes: Sequence[Node]) -> Sequence[Node]:
        late = _late_reads(nodes)
        moving = {read for reads in late.values() for read in reads}
        ordered: list[Node] = []
        for node in nodes:
            ordered += late.get(node, [])
            if node not in moving:
                ordered.append(node)
        return ordered


def _late_reads(nodes: Sequence[Node]) -> dict[Node, list[Node]]:
    """For each update the reads that come after it and could come before."""
    updated: dict[Value, tuple[int, Node]] = {}
    defined: dict[Value, int] = {}
    # Constants stand where they are first used; they move along.
    constants = {node.result: node for node in nodes if node.op.name == "constant"}
    late: dict[Node, list[Node]] = {}
    for position, node in enumerate(nodes):
        defined.update((v, position) for v in node.results)
        if node.op.updates:
            updated.setdefault(node.operands[0], (position, node))
        elif node.op.use(0).observes and node.operands[0] in updated:
            place, update = updated[node.operands[0]]
            after = [v for v in node.operands if defined.get(v, -1) >= place]
            if all(v in constants for v in after):
                late.setdefault(update, []).extend([*(constants[v] for v in after), node])
                defined.update(dict.fromkeys([*after, node.result], place - 1))
    return late


# Slices go down: of an elementwise result or of a matrix product of which only slices are used, only those are made.
#
# `(a + b)[:, :n]` becomes `a[:, :n] + b[:, :n]`, so that what is computed from different slices of one array can be
# one loop; `(a @ b)[:, n:]` becomes `a @ b[:, n:]`.
#
# In: any graph. Out: each value of a known shape that an elementwise op or `matmul` makes, and whose every use is a
# fixed slice of it, is gone, but for products used in several parts. What the slices are taken of now may be such a
# value: the pass can be run again.


Key = tuple[Any, ...]


def sink_slices(graph: Graph) -> Graph:
    """The graph with slices taken before elementwise ops and products instead of after, inside regions too."""
    return _Sinking(graph).run()


class _Sinking(Rewriter):
    def __init__(self, graph: Graph, outer: Rewriter | None = None, owner: Node | None = None) -> None:
        super().__init__(graph, outer, owner)
        readers: dict[Value, list[Node]] = {}
        for node in graph.nodes:
            for v in node.operands:
                readers.setdefault(v, []).append(node)
        self._producers = definitions(graph)
        # Values of which only slices are used, and which can be had in slices.
        self._sliced = {
            v
            for v, node in self._producers.items()
            if v in readers
            and all(map(_is_slice, readers[v]))
            and v not in graph.outputs
            and _can_sink(node)
            and _pays(node, readers[v])
        }
        self._sunk: dict[tuple[Value, str], Value] = {}

    def visit(self, node: Node) -> Sequence[Value] | None:
        if node.results and node.results[0] in self._sliced:
            return node.results  # nothing takes them any more
        if node.op.name == "getitem" and node.operands[0] in self._sliced:
            return (self._take(node.operands[0], attributes.Index.of(node).key),)
        return None

    def _take(self, value: Value, key: Key) -> Value:
        """A slice of a value of the former graph, in the new one."""
        if value not in self._sliced and all(item == slice(None) for item in key):
            return self.value(value)
        known = (value, repr(key))
        if known not in self._sunk:
            if value in self._sliced:
                # A slice of a node's result, from slices of its operands.
                node = self._producers[value]
                if node.op.name == "matmul":
                    rows, columns = key
                    keys = [(rows, slice(None)), (slice(None), columns)]
                else:
                    keys = [_of_operand(v, node.result, key) for v in node.operands]
                operands = [self._take(v, k) for v, k in zip(node.operands, keys, strict=True)]
                self._sunk[known] = self.builder.emit(node.op, operands, node.attrs, source=node.source)
            else:
                self._sunk[known] = self.builder.emit("getitem", [self.value(value)], {"key": key})
        return self._sunk[known]


def _can_sink(node: Node) -> bool:
    if len(node.results) != 1 or node.regions:
        return False
    if any(not isinstance(v.type, TensorType) or not v.type.is_static for v in (*node.operands, node.result)):
        return False
    if node.result.tensor.rank == 0:
        return False
    if node.op.name == "matmul":
        return all(v.tensor.rank == 2 for v in node.operands)
    return Trait.ELEMENTWISE in node.op.traits


def _pays(node: Node, slices: list[Node]) -> bool:
    """A product is cut only where one part of it is used: several small ones cost more than it."""
    return node.op.name != "matmul" or len({repr(attributes.Index.of(s).key) for s in slices}) == 1


def _is_slice(node: Node) -> bool:
    """True if a node is a slice with fixed bounds that keeps every axis."""
    if node.op.name != "getitem" or len(node.operands) != 1:
        return False
    return all(
        isinstance(item, slice)
        and all(isinstance(p, int | None) for p in (item.start, item.stop))
        and item.step in (None, 1)
        for item in attributes.Index.of(node).key
    )


def _of_operand(value: Value, result: Value, key: Key) -> Key:
    """The part of an operand that a part of the broadcast result is computed from."""
    shape = value.tensor.shape
    lead = len(key) - len(shape)
    sizes = result.tensor.shape[lead:]
    return tuple(
        slice(None) if d == 1 and whole != 1 else item for d, whole, item in zip(shape, sizes, key[lead:], strict=True)
    )


# Joins: an array of zeros of which every part is added to once is the concatenation of what is added.
#
# The gradient of slicing an array into parts adds each part's cotangent to an array of zeros, one part after the
# other. Where the parts are fixed slices along one axis that cover it, nothing needs zeros or sums.
#
# In: any graph. Out: a `concat` in place of each chain of `additem` nodes on zeros of a float or complex dtype, whose
# fixed slices cover one axis of a known shape, and of which none but the last is used elsewhere. That an array is
# zeros is seen of constants, of those in other shapes, and of both where a loop captures them or a branch is given
# them.


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
    """True if parts lie end to end along one axis and cover it."""
    axis = parts[0].axis
    ends = [0, *(p.stop for p in parts)]
    return (
        all(p.axis == axis and p.start == end for p, end in zip(parts, ends, strict=False)) and ends[-1] == shape[axis]
    )
