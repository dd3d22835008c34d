"""Finding out that all ranks wait for each other, so that a graph that cannot go on is an error there too.

A rank whose devices have all waited for `IDLE_SECONDS` tells rank 0 how many messages it has sent and received, and
says so again as long as it waits. All ranks are quiescent if they have said so twice, the second time after all had
said it once, with the same numbers, and the sent ones are as many as the received ones.

Source: Mattern, "Algorithms for distributed termination detection", Distributed Computing 2, 1987 (the four-counter
method, with reports in place of its two waves).
"""

from __future__ import annotations

from dataclasses import field

from ctrlgrad.records import record

# Seconds between reports of a rank that waits.
IDLE_SECONDS = 1.0


@record
class IdleReport:
    """One rank, idle: how many messages it has sent and received, and what its nodes wait for, a line each."""

    sent: int
    received: int
    waiting: tuple[str, ...] = ()


@record(frozen=False)
class Quiescence:
    """Record on rank 0 of the idle reports of all ranks.

    >>> found = Quiescence(2)
    >>> [found.add(0, IdleReport(3, 1)), found.add(1, IdleReport(1, 3)), found.add(0, IdleReport(3, 1))]
    [False, False, False]
    >>> found.add(1, IdleReport(1, 3))
    True
    """

    ranks: int
    reports: dict[int, IdleReport] = field(default_factory=dict)
    # The ranks that have said the same again since all had said it; None before all have.
    repeated: set[int] | None = None

    def add(self, rank: int, report: IdleReport) -> bool:
        """Take a report in; whether all ranks are quiescent."""
        if self.reports.get(rank) != report:
            self.reports[rank] = report
            self.repeated = None
        if self.repeated is None:
            counts = self.reports.values()
            if len(counts) == self.ranks and sum(r.sent for r in counts) == sum(r.received for r in counts):
                self.repeated = set()
            return False
        self.repeated.add(rank)
        return len(self.repeated) == self.ranks
