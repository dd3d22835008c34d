"""Counted bytes: what is in use in each tier, by kind, against the limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field

from ctrlgrad.errors import MemoryBudgetError
from ctrlgrad.memory.sizes import show_exactly, show_size
from ctrlgrad.records import record
from ctrlgrad.source import here

# Kinds of bytes: of blocks that may leave the device, and of those that may not; of the states that chunks may be run
# again from, and of the state of one that is being run again; and what lives for a while beside them. Callers may count
# kinds of their own.
BLOCKS, STAYING, STATES, RUNNING, TEMPORARY = "blocks", "staying blocks", "entry states", "running state", "temporary"


@record(eq=False, frozen=False)
class Account:
    """One tier: its limit (None: no limit), bytes in use by kind, and their peaks."""

    tier: str
    limit: int | None
    used: int = 0
    peak: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    peaks: Counter[str] = field(default_factory=Counter)
    # Told of every change.
    watch: Callable[[Account], None] | None = None

    @property
    def free(self) -> int | None:
        """Bytes up to the limit; None where there is none."""
        return None if self.limit is None else self.limit - self.used

    def fits(self, nbytes: int) -> bool:
        return self.limit is None or self.used + nbytes <= self.limit

    def add(self, nbytes: int, kind: str) -> None:
        """Count bytes. The caller has checked that they fit."""
        assert self.limit is None or self.used + nbytes <= self.limit, (
            f"{self.tier}: {self.used} + {nbytes} bytes pass the limit {self.limit}"
        )
        self.used += nbytes
        self.peak = max(self.peak, self.used)
        self.kinds[kind] += nbytes
        self.peaks[kind] = max(self.peaks[kind], self.kinds[kind])
        if self.watch is not None:
            self.watch(self)

    def subtract(self, nbytes: int, kind: str) -> None:
        self.used -= nbytes
        self.kinds[kind] -= nbytes
        if self.watch is not None:
            self.watch(self)

    def below_peaks(self, *without: str) -> int:
        """Bytes by which the kinds lie below their peaks, and which they may need again; some kinds left out."""
        total = sum(self.peaks.values()) - sum(self.kinds.values())
        return total - sum([self.peaks[kind] - self.kinds[kind] for kind in without])

    def show(self) -> str:
        """One line: used bytes by kind, and the limit."""
        kinds = ", ".join(f"{kind}: {show_size(n)}" for kind, n in sorted(self.kinds.items()) if n)
        limit = "no limit" if self.limit is None else f"limit {show_size(self.limit)}"
        return f"{self.tier}: {show_size(self.used)} used{f' ({kinds})' if kinds else ''}, {limit}"


def budget_error(
    accounts: Sequence[Account], level: int, nbytes: int, what: str, hint: str, refusals: Iterable[str]
) -> MemoryBudgetError:
    """The error of a request that cannot be met after all that could free bytes has been tried.

    `refusals` say which tiers had fewer bytes than their budgets.
    """
    account = accounts[level]
    if account.limit is None:
        expected = f"{nbytes} free bytes in tier {account.tier!r}"
    else:
        expected = f"a {account.tier} budget of {account.used + nbytes} bytes or more: this request with what must stay"
    error = MemoryBudgetError(
        f"memory: {what} needs {show_exactly(nbytes)} of tier {account.tier!r}, and no more can be freed",
        source=here(),
        expected=expected,
        got="\n".join([*(a.show() for a in accounts), *refusals]),
        hint=f"{hint}; ctrlgrad.memory.plan(f, ...) finds the least budget of a call",
    )
    error.needed = None if level or account.limit is None else account.used + nbytes
    return error


__all__ = ["BLOCKS", "RUNNING", "STATES", "STAYING", "TEMPORARY", "Account", "budget_error"]
