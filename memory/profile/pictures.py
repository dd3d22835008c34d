"""A recording as a Chrome trace, as a picture and as a page for a browser, and the result of `memory.profile()`.

One row for each stream: computation with its stalls, copies out, copies in, the disk. A curve for each tier's bytes.
Slices of a row never overlap: where computation stalls, its slice is cut. In the trace, which Perfetto and
chrome://tracing open, arrows lead from the slice that pushed a block through its copies to the slice that read it.

The trace's format: "Trace Event Format" of the Chromium project; times are microseconds from the first event.
"""

from __future__ import annotations

import json
import os
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctrlgrad.errors import UserInputError
from ctrlgrad.memory.profile.records import BlockEntry, Computed, Copied, Open, Phase, Recording
from ctrlgrad.memory.profile.summary import Interval, Summary, Usage, on_top, summarize, times, usages
from ctrlgrad.memory.sizes import SHOWN, show_size
from ctrlgrad.records import record

PROCESS = 1
# Below this, times differ by rounding alone.
NANOSECOND = 1e-9
# The categories of copies: away from the device, and towards it.
AWAY, BACK = "copy away", "copy back"
# In the order of the rows.
ROWS = {"compute": 1, "out": 2, "in": 3, "disk": 4}


@record
class Part:
    """A slice as it is drawn: on a row, in seconds of the device's clock, with what it is."""

    row: str
    start: float
    end: float
    name: str
    category: str
    details: Mapping[str, Any]

    @property
    def length(self) -> float:
        return self.end - self.start


@record
class Stop:
    """A time in a part that an arrow leads through."""

    part: Part
    time: float


@record
class Flow:
    """A block's policy: where its arrow starts, what it leads through, and where it ends."""

    block: int
    label: str
    stops: tuple[Stop, ...]


@record
class Timeline:
    """Contents of the drawing. `flows` lead through some of the parts."""

    parts: tuple[Part, ...]
    flows: tuple[Flow, ...]
    start: float

    def rows(self) -> tuple[str, ...]:
        """The rows that have something on them."""
        used = {part.row for part in self.parts}
        return tuple(row for row in ROWS if row in used)


def timeline(recording: Recording) -> Timeline:
    """The drawing of a recording; entries without times are left out."""
    computing = _compute_parts(recording)
    copies = {}
    for interval in times(recording.copied):
        copied = recording.copied[interval.key]
        details = {"block": copied.block, "from": copied.source, "to": copied.target, "bytes": copied.nbytes}
        category = BACK if _comes_back(recording, copied) else AWAY
        copies[interval.key] = Part(copied.stream, interval.start, interval.end, copied.label, category, details)
    parts = sorted([*(part for part, _ in computing), *copies.values()], key=lambda part: (part.start, ROWS[part.row]))
    starts = [part.start for part in parts] + [used.time for used in recording.in_use]
    flows = tuple(_flows(recording, _Computation(computing), copies))
    return Timeline(tuple(parts), flows, min(starts, default=0.0))


def _compute_parts(recording: Recording) -> list[tuple[Part, Computed | None]]:
    """Computation and stalls without overlap, in order, each with its entry; None for a stall."""
    stalled = [Interval(i.start, i.end, -1 - i.key) for i in times(recording.stalled)]
    found: list[tuple[Part, Computed | None]] = []
    for interval in on_top([*times(recording.computed), *stalled]):
        if interval.key < 0:
            stall = recording.stalled[-1 - interval.key]
            details: dict[str, Any] = {"cause": stall.cause, "phase": stall.phase}
            found.append((Part("compute", interval.start, interval.end, "stall", "stall", details), None))
            continue
        entry = recording.computed[interval.key]
        category = "recompute" if entry.again else entry.phase
        details = {"phase": entry.phase, "again": entry.again}
        if entry.loop:
            details |= {"loop": entry.loop, "chunk": entry.chunk}
        found.append((Part("compute", interval.start, interval.end, entry.label, category, details), entry))
    return found


def _comes_back(recording: Recording, copied: Copied) -> bool:
    """Return true if a copy leads towards the device: it lists its tiers from the nearest on."""
    orders = ([tier for tier, _ in tiers] for tiers in recording.tiers.values())
    return any(copied.source in o and copied.target in o[: o.index(copied.source)] for o in orders)


# Arrows.


class _Computation:
    """Finds the computation that pushed, or read, a block: by its chunk, or where it does not say, by its time."""

    def __init__(self, parts: list[tuple[Part, Computed | None]]) -> None:
        self._chunks: dict[tuple[str, int], list[tuple[Part, Computed]]] = {}
        self._forward: list[Part] = []
        self._backward: list[Part] = []
        for part, entry in parts:
            if entry is not None:
                self._chunks.setdefault((entry.loop, entry.chunk), []).append((part, entry))
                if not entry.again:
                    (self._forward if entry.phase == "forward" else self._backward).append(part)

    def pusher(self, block: BlockEntry, before: float) -> Part | None:
        """The last part of the computation that filled the block, which left at a time."""
        named = self._named(block, "forward")
        early = [part for part in named or self._forward if part.end <= before]
        return early[-1] if early else named[-1] if named else None

    def again(self, block: BlockEntry, after: float) -> list[Part]:
        """The last parts of the runs that computed the block again."""
        ends: dict[int, Part] = {}
        for part, entry in self._chunks.get((block.loop, block.chunk), ()):
            if entry.again and part.start >= after:
                ends[id(entry)] = part
        return list(ends.values())

    def reader(self, block: BlockEntry, after: float) -> Part | None:
        """The first part of the backward computation that can have read the block, which was there at a time."""
        named = [part for part in self._named(block, "backward") if part.end > after]
        if named:
            return named[0]
        position = bisect_right(self._backward, after, key=lambda part: part.end)
        return self._backward[position] if position < len(self._backward) else None

    def _named(self, block: BlockEntry, phase: Phase) -> list[Part]:
        found = self._chunks.get((block.loop, block.chunk), ())
        return [part for part, entry in found if entry.phase == phase and not entry.again]


def _flows(recording: Recording, computation: _Computation, copies: Mapping[int, Part]) -> Iterator[Flow]:
    """Arrows of the blocks that were read; a block that is not read has no arrow."""
    opened: dict[int, float] = {}
    for logged in recording.actions:
        if isinstance(logged.action, Open):
            opened.setdefault(logged.action.block, logged.time)
    moved: dict[int, list[Part]] = {}
    for position, part in copies.items():
        moved.setdefault(recording.copied[position].block, []).append(part)
    for block in recording.blocks:
        if block.block not in opened:
            continue
        copied = sorted(moved.get(block.block, []), key=lambda part: part.start)
        pushed = computation.pusher(block, copied[0].start if copied else block.time)
        if pushed is None:
            continue
        path = sorted(copied + computation.again(block, pushed.end), key=lambda part: part.start)
        # A copy away may still run while the block, which never left, is read; one towards the device comes before.
        there = max([opened[block.block], *(part.end for part in path if part.category != AWAY)])
        read = computation.reader(block, there + NANOSECOND)
        if read is not None:
            # Late in the slice that pushed, early in the one that reads, but not before the block was there.
            begun = max(read.start, there)
            last = Stop(read, begun + 0.1 * (read.end - begun))
            first = Stop(pushed, pushed.start + 0.9 * pushed.length)
            middle = (Stop(part, part.start + 0.5 * part.length) for part in path if part.end <= last.time)
            yield Flow(block.block, block.label, (first, *middle, last))


# The file.


def trace(recording: Recording) -> dict[str, Any]:
    """The trace as JSON's types."""
    drawn, tiers = timeline(recording), usages(recording)
    events = list(_names(recording))

    def nanoseconds(moment: float) -> int:
        """Whole ones, so that what touches does not overlap by a rounding."""
        return round((moment - drawn.start) * 1e9)

    def add(phase: str, moment: float, row: str | None = None, **rest: Any) -> None:
        place = {} if row is None else {"tid": ROWS[row]}
        events.append({"ph": phase, "pid": PROCESS, **place, "ts": nanoseconds(moment) / 1e3, **rest})

    for usage in tiers:
        for sample in usage.samples:
            add("C", sample.time, name=f"{usage.key} bytes", args={"bytes": sample.nbytes})
    for fell in recording.fell_back:
        # A mark across the row.
        add("i", fell.time, "compute", name="otherwise than planned", s="t", args={"what": fell.text})
    for part in drawn.parts:
        length = (nanoseconds(part.end) - nanoseconds(part.start)) / 1e3
        add("X", part.start, part.row, name=part.name, cat=part.category, dur=length, args=part.details)
    for number, flow in enumerate(drawn.flows, start=1):
        # Each point of an arrow leads to the slice around its time.
        for phase, stop in zip(["s", *"t" * (len(flow.stops) - 2), "f"], flow.stops, strict=True):
            block = {"block": flow.block}
            add(phase, stop.time, stop.part.row, name="block", cat="block", id=number, bp="e", args=block)
    limits = {usage.key: usage.limit for usage in tiers}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"limits": limits}}


def _names(recording: Recording) -> Iterator[dict[str, Any]]:
    devices = ", ".join(dict.fromkeys(recording.devices.values()))
    yield {"ph": "M", "pid": PROCESS, "name": "process_name", "args": {"name": f"ctrlgrad memory on {devices}"}}
    for row, number in ROWS.items():
        yield {"ph": "M", "pid": PROCESS, "tid": number, "name": "thread_name", "args": {"name": row}}
        yield {"ph": "M", "pid": PROCESS, "tid": number, "name": "thread_sort_index", "args": {"sort_index": number}}


if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

COLORS = {
    "forward": "#4878a8",
    "backward": "#7a5aa6",
    "recompute": "#d9a441",
    "stall": "#c8352b",
    AWAY: "#5f9e66",
    BACK: "#a3cf8f",
}
# Parts below this share of the whole time have no edges.
SHORT = 4e-3
MARKS: dict[str, Any] = {"marker": "v", "color": "black", "markersize": 5, "linestyle": "none"}
TIER_COLORS = ("#4878a8", "#6aa36f", "#b0803a")


def write_plot(recording: Recording, path: Path) -> None:
    """Write the picture as a PNG. Raises `UserInputError` without matplotlib (the extra `plot`)."""
    try:
        from matplotlib.figure import Figure  # a heavy import, and an extra
        from matplotlib.lines import Line2D
        from matplotlib.patches import Patch
    except ImportError as cause:
        raise UserInputError(
            "the picture of a memory profile needs matplotlib", got=str(cause), hint="pip install -e '.[plot]'"
        ) from cause
    drawn = timeline(recording)
    # A tier that nothing lay in, and streams that did nothing, would be empty panels.
    tiers = [usage for usage in usages(recording) if usage.peak]
    rows = drawn.rows()
    end = max([part.end for part in drawn.parts] + [usage.samples[-1].time for usage in tiers], default=drawn.start)
    scale, unit = _time_unit(end - drawn.start)
    heights = [2.2] * len(tiers) + [0.45 * max(len(rows), 1) + 0.3] * bool(rows or not tiers)
    figure = Figure(figsize=(11, sum(heights) + 1.0), layout="constrained")
    axes = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for number, usage in enumerate(tiers):
        steps = [((sample.time - drawn.start) * scale, sample.nbytes) for sample in usage.samples]
        steps.append(((end - drawn.start) * scale, steps[-1][1]))
        _draw_tier(axes[number], usage, steps, TIER_COLORS[number % len(TIER_COLORS)])
    if rows:
        _draw_streams(axes[-1], drawn, rows, scale)
    elif not tiers:
        axes[-1].set_axis_off()
        axes[-1].text(0.0, 0.5, "nothing was kept", transform=axes[-1].transAxes)
    axes[-1].set_xlim(0, max((end - drawn.start) * scale, 1e-9))
    axes[-1].set_xlabel(f"time in {unit}")
    devices = ", ".join(dict.fromkeys(recording.devices.values()))
    figure.suptitle(f"Memory: {devices}", fontsize=12)
    used = [category for category in COLORS if any(part.category == category for part in drawn.parts)]
    handles: list[Artist] = [Patch(color=COLORS[category], label=category) for category in used]
    if recording.fell_back:
        moments = [(fell.time - drawn.start) * scale for fell in recording.fell_back]
        axes[-1].plot(moments, [-0.45] * len(moments), **MARKS, clip_on=False)
        handles.append(Line2D([], [], **MARKS, label="otherwise than planned"))
    figure.legend(handles=handles, loc="outside lower center", ncol=max(len(handles), 1), frameon=False)
    temporary = path.with_name(f".{path.name}")
    with open(temporary, "wb") as file:
        figure.savefig(file, format="png", dpi=120)
    temporary.replace(path)


def _time_unit(seconds: float) -> tuple[float, str]:
    return (1.0, "s") if seconds >= 2.0 else (1e3, "ms") if seconds >= 2e-3 else (1e6, "us")


def _draw_tier(axes: Axes, usage: Usage, steps: Sequence[tuple[float, float]], color: str) -> None:
    highest, limit = usage.peak, usage.limit
    scale = max(highest, limit if limit is not None and limit < 4 * highest else 0)
    size, unit = next((shown for shown in SHOWN if scale >= shown[0]), (1, "bytes"))
    moments, values = [t for t, _ in steps], [nbytes / size for _, nbytes in steps]
    axes.fill_between(moments, values, step="post", color=color, alpha=0.35, linewidth=0)
    axes.step(moments, values, where="post", color=color, linewidth=0.6)
    top = highest / size
    # A limit far above what was used would press the curve flat; then the title alone says it.
    if limit is not None and limit < 4 * highest:
        axes.axhline(limit / size, color="black", linestyle="--", linewidth=1.0)
        top = max(top, limit / size)
    axes.set_ylim(0, max(top, 1e-9) * 1.08)
    axes.set_ylabel(unit)
    axes.set_title(_title(usage), loc="left", fontsize=10)
    axes.grid(axis="y", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _title(usage: Usage) -> str:
    bound = "no limit" if usage.limit is None else f"limit {show_size(usage.limit)}"
    return f"{usage.name}: at most {show_size(usage.peak)}, {bound}"


def _draw_streams(axes: Axes, drawn: Timeline, rows: Sequence[str], scale: float) -> None:
    length = max((part.end for part in drawn.parts), default=drawn.start) - drawn.start
    for position, row in enumerate(rows):
        for category, color in COLORS.items():
            parts = [part for part in drawn.parts if part.row == row and part.category == category]
            # Neighbours of one colour are told apart, unless they are so short that nothing but their edges were seen.
            for edge, chosen in (
                (0.8, [part for part in parts if part.length >= SHORT * length]),
                (0.0, [part for part in parts if part.length < SHORT * length]),
            ):
                spans = [((part.start - drawn.start) * scale, part.length * scale) for part in chosen]
                bar = (position - 0.38, 0.76)
                axes.broken_barh(spans, bar, facecolor=color, edgecolor="white", linewidth=edge)
    axes.set_yticks(range(len(rows)), rows)
    axes.set_ylim(max(len(rows), 1) - 0.4, -0.6)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", alpha=0.25)
    axes.set_axisbelow(True)


PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>TITLE</title>
<style>
body{font:13px/1.5 system-ui,sans-serif;margin:1.5em;color:#1c2430;background:#fff}
h1{font-size:1.2em}svg{display:block;width:100%;cursor:crosshair;user-select:none}
svg text{font-size:12px;fill:#1c2430}.axis{stroke:#c9d1da}.limit{stroke:#111;stroke-dasharray:5 4}
#said{white-space:pre-wrap;font-family:ui-monospace,Menlo,Consolas,monospace;min-height:4em}
.key{display:inline-block;width:.9em;height:.9em;margin:0 .3em 0 1em;vertical-align:-.1em}
</style>
<h1>TITLE</h1>
<svg id="drawing" xmlns="http://www.w3.org/2000/svg"></svg>
<p id="keys"></p>
<p id="said">Drag to look closer, double click to see all again.</p>
<script>
const data = DATA;
const svg = document.getElementById('drawing'), said = document.getElementById('said');
const LEFT = 110, RIGHT = 20, TIER = 130, ROW = 26, GAP = 34;
let from = 0, to = data.end, begun = null;
const height = data.tiers.length * (TIER + GAP) + data.rows.length * ROW + 50;
const unit = s => s === 0 ? '0' : s >= 1 ? s.toPrecision(4) + ' s' : s >= 1e-3 ? (s * 1e3).toPrecision(4) + ' ms' :
  (s * 1e6).toPrecision(4) + ' us';
const size = n => { let i = 0; while (n >= 1024 && i < 4) { n /= 1024; i++; }
  return +n.toPrecision(4) + ' ' + ['bytes', 'KiB', 'MiB', 'GiB', 'TiB'][i]; };
const safe = text => String(text).replace(/[&<>"]/g, c => '&#' + c.charCodeAt(0) + ';');
const width = () => svg.getBoundingClientRect().width - LEFT - RIGHT;
const x = t => LEFT + (t - from) / (to - from) * width();
const time = px => from + Math.min(Math.max((px - LEFT) / width(), 0), 1) * (to - from);
function at(samples, t) {
  let n = 0;
  for (const [when, bytes] of samples) { if (when > t) break; n = bytes; }
  return n;
}
function draw() {
  svg.setAttribute('height', height);
  let text = '', y = 20;
  for (const tier of data.tiers) {
    const shown = tier.limit !== null && tier.limit < 4 * tier.peak;
    const top = Math.max(tier.peak, shown ? tier.limit : 0) * 1.05;
    const h = n => y + TIER - n / top * TIER;
    let path = `M${LEFT} ${h(at(tier.samples, from))}`;
    for (const [t, n] of tier.samples) if (t >= from && t <= to) path += `H${x(t)}V${h(n)}`;
    path += `H${x(to)}`;
    text += `<path class="tier" d="${path}V${y + TIER}H${LEFT}Z" fill="#4878a8" opacity=".3"/>` +
      `<path d="${path}" fill="none" stroke="#4878a8"/>` +
      `<line class="axis" x1="${LEFT}" x2="${x(to)}" y1="${y + TIER}" y2="${y + TIER}"/>` +
      `<text x="${LEFT}" y="${y - 6}">${safe(tier.title)}</text>` +
      `<text x="${LEFT - 6}" y="${h(tier.peak) + 4}" text-anchor="end">${size(tier.peak)}</text>`;
    if (shown) text += `<line class="limit" x1="${LEFT}" x2="${x(to)}" y1="${h(tier.limit)}" y2="${h(tier.limit)}"/>`;
    y += TIER + GAP;
  }
  data.rows.forEach((row, i) => {
    text += `<text x="${LEFT - 6}" y="${y + i * ROW + 16}" text-anchor="end">${safe(row)}</text>`;
  });
  data.parts.forEach((part, i) => {
    if (part.end < from || part.start > to) return;
    const a = x(Math.max(part.start, from)), b = x(Math.min(part.end, to));
    text += `<rect class="part" data-part="${i}" x="${a}" y="${y + data.rows.indexOf(part.row) * ROW + 2}" ` +
      `width="${Math.max(b - a, .5)}" height="${ROW - 6}" fill="${data.colors[part.category]}"/>`;
  });
  y += data.rows.length * ROW + 16;
  for (let i = 0; i <= 4; i++) {
    const t = from + (to - from) * i / 4;
    text += `<text x="${x(t)}" y="${y}" text-anchor="${i === 4 ? 'end' : i ? 'middle' : 'start'}">${unit(t)}</text>`;
  }
  svg.innerHTML = text + '<rect id="chosen" y="0" height="' + height + '" width="0" fill="#fdd835" opacity=".35"/>';
}
const place = event => event.clientX - svg.getBoundingClientRect().left;
svg.addEventListener('mousedown', event => { begun = place(event); });
svg.addEventListener('mousemove', event => {
  const px = place(event), t = time(px), part = data.parts[event.target.dataset.part];
  const bytes = data.tiers.map(tier => `${tier.name}: ${size(at(tier.samples, t))}`).join(', ');
  said.textContent = `${unit(t)}   ${bytes}` +
    (part ? `\\n${part.name}, ${part.category}: ${unit(part.start)} to ${unit(part.end)}\\n${part.details}` : '');
  if (begun !== null) {
    const chosen = document.getElementById('chosen');
    chosen.setAttribute('x', Math.min(begun, px)); chosen.setAttribute('width', Math.abs(px - begun));
  }
});
svg.addEventListener('mouseup', event => {
  const a = time(Math.min(begun, place(event))), b = time(Math.max(begun, place(event)));
  if (begun !== null && Math.abs(place(event) - begun) > 4 && b > a) { from = a; to = b; draw(); }
  begun = null;
});
svg.addEventListener('dblclick', () => { from = 0; to = data.end; draw(); });
addEventListener('resize', draw);
document.getElementById('keys').innerHTML = Object.keys(data.colors)
  .filter(category => data.parts.some(part => part.category === category))
  .map(category => `<span class="key" style="background:${data.colors[category]}"></span>${safe(category)}`).join('');
draw();
</script>
</html>
"""


def format_page(recording: Recording) -> str:
    """The text of the page."""
    title = escape(f"Memory: {', '.join(dict.fromkeys(recording.devices.values())) or 'nothing was recorded'}")
    # Within a script "</script" would end it, and "<!--" before a "<script" would keep it from ending.
    data = json.dumps(_data(recording)).replace("<", "\\u003c")
    # In one step: a name in the title may read DATA.
    return re.sub("TITLE|DATA", lambda found: {"TITLE": title, "DATA": data}[found[0]], PAGE)


def _data(recording: Recording) -> dict[str, Any]:
    drawn = timeline(recording)
    tiers = [usage for usage in usages(recording) if usage.peak]
    ends = [part.end for part in drawn.parts] + [usage.samples[-1].time for usage in tiers]
    return {
        "end": max(max(ends, default=drawn.start) - drawn.start, 1e-9),
        "rows": drawn.rows(),
        "colors": COLORS,
        "tiers": [
            {
                "name": usage.name,
                "title": _title(usage),
                "limit": usage.limit,
                "peak": usage.peak,
                "samples": [(sample.time - drawn.start, sample.nbytes) for sample in usage.samples],
            }
            for usage in tiers
        ],
        "parts": [
            {
                "row": part.row,
                "start": part.start - drawn.start,
                "end": part.end - drawn.start,
                "name": part.name,
                "category": part.category,
                "details": ", ".join(f"{key}: {value}" for key, value in part.details.items()),
            }
            for part in drawn.parts
        ],
    }


class Profile(Recording):
    """A recording with its summary (also as `str`), trace and picture."""

    def summary(self) -> Summary:
        """The numbers so far."""
        return summarize(self)

    def write_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the timeline as JSON that https://ui.perfetto.dev and Chrome open."""
        Path(path).write_text(json.dumps(trace(self), allow_nan=False), encoding="utf-8")

    def write_plot(self, path: str | os.PathLike[str]) -> None:
        """Write a picture, PNG: bytes of each tier over time, what computed and what was copied. Needs matplotlib."""
        write_plot(self, Path(path))

    def write_page(self, path: str | os.PathLike[str]) -> None:
        """Write a page for a browser that shows the same and can be looked at more closely. It needs no network."""
        Path(path).write_text(format_page(self), encoding="utf-8")

    def write_all(self, stem: str | os.PathLike[str]) -> list[Path]:
        """Write STEM.txt (the summary), STEM.json (the trace), STEM.html and, with matplotlib, STEM.png.

        Answers which files were written.
        """
        stem = Path(stem)
        suffixes = (".txt", ".json", ".html", ".png")
        text, trace, page, picture = (stem.with_name(stem.name + suffix) for suffix in suffixes)
        text.write_text(f"{self}\n", encoding="utf-8")
        self.write_trace(trace)
        self.write_page(page)
        if find_spec("matplotlib") is None:
            return [text, trace, page]
        self.write_plot(picture)
        return [text, trace, page, picture]

    def __str__(self) -> str:
        return str(self.summary())
