"""Memory for arrays that compiled code reads and writes: it begins where a vector may, and is used again.

Fresh memory costs a page fault for every page that is first touched, so large arrays lie in buffers that are kept.

A buffer is free when no array that lies in it is held; the pool sees that from the buffer's reference count, so
nothing has to be given back. Small arrays have memory of their own.
"""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from ctrlgrad import forks
from ctrlgrad.memory.sizes import rounded_up

# Arrays of fewer bytes are left to NumPy, which keeps small memory itself.
LEAST_BYTES = 1 << 17
# Where memory begins: NumPy's begins anywhere at multiples of 16, and a vector that lies in two of the cache's lines is
# read and written twice.
ALIGNMENT = 64
# While the pool holds more, buffers in use included, free ones are let go, the longest unused first. Those in use may
# be more than that together.
LIMIT_BYTES = 1 << 29


class Cache(Protocol):
    """Owner of memory that is kept for reuse."""

    def release(self) -> None:
        """Give back the memory that is not in use."""


class BufferPool:
    """Buffers by size; safe to use from several threads."""

    def __init__(self, limit: int = LIMIT_BYTES) -> None:
        self.limit = limit
        self._lock = forks.lock()
        # The least recently used first.
        self._buffers: list[np.ndarray] = []
        self._caches: weakref.WeakSet[Cache] = weakref.WeakSet()

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers that the pool holds."""
        with self._lock:
            return sum(b.nbytes for b in self._buffers)

    def empty(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        """An array of uninitialised elements, as `aligned`; a view of a buffer where it is large."""
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes < LEAST_BYTES:
            return aligned(shape, dtype)
        with self._lock:
            return _within(self._take(nbytes), shape, dtype)

    def add(self, cache: Cache) -> None:
        """Register another owner of kept memory, which lets go of it when the pool does."""
        with self._lock:
            self._caches.add(cache)

    def clear(self) -> None:
        """Let go of all free buffers, and of what other owners keep. Buffers in use stay, and are free later."""
        with self._lock:
            caches = list(self._caches)
        for cache in caches:
            cache.release()
        with self._lock:
            self._release(0)

    def _take(self, nbytes: int) -> np.ndarray:
        size = rounded_up(nbytes, _step(nbytes)) + ALIGNMENT
        for position in reversed(range(len(self._buffers))):
            if self._buffers[position].nbytes == size and _is_free(self._buffers, position):
                buffer = self._buffers.pop(position)
                break
        else:
            buffer = np.empty(size, np.uint8)
        self._buffers.append(buffer)
        # `buffer` here is a reference: the one that is about to be handed out is in use.
        self._release(self.limit)
        return buffer

    def _release(self, limit: int) -> None:
        """Drop free buffers while there are more bytes than a limit."""
        total = sum(b.nbytes for b in self._buffers)
        position = 0
        while total > limit and position < len(self._buffers):
            if _is_free(self._buffers, position):
                total -= self._buffers.pop(position).nbytes
            else:
                position += 1


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


def _is_free(buffers: list[np.ndarray], position: int) -> bool:
    """Return true if only the list holds a buffer."""
    return sys.getrefcount(buffers[position]) <= _FREE


POOL = BufferPool()

__all__ = ["ALIGNMENT", "POOL", "BufferPool", "Cache", "aligned"]
