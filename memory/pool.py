"""Memory that is used again: ranges of a slab or a file, buffers that are given back, buffers that arrays lie in.

Fresh memory is dear: a page fault for every page of RAM that is first touched, a synchronisation for device memory.
"""

from __future__ import annotations

import math
import sys
import weakref
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from ctrlgrad import forks
from ctrlgrad.memory.sizes import rounded_up
from ctrlgrad.records import record

# Arrays of fewer bytes are left to NumPy, which keeps small memory itself.
LEAST_BYTES = 1 << 17
# Where memory begins: NumPy's begins anywhere at multiples of 16, and a vector that lies in two of the cache's lines is
# read and written twice.
ALIGNMENT = 64
# While the pool holds more, buffers in use included, free ones are let go, the longest unused first. Those in use may
# be more than that together.
LIMIT_BYTES = 1 << 29

Buffer = TypeVar("Buffer")


@record(order=True)
class Range:
    """`nbytes` bytes from `offset` on."""

    offset: int
    nbytes: int

    @property
    def end(self) -> int:
        return self.offset + self.nbytes


class FreeList:
    """Free ranges of a slab or a file, sorted; no two of them touch. Ranges are cut in multiples of `granule` bytes.

    >>> free = FreeList(granule=64)
    >>> free.add(Range(0, 256))
    >>> first, second = free.take(100), free.take(64)
    >>> first, second, free.take(128)
    (Range(offset=0, nbytes=128), Range(offset=128, nbytes=64), None)
    >>> free.add(first); free.add(second)
    >>> free.ranges
    [Range(offset=0, nbytes=256)]
    """

    def __init__(self, granule: int = 4096) -> None:
        self.granule = granule
        self.ranges: list[Range] = []

    @property
    def nbytes(self) -> int:
        """Free bytes in all."""
        return sum(r.nbytes for r in self.ranges)

    def rounded(self, nbytes: int) -> int:
        """The length of the range that `take` cuts for so many bytes."""
        return rounded_up(nbytes, self.granule)

    def take(self, nbytes: int) -> Range | None:
        """The first place where the bytes fit, or None."""
        wanted = self.rounded(nbytes)
        for position, found in enumerate(self.ranges):
            if found.nbytes >= wanted:
                if found.nbytes == wanted:
                    del self.ranges[position]
                else:
                    self.ranges[position] = Range(found.offset + wanted, found.nbytes - wanted)
                return Range(found.offset, wanted)
        return None

    def add(self, given: Range) -> None:
        """Make a range free, and join it with the neighbours that it touches."""
        position = bisect_left(self.ranges, given)
        offset, end = given.offset, given.end
        if position < len(self.ranges) and self.ranges[position].offset == end:
            end = self.ranges.pop(position).end
        if position and self.ranges[position - 1].end == offset:
            offset = self.ranges.pop(position - 1).offset
        insort(self.ranges, Range(offset, end - offset))


class Pool(Generic[Buffer]):
    """Buffers by size, allocated by `make(size)` where none is free. Safe to use from several threads.

    Free buffers go, the longest unused first, before used and free ones are more than `limit` bytes; without one, than
    were in use at the same time since the last `restrict`. Of free buffers the newest is handed out, which is the
    likeliest in the processor's cache; or the `oldest_first`, if its next owner waits for the end of its last use.

    >>> fresh = []
    >>> pool = Pool(lambda size: fresh.append(size) or bytearray(size))
    >>> pool.give(8, pool.take(8))
    >>> buffer = pool.take(8)
    >>> fresh, pool.used, pool.nbytes
    ([8], 8, 8)
    """

    def __init__(self, make: Callable[[int], Buffer], *, limit: int | None = None, oldest_first: bool = False) -> None:
        self._make, self._limit, self._oldest_first = make, limit, oldest_first
        # `make` may ask for free buffers to be let go of.
        self._lock = forks.recursive_lock()
        # Free buffers with their sizes by number, and the numbers by size; both the longest unused first.
        self._free: dict[int, tuple[int, Buffer]] = {}
        self._numbers: dict[int, deque[int]] = {}
        self._given = 0
        self.used = self.peak = 0
        self._idle = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers, used and free."""
        return self.used + self._idle

    def take(self, size: int) -> Buffer:
        """A buffer of exactly `size` bytes; free ones of other sizes go first where the pool would grow."""
        with self._lock:
            buffer = self._free_one(size)
            if buffer is None:
                self._shrink(max(self.peak, self.used + size) if self._limit is None else self._limit, size)
                buffer = self._make(size)
            self.used += size
            self.peak = max(self.peak, self.used)
            return buffer

    def give(self, size: int, buffer: Buffer) -> None:
        """The buffer is free."""
        with self._lock:
            self._given += 1
            self._free[self._given] = size, buffer
            self._numbers.setdefault(size, deque()).append(self._given)
            self.used -= size
            self._idle += size

    def clear(self) -> None:
        """Let go of the free buffers."""
        self.restrict(0)

    def restrict(self, more: int) -> None:
        """In a pool without a limit: keep free buffers of at most so many bytes, until more are in use again."""
        with self._lock:
            self.peak = min(self.peak, self.used + more)
            self._shrink(self.peak)

    # What an interrupted call leaves, and a fork beside one: a number without a buffer, or a buffer without a number.

    def _free_one(self, size: int) -> Buffer | None:
        while numbers := self._numbers.get(size):
            number = numbers.popleft() if self._oldest_first else numbers.pop()
            if not numbers:
                del self._numbers[size]
            if number in self._free:
                self._idle -= size
                return self._free.pop(number)[1]
        return None

    def _shrink(self, most: int, more: int = 0) -> None:
        """Let free buffers go while all and `more` bytes are more than `most`."""
        while self._free and self.used + self._idle + more > most:
            number, (size, _) = next(iter(self._free.items()))
            del self._free[number]
            self._idle -= size
            numbers = self._numbers.get(size)
            if numbers and numbers[0] == number:
                numbers.popleft()
                if not numbers:
                    del self._numbers[size]


class ArrayPool(Pool[np.ndarray]):
    """Pool of the buffers that large arrays lie in, which begin where a vector may.

    A buffer is free when no array that lies in it is held: its reference count tells, and nothing has to be given back.
    """

    def __init__(self, limit: int = LIMIT_BYTES) -> None:
        super().__init__(lambda size: np.empty(size, np.uint8), limit=limit)
        self._lent: list[np.ndarray] = []
        self._caches: weakref.WeakSet[Any] = weakref.WeakSet()

    def empty(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        """An array of uninitialised elements, as `aligned`; a view of a buffer where it is large."""
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes < LEAST_BYTES:
            return aligned(shape, dtype)
        with self._lock:
            self._take_back()
            buffer = self.take(rounded_up(nbytes, _step(nbytes)) + ALIGNMENT)
            self._lent.append(buffer)
            return _within(buffer, shape, dtype)

    def add(self, cache: Any) -> None:
        """Register another owner of kept memory: its `release` is called when the pool lets go of its own."""
        with self._lock:
            self._caches.add(cache)

    def clear(self) -> None:
        """Let go of all free buffers, and of what other owners keep. Buffers in use stay, and are free later."""
        with self._lock:
            caches = list(self._caches)
        for cache in caches:
            cache.release()
        with self._lock:
            self._take_back()
            self._shrink(0)

    def _take_back(self) -> None:
        for position in reversed(range(len(self._lent))):
            if sys.getrefcount(self._lent[position]) <= _FREE:
                buffer = self._lent.pop(position)
                self.give(buffer.nbytes, buffer)


def aligned(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """An array of uninitialised elements that begins where a line of the cache does; a view of memory of its own."""
    return _within(np.empty(math.prod(shape) * dtype.itemsize + ALIGNMENT, np.uint8), shape, dtype)


def _within(buffer: np.ndarray, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """The first array in a buffer that is aligned."""
    start = -buffer.ctypes.data % ALIGNMENT
    return buffer[start : start + math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)


def _step(nbytes: int) -> int:
    """An eighth of the next lower power of two: then arrays of nearly one size share buffers."""
    return max(1 << (nbytes.bit_length() - 4), 4096)


def _count(buffers: list[np.ndarray], position: int) -> int:
    return sys.getrefcount(buffers[position])


_FREE = _count([np.empty(1)], 0)

POOL = ArrayPool()
