"""The picture of a report: how much each entry costs in multiples of ctrlgrad's cost, case by case."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

if TYPE_CHECKING:
    from benchmarks.report import Report

COLOURS = {
    "jax": "tab:blue",
    "equinox": "tab:cyan",
    "diffrax": "tab:purple",
    "torch": "tab:red",
    "tensorflow": "tab:orange",
    "numpy": "tab:gray",
    "ctrlgrad": "tab:green",
}


def draw(report: Report, path: Path) -> bool:
    """One line a case, one point an entry, with its label; False, and no file, where there is no ratio."""
    rows = [(case, [o for o in outcomes if o.ratio is not None and o.ratio > 0]) for case, outcomes in report.cases]
    rows = [(case, outcomes) for case, outcomes in rows if outcomes]
    if not rows:
        return False
    figure = Figure(figsize=(12, 1.2 + 0.55 * sum(len(outcomes) ** 0.5 for _, outcomes in rows)), layout="constrained")
    axes = figure.subplots()
    height, ticks = 0.0, []
    for case, outcomes in rows:
        top = height
        for outcome in sorted(outcomes, key=lambda o: o.ratio or 0.0):
            colour = COLOURS[outcome.entry.system]
            axes.plot([min(outcome.ratios), max(outcome.ratios)], [height, height], color=colour, linewidth=2)
            axes.plot(outcome.ratio, height, "o", color=colour)
            text = f"{outcome.entry.label}  {outcome.ratio:.3g}"
            axes.annotate(text, (max(outcome.ratios), height), xytext=(7, -3), textcoords="offset points", fontsize=7)
            height += 1.0
        ticks.append(((top + height - 1.0) / 2, case.name))
        axes.axhline(height, color="0.9", linewidth=0.8)
        height += 1.0
    axes.axvline(1.0, color="0.4", linewidth=1)
    axes.set_xscale("log")
    axes.margins(x=0.15)
    axes.set_yticks([y for y, _ in ticks], [name for _, name in ticks], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("cost / the cost of the case's first entry, ctrlgrad: to the right of 1 ctrlgrad is cheaper")
    machine = report.machine
    axes.set_title(f"{machine['date']}, {machine['processor']}, {report.settings['cores']} cores", fontsize=9)
    figure.set_figheight(1.5 + 0.17 * height)
    figure.savefig(path, dpi=110)
    return True
