"""A graph drawn for people, as SVG, by a layout of its own: no program has to be installed.

Loops and branches are boxes of lines (`ir.outline`), one below the other, in a colour for how often they were
differentiated. What pops stands one column to the right of what pushed it, and a line leads from each push to its pop:
a loop faces its gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from xml.sax.saxutils import escape

from ctrlgrad.ir.outline import Block, Line, Part, columns, outline
from ctrlgrad.ir.printer import Graph
from ctrlgrad.records import record
from ctrlgrad.source import Source

# Of what the user wrote, of its gradient, of derivatives of higher order: the edge, and the fill.
COLORS = (("#3b6ea5", "#eaf1f9"), ("#c0631f", "#fdf1e7"), ("#3f8f5a", "#eaf6ee"), ("#7a5aa6", "#f2edf8"))
STACKS = ("#b3261e", "#00796b", "#6a1b9a", "#8d6e00", "#1565c0", "#ad1457")
# Pixels.
ROW, CHARACTER, PADDING, GAP, BETWEEN = 18.0, 6.65, 10.0, 8.0, 90.0
# Below the title, and below the lanes of the lines that pass a column by.
TOP, LANE, LANES = PADDING + ROW + 24.0, 5.0, 4
LONGEST = 84
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
    """The layout of an outline, and what is drawn of it."""

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
        shown, whole = _short(text), "" if len(text) <= LONGEST else f"<title>{escape(text)}</title>"
        self.drawn.append(
            f'<text x="{x:.1f}" y="{y:.1f}" class="{role}" xml:space="preserve"{style}>{escape(shown)}{whole}</text>'
        )


def place(source: Source) -> str:
    """The function and the line that something comes from."""
    return f"{source.function.rsplit('.', 1)[-1]}, {source.short}"


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "\N{HORIZONTAL ELLIPSIS}"


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
