"""Slices go down: of an elementwise result or of a matrix product of which only slices are used, only those are made.

`(a + b)[:, :n]` becomes `a[:, :n] + b[:, :n]`, so that what is computed from different slices of one array can be one
loop; `(a @ b)[:, n:]` becomes `a @ b[:, n:]`.

In: any graph. Out: each value of a known shape that an elementwise op or `matmul` makes, and whose every use is a fixed
slice of it, is gone, but for sums of a product with an array of its size (the product is then added as it is computed)
and products used in several parts. What the slices are taken of now may be such a value: the pass can be run again.
"""

from __future__ import annotations

from typing import Any

from ctrlgrad.ir import Builder, Graph, Node, TensorType, Trait, Value, copy_node

Key = tuple[Any, ...]


def sink_slices(graph: Graph) -> Graph:
    """The graph with slices taken before elementwise ops and products instead of after, inside regions too."""
    readers: dict[Value, list[Node]] = {}
    for node in graph.nodes:
        for v in node.operands:
            readers.setdefault(v, []).append(node)
    kept = set(graph.outputs)
    made = {v: node for node in graph.nodes for v in node.results}
    sliced = {
        v: [node.attrs["key"] for node in readers[v]]
        for node in graph.nodes
        if _can_sink(node) and not _accumulates(node, made)
        for v in node.results
        if v not in kept and v in readers and all(map(_is_slice, readers[v])) and _pays(node, readers[v])
    }
    if not sliced and not any(node.regions for node in graph.nodes):
        return graph
    builder = Builder(name=graph.name)
    went: dict[Value, Value] = {v: builder.input(v.type, v.hint) for v in graph.inputs}
    sunk: dict[tuple[Value, str], Value] = {}

    def take(value: Value, key: Key) -> Value:
        """A slice of a value of the former graph, in the new one."""
        if all(item == slice(None) for item in key) and value in went:
            return went[value]
        known = (value, repr(key))
        if known not in sunk:
            if value in sliced or (value not in went and value in made):
                sunk[known] = _sink(builder, made[value], key, take)
            else:
                sunk[known] = builder.emit("getitem", [went[value]], {"key": key})
        return sunk[known]

    for node in graph.nodes:
        if node.result in sliced if len(node.results) == 1 else False:
            continue
        builder.source = node.source
        if node.op.name == "getitem" and node.operands[0] in sliced:
            went[node.result] = take(node.operands[0], node.attrs["key"])
            continue
        regions = tuple(sink_slices(region) for region in node.regions)
        copy_node(builder, Node(node.op, node.operands, node.results, node.attrs, regions, node.source), went)
    return builder.finish(went[v] for v in graph.outputs)


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


def _accumulates(node: Node, made: dict[Value, Node]) -> bool:
    """Whether a node adds a product to an array of its size: a matrix product can do that itself."""
    if node.op.name != "add" or any(v.type != node.result.type for v in node.operands):
        return False
    return any(v in made and made[v].op.name == "matmul" for v in node.operands)


def _pays(node: Node, slices: list[Node]) -> bool:
    """A product is cut only where one part of it is used: several small ones cost more than it."""
    return node.op.name != "matmul" or len({repr(s.attrs["key"]) for s in slices}) == 1


def _is_slice(node: Node) -> bool:
    """Whether a node is a slice with fixed bounds that keeps every axis."""
    if node.op.name != "getitem" or len(node.operands) != 1:
        return False
    return all(
        isinstance(item, slice)
        and all(isinstance(p, int | None) for p in (item.start, item.stop))
        and item.step in (None, 1)
        for item in node.attrs["key"]
    )


def _sink(builder: Builder, node: Node, key: Key, take: Any) -> Value:
    """A slice of a node's result, from slices of its operands."""
    if node.op.name == "matmul":
        rows, columns = key
        operands = [take(node.operands[0], (rows, slice(None))), take(node.operands[1], (slice(None), columns))]
    else:
        operands = [take(v, _of_operand(v, node.result, key)) for v in node.operands]
    return builder.emit(node.op, operands, node.attrs, source=node.source)


def _of_operand(value: Value, result: Value, key: Key) -> Key:
    """The part of an operand that a part of the broadcast result is computed from."""
    shape = value.tensor.shape
    lead = len(key) - len(shape)
    sizes = result.tensor.shape[lead:]
    return tuple(
        slice(None) if d == 1 and whole != 1 else item for d, whole, item in zip(shape, sizes, key[lead:], strict=True)
    )
