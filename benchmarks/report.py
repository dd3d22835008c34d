"""Outcomes as a table, as JSON, and as a picture."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from benchmarks.case import Case, Goal
from benchmarks.outcome import Outcome


@dataclass
class Report:
    """Everything that one run of the comparison found."""

    machine: dict[str, Any]
    settings: dict[str, Any]
    versions: dict[str, str]
    cases: list[tuple[Case, list[Outcome]]]

    def json(self) -> str:
        """The report as JSON; costs are per unit, in seconds or bytes."""
        found = [{**_case_record(case), "entries": [_record(o) for o in outcomes]} for case, outcomes in self.cases]
        record = {"machine": self.machine, "settings": self.settings, "versions": self.versions, "cases": found}
        return json.dumps(record, indent=1) + "\n"

    def save(self, stem: Path, text: str) -> list[Path]:
        """Write `stem.json`, the printed tables as `stem.txt`, and `stem.png` where there are ratios to draw.

        Returns the files that were written; without matplotlib there is no picture.
        """
        stem.parent.mkdir(parents=True, exist_ok=True)
        record, tables, picture = (stem.with_name(f"{stem.name}.{end}") for end in ("json", "txt", "png"))
        record.write_text(self.json())
        tables.write_text(text)
        picture.unlink(missing_ok=True)
        return [record, tables] + ([picture] if has_matplotlib() and _draw(self, picture) else [])


def has_matplotlib() -> bool:
    return find_spec("matplotlib") is not None


def _draw(report: Report, path: Path) -> bool:
    from benchmarks.plot import draw

    return draw(report, path)


def _case_record(case: Case) -> dict[str, Any]:
    return {
        "name": case.name,
        "title": case.title,
        "measure": case.measure,
        "unit": case.unit,
        "tolerance": case.tolerance,
    }


def _record(outcome: Outcome) -> dict[str, Any]:
    entry, goal, failure = outcome.entry, outcome.entry.goal, outcome.failure
    return {
        "label": entry.label,
        "system": entry.system,
        "program": entry.program,
        "arguments": dict(entry.arguments),
        "status": failure.status if failure else "ok",
        "error": failure.text if failure else None,
        "details": failure.details if failure else None,
        "cost": outcome.cost,
        "costs": outcome.costs,
        "ratio": outcome.ratio,
        "ratios": outcome.ratios,
        "goal": None if goal is None else {"of": goal.of, "sense": goal.sense, "bound": goal.bound},
        "goal_is_met": _is_met(outcome),
        "first_seconds": outcome.first_seconds,
        "peak_bytes": outcome.peak_bytes,
        "import_seconds": outcome.import_seconds,
        "processor_seconds": outcome.processor_seconds,
        "difference": outcome.difference,
        "compared_with": outcome.compared_with,
    }


def _is_met(outcome: Outcome) -> bool | None:
    goal, cost = outcome.entry.goal, outcome.cost
    return None if goal is None or cost is None else goal.is_met(cost, outcome.ratio)


def quantity(value: float, is_bytes: bool) -> str:
    """A cost with a unit that suits its size."""
    scales = [(1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B")]
    if not is_bytes:
        scales = [(1, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")]
    size, name = next((s for s in scales if abs(value) >= s[0]), scales[-1])
    return f"{value / size:.3g} {name}" if abs(value) < 1000 * size else f"{value / size:,.0f} {name}"


def table(case: Case, outcomes: Sequence[Outcome]) -> Table:
    """The table of one case."""
    is_bytes = case.measure == "kept bytes"
    made = Table(title=escape(f"{case.name}: {case.title}"), title_justify="left")
    made.add_column("")
    made.add_column(f"per {case.unit}", justify="right")
    made.add_column("spread", justify="right")
    made.add_column(f"/ {escape(outcomes[0].entry.label)}", justify="right")
    made.add_column("goal")
    made.add_column("largest difference", justify="right")
    made.add_column("notes")
    for outcome in outcomes:
        made.add_row(*map(escape, _row(outcome, is_bytes)))
    return made


def _row(outcome: Outcome, is_bytes: bool) -> list[str]:
    label, cost = outcome.entry.label, outcome.cost
    if outcome.failure is not None:
        return [label, outcome.failure.status, "", "", _goal(outcome, is_bytes), "", _brief(outcome.failure.text)]
    spread = "" if cost is None or not cost or len(outcome.costs) < 2 else _spread(outcome.costs, cost)
    ratio = "" if outcome.ratio is None else f"{outcome.ratio:.3g}"
    gap = "" if outcome.difference is None else f"{outcome.difference:.0e}"
    notes = ""
    if outcome.import_seconds:
        notes = f"imports {quantity(min(outcome.import_seconds), False)}"
        if outcome.processor_seconds:
            notes = f"processor {quantity(statistics.median(outcome.processor_seconds), False)}, {notes}"
    elif outcome.first_seconds is not None:
        notes = f"first run {quantity(outcome.first_seconds, False)}"
        if outcome.peak_bytes is not None:
            notes += f", peak {quantity(outcome.peak_bytes, True)}"
    shown = "" if cost is None else quantity(cost, is_bytes)
    return [label, shown, spread, ratio, _goal(outcome, is_bytes), gap, notes]


def _spread(costs: Sequence[float], median: float) -> str:
    return f"-{1 - min(costs) / median:.0%} +{max(costs) / median - 1:.0%}"


def _goal(outcome: Outcome, is_bytes: bool) -> str:
    goal: Goal | None = outcome.entry.goal
    if goal is None:
        return ""
    bound = f"{goal.bound:.3g}" if goal.of == "ratio" else quantity(goal.bound, is_bytes)
    verdict = {True: "met", False: "missed", None: "not measured"}[_is_met(outcome)]
    return f"{goal.sense} {bound}: {verdict}"


def _brief(text: str) -> str:
    line = text.splitlines()[0] if text else ""
    return line if len(line) <= 100 else line[:97] + "..."
