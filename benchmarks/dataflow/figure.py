"""The pictures of the dataflow cases, as the paper has them: rates as curves and bars.

    python -m benchmarks --only 'dataflow-*' --output benchmarks/results/dataflow
    python -m benchmarks.dataflow.figure benchmarks/results/dataflow

The first command measures; the second reads `dataflow.json` and writes `dataflow-curves.png` beside it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

Cases = Mapping[str, Mapping[str, Any]]
COUNTS, WINDOWS = [1, 2, 4, 8], [1, 2, 4, 8, 16, 32]
UNROLLING = "dataflow-unrolling-"
BLUE, ORANGE, GRAY = "tab:blue", "tab:orange", "0.6"


def draw(report: Mapping[str, Any], path: Path) -> list[str]:
    """Draw the dataflow cases of a report that were measured; returns the titles of what was drawn."""
    cases: Cases = {case["name"]: case for case in report["cases"]}
    panels = [(title, panel) for title, names, panel in PANELS if any(_costs(cases, name) for name in names)]
    if not panels:
        return []
    rows = -(-len(panels) // 3)
    figure = Figure(figsize=(13, 3.9 * rows), layout="constrained")
    every = figure.subplots(rows, min(3, len(panels)), squeeze=False).ravel()
    for axes, (title, panel) in zip(every, panels, strict=False):
        panel(axes, cases)
        axes.set_title(title, fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in every[len(panels) :]:
        axes.remove()
    machine, settings = report["machine"], report["settings"]
    figure.suptitle(f"{machine['date']}, {machine['processor']}, {settings['cores']} cores", fontsize=9, color="0.4")
    figure.savefig(path, dpi=110)
    return [title for title, _ in panels]


def _costs(cases: Cases, name: str) -> dict[str, float]:
    """Seconds per unit by label, of the entries that were measured."""
    entries = cases[name]["entries"] if name in cases else []
    return {entry["label"]: entry["cost"] for entry in entries if entry["cost"] is not None}


def _curve(
    axes: Axes, costs: Mapping[str, float], number: Callable[[str], int], label: str, style: str, **look: Any
) -> None:
    """Units per second over the number in each label."""
    points = sorted((number(text), 1 / cost) for text, cost in costs.items())
    if points:
        axes.plot([x for x, _ in points], [y for _, y in points], style, label=label, **look)


def _devices(axes: Axes, cases: Cases) -> None:
    for kind, colour in (("independent", BLUE), ("dependent", ORANGE)):
        every = _costs(cases, f"dataflow-devices-{kind}")
        for unit, style in (("device", "o-"), ("rank", "s--")):
            found = {label: cost for label, cost in every.items() if unit in label}
            _curve(axes, found, lambda text: int(text.split()[0]), f"{kind} cells, {unit}s", style, color=colour)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set(xlabel="devices or ranks", ylabel="iterations a second", xticks=COUNTS, xticklabels=COUNTS)
    axes.legend(frameon=False, fontsize=8)


def _windows(axes: Axes, cases: Cases) -> None:
    kinds = (("dataflow-window", BLUE, "two cores"), ("dataflow-window-latency", ORANGE, "1 ms apart"))
    for name, colour, label in kinds:
        _curve(axes, _costs(cases, name), lambda text: int(text.split()[1]), label, "o-", color=colour)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set(xlabel="parallel_iterations", ylabel="iterations a second", xticks=WINDOWS, xticklabels=WINDOWS)
    axes.legend(frameon=False, fontsize=8)


def _unrolling(axes: Axes, cases: Cases) -> None:
    batches = sorted(int(name.removeprefix(UNROLLING)) for name in cases if name.startswith(UNROLLING))
    costs = {batch: _costs(cases, f"{UNROLLING}{batch}") for batch in batches}
    ratios = {batch: c["dynamic"] / c["static"] for batch, c in costs.items() if len(c) == 2}
    axes.bar([str(batch) for batch in ratios], list(ratios.values()), color=BLUE, width=0.6)
    axes.axhline(1.0, color="0.3", linewidth=0.8)
    axes.axhspan(1.04, 1.09, color=ORANGE, alpha=0.3, label="the paper's loops: 4 to 9 % slower")
    axes.set(xlabel="batch", ylabel="seconds: loop / unrolled", ylim=(0, 1.3 * max(1.1, *ratios.values())))
    axes.legend(frameon=False, fontsize=8, loc="upper right")


def _bars(axes: Axes, costs: Mapping[str, float], colour: Callable[[str], str], what: str) -> None:
    """Draw a bar per entry. Its colour depends on its label alone, not on the set of measured entries."""
    labels = [label.replace(", ", "\n") for label in costs]
    rates = [1 / cost for cost in costs.values()]
    drawn = axes.barh(labels, rates, color=[colour(label) for label in costs], height=0.6)
    axes.bar_label(drawn, [f"{rate:,.3g}" if rate < 100 else f"{rate:,.0f}" for rate in rates], padding=3, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.2 * max(rates))
    axes.set_xlabel(what)
    axes.tick_params(axis="y", labelsize=8)


def _layers_colour(label: str) -> str:
    """Return a colour: the compared entries, one device and two devices, stand out from the gray of the rest."""
    return ORANGE if label == "one device" else BLUE if label.startswith("two devices") else GRAY


def _layers(axes: Axes, cases: Cases, name: str = "dataflow-layers") -> None:
    _bars(axes, _costs(cases, name), _layers_colour, "training steps a second")


def _learning_colour(label: str) -> str:
    return ORANGE if label == "from Python" else GRAY if "dataflow engine" in label else BLUE


def _learning(axes: Axes, cases: Cases) -> None:
    _bars(axes, _costs(cases, "dataflow-learning"), _learning_colour, "steps a second")


Panel = tuple[str, tuple[str, ...], Callable[[Axes, Cases], None]]
PANELS: tuple[Panel, ...] = (
    ("a loop over devices", ("dataflow-devices-independent", "dataflow-devices-dependent"), _devices),
    ("two devices, by iterations in flight", ("dataflow-window", "dataflow-window-latency"), _windows),
    ("dynamic against static unrolling", tuple(f"{UNROLLING}{n}" for n in (32, 64, 128, 256, 512)), _unrolling),
    ("two-layer LSTM", ("dataflow-layers",), _layers),
    ("small two-layer LSTM", ("dataflow-layers-small",), partial(_layers, name="dataflow-layers-small")),
    ("deep Q-learning", ("dataflow-learning",), _learning),
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dataflow.figure", description="pictures of a report")
    parser.add_argument("stem", type=Path, metavar="STEM", help="what `python -m benchmarks --output` was given")
    stem = parser.parse_args(arguments).stem
    record, picture = stem.with_name(f"{stem.name}.json"), stem.with_name(f"{stem.name}-curves.png")
    if not record.exists():
        print(f"there is no {record}", file=sys.stderr)
        return 2
    if not draw(json.loads(record.read_text(encoding="utf-8")), picture):
        print(f"{record} has no dataflow case that was measured", file=sys.stderr)
        return 1
    print(f"wrote {picture}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
