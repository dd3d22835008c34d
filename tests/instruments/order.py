"""An independent judge of recorded runs: who waits for whom on a card, and when memory may be used again.

What the host puts on streams is recorded in the host's order, with the addresses that are read and written. Nothing is
known of the engine or the manager. What is judged is what CUDA promises and no more:

- work on one stream runs in the order in which it was put there, after whatever the host had waited for by then;
- a stream that waits for an event runs what is put there later after what was before the event;
- the host knows that work is over when it has waited for an event behind it, or has seen it done.

Two accesses to the same bytes, one of them a write, must be ordered so. So must an access and the end of its memory:
freed device memory goes to the next allocation on the stream that allocated it, pinned memory to the host. Bytes are
read only where they were written since they were allocated.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

# Number of steps that each actor (a stream, or the host) is known to have made.
Clock = dict[Any, int]
HOST = "the host"
Entry = tuple[Any, ...]


class OrderError(AssertionError):
    """A recorded run that only luck keeps from going wrong."""


@dataclass
class _Access:
    start: int
    end: int
    actor: Any
    step: int
    writes: bool


@dataclass
class _Memory:
    start: int
    end: int
    # The stream that allocated it; None for pinned memory.
    arena: Any
    written: np.ndarray
    accesses: list[_Access] = field(default_factory=list)


class Judge:
    """Judges the entries of a record, one after the other."""

    def __init__(self) -> None:
        self._clocks: dict[Any, Clock] = {HOST: {}}
        self._events: dict[Any, Clock] = {}
        self._starts: list[int] = []
        self._memory: dict[int, _Memory] = {}
        self.compared = 0

    def judge(self, entries: Sequence[Entry]) -> int:
        """Number of pairs of accesses that were compared. Raises `OrderError`."""
        for number, (what, *rest) in enumerate(entries):
            try:
                getattr(self, "_" + what.replace(" ", "_"))(*rest)
            except OrderError as error:
                raise OrderError(f"entry {number}: {error}") from None
        return self.compared

    def _clock(self, actor: Any) -> Clock:
        return self._clocks.setdefault(actor, {})

    def _join(self, actor: Any, other: Clock) -> None:
        clock = self._clock(actor)
        for key, step in other.items():
            clock[key] = max(clock.get(key, 0), step)

    def _recorded(self, event: Any, stream: Any) -> None:
        self._join(stream, self._clocks[HOST])
        self._events[event] = dict(self._clock(stream))

    def _waited(self, event: Any, stream: Any) -> None:
        self._join(stream, self._events.get(event, {}))

    def _host_waited(self, event: Any) -> None:
        self._join(HOST, self._events.get(event, {}))

    def _allocated(self, start: int, size: int, arena: Any) -> None:
        bisect.insort(self._starts, start)
        self._memory[start] = _Memory(start, start + size, arena, np.zeros(size, bool))

    def _freed(self, start: int) -> None:
        self._starts.remove(start)
        memory = self._memory.pop(start)
        known = dict(self._clocks[HOST])
        if memory.arena is not None:
            for actor, step in self._clock(memory.arena).items():
                known[actor] = max(known.get(actor, 0), step)
        for access in memory.accesses:
            if access.actor is not memory.arena and access.step > known.get(access.actor, 0):
                raise OrderError(f"memory is freed while {_told(access)} may go on")

    def _launched(self, stream: Any, reads: Sequence[tuple[int, int]], writes: Sequence[tuple[int, int]]) -> None:
        self._join(stream, self._clocks[HOST])
        clock = self._clock(stream)
        clock[stream] = clock.get(stream, 0) + 1
        for spans, is_write in ((reads, False), (writes, True)):
            for start, size in spans:
                if size:
                    self._accessed(_Access(start, start + size, stream, clock[stream], is_write), clock)

    def _accessed(self, access: _Access, clock: Clock) -> None:
        position = bisect.bisect_right(self._starts, access.start) - 1
        memory = self._memory[self._starts[position]] if position >= 0 else None
        if memory is None or access.end > memory.end:
            raise OrderError(f"{_told(access)}: there is no such memory")
        for before in memory.accesses:
            if before.start < access.end and access.start < before.end and (before.writes or access.writes):
                self.compared += 1
                if before.actor is not access.actor and before.step > clock.get(before.actor, 0):
                    raise OrderError(f"{_told(access)} does not wait for {_told(before)}")
        span = slice(access.start - memory.start, access.end - memory.start)
        if access.writes:
            memory.written[span] = True
        elif not memory.written[span].all():
            raise OrderError(f"{_told(access)}: some of it was never written")
        memory.accesses.append(access)


def _told(access: _Access) -> str:
    kind = "a write" if access.writes else "a read"
    return f"{kind} of {access.end - access.start} bytes at {access.start:#x} on {access.actor}"


__all__ = ["HOST", "Entry", "Judge", "OrderError"]
