"""To look at: flat graphs as Graphviz DOT, and runs as Chrome traces.

In a drawing there is a box per node; frames and devices are clusters. Names are those of the printed text. The
primitives have their own shapes and colours; T and F stand at the sides of a Switch. Controls are dotted, orders too,
with an empty head; what goes to the next iteration is dashed, and a Send is joined to its Recv by a thick edge.

A trace has a process per rank, a row per device and a slice per firing with its frame and iteration; an arrow goes from
each Send to its Recv; a firing that was dead says so in its name, and is of the category "dead". Load it at
https://ui.perfetto.dev or chrome://tracing. Over ranks each has a recorder of its own, and a file of its own;
`join_traces` joins them.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ctrlgrad.dataflow import graph as flat
from ctrlgrad.dataflow.devices import parse_device
from ctrlgrad.dataflow.graph import Enter, FlatGraph, FlatNode, FlatPrinter, Message, label_of
from ctrlgrad.dataflow.partition import Partition
from ctrlgrad.dataflow.scopes import ROOT, frames_of
from ctrlgrad.files import read_file
from ctrlgrad.ir import Node, Op, Value, attributes
from ctrlgrad.records import record

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


# How many ops of a cluster are written out.
MOST_LINES = 8


@record
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
        # Names of the printed text, for one graph after the other.
        self.printer = FlatPrinter()
        self.drawn: dict[FlatNode, str] = {}
        # Labels of the edges from a side of a Switch; values that the next iteration takes.
        self.sides: dict[Value, str] = {}
        self.following: set[Value] = set()

    def graph(self, graph: FlatGraph) -> None:
        frames = frames_of(graph)
        self.printer = FlatPrinter()
        self.printer.graph(graph)  # names values in the order in which the text does
        used = {v for node in graph.nodes for v in node.inputs} | set(graph.outputs)
        for value in graph.inputs:
            if value in used:
                self.at[value] = self.box(f"{self.printer.name(value)}: {value.type}", "ellipse")
        nodes: dict[str, list[FlatNode]] = {}
        for node in graph.nodes:
            entered = Enter.find(node)
            nodes.setdefault(frames.of_node[node] if entered is None else entered.frame, []).append(node)
        inside: dict[str, list[str]] = {}
        for inner, outer in frames.parent.items():
            inside.setdefault(outer, []).append(inner)
        self.frame(ROOT, nodes, inside)
        for node in graph.nodes:
            self.edges_into(node)
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
        if node.op is flat.CLUSTER:
            text = self.cluster(node)
        else:
            results = self.printer.join(node.results)
            text = " ".join(filter(None, (f"{results} =" if results else "", node.op.name, label_of(node))))
        self.drawn[node] = drawn = self.box(text, look.shape, look.fill, look.more)
        self.at.update((value, drawn) for value in node.results)
        if node.op is flat.SWITCH:
            sides = ("F", "T") if len(node.results) == 2 else range(len(node.results))
            self.sides.update((v, label(f"{side}")) for v, side in zip(node.results, sides, strict=True))
        elif node.op is flat.NEXT_ITERATION:
            self.following.update(node.results)

    def cluster(self, node: FlatNode) -> str:
        """The ops of a cluster, a line each; a scalar constant is written where it is used."""
        (region,) = node.regions
        given = set(region.outputs)
        ops = []
        for inner in region.nodes:
            if _is_scalar(inner) and inner.result not in given:
                self.printer.names[inner.result] = f"{attributes.Constant.of(inner).value[()]}"
            else:
                ops.append(inner)
        lines = [self.printer.node(inner)[0].split(" : ")[0].removesuffix(" {") for inner in ops[:MOST_LINES]]
        return "\n".join([*lines, f"... {len(ops) - MOST_LINES} more"] if len(ops) > MOST_LINES else lines)

    def edges_into(self, node: FlatNode) -> None:
        for value in node.operands:
            if node.op is flat.MERGE and value in self.following:
                # Written the other way round, so that Graphviz has no cycle to break.
                self.edge(self.drawn[node], self.at[value], "style=dashed, dir=back")
            else:
                self.edge(self.at[value], self.drawn[node], self.sides.get(value, ""))
        for value in node.controls:
            self.edge(self.at[value], self.drawn[node], ", ".join(filter(None, (DOTTED, self.sides.get(value)))))
        for value in node.orders:
            self.edge(self.at[value], self.drawn[node], f"{DOTTED}, arrowhead=empty")

    def messages(self, nodes: Iterable[FlatNode]) -> None:
        ends: dict[int, dict[Op, FlatNode]] = {}
        for node in nodes:
            if node.op in (flat.SEND, flat.RECV):
                ends.setdefault(Message.of(node).edge, {})[node.op] = node
        for number, end in sorted(ends.items()):
            start, arrival = self.drawn[end[flat.SEND]], self.drawn[end[flat.RECV]]
            self.edge(start, arrival, f'style=bold, color="#28a745", {label(f"edge {number}")}')


def _is_scalar(node: Node) -> bool:
    return node.op.name == "constant" and attributes.Constant.of(node).value.ndim == 0


# Traces.


@record
class Firing:
    """One firing; times in seconds from the recorder's start.

    `tag` has the root's 0 first. `edge` is that of a Send or Recv.
    """

    device: str
    node: str
    op: str
    frame: str
    tag: tuple[int, ...]
    began: float
    ended: float
    is_dead: bool
    edge: int | None = None


@record
class Passage:
    """One end of a message."""

    device: str
    edge: int
    tag: tuple[int, ...]
    time: float
    is_arrival: bool


class Recorder:
    """Collects what happens in runs; give it to `ctrlgrad.dataflow.settings(recorder=...)`.

    >>> from ctrlgrad import dataflow
    >>> recorder = dataflow.Recorder()
    >>> with dataflow.settings(recorder=recorder):
    ...     f = lambda x: cg.cond(x > 0.0, lambda: x * x, lambda: x)
    ...     _ = cg.function(f, engine="dataflow")(2.0)
    >>> [firing.op for firing in recorder.firings if firing.is_dead]
    []

    Over ranks, on each of them: `recorder.save(f"trace-{rank}.json")`; and when all have ended, once:
    `join_traces(["trace-0.json", "trace-1.json"], "trace.json")`.
    """

    def __init__(self) -> None:
        self.firings: list[Firing] = []
        self.passages: list[Passage] = []
        # The same moment on this process's clock and on the one that other processes have too: the closest of some.
        moments = [(time.perf_counter(), time.time(), time.perf_counter()) for _ in range(5)]
        self._start, self._began, _ = min(moments, key=lambda moment: moment[2] - moment[0])
        self._lock = threading.Lock()

    def now(self) -> float:
        return time.perf_counter() - self._start

    def fired(
        self, device: str, name: str, node: FlatNode, frame: str, tag: tuple[int, ...], began: float, is_dead: bool
    ) -> None:
        message = Message.find(node)
        edge = None if message is None else message.edge
        firing = Firing(device, name, node.op.name, frame, tag, began, self.now(), is_dead, edge)
        with self._lock:
            self.firings.append(firing)

    def sent(self, device: str, edge: int, tag: tuple[int, ...]) -> None:
        with self._lock:
            self.passages.append(Passage(device, edge, tag, self.now(), False))

    def received(self, device: str, edge: int, tag: tuple[int, ...]) -> None:
        with self._lock:
            self.passages.append(Passage(device, edge, tag, self.now(), True))

    def chrome_trace(self) -> dict[str, Any]:
        """The trace in Chrome's format, times in microseconds from the recorder's start."""
        with self._lock:
            firings = list(self.firings)
        devices = sorted({f.device for f in firings})
        ranks = {device: parse_device(device).rank for device in devices}
        rows = {device: {"pid": ranks[device] or 0, "tid": row} for row, device in enumerate(devices)}
        events: list[dict[str, Any]] = [
            {"ph": "M", "pid": rank or 0, "tid": 0, "name": "process_name", "args": {"name": _process(rank)}}
            for rank in dict.fromkeys(ranks.values())
        ]
        events += [{"ph": "M", **rows[device], "name": "thread_name", "args": {"name": device}} for device in devices]
        events += [_slice(firing, rows[firing.device]) for firing in firings]
        events += _arrows(firings, rows)
        return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"began": self._began}}

    def save(self, path: str | Path) -> None:
        """Write the Chrome trace as JSON."""
        Path(path).write_text(json.dumps(self.chrome_trace()), encoding="utf-8")


def _process(rank: int | None) -> str:
    return "ctrlgrad" if rank is None else f"rank {rank}"


def _slice(firing: Firing, row: Mapping[str, int]) -> dict[str, Any]:
    return {
        "ph": "X",
        **row,
        "name": f"{firing.node} (dead)" if firing.is_dead else firing.node,
        "cat": "dead" if firing.is_dead else "alive",
        "ts": firing.began * 1e6,
        "dur": (firing.ended - firing.began) * 1e6,
        "args": {
            "op": firing.op,
            "frame": firing.frame or "root",
            "iteration": list(firing.tag[1:]),
            "dead": firing.is_dead,
        },
    }


def _arrows(firings: Iterable[Firing], rows: Mapping[str, Mapping[str, int]]) -> Iterator[dict[str, Any]]:
    """The two ends of each arrow: the slice of a Send, and that of the Recv of the same edge, tag and run."""
    ends: Counter[tuple[str, int, tuple[int, ...]]] = Counter()
    for firing in firings:
        if firing.edge is None:
            continue
        ends[firing.op, firing.edge, firing.tag] += 1
        run = ends[firing.op, firing.edge, firing.tag]
        path = ".".join(map(str, firing.tag))
        end = {
            **rows[firing.device],
            "name": f"edge {firing.edge}",
            "cat": "message",
            "id": f"{firing.edge}/{path}/{run}",
            "ts": firing.began * 1e6,
        }
        # An arrow ends at the slice that is open at its time, not at the one after.
        yield {"ph": "s", **end} if firing.op == flat.SEND.name else {"ph": "f", **end, "bp": "e"}


def join_traces(paths: Iterable[str | Path], path: str | Path) -> None:
    """Make one Chrome trace of those that ranks have saved.

    A Send on one rank is joined to its Recv on another. Times are moved to the start of the first recorder, by the
    clocks of the machines: between machines they are as right as those.

    >>> import ctrlgrad as cg, tempfile
    >>> from pathlib import Path
    >>> from ctrlgrad import dataflow
    >>> from ctrlgrad.dataflow import join_traces
    >>> folder, recorder = Path(tempfile.mkdtemp()), dataflow.Recorder()
    >>> with dataflow.settings(recorder=recorder):
    ...     _ = cg.function(lambda x: x * x, engine="dataflow")(2.0)
    >>> recorder.save(folder / "trace-0.json")
    >>> join_traces([folder / "trace-0.json"], folder / "trace.json")
    """
    traces = [json.loads(read_file(each)) for each in paths]
    first = min((trace["otherData"]["began"] for trace in traces), default=0.0)
    events = []
    for trace in traces:
        later = (trace["otherData"]["began"] - first) * 1e6
        events += [{**event, "ts": event["ts"] + later} if "ts" in event else event for event in trace["traceEvents"]]
    joined = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"began": first}}
    Path(path).write_text(json.dumps(joined), encoding="utf-8")
