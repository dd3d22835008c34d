"""Passes that make reads and writes of slices cheaper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ctrlgrad.ir import Graph, Node, Rewriter, TensorType, Trait, Value, attributes, definitions

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
                self._sunk[known] = self._sink(self._producers[value], key)
            else:
                self._sunk[known] = self.builder.emit("getitem", [self.value(value)], {"key": key})
        return self._sunk[known]

    def _sink(self, node: Node, key: Key) -> Value:
        """A slice of a node's result, from slices of its operands."""
        if node.op.name == "matmul":
            rows, columns = key
            keys = [(rows, slice(None)), (slice(None), columns)]
        else:
            keys = [_of_operand(v, node.result, key) for v in node.operands]
        operands = [self._take(v, k) for v, k in zip(node.operands, keys, strict=True)]
        return self.builder.emit(node.op, operands, node.attrs, source=node.source)


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
