"""Graphs as Graphviz DOT: a box per node, a cluster per region, nested as the regions are.

Names are those of the printed text. An ellipse is an input or a carried value, a diamond decides (a loop's condition,
a branch's predicate), dashed edges are what the next iteration takes. A capture is drawn as an edge into the cluster.
"""

from __future__ import annotations

from ctrlgrad.ir.graph import Graph, Node, Value
from ctrlgrad.ir.printer import _format_attrs, _Printer, _region_name
from ctrlgrad.ir.walk import uses, walk

_SHADES = ("#f2f6fc", "#e3ecf8", "#d3e1f3", "#c2d5ee")


def format_dot(graph: Graph, *, sources: bool = False) -> str:
    """The text of a graph in the DOT language; with `sources`, each node's file and line on a second row."""
    return "\n".join(_Drawing(graph, sources).lines)


class _Drawing:
    """`at` says which drawn node shows a value; captures of a region are shown where the outer value is."""

    def __init__(self, graph: Graph, sources: bool) -> None:
        self.sources = sources
        printer = _Printer(False)
        printer.graph(graph)
        self.names = printer.names
        self.at: dict[Value, str] = {}
        # Results that nothing takes, such as a backward loop's emptied stacks, are left out.
        self.used = set(uses(graph))
        for node in walk(graph):
            self.used.update(*map(uses, node.regions))
        self.count = 0
        self.depth = 0
        # Written at the end: Graphviz draws a node inside the first cluster that mentions it, in an edge too.
        self.edges: list[str] = []
        self.lines = [
            f"digraph {_quote(graph.name)} {{",
            '  graph [fontname="monospace", fontsize=11, compound=true];',
            '  node [fontname="monospace", fontsize=10, shape=box, height=0.3, style=filled, fillcolor=white];',
            '  edge [fontname="monospace", fontsize=8, arrowsize=0.6];',
        ]
        for value in graph.inputs:
            self.show(value, f"{self.names[value]}: {value.type}", "ellipse")
        self.body(graph)
        for value in graph.outputs:
            end = self.fresh("return", "ellipse", fill="#dff0d8")
            self.edge(self.at[value], end)
        self.lines += [*self.edges, "}"]

    def line(self, text: str) -> None:
        self.lines.append("  " * (self.depth + 1) + text)

    def fresh(self, label: str, shape: str = "box", fill: str | None = None) -> str:
        self.count += 1
        name = f"n{self.count}"
        filled = f', fillcolor="{fill}"' if fill else ""
        self.line(f"{name} [label={_quote(label)}, shape={shape}{filled}];")
        return name

    def show(self, value: Value, label: str, shape: str = "box", fill: str | None = None) -> str:
        self.at[value] = self.fresh(label, shape, fill)
        return self.at[value]

    def edge(self, start: str, end: str, attributes: str = "") -> None:
        self.edges.append(f"  {start} -> {end}{f' [{attributes}]' if attributes else ''};")

    def body(self, graph: Graph) -> None:
        for node in graph.nodes:
            if node.op.name == "while":
                self.loop(node)
            elif node.regions:
                self.branches(node)
            else:
                self.plain(node)

    def plain(self, node: Node) -> None:
        label = " ".join(part for part in (node.op.name, _format_attrs(node)) if part)
        results = ", ".join(self.names[v] for v in node.results)
        types = ", ".join(str(v.type) for v in node.results)
        drawn = self.fresh(f"{results} = {label}\n{types}{self.source(node)}")
        for value in node.operands:
            self.edge(self.at[value], drawn)
        for value in node.results:
            self.at[value] = drawn

    def source(self, node: Node) -> str:
        return f"\n{node.source.short}" if self.sources and node.source else ""

    def open(self, label: str) -> None:
        self.count += 1
        self.line(f"subgraph cluster_{self.count} {{")
        self.depth += 1
        shade = _SHADES[min(self.depth, len(_SHADES)) - 1]
        self.line(f'label={_quote(label)}; labeljust=l; style=filled; color="#7a8ba6"; fillcolor="{shade}";')

    def close(self) -> None:
        self.depth -= 1
        self.line("}")

    def loop(self, node: Node) -> None:
        captures = node.attrs["captures"]
        cond, body = node.regions
        self.open("while" + self.source(node))
        for region in node.regions:
            self.at.update((inner, self.at[outer]) for inner, outer in zip(region.inputs, node.operands, strict=True))
        carried = list(zip(node.operands[captures:], cond.inputs[captures:], body.inputs[captures:], strict=True))
        for _, in_cond, in_body in carried:
            drawn = self.show(in_body, f"{self.names[in_body]}: {in_body.type}", "ellipse", "#fff3cd")
            self.at[in_cond] = drawn
        self.open("cond")
        self.body(cond)
        decision = self.fresh("continue?", "diamond", "#f8d7da")
        self.edge(self.at[cond.outputs[0]], decision)
        self.close()
        self.open("body")
        self.body(body)
        self.close()
        for (initial, _, in_body), following in zip(carried, body.outputs, strict=True):
            self.edge(self.at[initial], self.at[in_body], 'label="first"')
            self.edge(self.at[following], self.at[in_body], 'style=dashed, constraint=false, label="next"')
        self.close()
        for value, (_, _, in_body) in zip(node.results, carried, strict=True):
            if value not in self.used:
                continue
            drawn = self.show(value, f"{self.names[value]}: {value.type}", "ellipse")
            self.edge(self.at[in_body], drawn, 'label="last"')

    def branches(self, node: Node) -> None:
        decision = self.fresh(f"{self.names[node.operands[0]]}?{self.source(node)}", "diamond", "#f8d7da")
        self.edge(self.at[node.operands[0]], decision)
        ends: list[tuple[str, list[str]]] = []
        for number, region in enumerate(node.regions):
            self.at.update(
                (inner, self.at[outer]) for inner, outer in zip(region.inputs, node.operands[1:], strict=True)
            )
            label = _region_name(node, number, 1)
            self.open(label)
            entry = self.fresh(label, "plaintext")
            self.body(region)
            self.close()
            self.edge(decision, entry, "style=dotted")
            ends.append((label, [self.at[v] for v in region.outputs]))
        for position, value in enumerate(node.results):
            if value not in self.used:
                continue
            drawn = self.show(value, f"{self.names[value]}: {value.type}", "ellipse")
            for label, outputs in ends:
                self.edge(outputs[position], drawn, f"label={_quote(label)}")


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
