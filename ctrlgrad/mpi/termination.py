"""Finding out that all ranks wait for each other, so that a graph that cannot go on is an error there too.

A rank whose devices have all waited for `STILL` seconds tells rank 0 how many messages it has sent and received, and
says so again as long as it waits. All ranks are still for good if they have said so twice, the second time after all
had said it once, with the same numbers, and the sent ones are as many as the received ones.

Source: Mattern, "Algorithms for distributed termination detection", Distributed Computing 2, 1987 (the four-counter
method, with reports in place of its two waves).
"""

from __future__ import annotations

from dataclasses import dataclass, field

# Seconds between reports of a rank that waits.
STILL = 1.0


@dataclass(frozen=True, slots=True)
class Report:
    """One rank, still: how many messages it has sent and received, and what its nodes wait for, a line each."""

    sent: int
    received: int
    waiting: tuple[str, ...] = ()


@dataclass
class Stillness:
    """What rank 0 knows of all ranks.

    >>> found = Stillness(2)
    >>> [found.heard(0, Report(3, 1)), found.heard(1, Report(1, 3)), found.heard(0, Report(3, 1))]
    [False, False, False]
    >>> found.heard(1, Report(1, 3))
    True
    """

    ranks: int
    reports: dict[int, Report] = field(default_factory=dict)
    # The ranks that have said the same again since all had said it; None before all have.
    again: set[int] | None = None

    def heard(self, rank: int, report: Report) -> bool:
        """Take a report; whether all ranks are still for good."""
        if self.reports.get(rank) != report:
            self.reports[rank] = report
            self.again = None
        if self.again is None:
            counts = self.reports.values()
            if len(counts) == self.ranks and sum(r.sent for r in counts) == sum(r.received for r in counts):
                self.again = set()
            return False
        self.again.add(rank)
        return len(self.again) == self.ranks


__all__ = ["STILL", "Report", "Stillness"]
