"""The memory of one run of one loop that pushes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from ctrlgrad.memory.chunk import Chunk, LoopRecord

Snapshot = Callable[[], tuple[Any, int]]


class LoopOwner(Protocol):
    """Manager's interface to a loop."""

    def wants_state(self, loop: LoopRecord) -> bool:
        """Return true if the next chunk's entry state is to be kept."""

    def begin(self, loop: LoopRecord, snapshot: Snapshot | None, state_bytes: int | None) -> Chunk:
        """A new chunk."""

    def passing(self, loop: LoopRecord) -> int:
        """Number of chunks that may run in the bytes of the current one."""

    def finish(self, loop: LoopRecord) -> None:
        """The loop has run its last chunk."""

    def abandon(self, loop: LoopRecord) -> None:
        """The loop's run has failed."""


class LoopMemory:
    """Gives a loop its chunks, and keeps the states that chunks may be run again from."""

    def __init__(self, manager: LoopOwner, record: LoopRecord) -> None:
        self._manager = manager
        self._record = record

    @property
    def label(self) -> str:
        return self._record.label

    @property
    def wants_state(self) -> bool:
        """True if the next `begin` would call `snapshot`."""
        return self._manager.wants_state(self._record)

    def begin(self, snapshot: Snapshot | None = None, state_bytes: int | None = None) -> Chunk:
        """A chunk that is about to run.

        `snapshot` gives the state that the chunk starts from, which stays unchanged afterwards, and the bytes that
        holding it costs; it is called only if the state is to be kept. `state_bytes` says those bytes beforehand, so
        that they are free first; without it they are assumed to be those of the last state.
        """
        return self._manager.begin(self._record, snapshot, state_bytes)

    def passing(self) -> int:
        """Number of chunks that may run in the blocks of the current one before it; `Chunk.overwritten` takes them."""
        return self._manager.passing(self._record)

    def finish(self) -> None:
        """The loop has run its last chunk."""
        self._manager.finish(self._record)

    def abandon(self) -> None:
        """The run has failed: all blocks and states of the loop go. Calling it again does nothing."""
        self._manager.abandon(self._record)


__all__ = ["LoopMemory", "LoopOwner", "Snapshot"]
