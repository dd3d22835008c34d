"""Counts of what a manager did. Tests assert them; the profile shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from ctrlgrad.memory.arena.ledger import Account
from ctrlgrad.records import record


@record(frozen=False)
class Statistics:
    """Counts since the manager began; bytes, except where the name says otherwise."""

    accounts: Sequence[Account] = ()
    copies_out: int = 0
    copies_in: int = 0
    bytes_out: int = 0
    bytes_in: int = 0
    failed_copies: int = 0
    evictions: int = 0
    drops: int = 0
    # Runs of a chunk again, those between a kept state and the chunk that is needed included.
    recomputed_chunks: int = 0
    most_states: int = 0
    # Waits of the host or the computation for something that was not done yet.
    stalls: int = 0
    # Deviations from the plan, in words; `Recorder.fall_back` adds to it.
    fallbacks: list[str] = field(default_factory=list)

    @property
    def peak_bytes(self) -> Mapping[str, int]:
        """The most bytes in use at once, by tier."""
        return {account.tier: account.peak for account in self.accounts}

    @property
    def used_bytes(self) -> Mapping[str, int]:
        """Bytes in use now, by tier."""
        return {account.tier: account.used for account in self.accounts}

    @property
    def peak_bytes_by_kind(self) -> Mapping[str, Mapping[str, int]]:
        """By tier and kind; kinds have their peaks at different times."""
        return {account.tier: dict(account.peaks) for account in self.accounts}


__all__ = ["Statistics"]
