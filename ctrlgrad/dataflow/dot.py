"""Flat graphs as Graphviz DOT: a box per node, frames and devices as clusters.

The primitives have their own shapes and colours; controls are dotted, what goes to the next iteration is dashed, and a
Send is joined to its Recv by a thick edge.
"""

from __future__ import annotations

from collections.abc import Iterable

from ctrlgrad.dataflow import graph as flat
from ctrlgrad.dataflow.graph import FlatGraph, FlatNode
from ctrlgrad.dataflow.partition import Partition
from ctrlgrad.dataflow.printer import Names, label_of
from ctrlgrad.dataflow.scopes import ROOT, Frames, frames_of
from ctrlgrad.ir import Value
from ctrlgrad.ir.dot import _SHADES, _quote

_LOOKS = {
    flat.SWITCH: ("trapezium", "#f8d7da"),
    flat.MERGE: ("invtrapezium", "#d1ecf1"),
    flat.ENTER: ("cds", "#fff3cd"),
    flat.EXIT: ("cds", "#fff3cd"),
    flat.NEXT_ITERATION: ("larrow", "#fff3cd"),
    flat.LOOP_COND: ("diamond", "#f8d7da"),
    flat.SEND: ("rarrow", "#d4edda"),
    flat.RECV: ("rarrow", "#d4edda"),
}


def format_flat_dot(graph: FlatGraph) -> str:
    """A flat graph in the DOT language, its frames as clusters."""
    drawing = _Drawing(graph.name)
    drawing.graph(graph)
    return drawing.text()


def format_partition_dot(partition: Partition) -> str:
    """All devices of a partition in the DOT language, each a cluster that holds its frames."""
    name = next(iter(partition.parts.values())).graph.name
    drawing = _Drawing(name)
    for device, part in partition.parts.items():
        drawing.open(device)
        drawing.graph(part.graph)
        drawing.close()
    drawing.messages(node for part in partition.parts.values() for node in part.graph.nodes)
    return drawing.text()


class _Drawing:
    """`at` says which drawn node shows a value."""

    def __init__(self, name: str) -> None:
        self.names = Names()
        self.at: dict[Value, str] = {}
        self.drawn: dict[FlatNode, str] = {}
        self.count = 0
        self.depth = 0
        # Written at the end: Graphviz draws a node inside the first cluster that mentions it, in an edge too.
        self.edges: list[str] = []
        self.lines = [
            f"digraph {_quote(name)} {{",
            '  graph [fontname="monospace", fontsize=11, compound=true];',
            '  node [fontname="monospace", fontsize=10, shape=box, height=0.3, style=filled, fillcolor=white];',
            '  edge [fontname="monospace", fontsize=8, arrowsize=0.6];',
        ]

    def text(self) -> str:
        return "\n".join([*self.lines, *self.edges, "}"])

    def line(self, text: str) -> None:
        self.lines.append("  " * (self.depth + 1) + text)

    def fresh(self, label: str, shape: str = "box", fill: str = "white") -> str:
        self.count += 1
        self.line(f'n{self.count} [label={_quote(label)}, shape={shape}, fillcolor="{fill}"];')
        return f"n{self.count}"

    def open(self, label: str) -> None:
        self.count += 1
        self.line(f"subgraph cluster_{self.count} {{")
        self.depth += 1
        shade = _SHADES[min(self.depth, len(_SHADES)) - 1]
        self.line(f'label={_quote(label)}; labeljust=l; style=filled; color="#7a8ba6"; fillcolor="{shade}";')

    def close(self) -> None:
        self.depth -= 1
        self.line("}")

    def edge(self, start: str, end: str, attributes: str = "") -> None:
        self.edges.append(f"  {start} -> {end}{f' [{attributes}]' if attributes else ''};")

    def graph(self, graph: FlatGraph) -> None:
        frames = frames_of(graph)
        used = {v for node in graph.nodes for v in node.inputs} | set(graph.outputs)
        for value in graph.inputs:
            if value in used:
                self.at[value] = self.fresh(f"{self.names(value)}: {value.type}", "ellipse")
        self.frame(ROOT, graph, frames)
        for node in graph.nodes:
            self.take(node)
        for value in graph.outputs:
            self.edge(self.at[value], self.fresh("return", "ellipse", "#dff0d8"))

    def frame(self, name: str, graph: FlatGraph, frames: Frames) -> None:
        """The nodes of a frame, and the frames inside it. An Enter is drawn in the frame that it leads to."""
        for node in graph.nodes:
            if _drawn_in(node, frames) == name:
                self.node(node)
        for inner, outer in frames.parent.items():
            if outer == name:
                self.open(inner)
                self.frame(inner, graph, frames)
                self.close()

    def node(self, node: FlatNode) -> None:
        shape, fill = _LOOKS.get(node.op, ("box", "white"))
        if node.op == flat.CLUSTER:
            text = "; ".join(inner.op.name for inner in node.regions[0].nodes if inner.op.name != "constant")
            text = text or "constant"
        else:
            text = " ".join(filter(None, (node.op, label_of(node))))
        results = self.names.join(node.results)
        self.drawn[node] = drawn = self.fresh(f"{results} = {text}" if results else text, shape, fill)
        self.at.update((value, drawn) for value in node.results)

    def take(self, node: FlatNode) -> None:
        for position, value in enumerate(node.operands):
            is_back = node.op == flat.MERGE and position == 1 and self.is_next(value)
            style = "style=dashed, constraint=false" if is_back else self.side(value)
            self.edge(self.at[value], self.drawn[node], style)
        for value in (*node.controls, *node.orders):
            self.edge(self.at[value], self.drawn[node], "style=dotted")

    def is_next(self, value: Value) -> bool:
        return any(n.op == flat.NEXT_ITERATION and value in n.results for n in self.drawn)

    def side(self, value: Value) -> str:
        """Which side of a Switch an edge comes from."""
        for node in self.drawn:
            if node.op == flat.SWITCH and value in node.results:
                side = node.results.index(value)
                return f'label="{("F", "T")[side] if len(node.results) == 2 else side}"'
        return ""

    def messages(self, nodes: Iterable[FlatNode]) -> None:
        ends: dict[int, dict[str, FlatNode]] = {}
        for node in nodes:
            if node.op in (flat.SEND, flat.RECV):
                ends.setdefault(node.attrs["edge"], {})[node.op] = node
        for number, end in sorted(ends.items()):
            start, arrival = self.drawn[end[flat.SEND]], self.drawn[end[flat.RECV]]
            self.edge(start, arrival, f'style=bold, color="#28a745", label="edge {number}"')


def _drawn_in(node: FlatNode, frames: Frames) -> str:
    return str(node.attrs["frame"]) if node.op == flat.ENTER else frames.of_node[node]


__all__ = ["format_flat_dot", "format_partition_dot"]
