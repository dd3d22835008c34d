"""Drawings in the DOT language: boxes, clusters within clusters, edges, and their common style.

A drawing is written from top to bottom, each box and each edge once: its cost grows as its text does.
"""

from __future__ import annotations

from ctrlgrad.ir.graph import Value

# The fill of a cluster, by how many are around it.
SHADES = ("#f2f6fc", "#e3ecf8", "#d3e1f3", "#c2d5ee")
# The fill of what a loop carries, of what decides, of what is returned.
CARRIED, DECIDES, RETURNED = "#fff3cd", "#f8d7da", "#dff0d8"
# An edge that says when, not what.
DOTTED = "style=dotted, penwidth=1.5"


class Drawing:
    """The lines of a drawing; `at` says which box shows a value."""

    def __init__(self, name: str) -> None:
        self.at: dict[Value, str] = {}
        self.count = 0
        self.depth = 0
        # Written at the end: Graphviz draws a node inside the first cluster that mentions it, in an edge too.
        self.edges: list[str] = []
        self.lines = [
            f"digraph {quote(name)} {{",
            '  graph [fontname="monospace", fontsize=11, compound=true];',
            '  node [fontname="monospace", fontsize=10, shape=box, height=0.3, style=filled, fillcolor=white];',
            '  edge [fontname="monospace", fontsize=8, arrowsize=0.6];',
        ]

    def text(self) -> str:
        """The whole drawing."""
        return "\n".join([*self.lines, *self.edges, "}"])

    def line(self, text: str) -> None:
        self.lines.append("  " * (self.depth + 1) + text)

    def box(self, label: str, shape: str = "box", fill: str = "white", more: str = "") -> str:
        """A box of its own, with `more` attributes; its name, for edges."""
        self.count += 1
        further = f", {more}" if more else ""
        self.line(f'n{self.count} [label={quote(label)}, shape={shape}, fillcolor="{fill}"{further}];')
        return f"n{self.count}"

    def edge(self, start: str, end: str, attributes: str = "") -> None:
        self.edges.append(f"  {start} -> {end}{f' [{attributes}]' if attributes else ''};")

    def open(self, label: str) -> None:
        """Begin a cluster: what is drawn until `close` is in it."""
        self.count += 1
        self.line(f"subgraph cluster_{self.count} {{")
        self.depth += 1
        shade = SHADES[min(self.depth, len(SHADES)) - 1]
        self.line(f'label={quote(label)}; labeljust=l; style=filled; color="#7a8ba6"; fillcolor="{shade}";')

    def close(self) -> None:
        self.depth -= 1
        self.line("}")


def quote(text: str) -> str:
    """A string of the DOT language."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def label(text: str) -> str:
    """Return the label of an edge; a leading space keeps it off the line."""
    return f"label={quote(f' {text}')}"
