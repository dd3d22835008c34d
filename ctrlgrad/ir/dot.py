"""Graphs as Graphviz DOT: a box per node, a cluster per region, nested as the regions are.

Names are those of the printed text. An ellipse is an input or a carried value, a diamond decides (a loop's condition,
a branch's predicate), dashed edges are what the next iteration takes. A capture is drawn as an edge into the cluster.
"""

from __future__ import annotations

from ctrlgrad.ir import attributes
from ctrlgrad.ir.control import Branch, Loop, view
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
            match view(node):
                case Loop() as loop:
                    self.loop(loop)
                case Branch() as branch:
                    self.branches(node, branch)
                case _:
                    self.plain(node)

    def plain(self, node: Node) -> None:
        details = self.printer.indexed(node) if attributes.Index.find(node) else format_attrs(node)
        text = f"{node.op.name} {details}".rstrip()
        results = ", ".join(self.names[v] for v in node.results)
        types = ", ".join(str(v.type) for v in node.results)
        drawn = self.box(f"{results} = {text}\n{types}{self.source(node)}")
        for value in node.operands:
            self.edge(self.at[value], drawn)
        for value in node.results:
            self.at[value] = drawn

    def source(self, node: Node | Loop | Branch) -> str:
        return f"\n{node.source.short}" if self.sources and node.source else ""

    def loop(self, loop: Loop) -> None:
        self.open("while" + self.source(loop))
        for capture in loop.captures:
            self.at[capture.in_cond] = self.at[capture.in_body] = self.at[capture.outer]
        for carry in loop.carries:
            drawn = self.show(carry.in_body, f"{self.names[carry.in_body]}: {carry.in_body.type}", "ellipse", CARRIED)
            self.at[carry.in_cond] = drawn
        self.open("cond")
        self.body(loop.cond)
        decision = self.box("continue?", "diamond", DECIDES)
        self.edge(self.at[loop.predicate], decision)
        self.close()
        self.open("body")
        self.body(loop.body)
        self.close()
        for carry in loop.carries:
            self.edge(self.at[carry.init], self.at[carry.in_body], label("first"))
            # Written the other way round, so that Graphviz has no cycle to break.
            self.edge(self.at[carry.in_body], self.at[carry.next], f"{label('next')}, style=dashed, dir=back")
        self.close()
        for carry in loop.carries:
            if carry.result not in self.used:
                continue
            drawn = self.show(carry.result, f"{self.names[carry.result]}: {carry.result.type}", "ellipse")
            self.edge(self.at[carry.in_body], drawn, label("last"))

    def branches(self, node: Node, branch: Branch) -> None:
        decision = self.box(f"{self.names[branch.selector]}?{self.source(branch)}", "diamond", DECIDES)
        self.edge(self.at[branch.selector], decision)
        ends: list[tuple[str, list[str]]] = []
        for number, region in enumerate(branch.branches):
            self.at.update(zip(region.inputs, (self.at[v] for v in branch.operands), strict=True))
            name = region_name(node, number)
            self.open(name)
            entry = self.box("", "circle", DECIDES, "width=0.12, height=0.12, fixedsize=true")
            self.body(region)
            self.close()
            self.edge(decision, entry, DOTTED)
            ends.append((name, [self.at[v] for v in region.outputs]))
        for position, value in enumerate(branch.results):
            if value not in self.used:
                continue
            drawn = self.show(value, f"{self.names[value]}: {value.type}", "ellipse")
            for name, outputs in ends:
                self.edge(outputs[position], drawn, label(name))
