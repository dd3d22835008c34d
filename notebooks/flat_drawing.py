"""Flat dataflow graphs and traces drawn with matplotlib: what notebook 07 shows.

Nodes stand in rows, each below all that it takes from; inside a row they are ordered so that edges are short. An edge
over several rows has a place of its own in each, so that it goes between nodes. (With Graphviz installed, `ctrlgrad
graph --lowered` draws the same graphs.)
"""

from __future__ import annotations

import numpy as np
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle
from matplotlib.path import Path

from ctrlgrad.dataflow import graph as flat
from ctrlgrad.dataflow.drawing import Recorder
from ctrlgrad.dataflow.graph import FlatPrinter, consumers, producers
from ctrlgrad.dataflow.scopes import ROOT, frames_of

COLOURS = {
    flat.SWITCH: "#f8d7da",
    flat.LOOP_COND: "#f8d7da",
    flat.MERGE: "#d1ecf1",
    flat.ENTER: "#fff3cd",
    flat.EXIT: "#fff3cd",
    flat.NEXT_ITERATION: "#fff3cd",
    flat.SEND: "#d4edda",
    flat.RECV: "#d4edda",
}
FRAME, EDGE, DEAD = "#eef2f8", "0.35", "0.75"
WIDTH, HEIGHT, STEP = 1.2, 0.52, 1.4
# What a device is drawn on.
DEVICE = "#f8fafd"


class Watcher(Recorder):
    """A recorder that also keeps which node each firing was of."""

    def __init__(self):
        super().__init__()
        self.nodes = []

    def fired(self, device, name, node, *rest):
        super().fired(device, name, node, *rest)
        self.nodes.append(node)

    def by_value(self):
        """For each value the firings of the node that makes it, in order: (number, tag, is_dead)."""
        found = {}
        for number, (node, firing) in enumerate(zip(self.nodes, self.firings)):
            for value in node.results:
                found.setdefault(value, []).append((number, firing.tag, firing.is_dead))
        return found


def text_of(graph):
    """The text of a graph, each op on a line, whether it stands in a cluster or not."""
    printer, lines = FlatPrinter(), []
    for value in graph.inputs:
        printer.name(value)
    for node in graph.nodes:
        first, *inside = printer.node(node)
        where = f" @{node.device}" if node.device else ""
        waits = "".join(f" ^{printer.name(v)}" for v in node.controls)
        ops = [line.strip() for line in inside if not line.strip().startswith(("yield", "}"))]
        lines += [op.replace(" : ", f"{waits} : ", 1) + where for op in ops] or [first]
    return "\n".join(lines)


def dead_ones(graph, watcher):
    """The nodes of a graph that fired dead, and the sides of Switches that were dead."""
    nodes = {node for node, firing in zip(watcher.nodes, watcher.firings) if firing.is_dead}
    values = {v for node in nodes for v in node.results}
    dead = {node for node in graph.nodes if any(v in values for v in node.results)}
    consumers_of = consumers(graph)
    sides = {v for node in graph.nodes if node.op is flat.SWITCH for v in node.results}
    return dead | {v for v in sides if any(n in dead for n in consumers_of.get(v, ()))}


class Drawing:
    """One flat graph on axes; constants are written into the nodes that take them.

    `dead` holds nodes and values to draw as dead. `places` says where to draw which nodes, by the name of their first
    result, and leaves out the remaining ones.
    """

    def __init__(self, graph, axes, *, dead=frozenset(), places=None):
        self.graph, self.axes, self.dead = graph, axes, dead
        self.printer, self.producer_of = FlatPrinter(), producers(graph)
        self.printer.graph(graph)  # names values in the order in which the text names them
        self.frames = frames_of(graph)
        self.nodes = [node for node in graph.nodes if not self.is_constant(node)]
        used = {v for node in self.nodes for v in node.inputs} | set(graph.outputs)
        self.inputs = [v for v in graph.inputs if v in used]
        # For an edge over several rows, by its ends: a key in `at` for each row between.
        self.through = {}
        if places is None:
            self.place()
        else:
            named = {self.printer.name(node.results[0]): node for node in self.nodes if node.results}
            self.at = {named[name]: place for name, place in places.items()}
            self.nodes, self.inputs = list(self.at), []

    def is_constant(self, node):
        inside = node.regions[0].nodes if node.op is flat.CLUSTER else ()
        return node.is_constant or (bool(inside) and all(n.op.name == "constant" for n in inside))

    # Where things stand.

    def key(self, value):
        """Start of an edge from a value: its node, or the input itself."""
        node = self.producer_of.get(value)
        return value if node is None else node

    def edges(self):
        """(from, to, value, kind) of everything that is drawn."""
        shown = set(self.nodes) | set(self.inputs)
        for node in self.nodes:
            for position, value in enumerate(node.operands):
                back = node.op is flat.MERGE and position == 1 and self.key(value) in shown
                back = back and getattr(self.producer_of.get(value), "op", "") == flat.NEXT_ITERATION
                if self.key(value) in shown:
                    yield self.key(value), node, value, "back" if back else "data"
            for value in (*node.controls, *node.orders):
                if self.key(value) in shown:
                    yield self.key(value), node, value, "control"

    def place(self):
        edges = list(self.edges())
        before = {}
        for a, b, _, kind in edges:
            if kind != "back":
                before.setdefault(b, []).append(a)
        rank = dict.fromkeys(self.inputs, 0)
        for node in self.nodes:
            rank[node] = 1 + max((rank[a] for a in before.get(node, ())), default=0)
        near, ends = {}, dict(rank)
        for a, b, _, kind in edges:
            upper, lower = (b, a) if kind == "back" else (a, b)
            chain = [("edge", a, b, row) for row in range(ends[upper] + 1, ends[lower])]
            self.through[a, b, kind] = chain[::-1] if kind == "back" else chain
            rank.update((key, key[-1]) for key in chain)
            for one, other in zip([upper, *chain], [*chain, lower]):
                near.setdefault(one, []).append(other)
                near.setdefault(other, []).append(one)
        rows = {}
        for key, row in rank.items():
            rows.setdefault(row, []).append(key)
        at = {key: float(i) for row in rows.values() for i, key in enumerate(row)}
        for sweep in range(24):
            for row in sorted(rows, reverse=bool(sweep % 2)):
                keys = rows[row]
                wish = {k: np.mean([at[n] for n in near[k]]) if k in near else at[k] for k in keys}
                keys.sort(key=lambda k: wish[k] + self.side(k))
                for k, x in zip(keys, _apart([wish[k] for k in keys], [room(k) for k in keys])):
                    at[k] = x
        least = min(at.values())
        self.at = {k: (STEP * (x - least), -float(rank[k])) for k, x in at.items()}

    def side(self, key):
        """A Send stands towards the device that it sends to, a Recv towards the one that it hears."""
        op = getattr(key, "op", None)
        if op not in (flat.SEND, flat.RECV):
            return 0.0
        return 100.0 if (key.attrs.receiver if op is flat.SEND else key.attrs.sender) > key.device else -100.0

    def move(self, x, y):
        """Move the whole drawing."""
        self.at = {key: (a + x, b + y) for key, (a, b) in self.at.items()}

    # Drawing.

    def draw(self):
        self.draw_frames()
        for a, b, value, kind in self.edges():
            self.draw_edge(a, b, value, kind)
        for value in self.inputs:
            self.draw_box(value, self.printer.name(value), "white", rounded=True)
        for node in self.nodes:
            self.draw_box(node, self.label(node), COLOURS.get(node.op, "white"))
        for value in self.graph.outputs:
            if self.key(value) not in self.at:
                continue
            x, y = self.at[self.key(value)]
            self.axes.annotate("return", (x, y - 0.26), (x, y - 0.57), ha="center", va="center", fontsize=7,
                               arrowprops={"arrowstyle": "<-", "color": EDGE, "lw": 0.8})
        self.axes.set_aspect("equal")
        self.axes.axis("off")
        self.fit()
        return self

    def fit(self):
        """Room for boxes, frames and what is returned."""
        xs, ys = zip(*self.at.values())
        self.axes.set_xlim(min(xs) - 1.1, max(xs) + 1.1)
        self.axes.set_ylim(min(ys) - 1.1, max(ys) + 0.6)

    def label(self, node):
        op = node.op.name
        if node.op is flat.CLUSTER:
            inner = [n for n in node.regions[0].nodes if n.op.name != "constant"]
            op = " ".join(n.op.name for n in inner)
            numbers = [f"{n.attrs.value:g}" for n in node.regions[0].nodes if n.op.name == "constant"]
        else:
            numbers = [
                f"{self.producer_of[v].attrs.value:g}"
                for v in node.operands
                if v in self.producer_of and self.producer_of[v].is_constant
            ]
        name = self.printer.join(node.results[-1:]) if node.results else ""
        if node.op in (flat.SEND, flat.RECV):
            name = f"edge {node.attrs.edge}"
        if node.op is flat.SWITCH:
            hint = node.results[0].hint or ""
            name = hint.removesuffix("_false")
        if node.is_constant_enter:
            op += " const."
        return "\n".join(filter(None, [" ".join([op, *numbers]), name]))

    def is_dead(self, key):
        return key in self.dead

    def draw_box(self, key, label, colour, rounded=False):
        x, y = self.at[key]
        dead = self.is_dead(key)
        style = f"round,pad=0,rounding_size={0.25 if rounded else 0.06}"
        box = FancyBboxPatch((x - WIDTH / 2, y - HEIGHT / 2), WIDTH, HEIGHT, boxstyle=style, zorder=3,
                             facecolor="0.95" if dead else colour, edgecolor=DEAD if dead else EDGE,
                             linestyle="--" if dead else "-", linewidth=0.9)
        self.axes.add_patch(box)
        size = 6.5 * min(1.0, 13 / max(map(len, label.splitlines())))
        self.axes.text(x, y, label, ha="center", va="center", fontsize=size, family="monospace", zorder=4,
                       color="0.6" if dead else "black")

    def draw_edge(self, a, b, value, kind):
        dead = self.is_dead(a) or value in self.dead
        look = {"color": DEAD if dead else EDGE, "linewidth": 0.9, "mutation_scale": 7, "arrowstyle": "-|>"}
        look |= {"zorder": 2, "shrinkA": 0, "shrinkB": 0}
        look["linestyle"] = {"control": ":", "back": (0, (4, 2))}.get(kind, "--" if dead else "-")
        if kind == "control":
            look["linewidth"] = 1.2
        if kind == "back" and not self.through and abs(self.at[a][1] - self.at[b][1]) > 1:
            # Where places were given: around the nodes between.
            (x0, y0), (x1, y1) = self.at[a], self.at[b]
            side = -WIDTH / 2 if x0 <= x1 else WIDTH / 2
            look["connectionstyle"] = f"arc3,rad={0.35 if side > 0 else -0.35}"
            self.axes.add_patch(FancyArrowPatch((x0 + side, y0), (x1 + side, y1), **look))
            return
        points = self.points(a, b, kind)
        sideways = points[0][1] == points[-1][1] and len(points) == 2
        path = Path(points) if sideways else _smooth(points)
        self.axes.add_patch(FancyArrowPatch(path=path, **look))
        if getattr(a, "op", "") == flat.SWITCH and len(a.results) == 2 and kind != "back":
            (x0, y0), (x1, y1) = points[:2]
            x, y = (x0 + 0.25 * (x1 - x0), y0) if sideways else (x0 + 0.35 * (x1 - x0), y0 + 0.42 * (y1 - y0))
            self.axes.text(x, y, "FT"[a.results.index(value)], fontsize=7, ha="center", va="center", zorder=4,
                           color=DEAD if dead else "tab:red",
                           bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.4})

    def points(self, a, b, kind):
        """Points of an edge: from the border of a node, between nodes, to the border of another node."""
        (x0, y0), (x1, y1) = self.at[a], self.at[b]
        between = [self.at[key] for key in self.through.get((a, b, kind), ())]
        if y0 == y1:
            side = 1 if x1 > x0 else -1
            return [(x0 + side * WIDTH / 2, y0), (x1 - side * WIDTH / 2, y1)]
        down = 1 if y0 > y1 else -1
        # Apart from the edge that goes the other way.
        aside = 0.12 * WIDTH if kind == "back" else 0.0
        first, last = (between[0][0], between[-1][0]) if between else (x1, x0)
        start, end = x0 + (aside if first >= x0 else -aside), x1 + (aside if last >= x1 else -aside)
        return [(start, y0 - down * HEIGHT / 2), *between, (end, y1 + down * HEIGHT / 2)]

    def draw_frames(self):
        for frame in sorted(self.frames.parent, key=lambda f: len(self.frames.path(f))):
            held = {n for n in self.nodes if frame in self.frames.path(self.frame_of(n))}
            edges = [key for (a, b, _), chain in self.through.items() if a in held and b in held for key in chain]
            inside = [self.at[key] for key in (*held, *edges)]
            if inside:
                xs, ys = [x for x, _ in inside], [y for _, y in inside]
                corner = (min(xs) - 0.9, min(ys) - 0.5)
                size = (max(xs) - min(xs) + 1.8, max(ys) - min(ys) + 0.9)
                self.axes.add_patch(Rectangle(corner, *size, facecolor=FRAME, edgecolor="#7a8ba6", lw=0.8, zorder=0))
                self.axes.text(corner[0] + 0.08, corner[1] + 0.06, f"frame {frame}", fontsize=7, color="#5a6b86")

    def frame_of(self, node):
        """An Enter is drawn in the frame that it leads to."""
        return str(node.attrs.frame) if node.op is flat.ENTER else self.frames.of_node.get(node, ROOT)


def room(key):
    """Width of an item in its row."""
    return 0.35 if isinstance(key, tuple) else 1.0


def _apart(wishes, rooms):
    """Places in the order given, each with its room, near the wishes."""
    placed = []
    for i, wish in enumerate(wishes):
        placed.append(max(wish, placed[-1] + (rooms[i - 1] + rooms[i]) / 2) if placed else wish)
    shift = np.mean(np.array(wishes) - np.array(placed))
    return [x + shift for x in placed]


def _smooth(points):
    """A curve through points that leaves and reaches each of them straight down, or up."""
    corners, codes = [points[0]], [Path.MOVETO]
    for (x0, y0), (x1, y1) in zip(points, points[1:]):
        corners += [(x0, (y0 + y1) / 2), (x1, (y0 + y1) / 2), (x1, y1)]
        codes += [Path.CURVE4] * 3
    return Path(corners, codes)


def draw_parts(parts, axes, gap=1.4):
    """The devices of a partition beside each other, with an arrow from each Send to its Recv."""
    left, ends, boxes = 0.0, {}, []
    for device, part in parts.items():
        drawing = Drawing(part.graph, axes)
        for node in drawing.nodes:
            sent = ends.get(node.attrs.edge, {}).get(flat.SEND) if node.op is flat.RECV else None
            if sent is not None:
                # Level with what it hears.
                drawing.move(0.0, min(0.0, sent[1] - drawing.at[node][1]))
                break
        drawing.move(left, 0.0)
        for node in drawing.nodes:
            if node.op in (flat.SEND, flat.RECV):
                ends.setdefault(node.attrs.edge, {})[node.op] = drawing.at[node]
        xs, ys = zip(*drawing.at.values())
        boxes.append((device, min(xs) - 1.15, max(xs) + 1.15, min(ys) - 1.05, max(ys) + 0.95))
        drawing.draw()
        left = max(xs) + 2.3 + gap
    for device, x0, x1, y0, y1 in boxes:
        axes.add_patch(Rectangle((x0, y0), x1 - x0, y1 - y0, facecolor=DEVICE, edgecolor="#7a8ba6", lw=0.8, zorder=-1))
        axes.text(x0 + 0.15, y1 - 0.15, f"device {device}", va="top", fontsize=9, weight="bold", color="#5a6b86")
    for end in ends.values():
        (x0, y0), (x1, y1) = end[flat.SEND], end[flat.RECV]
        side = WIDTH / 2 if x1 > x0 else -WIDTH / 2
        axes.add_patch(FancyArrowPatch((x0 + side, y0), (x1 - side, y1), arrowstyle="-|>", mutation_scale=11, lw=1.8,
                                       color="#28a745", zorder=5, shrinkA=0, shrinkB=0))
    axes.set_xlim(min(b[1] for b in boxes) - 0.1, max(b[2] for b in boxes) + 0.1)
    axes.set_ylim(min(b[3] for b in boxes) - 0.1, max(b[4] for b in boxes) + 0.1)


def draw_trace(recorder, axes, is_shown, colours):
    """A row per device, a slice per firing that `is_shown` picks, coloured and labelled by its iteration."""
    shown = [f for f in recorder.firings if is_shown(f)]
    devices = sorted({f.device for f in shown})
    start = min(f.began for f in shown)
    for f in shown:
        iteration = f.tag[-1]
        x, width = 1e3 * (f.began - start), 1e3 * (f.ended - f.began)
        y = devices.index(f.device)
        axes.add_patch(Rectangle((x, y - 0.35), width, 0.7, facecolor=colours(iteration), edgecolor="white", lw=0.5))
        axes.text(x + width / 2, y, iteration, ha="center", va="center", fontsize=7)
    axes.set_yticks(range(len(devices)), devices)
    axes.set_ylim(len(devices) - 0.4, -0.6)
    axes.autoscale_view(scaley=False)
    axes.spines[["top", "right"]].set_visible(False)
