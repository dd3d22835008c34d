"""Drawings of a graph: as DOT, and as a page that opens in a browser."""

from __future__ import annotations

from html import escape

from ctrlgrad.ir import attributes
from ctrlgrad.ir.control import Branch, Loop, view
from ctrlgrad.ir.graph import Graph, Node, Value
from ctrlgrad.ir.printer import Printer, format_attrs, region_name
from ctrlgrad.ir.svg import COLORS, STACKS, Block, Line, columns, outline, place
from ctrlgrad.ir.walk import uses, walk

# Drawings in the DOT language: boxes, clusters within clusters, edges, and their common style.
#
# A drawing is written from top to bottom, each box and each edge once, so the cost is linear in its text.


# The fill of a cluster, by how many are around it.
SHADES = ("#f2f6fc", "#e3ecf8", "#d3e1f3", "#c2d5ee")
# Fill colours of carries, predicates and results.
CARRIED, DECIDES, RETURNED = "#fff3cd", "#f8d7da", "#dff0d8"
# Style of a control edge.
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
        """Begin a cluster, which holds everything drawn until `close`."""
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


# Graphs as Graphviz DOT: a box per node, a cluster per region, nested as the regions are.
#
# Names are those of the printed text. An ellipse is an input or a carried value, a diamond decides (a loop's
# condition, a branch's predicate), dashed edges are what the next iteration takes. A capture is drawn as an edge into
# the cluster.


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


# A graph as one page for a browser: blocks that open and close, and lines from pushes to pops. It needs no network.


STYLE = """
body{font:13px/1.5 ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;margin:1.5em;color:#1c2430;background:#fff}
h1{font-size:1.15em}
#graph{position:relative;display:flex;align-items:flex-start;gap:7em;width:max-content;padding:1em 6em 1em 0}
#threads{position:absolute;left:0;top:0;width:100%;height:100%;pointer-events:none;overflow:visible}
details{border:1px solid;border-radius:6px;margin:.4em 0;padding:.2em .8em}
details>summary{cursor:pointer;font-weight:bold}
summary small{float:right;font-weight:normal;color:#6b7785;margin-left:3em}
.line{white-space:pre;color:#1c2430}.start{color:#6b7785}.condition{font-weight:bold}.result{font-style:italic}
.push,.pop{font-weight:bold;cursor:help}.lit{background:#fff3b0}
""" + "\n".join(f".order{i}{{border-color:{edge};background:{fill}88}}" for i, (edge, fill) in enumerate(COLORS))

SCRIPT = """
const graph = document.getElementById('graph'), threads = document.getElementById('threads');
const colors = COLORS, all = kind => [...graph.querySelectorAll('.' + kind)];
const stacks = [...new Set(all('push').concat(all('pop')).map(line => line.dataset.stack))];
const color = stack => colors[stacks.indexOf(stack) % colors.length];
// Where a line is shown: itself, or the closed block that it is in.
function shown(line) {
  let place = line;
  for (let box = line.closest('details'); box; box = box.parentElement.closest('details'))
    if (!box.open) place = box.querySelector('summary');
  const origin = graph.getBoundingClientRect(), at = place.getBoundingClientRect();
  const y = at.top + at.height / 2 - origin.top;
  return {left: at.left - origin.left, right: at.right - origin.left, y: y, place: place};
}
function draw() {
  let text = '';
  for (const push of all('push')) for (const pop of all('pop')) {
    if (push.dataset.stack !== pop.dataset.stack) continue;
    const a = shown(push), b = shown(pop);
    if (a.place === b.place) continue;
    const beside = b.left > a.right, x = beside ? b.left - 3 : b.right + 3, bend = beside ? (x - a.right) / 2 : 60;
    const path = `M${a.right + 3} ${a.y}C${a.right + bend} ${a.y} ${beside ? x - bend : x + bend} ${b.y} ${x} ${b.y}`;
    text += `<path d="${path}" fill="none" stroke="${color(push.dataset.stack)}" stroke-width="1.6"/>`;
  }
  threads.innerHTML = text;
}
for (const line of all('push').concat(all('pop'))) {
  line.style.color = color(line.dataset.stack);
  const light = on => [...all('push'), ...all('pop')].filter(other => other.dataset.stack === line.dataset.stack)
    .forEach(other => other.classList.toggle('lit', on));
  line.addEventListener('mouseenter', () => light(true));
  line.addEventListener('mouseleave', () => light(false));
}
function setAll(open) { for (const box of graph.querySelectorAll('details')) box.open = open; }
document.getElementById('open').onclick = () => setAll(true);
document.getElementById('close').onclick = () => setAll(false);
graph.addEventListener('toggle', draw, true);
addEventListener('resize', draw);
draw();
""".replace("COLORS", str(list(STACKS)))


def format_page(graph: Graph) -> str:
    """The text of an HTML page on a graph."""
    whole = outline(graph)
    texts = [[text for part in column for text in _html(part)] for column in columns(whole)]
    drawn = "\n".join("\n".join(["<div>", *column, "</div>"]) for column in texts)
    title = escape(whole.title)
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>{STYLE}</style>
<h1>{title}</h1>
<p><button id="open">open all</button> <button id="close">close all</button></p>
<div id="graph"><svg id="threads" xmlns="http://www.w3.org/2000/svg"></svg>
{drawn}
</div>
<script>{SCRIPT}</script>
</html>
"""


def _html(part: Line | Block) -> list[str]:
    if isinstance(part, Line):
        stack = (
            "" if part.stack is None else f' data-stack="{escape(part.stack)}" title="the stack {escape(part.stack)}"'
        )
        return [f'<div class="line {part.role}"{stack}>{escape(part.text)}</div>']
    source = "" if part.source is None else f"<small>{escape(place(part.source))}</small>"
    is_open = "" if part.is_folded else " open"
    inside = [text for inner in part.parts for text in _html(inner)]
    order = min(part.order, len(COLORS) - 1)
    return [
        f'<details class="order{order}"{is_open}><summary>{escape(part.title)}{source}</summary>',
        *inside,
        "</details>",
    ]
