"""The one way to make a graph.

A `Builder` collects nodes; `finish` closes them into a `Graph`. While a graph or region is being built its
nodes may use values of the graphs around it (free values); `close` turns those into captures. `inline`
copies a graph's nodes into a builder.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ctrlgrad.errors import VerificationError
from ctrlgrad.ir.attributes import NO_ATTRS, Constant, Given
from ctrlgrad.ir.graph import Graph, Node, Value
from ctrlgrad.ir.op import OPS, Op
from ctrlgrad.ir.types import Type
from ctrlgrad.records import record
from ctrlgrad.source import Source

# Largest number of elements of constants that are merged if they are equal.
SMALL = 64


class Numbers(Protocol):
    """Known arrays for the values of a builder, in a trace for the arguments of one call (`frontend/tracer.py`)."""

    def number(self, builder: Builder, value: Value) -> Any: ...


class Builder:
    """Nodes of one graph or region, in order."""

    def __init__(self, parent: Builder | None = None, name: str = "graph") -> None:
        self.parent = parent
        self.name = name
        self.inputs: list[Value] = []
        self.nodes: list[Node] = []
        # The source given to nodes emitted without one: a transform sets it to the node it works on.
        self.source: Source | None = None
        # Tracing closes a builder when its function or region ends; a tensor of a closed one has leaked.
        self.is_open = True
        # Values of graphs that have ended that may be used here and inside all the same: they become captures.
        self.lent: frozenset[Value] = frozenset()
        # The user's line that began the trace: where the inputs of what is traced were made.
        self.began: Source | None = None
        self.known: Numbers | None = None
        self._constants: dict[tuple[np.dtype, tuple[int, ...], bytes], Value] = {}

    def number(self, value: Value) -> Any:
        """The array that a value of this graph, or of one around it, has in this one call; None if it is not known."""
        builder: Builder | None = self
        while builder is not None and builder.known is None:
            builder = builder.parent
        return None if builder is None or builder.known is None else builder.known.number(self, value)

    def borrows(self, value: Value) -> bool:
        """True if a value of a finished graph may be used in this one."""
        return value in self.lent or (self.parent is not None and self.parent.borrows(value))

    def input(self, type: Type, hint: str | None = None) -> Value:
        value = Value(type, hint)
        self.inputs.append(value)
        return value

    def emit_all(
        self,
        op: Op | str,
        operands: Sequence[Value] = (),
        attrs: Given = NO_ATTRS,
        *,
        regions: Sequence[Graph] = (),
        source: Source | None = None,
        hints: Sequence[str | None] | None = None,
    ) -> tuple[Value, ...]:
        """Append a node, its result types by the op's own rule, and return its results."""
        if isinstance(op, str):
            op = OPS[op]
        if op.arity is not None and len(operands) != op.arity:
            raise VerificationError(f"{op.name}: takes {op.arity} operands", got=f"{len(operands)} operands")
        attrs = op.attributes(attrs)
        types = op.infer([v.type for v in operands], attrs, [region.type for region in regions])
        hints = [None] * len(types) if hints is None else hints
        results = tuple(Value(t, h) for t, h in zip(types, hints, strict=True))
        self.nodes.append(Node(op, tuple(operands), results, attrs, tuple(regions), source or self.source))
        return results

    def emit(
        self,
        op: Op | str,
        operands: Sequence[Value] = (),
        attrs: Given = NO_ATTRS,
        *,
        source: Source | None = None,
        hint: str | None = None,
    ) -> Value:
        """As `emit_all`, for an op with one result."""
        (value,) = self.emit_all(op, operands, attrs, source=source, hints=(hint,))
        return value

    def constant(self, array: Any, dtype: np.dtype | None = None) -> Value:
        """A constant; equal small constants of one graph are one value."""
        array = np.array(array, dtype=dtype)
        array.flags.writeable = False
        if array.size > SMALL:
            return self.emit("constant", (), {"value": array})
        key = (array.dtype, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = self.emit("constant", (), {"value": array})
        return self._constants[key]

    def constant_again(self, known: Constant) -> Value:
        """A constant of another graph. A large one stays the same array object, by which it is recognised."""
        small = known.value.size <= SMALL and not known.varies
        return self.constant(known.value) if small else self.emit("constant", (), known)

    def keep(self, node: Node) -> tuple[Value, ...]:
        """Append a node unchanged and return its results. A small constant that exists already is not repeated."""
        if isinstance(node.attrs, Constant) and node.attrs.value.size <= SMALL and not node.attrs.varies:
            array = node.attrs.value
            known = self._constants.setdefault((array.dtype, array.shape, array.tobytes()), node.result)
            if known is not node.result:
                return (known,)
        self.nodes.append(node)
        return node.results

    def inline(self, graph: Graph, arguments: Sequence[Value]) -> tuple[Value, ...]:
        """Copy a graph's nodes here with its inputs replaced by `arguments`; returns its outputs."""
        copies = copy_nodes(self, graph, arguments)
        return tuple(copies[v] for v in graph.outputs)

    def finish(self, outputs: Iterable[Value]) -> Graph:
        return Graph(tuple(self.inputs), tuple(self.nodes), tuple(outputs), self.name)


def copy_nodes(builder: Builder, graph: Graph, arguments: Sequence[Value]) -> dict[Value, Value]:
    """Copy a graph's nodes into `builder`; returns the copy of each of its values."""
    copies: dict[Value, Value] = dict(zip(graph.inputs, arguments, strict=True))
    for node in graph.nodes:
        copy_node(builder, node, copies)
    return copies


def copy_node(builder: Builder, node: Node, copies: dict[Value, Value]) -> None:
    """Copy one node, its operands looked up in `copies`, its results recorded there."""
    if isinstance(node.attrs, Constant) and node.attrs.value.size <= SMALL and not node.attrs.varies:
        copies[node.result] = builder.constant(node.attrs.value)
        return
    results = tuple(Value(v.type, v.hint) for v in node.results)
    operands = tuple(copies[v] for v in node.operands)
    builder.nodes.append(Node(node.op, operands, results, node.attrs, node.regions, node.source))
    copies.update(zip(node.results, results, strict=True))


def free_values(graphs: Iterable[Graph]) -> list[Value]:
    """Values that the graphs use and do not define, in order of first use."""
    free: dict[Value, None] = {}
    for graph in graphs:
        defined = set(graph.inputs)
        for node in graph.nodes:
            free.update((v, None) for v in node.operands if v not in defined)
            defined.update(node.results)
        free.update((v, None) for v in graph.outputs if v not in defined)
    return list(free)


@record
class Closed:
    """Regions over the same operands: the captures first, then each region's former inputs."""

    captures: tuple[Value, ...]
    regions: tuple[Graph, ...]


def close(regions: Sequence[Graph], first: Sequence[Value] = ()) -> Closed:
    """Turn the free values of the regions into inputs that all of them have in front, in the same order.

    The values in `first` become the first inputs, whether the regions use them or not.
    """
    captures = list(dict.fromkeys([*first, *free_values(regions)]))
    closed = []
    for region in regions:
        inner = [Value(v.type, v.hint) for v in captures]
        copies = dict(zip(captures, inner, strict=True))
        nodes = tuple(_replace_operands(node, copies) for node in region.nodes)
        outputs = tuple(copies.get(v, v) for v in region.outputs)
        closed.append(Graph((*inner, *region.inputs), nodes, outputs, region.name))
    return Closed(tuple(captures), tuple(closed))


def _replace_operands(node: Node, copies: Mapping[Value, Value]) -> Node:
    if not any(v in copies for v in node.operands):
        return node
    operands = tuple(copies.get(v, v) for v in node.operands)
    return Node(node.op, operands, node.results, node.attrs, node.regions, node.source)
