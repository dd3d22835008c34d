"""Flat graphs as Graphviz DOT: a box per node, frames and devices as clusters.

Names are those of the printed text. The primitives have their own shapes and colours; T and F stand at the sides of a
Switch. Controls are dotted, orders too, with an empty head; what goes to the next iteration is dashed, and a Send is
joined to its Recv by a thick edge.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ctrlgrad.dataflow import graph as flat
from ctrlgrad.dataflow.graph import FlatGraph, FlatNode
from ctrlgrad.dataflow.partition import Partition
from ctrlgrad.dataflow.printer import Names, format_flat_node, label_of
from ctrlgrad.dataflow.scopes import ROOT, Frames, frames_of
from ctrlgrad.ir import Node, Value, attributes
from ctrlgrad.ir.drawing import CARRIED, DECIDES, DOTTED, RETURNED, Drawing, label

# How many ops of a cluster are written out.
MOST_LINES = 8


@dataclass(frozen=True)
class _Look:
    shape: str = "box"
    fill: str = "white"
    more: str = ""


_LOOKS = {
    # Trapeziums that are not wider than their text needs.
    flat.SWITCH: _Look("polygon", DECIDES, 'sides=4, distortion=-0.15, margin="0,0.02"'),
    flat.MERGE: _Look("polygon", "#d1ecf1", 'sides=4, distortion=0.25, margin="0,0.02"'),
    flat.ENTER: _Look("cds", CARRIED),
    flat.EXIT: _Look("cds", CARRIED),
    flat.NEXT_ITERATION: _Look("larrow", CARRIED, 'margin="0.2,0.05"'),
    flat.LOOP_COND: _Look("diamond", DECIDES, 'margin="0.12,0.03"'),
    flat.SEND: _Look("rarrow", "#d4edda", 'margin="0.2,0.05"'),
    flat.RECV: _Look("rarrow", "#d4edda", 'margin="0.2,0.05"'),
}


def format_flat_dot(graph: FlatGraph) -> str:
    """A flat graph in the DOT language, its frames as clusters."""
    drawing = _Flat(graph.name)
    drawing.graph(graph)
    return drawing.text()


def format_partition_dot(partition: Partition) -> str:
    """All devices of a partition in the DOT language, each a cluster that holds its frames."""
    name = next(iter(partition.parts.values())).graph.name
    drawing = _Flat(name)
    for device, part in partition.parts.items():
        drawing.open(f"device {device}")
        drawing.graph(part.graph)
        drawing.close()
    drawing.messages(node for part in partition.parts.values() for node in part.graph.nodes)
    return drawing.text()


class _Flat(Drawing):
    """Flat graphs, one or one per device."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        # Those of the printed text, of one graph after the other.
        self.names = Names()
        self.drawn: dict[FlatNode, str] = {}
        # What is written at an edge from a side of a Switch; what the next iteration takes.
        self.sides: dict[Value, str] = {}
        self.following: set[Value] = set()

    def graph(self, graph: FlatGraph) -> None:
        frames = frames_of(graph)
        self.names = Names()
        for value in graph.inputs:
            self.names(value)
        for node in graph.nodes:
            format_flat_node(node, self.names)  # names values in the order in which the text does
        used = {v for node in graph.nodes for v in node.inputs} | set(graph.outputs)
        for value in graph.inputs:
            if value in used:
                self.at[value] = self.box(f"{self.names(value)}: {value.type}", "ellipse")
        nodes: dict[str, list[FlatNode]] = {}
        for node in graph.nodes:
            nodes.setdefault(_drawn_in(node, frames), []).append(node)
        inside: dict[str, list[str]] = {}
        for inner, outer in frames.parent.items():
            inside.setdefault(outer, []).append(inner)
        self.frame(ROOT, nodes, inside)
        for node in graph.nodes:
            self.take(node)
        for value in graph.outputs:
            self.edge(self.at[value], self.box("return", "ellipse", RETURNED))

    def frame(self, name: str, nodes: Mapping[str, Sequence[FlatNode]], inside: Mapping[str, Sequence[str]]) -> None:
        """The nodes of a frame, and the frames inside it. An Enter is drawn in the frame that it leads to."""
        for node in nodes.get(name, ()):
            self.node(node)
        for inner in inside.get(name, ()):
            self.open(f"frame {inner}")
            self.frame(inner, nodes, inside)
            self.close()

    def node(self, node: FlatNode) -> None:
        look = _LOOKS.get(node.op, _Look())
        if node.op == flat.CLUSTER:
            text = self.cluster(node)
        else:
            results = self.names.join(node.results)
            text = " ".join(filter(None, (f"{results} =" if results else "", node.op, label_of(node))))
        self.drawn[node] = drawn = self.box(text, look.shape, look.fill, look.more)
        self.at.update((value, drawn) for value in node.results)
        if node.op == flat.SWITCH:
            sides = ("F", "T") if len(node.results) == 2 else range(len(node.results))
            self.sides.update((v, label(f"{side}")) for v, side in zip(node.results, sides, strict=True))
        elif node.op == flat.NEXT_ITERATION:
            self.following.update(node.results)

    def cluster(self, node: FlatNode) -> str:
        """The ops of a cluster, a line each; a scalar constant is written where it is used."""
        (region,) = node.regions
        given = set(region.outputs)
        ops = []
        for inner in region.nodes:
            if _is_scalar(inner) and inner.result not in given:
                self.names.call(inner.result, f"{attributes.Constant.of(inner).value[()]}")
            else:
                ops.append(inner)
        lines = [self.names.lines(inner)[0].split(" : ")[0].removesuffix(" {") for inner in ops[:MOST_LINES]]
        return "\n".join([*lines, f"... {len(ops) - MOST_LINES} more"] if len(ops) > MOST_LINES else lines)

    def take(self, node: FlatNode) -> None:
        for value in node.operands:
            if node.op == flat.MERGE and value in self.following:
                # Written the other way round, so that Graphviz has no cycle to break.
                self.edge(self.drawn[node], self.at[value], "style=dashed, dir=back")
            else:
                self.edge(self.at[value], self.drawn[node], self.sides.get(value, ""))
        for value in node.controls:
            self.edge(self.at[value], self.drawn[node], ", ".join(filter(None, (DOTTED, self.sides.get(value)))))
        for value in node.orders:
            self.edge(self.at[value], self.drawn[node], f"{DOTTED}, arrowhead=empty")

    def messages(self, nodes: Iterable[FlatNode]) -> None:
        ends: dict[int, dict[str, FlatNode]] = {}
        for node in nodes:
            if node.op in (flat.SEND, flat.RECV):
                ends.setdefault(node.attrs["edge"], {})[node.op] = node
        for number, end in sorted(ends.items()):
            start, arrival = self.drawn[end[flat.SEND]], self.drawn[end[flat.RECV]]
            self.edge(start, arrival, f'style=bold, color="#28a745", {label(f"edge {number}")}')


def _is_scalar(node: Node) -> bool:
    return node.op.name == "constant" and attributes.Constant.of(node).value.ndim == 0


def _drawn_in(node: FlatNode, frames: Frames) -> str:
    return str(node.attrs["frame"]) if node.op == flat.ENTER else frames.of_node[node]


__all__ = ["format_flat_dot", "format_partition_dot"]
