"""Declarations of a comparison: cases, their entries, and the goal of each entry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

# "steady": seconds of a run after the first ones, in processes that live through all rounds.
# "first run": seconds of a process's first run, tracing and compilation included, imports and inputs not.
# "compilation": what the first run takes beyond a later one.
# "kept bytes": the bytes kept for the backward pass per iteration; counted once.
Measure = Literal["steady", "first run", "compilation", "kept bytes"]


@dataclass(frozen=True)
class Goal:
    """A bound on an entry's cost, or on its ratio: its cost over that of the case's first entry."""

    of: Literal["cost", "ratio"]
    sense: Literal["at least", "at most"]
    bound: float

    def is_met(self, cost: float, ratio: float | None) -> bool | None:
        """Return True if the figures keep the bound; None where there is no ratio."""
        figure = cost if self.of == "cost" else ratio
        if figure is None:
            return None
        return figure >= self.bound if self.sense == "at least" else figure <= self.bound


@dataclass(frozen=True)
class Entry:
    """One program of one system."""

    label: str
    # The system as `--peers` names it.
    system: str
    # "module:function"; the function takes the arguments and returns a `Program`.
    program: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    # Units of work in a run, where the program does not count them itself.
    units: float = 1.0
    goal: Goal | None = None
    # Whether its results are the same as those of the other entries.
    is_compared: bool = True
    # Whether compiled code of an earlier process may be found on disk.
    has_cache: bool = False
    # How many processes that do nothing but count run beside each of its runs.
    busy: int = 0


@dataclass(frozen=True)
class Case:
    """Entries that do the same work. All are compared with the first one."""

    name: str
    title: str
    # What one unit of work is called; the cost is per unit.
    unit: str
    entries: tuple[Entry, ...]
    measure: Measure = "steady"
    # The largest difference of an array's entries that passes, relative to the array's largest entry.
    tolerance: float = 1e-4
    # Arguments for the check of the results, where the timed runs differ in size from system to system.
    check: Mapping[str, Any] = field(default_factory=dict)
