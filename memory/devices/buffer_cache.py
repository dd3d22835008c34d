"""A cache of buffers: what was freed is handed out again for the same number of bytes.

Fresh memory is dear: a page fault for every page of RAM, a synchronisation for device memory. The cache never holds
more bytes, used and free, than were once in use at the same time, so memory grows with what is used, whatever the
sizes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from ctrlgrad.records import record

Buffer = TypeVar("Buffer")


@record
class _Free(Generic[Buffer]):
    size: int
    buffer: Buffer


class BufferCache(Generic[Buffer]):
    """Buffers by size, allocated by `make(size)` where none is free. Safe to use from several threads.

    Of free buffers the newest is handed out, which is the likeliest in the processor's cache; or the `oldest_first`,
    where who gets one waits for what was done with it last.

    >>> fresh = []
    >>> cache = BufferCache(lambda size: fresh.append(size) or bytearray(size))
    >>> cache.give(8, cache.take(8))
    >>> buffer = cache.take(8)
    >>> fresh, cache.used, cache.held
    ([8], 8, 8)
    """

    def __init__(self, make: Callable[[int], Buffer], *, oldest_first: bool = False) -> None:
        self._make = make
        self._oldest_first = oldest_first
        # `make` may ask for what is free to be let go of.
        self._lock = threading.RLock()
        # The longest unused first.
        self._free: list[_Free[Buffer]] = []
        self._idle = 0
        self.used = 0
        self.peak = 0

    @property
    def held(self) -> int:
        """Bytes of all buffers, used and free."""
        return self.used + self._idle

    def take(self, size: int) -> Buffer:
        """A buffer of exactly `size` bytes; free ones of other sizes go first where the cache would grow."""
        with self._lock:
            buffer = self._found(size)
            if buffer is None:
                while self._free and self.held + size > self.peak:
                    self._idle -= self._free.pop(0).size
                buffer = self._make(size)
            self.used += size
            self.peak = max(self.peak, self.used)
            return buffer

    def give(self, size: int, buffer: Buffer) -> None:
        """The buffer is free."""
        with self._lock:
            self.used -= size
            self._idle += size
            self._free.append(_Free(size, buffer))

    def clear(self) -> None:
        """Let go of the free buffers."""
        with self._lock:
            self._free.clear()
            self._idle = 0

    def _found(self, size: int) -> Buffer | None:
        positions = range(len(self._free))
        for position in positions if self._oldest_first else reversed(positions):
            if self._free[position].size == size:
                self._idle -= size
                return self._free.pop(position).buffer
        return None


__all__ = ["BufferCache"]
