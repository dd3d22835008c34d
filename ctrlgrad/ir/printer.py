"""Graphs as text that is meant to be read, and that is the same on every run.

    graph f(x: f64[], n: i64[]) {
      zero = constant 0
      i, y = while captures(n, x) carry(i = zero, y = x) {
        cond {
          v1 = less i, n : bool[]
          yield v1
        }
        body {
          ...
          yield i_1, y_1
        }
      } : i64[], f64[]
      return y
    }

The regions of a node see the operand list by the names in its header; both regions of a loop share them.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from ctrlgrad.ir import attributes
from ctrlgrad.ir.attributes import Attributes
from ctrlgrad.ir.op import Op
from ctrlgrad.ir.types import BOOL, Type
from ctrlgrad.source import Source

# A graph prints itself, so `ctrlgrad.ir.graph` stands above; this is what the printer sees of one.


class Value(Protocol):
    @property
    def type(self) -> Type: ...

    @property
    def hint(self) -> str | None: ...


class Node(Protocol):
    @property
    def op(self) -> Op: ...

    @property
    def operands(self) -> Sequence[Value]: ...

    @property
    def results(self) -> Sequence[Value]: ...

    @property
    def attrs(self) -> Attributes: ...

    @property
    def regions(self) -> Sequence[Graph]: ...

    @property
    def source(self) -> Source | None: ...


class Graph(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def inputs(self) -> Sequence[Value]: ...

    @property
    def nodes(self) -> Sequence[Node]: ...

    @property
    def outputs(self) -> Sequence[Value]: ...


def format_graph(graph: Graph, *, sources: bool = False) -> str:
    """The text of a graph; with `sources`, each node's file and line as a comment."""
    return "\n".join(Printer(sources).graph(graph))


class Printer:
    """Writes graphs; gives each value one name as long as it lives."""

    # Word in front of a graph's name.
    kind = "graph"

    def __init__(self, sources: bool) -> None:
        self.sources = sources
        self.names: dict[Value, str] = {}
        self.counts: dict[str, int] = {}

    def name(self, value: Value) -> str:
        if value not in self.names:
            self.names[value] = self.fresh(value.hint or "v")
        return self.names[value]

    def fresh(self, wish: str) -> str:
        wish = "".join(c if c.isalnum() or c in "_." else "_" for c in wish) or "v"
        while True:
            count = self.counts.get(wish, -1 if wish != "v" else 0) + 1
            self.counts[wish] = count
            name = wish if count == 0 else f"{wish}{count}" if wish == "v" else f"{wish}_{count}"
            if name == wish or name not in self.counts:
                self.counts.setdefault(name, 0)
                return name

    def join(self, values: Sequence[Value]) -> str:
        return ", ".join(self.name(v) for v in values)

    def graph(self, graph: Graph) -> list[str]:
        inputs = ", ".join(f"{self.name(v)}: {v.type}" for v in graph.inputs)
        lines = [f"{self.kind} {graph.name}({inputs}) {{"]
        lines += self.body(graph, "  ", "return")
        lines.append("}")
        return lines

    def body(self, graph: Graph, indent: str, last: str) -> list[str]:
        lines = []
        for node in graph.nodes:
            lines += [indent + line for line in self.node(node)]
        lines.append(f"{indent}{last} {self.join(graph.outputs)}".rstrip())
        return lines

    def node(self, node: Node) -> list[str]:
        comment = f"  # {node.source.short}" if self.sources and node.source else ""
        if node.regions:
            return self.control(node, comment)
        if isinstance(node.attrs, attributes.Index):
            parts = [self.indexed(node)]
        else:
            parts = [part for part in (self.join(node.operands), format_attrs(node)) if part]
        types = ", ".join(str(v.type) for v in node.results)
        text = f"{node.op.name} {', '.join(parts)}".rstrip()
        return [f"{self.join(node.results)} = {text} : {types}{comment}"]

    def indexed(self, node: Node) -> str:
        """`x[t, 2:5]` for a read, `x[t, 2:5], value` for an update."""
        first = len(node.operands) - sum(_placeholders(item) for item in attributes.Index.of(node).key)
        names = iter([self.name(v) for v in node.operands[first:]])

        def part(x: Any) -> str:
            return "" if x is None else next(names) if isinstance(x, enum.Enum) else str(x)

        def item(x: Any) -> str:
            if x is None:
                return "None"
            if not isinstance(x, slice):
                return part(x)
            text = f"{part(x.start)}:{part(x.stop)}"
            return text if x.step is None else f"{text}:{part(x.step)}"

        key = ", ".join(item(x) for x in attributes.Index.of(node).key)
        rest = self.join(node.operands[1:first])
        return f"{self.name(node.operands[0])}[{key}]" + (f", {rest}" if rest else "")

    def control(self, node: Node, comment: str) -> list[str]:
        loop = attributes.Loop.find(node)
        is_branch = attributes.Branch.find(node) is not None
        head = f"{node.op.name} {self.name(node.operands[0])}" if is_branch else node.op.name
        outer = loop.split(node.operands)[0] if loop is not None else node.operands[is_branch:]
        outer_names = [self.name(v) for v in outer]
        for region in node.regions:
            self.names.update(zip(region.inputs, outer_names, strict=False))
        if outer_names:
            head += f" captures({', '.join(outer_names)})"
        if loop is not None:
            entries = []
            carried = (loop.split(values)[1] for values in (node.operands, *(r.inputs for r in node.regions)))
            for init, in_cond, in_body in zip(*carried, strict=True):
                start = self.name(init)
                self.names[in_cond] = self.names[in_body] = self.fresh(in_cond.hint or "c")
                entries.append(f"{self.names[in_body]} = {start}")
            head += f" carry({', '.join(entries)})"
        extras = [f"{k}={v!r}" for k, v in node.attrs.shown().items()]
        if extras:
            head += f" [{', '.join(extras)}]"
        lines: list[str] = []
        for number, region in enumerate(node.regions):
            lines.append(f"  {region_name(node, number)} {{")
            lines += self.body(region, "    ", "yield")
            lines.append("  }")
        results = self.join(node.results)
        types = ", ".join(str(v.type) for v in node.results)
        return [f"{results + ' = ' if results else ''}{head} {{{comment}", *lines, f"}} : {types}".rstrip(" :")]


def region_name(node: Node, number: int) -> str:
    """Name of a region of a node: "cond", "body", "true", "branch 2"."""
    if attributes.Loop.find(node) is not None:
        return ("cond", "body")[number]
    if attributes.Branch.find(node) is not None:
        return ("false", "true")[number] if node.operands[0].type == BOOL else f"branch {number}"
    return f"region {number}"


def _placeholders(item: Any) -> int:
    """Number of operands that an item of an index key takes."""
    parts = (item.start, item.stop, item.step) if isinstance(item, slice) else (item,)
    return sum(isinstance(x, enum.Enum) for x in parts)


def format_attrs(node: Node) -> str:
    """The attributes of a node as the text shows them."""
    if isinstance(node.attrs, attributes.Constant):
        return _format_array(node.attrs.value)
    return ", ".join(f"{key}={_format(value)}" for key, value in node.attrs.shown().items())


def _format(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return _format_array(value)
    if isinstance(value, np.dtype):
        return value.name
    if isinstance(value, tuple):
        inner = ", ".join("?" if v is None else _format(v) for v in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return str(value)


def _format_array(array: np.ndarray) -> str:
    if array.size <= 8:
        return np.array2string(array, separator=", ", max_line_width=10**6).replace("\n", "")
    first = ", ".join(str(x) for x in array.reshape(-1)[:3])
    return f"<{first}, ... {array.size} elements>"
