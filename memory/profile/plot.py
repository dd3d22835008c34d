"""A recording as a picture: bytes of each tier over time, with the limits, and below them what each stream did."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctrlgrad.errors import UserInputError
from ctrlgrad.memory.profile.records import Recording
from ctrlgrad.memory.profile.trace import AWAY, BACK, Part, Timeline, timeline
from ctrlgrad.memory.profile.usage import Usage, usages
from ctrlgrad.memory.sizes import show_size

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
    size, unit = _byte_unit(max(highest, limit if limit is not None and limit < 4 * highest else 0))
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
    bound = "no limit" if limit is None else f"limit {show_size(limit)}"
    axes.set_title(f"{usage.name}: at most {show_size(highest)}, {bound}", loc="left", fontsize=10)
    axes.grid(axis="y", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _byte_unit(nbytes: float) -> tuple[int, str]:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if nbytes >= unit:
            return unit, name
    return 1, "bytes"


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
                spans = [_span(part, drawn.start, scale) for part in chosen]
                bar = (position - 0.38, 0.76)
                axes.broken_barh(spans, bar, facecolor=color, edgecolor="white", linewidth=edge)
    axes.set_yticks(range(len(rows)), rows)
    axes.set_ylim(max(len(rows), 1) - 0.4, -0.6)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", alpha=0.25)
    axes.set_axisbelow(True)


def _span(part: Part, start: float, scale: float) -> tuple[float, float]:
    return (part.start - start) * scale, part.length * scale


__all__ = ["write_plot"]
