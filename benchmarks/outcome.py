"""Measurements of one entry of a case."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from benchmarks.case import Entry
from benchmarks.process import Failure


@dataclass
class Outcome:
    """Costs per unit of work, round by round, or why there are none."""

    entry: Entry
    failure: Failure | None = None
    costs: list[float] = field(default_factory=list)
    # Cost over the case's first entry's cost, round by round.
    ratios: list[float] = field(default_factory=list)
    # The first run of a process that lives through all rounds, at the size of the check.
    first_seconds: float | None = None
    # The processor's seconds, of all threads together, in the first run of each new process.
    processor_seconds: list[float] = field(default_factory=list)
    # Most resident memory of a run beyond that of the process before its first run: compiled code included.
    peak_bytes: int | None = None
    # The imports of each new process.
    import_seconds: list[float] = field(default_factory=list)
    # The largest relative difference of the results from those of the entry named.
    difference: float | None = None
    compared_with: str | None = None

    @property
    def cost(self) -> float | None:
        return statistics.median(self.costs) if self.costs else None

    @property
    def ratio(self) -> float | None:
        return statistics.median(self.ratios) if self.ratios else None

    @contextmanager
    def failure_kept(self) -> Iterator[None]:
        """Around a step of the work: a `Failure` ends the entry, not the comparison, and no figure of it stays."""
        try:
            yield
        except Failure as failure:
            self.failure = failure
            self.costs.clear()
            self.peak_bytes = None
            self.import_seconds.clear()
            self.processor_seconds.clear()


def still_going(outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
    """Iterate over the outcomes that have not failed so far."""
    return (outcome for outcome in outcomes if outcome.failure is None)
