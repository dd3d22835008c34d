"""The structured graph: values in single assignment, nodes, and regions that are graphs themselves.

A `Graph` owns its inputs, its nodes in an order in which every operand is defined before it is used, and
its outputs. A region (the cond and body of a `while`, the branches of a `cond`) is a `Graph` too and is
closed: it sees nothing but its own inputs. All three classes are immutable and compare by identity.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

from ctrlgrad.ir.attributes import NO_ATTRS, Attributes
from ctrlgrad.ir.caching import Cache, Recent
from ctrlgrad.ir.op import Op, Use
from ctrlgrad.ir.printer import format_graph
from ctrlgrad.ir.svg import format_svg
from ctrlgrad.ir.types import RegionType, TensorType, Type
from ctrlgrad.records import record
from ctrlgrad.source import Source


@record(eq=False)
class Value:
    """One SSA value. `hint` is the name it would like to have in printed text."""

    type: Type
    hint: str | None = None

    @property
    def tensor(self) -> TensorType:
        """The type, where it must be a tensor's."""
        assert isinstance(self.type, TensorType), f"{self.type} is not a tensor type"
        return self.type

    def __repr__(self) -> str:
        return f"Value({self.type}{'' if self.hint is None else f', {self.hint!r}'})"


@record(eq=False)
class Node:
    """One application of an op. `attrs` holds what is known when the graph is built, in the fields of its family."""

    op: Op
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    attrs: Attributes = NO_ATTRS
    regions: tuple[Graph, ...] = ()
    source: Source | None = None

    @property
    def result(self) -> Value:
        """The only result."""
        (value,) = self.results
        return value

    def used_as(self, *uses: Use) -> tuple[Value, ...]:
        """The operands that the op uses so."""
        return tuple(v for i, v in enumerate(self.operands) if self.op.use(i) in uses)

    def __repr__(self) -> str:
        return f"Node({self.op.name}: {', '.join(str(v.type) for v in self.operands)})"


@record(eq=False)
class Graph:
    """A function on values: `inputs`, `nodes` in order, `outputs`."""

    inputs: tuple[Value, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Value, ...]
    name: str = "graph"
    # Results that stages and engines derived from this graph, by the cache's owner; never part of its meaning.
    caches: dict[Cache[Any, Any], Recent[Any, Any]] = field(default_factory=dict, repr=False)

    @property
    def type(self) -> RegionType:
        """The types of its inputs and outputs."""
        return RegionType(tuple(v.type for v in self.inputs), tuple(v.type for v in self.outputs))

    def __str__(self) -> str:
        return format_graph(self)

    def _repr_svg_(self) -> str:
        """Drawing of the graph in a notebook."""
        return format_svg(self)

    def __repr__(self) -> str:
        return f"Graph({self.name!r}: {len(self.inputs)} inputs, {len(self.nodes)} nodes, {len(self.outputs)} outputs)"
