"""Graphs as Graphviz DOT: a box per node, a cluster per region, nested as the regions are.

Names are those of the printed text. An ellipse is an input or a carried value, a diamond decides (a loop's condition,
a branch's predicate), dashed edges are what the next iteration takes. A capture is drawn as an edge into the cluster.
"""

from __future__ import annotations

from ctrlgrad.ir.drawing import CARRIED, DECIDES, DOTTED, RETURNED, Drawing, label
from ctrlgrad.ir.graph import Graph, Node, Value
from ctrlgrad.ir.printer import Printer, format_attrs, region_name
from ctrlgrad.ir.walk import uses, walk


def format_dot(graph: Graph, *, sources: bool = False) -> str:
    """The text of a graph in the DOT language; with `sources`, each node's file and line on a second row."""
    return _Structured(graph, sources).text()


class _Structured(Drawing):
    """A graph with regions. Captures of a region are shown where the outer value is."""

    def __init__(self, graph: Graph, sources: bool) -> None:
        super().__init__(graph.name)
        self.sources = sources
        self.printer = Printer(False)
        self.printer.graph(graph)
        self.names = self.printer.names
        # Results that nothing takes, such as a backward loop's emptied stacks, are left out.
        self.used = set(uses(graph))
        for node in walk(graph):
            self.used.update(*map(uses, node.regions))
        for value in graph.inputs:
            self.show(value, f"{self.names[value]}: {value.type}", "ellipse")
        self.body(graph)
        for value in graph.outputs:
            self.edge(self.at[value], self.box("return", "ellipse", RETURNED))

    def show(self, value: Value, label: str, shape: str = "box", fill: str = "white") -> str:
        self.at[value] = self.box(label, shape, fill)
        return self.at[value]

    def body(self, graph: Graph) -> None:
        for node in graph.nodes:
            if node.op.name == "while":
                self.loop(node)
            elif node.regions:
                self.branches(node)
            else:
                self.plain(node)

    def plain(self, node: Node) -> None:
        details = self.printer.indexed(node) if "key" in node.attrs else format_attrs(node)
        text = f"{node.op.name} {details}".rstrip()
        results = ", ".join(self.names[v] for v in node.results)
        types = ", ".join(str(v.type) for v in node.results)
        drawn = self.box(f"{results} = {text}\n{types}{self.source(node)}")
        for value in node.operands:
            self.edge(self.at[value], drawn)
        for value in node.results:
            self.at[value] = drawn

    def source(self, node: Node) -> str:
        return f"\n{node.source.short}" if self.sources and node.source else ""

    def loop(self, node: Node) -> None:
        captures = node.attrs["captures"]
        cond, body = node.regions
        self.open("while" + self.source(node))
        for region in node.regions:
            self.at.update((inner, self.at[outer]) for inner, outer in zip(region.inputs, node.operands, strict=True))
        carried = list(zip(node.operands[captures:], cond.inputs[captures:], body.inputs[captures:], strict=True))
        for _, in_cond, in_body in carried:
            drawn = self.show(in_body, f"{self.names[in_body]}: {in_body.type}", "ellipse", CARRIED)
            self.at[in_cond] = drawn
        self.open("cond")
        self.body(cond)
        decision = self.box("continue?", "diamond", DECIDES)
        self.edge(self.at[cond.outputs[0]], decision)
        self.close()
        self.open("body")
        self.body(body)
        self.close()
        for (initial, _, in_body), following in zip(carried, body.outputs, strict=True):
            self.edge(self.at[initial], self.at[in_body], label("first"))
            # Written the other way round, so that Graphviz has no cycle to break.
            self.edge(self.at[in_body], self.at[following], f"{label('next')}, style=dashed, dir=back")
        self.close()
        for value, (_, _, in_body) in zip(node.results, carried, strict=True):
            if value not in self.used:
                continue
            drawn = self.show(value, f"{self.names[value]}: {value.type}", "ellipse")
            self.edge(self.at[in_body], drawn, label("last"))

    def branches(self, node: Node) -> None:
        decision = self.box(f"{self.names[node.operands[0]]}?{self.source(node)}", "diamond", DECIDES)
        self.edge(self.at[node.operands[0]], decision)
        ends: list[tuple[str, list[str]]] = []
        for number, region in enumerate(node.regions):
            self.at.update(
                (inner, self.at[outer]) for inner, outer in zip(region.inputs, node.operands[1:], strict=True)
            )
            name = region_name(node, number, 1)
            self.open(name)
            entry = self.box("", "circle", DECIDES, "width=0.12, height=0.12, fixedsize=true")
            self.body(region)
            self.close()
            self.edge(decision, entry, DOTTED)
            ends.append((name, [self.at[v] for v in region.outputs]))
        for position, value in enumerate(node.results):
            if value not in self.used:
                continue
            drawn = self.show(value, f"{self.names[value]}: {value.type}", "ellipse")
            for name, outputs in ends:
                self.edge(outputs[position], drawn, label(name))
