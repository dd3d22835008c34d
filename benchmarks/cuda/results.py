"""Tables of a run's measurements so far. The files are written anew after each row."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

WIDTH = 250


@dataclass
class Check:
    """One mechanism: the greatest relative difference from the reference engine's results, None where it failed."""

    name: str
    difference: float | None = None
    graphs: int | None = None
    seconds: float | None = None
    note: str = ""
    has_failed: bool = False


@dataclass
class Row:
    """One measurement; None where there is none."""

    name: str
    length: int
    # Microseconds per iteration: the median of the repeats, and the least.
    median: float | None = None
    least: float | None = None
    loss: float | None = None
    # The greatest relative difference of the loss and the gradients from the native engine's, or from the first row's
    # of this length.
    difference: float | None = None
    launches: float | None = None
    graphs: int | None = None
    reads: int | None = None
    device_bytes: int | None = None
    host_bytes: int | None = None
    copied_bytes: int | None = None
    recomputed_chunks: int | None = None
    # Of one more step, which was recorded: the share in which the card waited for copies, and the share of the copies'
    # time that computation hid.
    stalled: float | None = None
    hidden: float | None = None
    # Memory of the card in use after the case, beside the pools. This includes CUDA's own part and other processes.
    beside_bytes: int | None = None
    note: str = ""
    has_failed: bool = False


@dataclass
class Group:
    """Rows of one program that are compared."""

    title: str
    rows: list[Row] = field(default_factory=list)


@dataclass
class Results:
    """All rows of a run, and where it ran."""

    machine: dict[str, Any]
    device: str
    budget: str
    checks: list[Check] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)

    @property
    def has_failed(self) -> bool:
        return any(row.has_failed for row in (*self.checks, *(row for group in self.groups for row in group.rows)))

    def group(self, title: str) -> list[Row]:
        """The rows of a new group."""
        self.groups.append(Group(title))
        return self.groups[-1].rows

    def tables(self) -> list[Table]:
        """Those that have rows."""
        found = [_checks("each mechanism against the reference engine", self.checks)] * bool(self.checks)
        return found + [_rows(group.title, group.rows) for group in self.groups if group.rows]

    def title(self) -> str:
        return f"{self.machine['date']}, {self.device}, ctrlgrad {self.machine['ctrlgrad']}"

    def write(self, stem: Path | None) -> None:
        """Write STEM.json and STEM.txt as they are by now, where there is a stem."""
        if stem is None:
            return
        stem.parent.mkdir(parents=True, exist_ok=True)
        with Path(f"{stem}.txt").open("w", encoding="utf-8") as file:
            console = Console(width=WIDTH, file=file)
            console.print(self.title())
            for table in self.tables():
                console.print(table)
        Path(f"{stem}.json").write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")


def _table(title: str, heads: Sequence[str]) -> Table:
    found = Table(title=title, title_justify="left")
    found.add_column("", no_wrap=True)
    for head in heads:
        found.add_column(head, justify="right")
    found.add_column("")
    return found


def _checks(title: str, checks: Sequence[Check]) -> Table:
    found = _table(title, ("difference", "graphs", "seconds"))
    for check in checks:
        numbers = _number(check.difference, ".1e"), _number(check.graphs, "d"), _number(check.seconds, ".2f")
        found.add_row(check.name, *numbers, check.note)
    return found


def _rows(title: str, rows: Sequence[Row]) -> Table:
    heads = ("iterations", "us/iteration", "least", "launches/iteration", "graphs/step", "waits/step")
    sizes = ("device MiB", "host MiB", "copied MiB/step", "MiB beside pools")
    found = _table(title, (*heads, *sizes, "chunks again/step", "stalled %", "hidden %", "loss", "difference"))
    for row in rows:
        numbers = (row.median, row.least, row.launches)
        nbytes = (row.device_bytes, row.host_bytes, row.copied_bytes, row.beside_bytes)
        found.add_row(
            row.name,
            str(row.length),
            *(_number(x, ".1f") for x in numbers),
            _number(row.graphs, "d"),
            _number(row.reads, "d"),
            *(_number(None if x is None else x / 2**20, ".1f") for x in nbytes),
            _number(row.recomputed_chunks, "d"),
            *(_number(None if x is None else 100 * x, ".1f") for x in (row.stalled, row.hidden)),
            _number(row.loss, ".6f"),
            _number(row.difference, ".1e"),
            row.note,
        )
    return found


def _number(x: float | None, how: str) -> str:
    return "" if x is None else format(x, how)


__all__ = ["WIDTH", "Check", "Group", "Results", "Row"]
