"""Flat dataflow graphs and traces drawn with matplotlib: what notebook 07 shows.

Nodes stand in rows, each below all that it takes from; inside a row they are ordered so that edges are short. (With
Graphviz installed, `ctrlgrad graph --lowered` draws the same graphs.)
"""

from __future__ import annotations

import numpy as np
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from ctrlgrad.dataflow import graph as flat
from ctrlgrad.dataflow.graph import makers, takers
from ctrlgrad.dataflow.printer import Names, format_flat_node
from ctrlgrad.dataflow.recorder import Recorder
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


class Watcher(Recorder):
    """A recorder that also keeps which node each firing was of."""

    def __init__(self):
        super().__init__()
        self.nodes = []

    def fired(self, device, step, iteration, began, dead):
        super().fired(device, step, iteration, began, dead)
        self.nodes.append(step.node)

    def by_value(self):
        """For each value the firings of the node that makes it, in order: (number, tag, is_dead)."""
        found = {}
        for number, (node, firing) in enumerate(zip(self.nodes, self.firings)):
            for value in node.results:
                found.setdefault(value, []).append((number, firing.tag, firing.is_dead))
        return found


def text_of(graph):
    """The text of a graph, each op on a line, whether it stands in a cluster or not."""
    names, lines = Names(), []
    for value in graph.inputs:
        names(value)
    for node in graph.nodes:
        first, *inside = format_flat_node(node, names)
        where = f" @{node.device}" if node.device else ""
        waits = "".join(f" ^{names(v)}" for v in node.controls)
        ops = [line.strip() for line in inside if not line.strip().startswith(("yield", "}"))]
        lines += [op.replace(" : ", f"{waits} : ", 1) + where for op in ops] or [first]
    return "\n".join(lines)


def dead_ones(graph, watcher):
    """The nodes of a graph that fired dead, and the sides of Switches that were dead."""
    nodes = {node for node, firing in zip(watcher.nodes, watcher.firings) if firing.is_dead}
    values = {v for node in nodes for v in node.results}
    dead = {node for node in graph.nodes if any(v in values for v in node.results)}
    taken_by = takers(graph)
    sides = {v for node in graph.nodes if node.op == flat.SWITCH for v in node.results}
    return dead | {v for v in sides if any(n in dead for n in taken_by.get(v, ()))}


class Drawing:
    """One flat graph on axes; constants are written into the nodes that take them.

    `dead` holds nodes and values to draw as dead. `places` says where to draw which nodes, by the name of their first
    result, and leaves out the others.
    """

    def __init__(self, graph, axes, *, dead=frozenset(), left=0.0, places=None):
        self.graph, self.axes, self.dead, self.left = graph, axes, dead, left
        self.names, self.made_by = Names(), makers(graph)
        for value in graph.inputs:
            self.names(value)
        for node in graph.nodes:
            format_flat_node(node, self.names)  # names values in the order in which the text names them
        self.frames = frames_of(graph)
        self.nodes = [node for node in graph.nodes if not self.is_constant(node)]
        used = {v for node in self.nodes for v in node.inputs} | set(graph.outputs)
        self.inputs = [v for v in graph.inputs if v in used]
        if places is None:
            self.place()
        else:
            named = {self.names(node.results[0]): node for node in self.nodes if node.results}
            self.at = {named[name]: place for name, place in places.items()}
            self.nodes, self.inputs = list(self.at), []

    def is_constant(self, node):
        inside = node.regions[0].nodes if node.op == flat.CLUSTER else ()
        return node.op == "constant" or (bool(inside) and all(n.op.name == "constant" for n in inside))

    # Where things stand.

    def key(self, value):
        """What an edge from a value starts at: its node, or the input itself."""
        node = self.made_by.get(value)
        return value if node is None else node

    def edges(self):
        """(from, to, value, kind) of everything that is drawn."""
        shown = set(self.nodes) | set(self.inputs)
        for node in self.nodes:
            for position, value in enumerate(node.operands):
                back = node.op == flat.MERGE and position == 1 and self.key(value) in shown
                back = back and getattr(self.made_by.get(value), "op", "") == flat.NEXT_ITERATION
                if self.key(value) in shown:
                    yield self.key(value), node, value, "back" if back else "data"
            for value in (*node.controls, *node.orders):
                if self.key(value) in shown:
                    yield self.key(value), node, value, "control"

    def place(self):
        rank = dict.fromkeys(self.inputs, 0)
        forward = [(a, b) for a, b, _, kind in self.edges() if kind != "back"]
        for node in self.nodes:
            rank[node] = 1 + max((rank[a] for a, b in forward if b is node), default=0)
        rows = {}
        for key, row in rank.items():
            rows.setdefault(row, []).append(key)
        at = {key: float(i) for row in rows.values() for i, key in enumerate(row)}
        near = {}
        for a, b in forward:
            near.setdefault(a, []).append(b)
            near.setdefault(b, []).append(a)
        for sweep in range(24):
            for row in sorted(rows, reverse=bool(sweep % 2)):
                keys = rows[row]
                wish = {k: np.mean([at[n] for n in near[k]]) if k in near else at[k] for k in keys}
                keys.sort(key=lambda k: wish[k])
                for k, x in zip(keys, _apart([wish[k] for k in keys])):
                    at[k] = x
        least = min(at.values())
        self.at = {k: (self.left + STEP * (x - least), -float(rank[k])) for k, x in at.items()}

    # Drawing.

    def draw(self):
        self.draw_frames()
        for a, b, value, kind in self.edges():
            self.draw_edge(a, b, value, kind)
        for value in self.inputs:
            self.draw_box(value, self.names(value), "white", rounded=True)
        for node in self.nodes:
            self.draw_box(node, self.label(node), COLOURS.get(node.op, "white"))
        for value in self.graph.outputs:
            if self.key(value) not in self.at:
                continue
            x, y = self.at[self.key(value)]
            self.axes.annotate("return", (x, y - 0.27), (x, y - 0.75), ha="center", va="center", fontsize=7,
                               arrowprops={"arrowstyle": "<-", "color": EDGE, "lw": 0.8})
        self.axes.set_aspect("equal")
        self.axes.axis("off")
        self.fit()
        return self

    def fit(self):
        """Room for the arrows back, which run outside of the nodes."""
        xs, ys = zip(*self.at.values())
        self.axes.set_xlim(min(xs) - 1.6, max(xs) + 1.6)
        self.axes.set_ylim(min(ys) - 1.1, max(ys) + 0.6)

    def label(self, node):
        op = node.op
        if op == flat.CLUSTER:
            inner = [n for n in node.regions[0].nodes if n.op.name != "constant"]
            op = " ".join(n.op.name for n in inner)
            numbers = [f"{n.attrs['value']:g}" for n in node.regions[0].nodes if n.op.name == "constant"]
        else:
            numbers = [
                f"{self.made_by[v].attrs['value']:g}"
                for v in node.operands
                if v in self.made_by and self.made_by[v].op == "constant"
            ]
        name = self.names.join(node.results[-1:]) if node.results else ""
        name = {flat.SWITCH: "", flat.SEND: f"edge {node.attrs.get('edge')}"}.get(node.op, name)
        if node.op == flat.RECV:
            name = f"edge {node.attrs['edge']}"
        if node.op == flat.SWITCH:
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
        (x0, y0), (x1, y1) = self.at[a], self.at[b]
        dead = self.is_dead(a) or value in self.dead
        look = {"color": DEAD if dead else EDGE, "linewidth": 0.9, "mutation_scale": 7, "arrowstyle": "-|>", "zorder": 2}
        if kind == "back" and y0 == y1:
            side = 1 if x1 > x0 else -1
            start, end = (x0 + side * WIDTH / 2, y0), (x1 - side * WIDTH / 2, y1)
            look |= {"linestyle": (0, (4, 2))}
        elif kind == "back":
            side = 1 if x0 >= x1 else -1
            look |= {"linestyle": (0, (4, 2)), "connectionstyle": f"arc3,rad={0.35 * side}"}
            start, end = (x0 + side * WIDTH / 2, y0), (x1 + side * WIDTH / 2, y1)
        else:
            down = 1 if y0 > y1 else -1
            start, end = (x0, y0 - down * HEIGHT / 2), (x1, y1 + down * HEIGHT / 2)
            if y0 == y1:
                side = 1 if x1 > x0 else -1
                start, end = (x0 + side * WIDTH / 2, y0), (x1 - side * WIDTH / 2, y1)
            elif self.is_in_the_way(a, b):
                start, end = (x0 - WIDTH / 2, y0), (x1 - WIDTH / 2, y1)
                look |= {"connectionstyle": "arc3,rad=0.3"}
            if kind == "control" or dead:
                look |= {"linestyle": ":" if kind == "control" else "--"}
        self.axes.add_patch(FancyArrowPatch(start, end, shrinkA=0, shrinkB=0, **look))
        if getattr(a, "op", "") == flat.SWITCH and len(a.results) == 2 and kind == "data":
            side = "FT"[a.results.index(value)]
            self.axes.text(start[0] + 0.22 * (end[0] - start[0]), start[1] + 0.22 * (end[1] - start[1]) - 0.02, side,
                           fontsize=7, ha="center", va="center", zorder=4, color=DEAD if dead else "tab:red",
                           bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.4})

    def is_in_the_way(self, a, b):
        """Whether a straight arrow would go through another node."""
        (x0, y0), (x1, y1) = self.at[a], self.at[b]
        between = [(x, (y - y0) / (y1 - y0)) for x, y in self.at.values() if min(y0, y1) < y < max(y0, y1)]
        return any(abs(x0 + part * (x1 - x0) - x) < 0.6 * WIDTH for x, part in between)

    def draw_frames(self):
        for frame in sorted(self.frames.parent, key=lambda f: len(self.frames.path(f))):
            inside = [self.at[n] for n in self.nodes if frame in self.frames.path(self.frame_of(n))]
            if inside:
                xs, ys = [x for x, _ in inside], [y for _, y in inside]
                corner = (min(xs) - 0.9, min(ys) - 0.5)
                size = (max(xs) - min(xs) + 1.8, max(ys) - min(ys) + 0.9)
                self.axes.add_patch(Rectangle(corner, *size, facecolor=FRAME, edgecolor="#7a8ba6", lw=0.8, zorder=0))
                self.axes.text(corner[0] + 0.08, corner[1] + 0.06, f"frame {frame}", fontsize=7, color="#5a6b86")

    def frame_of(self, node):
        """An Enter is drawn in the frame that it leads to."""
        return str(node.attrs["frame"]) if node.op == flat.ENTER else self.frames.of_node.get(node, ROOT)


def _apart(wishes):
    """Places in the order given, one apart at least, near the wishes."""
    placed = []
    for wish in wishes:
        placed.append(wish if not placed else max(wish, placed[-1] + 1.0))
    shift = np.mean(np.array(wishes) - np.array(placed))
    return [x + shift for x in placed]


def draw_parts(parts, axes, gap=1.6):
    """The parts of a partition beside each other, with an arrow from each Send to its Recv."""
    left, ends, drawings = 0.0, {}, []
    for device, part in parts.items():
        drawing = Drawing(part.graph, axes, left=left).draw()
        drawings.append(drawing)
        right = max(x for x, _ in drawing.at.values())
        axes.text((left + right) / 2, 0.85, device, ha="center", fontsize=10, weight="bold")
        for node in drawing.nodes:
            if node.op in (flat.SEND, flat.RECV):
                ends.setdefault(node.attrs["edge"], {})[node.op] = drawing.at[node]
        left = right + WIDTH + gap
    for end in ends.values():
        (x0, y0), (x1, y1) = end[flat.SEND], end[flat.RECV]
        side = WIDTH / 2 if x1 > x0 else -WIDTH / 2
        axes.add_patch(FancyArrowPatch((x0 + side, y0), (x1 - side, y1), arrowstyle="-|>", mutation_scale=11, lw=1.8,
                                       color="#28a745", zorder=5, shrinkA=0, shrinkB=0))
    axes.set_xlim(-1.6, left - gap + 1.0)
    axes.set_ylim(min(y for d in drawings for _, y in d.at.values()) - 1.1, 1.2)


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
