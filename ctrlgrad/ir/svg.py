"""Picture of a graph, as SVG: its outline, laid out in boxes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import field
from xml.sax.saxutils import escape

import numpy as np

from ctrlgrad.ir import attributes
from ctrlgrad.ir.op import Trait, Use
from ctrlgrad.ir.printer import Graph, Node, Printer, Value, format_attrs, region_name
from ctrlgrad.ir.types import StackType
from ctrlgrad.records import record
from ctrlgrad.source import Source

# Outline of a graph: loops and branches as blocks, and lines of formulas between them.
#
# A value that is used once, at no more than a line's length, stands where it is used; constants always do. A loop
# says with what it starts, how long it goes on, and what its carries are next; its results bear the names that they
# had in it. All versions of a stack are one stack. The pictures and pages of `ir` draw this.


# Longer formulas get a name and a line of their own.
LONGEST = 44
# Python's signs for ops, with how tightly they bind.
INFIX = {
    "logical_or": ("|", 1),
    "logical_xor": ("^", 2),
    "logical_and": ("&", 3),
    "less": ("<", 4),
    "less_equal": ("<=", 4),
    "greater": (">", 4),
    "greater_equal": (">=", 4),
    "equal": ("==", 4),
    "not_equal": ("!=", 4),
    "add": ("+", 5),
    "subtract": ("-", 5),
    "multiply": ("*", 6),
    "divide": ("/", 6),
    "power": ("**", 8),
}
PREFIX = {"negative": ("-", 7), "logical_not": ("~", 7)}
_ATOM = 9


@record
class Line:
    """A line of text. `role` is "", "start", "condition", "next", "result", "push" or "pop"; those two name a stack."""

    text: str
    role: str = ""
    stack: str | None = None
    source: Source | None = None


@record
class Block:
    """A loop, a branch or one of its sides, or a call; `order` is the number of differentiations of its contents."""

    title: str
    parts: tuple[Part, ...]
    source: Source | None = None
    order: int = 0
    # True if the block is drawn closed until the reader opens it: a function that was kept whole.
    is_folded: bool = False

    def lines(self) -> Iterator[Line]:
        """All lines in it, in order."""
        for part in self.parts:
            if isinstance(part, Line):
                yield part
            else:
                yield from part.lines()


Part = Line | Block


def outline(graph: Graph) -> Block:
    """A whole graph, as a block."""
    return _Outline().whole(graph)


def columns(whole: Block) -> list[list[Part]]:
    """Columns of a graph: a pop is to the right of its push, and a gradient to the right of the user's code."""
    found: list[list[Part]] = [[]]
    pushed: dict[str, int] = {}
    now, is_plain_seen = 0, False
    for part in whole.parts:
        if isinstance(part, Block):
            lines = list(part.lines())
            before = [pushed[x.stack] + 1 for x in lines if x.role == "pop" and x.stack in pushed]
            now = max([*before, 1 if part.order and is_plain_seen else 0])
            is_plain_seen |= not part.order
            pushed.update({x.stack: now for x in lines if x.role == "push" and x.stack})
        elif part.role == "result":
            now = len(found) - 1
        found += [[] for _ in range(now + 1 - len(found))]
        found[now].append(part)
    return found


class _Outline(Printer):
    """Gives values names or formulas."""

    def __init__(self) -> None:
        super().__init__(sources=False)
        self.binds: dict[Value, int] = {}
        # Stacks have names of their own: one may be called as the value that lies on it.
        self.stacks: Counter[str] = Counter()

    def whole(self, graph: Graph) -> Block:
        inputs = ", ".join(f"{self.name(v)}: {v.type}" for v in graph.inputs)
        parts = [*self.parts(graph, 0), Line("return " + self.join(graph.outputs), "result")]
        return Block(f"{graph.name}({inputs})", tuple(parts))

    def parts(self, graph: Graph, order: int) -> list[Part]:
        uses = Counter(v for node in graph.nodes for v in node.operands)
        uses.update(graph.outputs)
        # Captured values get a name, since their regions refer to them.
        named = {v for node in graph.nodes if node.regions for v in _captured(node)}
        found: list[Part] = []
        for node in graph.nodes:
            found += self.part(node, uses, named, order)
        return found

    def part(self, node: Node, uses: Counter[Value], named: set[Value], order: int) -> Iterator[Part]:
        if node.regions:
            yield self.block(node, order)
        elif isinstance(node.attrs, attributes.Constant):
            value = np.asarray(attributes.Constant.of(node).value)
            self.stands_for(node.results[0], repr(value.item()) if value.ndim == 0 else format_attrs(node), _ATOM)
        elif Trait.STACK in node.op.traits:
            yield from self.on_stack(node)
        else:
            text, binds = self.formula(node)
            is_pure = Trait.EFFECT not in node.op.traits and len(node.results) == 1
            if is_pure and not uses[node.results[0]]:
                return
            if is_pure and uses[node.results[0]] == 1 and node.results[0] not in named and len(text) <= LONGEST:
                self.stands_for(node.results[0], text, binds)
            else:
                results = self.join(node.results)
                yield Line(f"{results} = {text}" if results else text, source=node.source)

    def stands_for(self, value: Value, text: str, binds: int) -> None:
        self.names[value], self.binds[value] = text, binds

    def formula(self, node: Node) -> tuple[str, int]:
        if isinstance(node.attrs, attributes.Index):
            return self.indexed(node), _ATOM
        infix, prefix = INFIX.get(node.op.name), PREFIX.get(node.op.name)
        if infix is not None:
            sign, binds = infix
            left, right = node.operands
            return f"{self.within(left, binds)} {sign} {self.within(right, binds + 1)}", binds
        if prefix is not None:
            sign, binds = prefix
            return sign + self.within(node.operands[0], binds), binds
        parts = [part for part in (self.join(node.operands), format_attrs(node)) if part]
        return f"{node.op.name}({', '.join(parts)})", _ATOM

    def indexed(self, node: Node) -> str:
        array = node.operands[0]
        self.stands_for(array, self.within(array, _ATOM), _ATOM)
        return super().indexed(node)

    def within(self, value: Value, binds: int) -> str:
        text = self.name(value)
        return f"({text})" if self.binds.get(value, _ATOM) < binds else text

    # Stacks.

    def on_stack(self, node: Node) -> Iterator[Line]:
        use = node.op.use(0) if node.operands else Use.VALUE
        if not use.goes_on:
            if isinstance(node.results[0].type, StackType):
                wish = (node.results[0].hint or "stack").removesuffix("_stack")
                self.stacks[wish] += 1
                self.names[node.results[0]] = wish if self.stacks[wish] == 1 else f"{wish}_{self.stacks[wish]}"
            else:
                self.stands_for(node.results[0], self.formula(node)[0], _ATOM)
            return
        stack = self.name(node.operands[0])
        self.names[node.results[0]] = stack
        if use is Use.PUSH:
            yield Line(f"push {self.join(node.operands[1:])}", "push", stack, node.source)
        elif use is Use.POP:
            yield Line(f"{self.join(node.results[1:])} = pop", "pop", stack, node.source)

    # Nodes that own regions.

    def block(self, node: Node, order: int) -> Block:
        order = max(order, node.source.order if node.source else order)
        if attributes.Loop.find(node) is not None:
            return self.loop(node, order)
        if attributes.Branch.find(node) is not None:
            return self.branch(node, order)
        return self.call(node, order)

    def loop(self, node: Node, order: int) -> Block:
        attrs = attributes.Loop.of(node)
        cond, body = node.regions
        for region in node.regions:
            self.shares(attrs.split(node.operands)[0], attrs.split(region.inputs)[0])
        carries = [attrs.split(values)[1] for values in (node.operands, cond.inputs, body.inputs)]
        starts = []
        for init, in_cond, in_body, result in zip(*carries, node.results, strict=True):
            start = self.name(init)
            if isinstance(init.type, StackType):
                name = start
            else:
                name = self.fresh(in_cond.hint or result.hint or "c")
                starts.append(f"{name} = {start}")
            self.names.update(dict.fromkeys((in_cond, in_body, result), name))
        parts: list[Part] = [Line(text, "start") for text in _in_lines(starts)]
        parts += self.parts(cond, order)
        parts.append(Line(f"as long as {self.name(cond.outputs[0])}", "condition"))
        parts += self.parts(body, order)
        for value, result in zip(body.outputs, node.results, strict=True):
            if not isinstance(value.type, StackType) and self.name(value) != self.names[result]:
                parts.append(Line(f"{self.names[result]} \N{LEFTWARDS ARROW} {self.name(value)}", "next"))
        return Block(str(attrs.shown().get("name") or "while"), tuple(parts), node.source, order)

    def branch(self, node: Node, order: int) -> Block:
        sides = []
        for region in node.regions:
            self.shares(node.operands[1:], region.inputs)
        for value in node.results:
            if not isinstance(value.type, StackType):
                self.name(value)
        for number, region in enumerate(node.regions):
            parts = self.parts(region, order)
            for value, result in zip(region.outputs, node.results, strict=True):
                if isinstance(value.type, StackType):
                    self.names[result] = self.name(value)
                else:
                    parts.append(Line(f"{self.names[result]} = {self.name(value)}", "result"))
            sides.append(Block(region_name(node, number), tuple(parts), None, order))
        return Block(f"cond {self.name(node.operands[0])}", tuple(sides), node.source, order)

    def call(self, node: Node, order: int) -> Block:
        attrs = attributes.Call.of(node)
        self.shares(node.operands, node.regions[0].inputs)
        parts = self.parts(node.regions[0], order)
        for value, result in zip(node.regions[0].outputs, node.results, strict=True):
            if isinstance(value.type, StackType):
                self.names[result] = self.name(value)
            else:
                parts.append(Line(f"{self.name(result)} = {self.name(value)}", "result"))
        return Block(attrs.kind, tuple(parts), node.source, order, is_folded=True)

    def shares(self, outer: Sequence[Value], inner: Sequence[Value]) -> None:
        """Give a region's inputs the names of their operands."""
        for given, value in zip(outer, inner, strict=True):
            self.stands_for(value, self.name(given), self.binds.get(given, _ATOM))


def _captured(node: Node) -> Sequence[Value]:
    """The operands that the regions see under a name."""
    loop = attributes.Loop.find(node)
    if loop is not None:
        return loop.split(node.operands)[0]
    return node.operands[1:] if attributes.Branch.find(node) is not None else node.operands


def _in_lines(texts: Sequence[str]) -> list[str]:
    """Short texts side by side."""
    lines: list[str] = []
    for text in texts:
        if lines and len(lines[-1]) + len(text) <= LONGEST:
            lines[-1] += f",  {text}"
        else:
            lines.append(text)
    return lines


# Drawing of the outline as SVG, with a layout of its own: no other program is needed.
#
# Loops and branches are boxes of lines, one below the other, in a colour for how often they were
# differentiated. What pops stands one column to the right of what pushed it, and a line leads from each push to its
# pop: a loop faces its gradient.


# Edge and fill colours of the user's code, of its gradient, and of higher derivatives.
COLORS = (("#3b6ea5", "#eaf1f9"), ("#c0631f", "#fdf1e7"), ("#3f8f5a", "#eaf6ee"), ("#7a5aa6", "#f2edf8"))
STACKS = ("#b3261e", "#00796b", "#6a1b9a", "#8d6e00", "#1565c0", "#ad1457")
# Pixels.
ROW, CHARACTER, PADDING, GAP, BETWEEN = 18.0, 6.65, 10.0, 8.0, 90.0
# Below the title, and below the lanes of the lines that pass a column by.
TOP, LANE, LANES = PADDING + ROW + 24.0, 5.0, 4
LONGEST_TITLE = 84
# More lines than these are not shown at once: the innermost blocks are closed.
MOST_LINES = 120
STYLE = """.ctrlgrad text{font:11px ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;fill:#1c2430}
.ctrlgrad .title,.ctrlgrad .condition{font-weight:bold}.ctrlgrad .result{font-style:italic}
.ctrlgrad .start,.ctrlgrad .note{fill:#6b7785}.ctrlgrad .note{text-anchor:end}"""


def format_svg(graph: Graph) -> str:
    """The text of an SVG image of a graph."""
    return _Picture(outline(graph)).text()


@record(frozen=False)
class _Box:
    """A block that has been given its size: rows of text by their offset, and blocks inside."""

    block: Block
    depth: int
    is_closed: bool
    width: float = 0.0
    height: float = 0.0
    rows: list[tuple[float, Line]] = field(default_factory=list)
    inside: list[tuple[float, _Box]] = field(default_factory=list)

    @property
    def title(self) -> str:
        return f"\N{BLACK RIGHT-POINTING SMALL TRIANGLE} {self.block.title}" if self.is_closed else self.block.title

    @property
    def note(self) -> str:
        source = "" if self.block.source is None else place(self.block.source)
        hidden = f"{sum(1 for _ in self.block.lines())} lines" if self.is_closed else ""
        return "   ".join(text for text in (hidden, source) if text)


class _Picture:
    """The layout of an outline, and its drawing."""

    def __init__(self, whole: Block) -> None:
        self.whole = whole
        self.deepest = _deepest(whole)
        self.drawn: list[str] = []
        self.threads: list[str] = []
        # Ends of a stack's pushes: the column, and the place.
        self.pushes: dict[str, list[tuple[int, float, float]]] = {}
        self.column = self.lanes = 0
        self.colors: dict[str, str] = {}

    def text(self) -> str:
        x, bottom = PADDING, 0.0
        self.write(PADDING, PADDING + 12, self.whole.title, "title")
        right = PADDING + CHARACTER * len(_short(self.whole.title))
        for number, parts in enumerate(columns(self.whole)):
            self.column = number
            column = [part if isinstance(part, Line) else self.sized(part, 1) for part in parts]
            y, width = TOP, max((_width(part) for part in column), default=0.0)
            for part in column:
                if isinstance(part, Line):
                    self.line(part, x, y, width)
                    y += ROW
                else:
                    part.width = width
                    self.box(part, x, y)
                    y += part.height + GAP
            right, bottom = max(right, x + width), max(bottom, y)
            x += width + BETWEEN
        width, height = right + PADDING, bottom + PADDING
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" class="ctrlgrad" width="{width:.0f}" height="{height:.0f}">',
                f"<style>{STYLE}</style>",
                f'<rect width="{width:.0f}" height="{height:.0f}" fill="white"/>',
                *self.drawn,
                *self.threads,
                "</svg>",
            ]
        )

    def sized(self, block: Block, depth: int) -> _Box:
        box = _Box(block, depth, is_closed=block.is_folded or depth > self.deepest)
        y, width = PADDING / 2 + ROW, CHARACTER * (len(_short(box.title)) + len(_short(box.note)) + 3)
        for part in () if box.is_closed else block.parts:
            if isinstance(part, Line):
                box.rows.append((y, part))
                width, y = max(width, _width(part)), y + ROW
            else:
                inner = self.sized(part, depth + 1)
                box.inside.append((y + GAP / 2, inner))
                width, y = max(width, inner.width), y + inner.height + GAP
        box.width, box.height = width + 2 * PADDING, y + PADDING / 2
        return box

    def box(self, box: _Box, x: float, y: float) -> None:
        edge, fill = COLORS[min(box.block.order, len(COLORS) - 1)]
        self.drawn.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" rx="5" '
            f'fill="{fill if box.depth % 2 else "white"}" stroke="{edge}"/>'
        )
        self.write(x + PADDING, y + 15, box.title, "title", edge)
        self.write(x + box.width - PADDING, y + 15, box.note, "note")
        if box.is_closed:
            for line in box.block.lines():
                self.ends(line, x, y + ROW / 2, box.width)
        for offset, line in box.rows:
            self.line(line, x + PADDING, y + offset, box.width - 2 * PADDING)
        for offset, inner in box.inside:
            inner.width = box.width - 2 * PADDING
            self.box(inner, x + PADDING, y + offset)

    def line(self, line: Line, x: float, y: float, width: float) -> None:
        self.write(x, y + 13, line.text, line.role, self.color(line.stack) if line.stack else "")
        self.ends(line, x - 4, y + ROW / 2, width + 8)

    def ends(self, line: Line, x: float, y: float, width: float) -> None:
        """The line from a push to its pop: noted at the one, drawn at the other."""
        if line.stack is None:
            return
        if line.role == "push":
            self.pushes.setdefault(line.stack, []).append((self.column, x + width, y))
            return
        color = self.color(line.stack)
        for column, from_x, from_y in self.pushes.get(line.stack, []):
            to_x = x
            if column == self.column:  # around on the right
                to_x = x + width
                bend = max(from_x, to_x) + BETWEEN / 2
                path = f"C{bend:.1f} {from_y:.1f} {bend:.1f} {y:.1f} {to_x:.1f} {y:.1f}"
            elif self.column == column + 1:
                bend = (to_x - from_x) / 2
                path = f"C{from_x + bend:.1f} {from_y:.1f} {to_x - bend:.1f} {y:.1f} {to_x:.1f} {y:.1f}"
            else:  # over the columns between
                lane = TOP - 6 - LANE * (self.lanes % LANES)
                self.lanes += 1
                up, down = from_x + BETWEEN / 2, to_x - BETWEEN / 2
                path = (
                    f"C{up:.1f} {from_y:.1f} {up - 20:.1f} {lane:.1f} {up + 20:.1f} {lane:.1f}H{down - 20:.1f}"
                    f"C{down + 20:.1f} {lane:.1f} {down:.1f} {y:.1f} {to_x:.1f} {y:.1f}"
                )
            self.threads.append(
                f'<path d="M{from_x:.1f} {from_y:.1f}{path}" fill="none" stroke="{color}" stroke-width="1.6"/>'
            )
            for end_x, end_y in ((from_x, from_y), (to_x, y)):
                self.threads.append(f'<circle cx="{end_x:.1f}" cy="{end_y:.1f}" r="2.8" fill="{color}"/>')

    def color(self, stack: str) -> str:
        return self.colors.setdefault(stack, STACKS[len(self.colors) % len(STACKS)])

    def write(self, x: float, y: float, text: str, role: str, color: str = "") -> None:
        style = f' style="fill:{color}"' if color else ""
        shown, whole = _short(text), "" if len(text) <= LONGEST_TITLE else f"<title>{escape(text)}</title>"
        self.drawn.append(
            f'<text x="{x:.1f}" y="{y:.1f}" class="{role}" xml:space="preserve"{style}>{escape(shown)}{whole}</text>'
        )


def place(source: Source) -> str:
    """The function and the line that something comes from."""
    return f"{source.function.rsplit('.', 1)[-1]}, {source.short}"


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_TITLE else text[: LONGEST_TITLE - 1] + "\N{HORIZONTAL ELLIPSIS}"


def _width(part: Line | _Box) -> float:
    return part.width if isinstance(part, _Box) else CHARACTER * len(_short(part.text)) + 8


def _deepest(whole: Block) -> int:
    """Depth down to which blocks are drawn open: the greatest at which not too many lines show."""

    def lines(parts: tuple[Part, ...], depth: int) -> Iterator[int]:
        for part in parts:
            if isinstance(part, Line):
                yield depth
            elif not part.is_folded:
                yield from lines(part.parts, depth + 1)

    depths = sorted(lines(whole.parts, 0))
    return max(1, depths[-1] if len(depths) <= MOST_LINES else depths[MOST_LINES] - 1)
