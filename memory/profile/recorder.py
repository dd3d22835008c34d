"""Writes what a manager does to the recording, where there is one, and counts it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import field
from typing import Any

from ctrlgrad.memory.arena import Account
from ctrlgrad.memory.chunk import UNDECIDED, BlockRecord, ChunkRecord
from ctrlgrad.memory.devices.device import Device, Event
from ctrlgrad.memory.profile.records import (
    Action,
    BlockEntry,
    BytesInUse,
    Computed,
    Copied,
    FellBack,
    Log,
    Overwrite,
    Phase,
    Recording,
    Stalled,
    TimedAction,
)
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


# Takes any arguments, and is no Python function: it is called dozens of times for a block.
IGNORED: Log = "".format
_NOTHING: AbstractContextManager[None] = nullcontext()


class Recorder:
    """The recording's entries of one manager."""

    def __init__(self, manager: int, device: Device, accounts: Sequence[Account], recording: Recording | None) -> None:
        self._manager, self._device, self._accounts = manager, device, accounts
        self.statistics = Statistics(accounts)
        self.phase: Phase = "forward"
        self.record(recording)

    def record(self, recording: Recording | None) -> None:
        """Write to a recording from now on, or to none."""
        self._recording = recording
        # Logs an action of such fields before it is done; of bytes that are counted, after.
        self.log: Log = IGNORED if recording is None else self._write
        for account in self._accounts:
            account.watch = None if recording is None else self._sample
        if recording is not None:
            recording.tiers[self._manager] = tuple((account.tier, account.limit) for account in self._accounts)
            recording.devices[self._manager] = self._device.name
            for account in self._accounts:
                self._sample(account)

    @property
    def is_on(self) -> bool:
        """True if there is a recording."""
        return self._recording is not None

    def _write(self, action: type[Action], *fields: Any) -> None:
        assert self._recording is not None
        self._recording.actions.append(TimedAction(self._device.now(), self._manager, action(*fields)))

    def fall_back(self, text: str) -> None:
        """Something had to be done otherwise than planned; the text says what, to which value, and why."""
        self.statistics.fallbacks.append(text)
        if self._recording is not None:
            self._recording.fell_back.append(FellBack(self._device.now(), self._manager, text))

    def _sample(self, account: Account) -> None:
        assert self._recording is not None
        self._recording.in_use.append(BytesInUse(self._device.now(), self._manager, account.tier, account.used))

    def copied(self, block: BlockRecord, source: str, target: str, stream: str, begun: Event, ended: Event) -> None:
        """A copy was started."""
        if self._recording is not None:
            copied = Copied(stream, block.label, begun, ended, block.number, source, target, block.nbytes)
            self._recording.copied.append(copied)

    def sealed(self, chunk: ChunkRecord) -> None:
        """A chunk's blocks are complete."""
        if self._recording is None:
            return
        now = self._device.now()
        self._recording.blocks.extend(
            BlockEntry(b.number, b.label, chunk.loop.label, chunk.index, b.nbytes, now, chunk.policy, chunk.reason)
            for b in chunk.blocks
        )

    def overwritten(self, chunk: ChunkRecord) -> None:
        """A chunk's blocks were complete, and the next chunk runs in their bytes."""
        if self._recording is not None:
            self.log(Overwrite, chunk.loop.number, chunk.index, tuple(block.number for block in chunk.blocks))
            self.sealed(chunk)

    def ended(self, chunk: ChunkRecord) -> None:
        """Record the final policy of a chunk whose last block was freed, and the reason, for the profile's values.

        An undecided chunk was copied before any time was measured, or nothing had to leave.
        """
        if self._recording is None:
            return
        reason = chunk.reason
        if reason == UNDECIDED:
            reason = "copied before the link was measured" if chunk.is_leaving else "there was room"
        self._recording.became.update((b.number, (chunk.policy, reason)) for b in chunk.blocks)

    def stalling(self, cause: str) -> AbstractContextManager[None]:
        """The computation may have nothing to do meanwhile."""
        self.statistics.stalls += 1
        found = self._recording
        if found is None:
            return _NOTHING
        return self._timed(lambda a, b: found.stalled.append(Stalled("compute", cause, a, b, self.phase, cause)))

    def running(
        self, label: str, phase: Phase = "forward", loop: str = "", chunk: int = -1, again: bool = False
    ) -> AbstractContextManager[None]:
        """Computation of a chunk is being issued; for the profile."""
        found = self._recording
        if found is None:
            return _NOTHING
        return self._timed(
            lambda a, b: found.computed.append(Computed("compute", label, a, b, phase, loop, chunk, again))
        )

    @contextmanager
    def _timed(self, note: Callable[[Event, Event], None]) -> Iterator[None]:
        """At the end `note` is called with the events around."""
        begun = self._device.compute.record()
        try:
            yield
        finally:
            note(begun, self._device.compute.record())
