"""The picture of a report: how much each entry costs in multiples of ctrlgrad's cost, case by case."""

from __future__ import annotations

from pathlib import Path
from statistics import median
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
    "tool": "tab:brown",
    "ctrlgrad": "tab:green",
}


def draw(report: Report, path: Path) -> bool:
    """One line a case, one point an entry, with its label; False, and no file, where there is no ratio."""
    rows = [(case, [o for o in outcomes if o.ratios and min(o.ratios) > 0]) for case, outcomes in report.cases]
    rows = [(case, outcomes) for case, outcomes in rows if outcomes]
    if not rows:
        return False
    figure = Figure(figsize=(12, 1.5 + 0.17 * sum(len(outcomes) + 1 for _, outcomes in rows)), layout="constrained")
    axes = figure.subplots()
    height, ticks = 0.0, []
    for case, outcomes in rows:
        top = height
        for outcome in sorted(outcomes, key=lambda o: median(o.ratios)):
            ratio = median(outcome.ratios)
            colour = COLOURS[outcome.entry.system]
            axes.plot([min(outcome.ratios), max(outcome.ratios)], [height, height], color=colour, linewidth=2)
            axes.plot(ratio, height, "o", color=colour)
            text = f"{outcome.entry.label}  {ratio:.3g}"
            axes.annotate(text, (max(outcome.ratios), height), xytext=(7, -3), textcoords="offset points", fontsize=7)
            goal = outcome.entry.goal
            if goal is not None and goal.of == "ratio":
                axes.plot(goal.bound, height, "|", color="black", markersize=10)
            height += 1.0
        ticks.append(((top + height - 1.0) / 2, case.name))
        axes.axhline(height, color="0.9", linewidth=0.8)
        height += 1.0
    axes.axvline(1.0, color="0.4", linewidth=1)
    axes.set_xscale("log")
    axes.margins(x=0.02)
    left, right = axes.get_xlim()
    axes.set_xlim(left, right * (right / left) ** 0.25)  # room for the labels
    axes.set_yticks([y for y, _ in ticks], [name for _, name in ticks], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel(
        "cost / the cost of the case's first entry: to the right of 1 that one, ctrlgrad, is cheaper; | a goal"
    )
    machine, settings = report.machine, report.settings
    where = f"{machine['date']}, {machine['processor']}, {settings['cores']} cores, {settings['engine']} engine"
    axes.set_title(where, fontsize=9)
    figure.savefig(path, dpi=110)
    return True
