"""Pinned host memory, taken in slabs and cut here.

CuPy's pool rounds every request for pinned memory up, to a power of two at worst, and pinning is slow; a slab is pinned
once, with exactly its bytes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctrlgrad.errors import TierRefusedError
from ctrlgrad.memory.device import Piece
from ctrlgrad.memory.free_list import FreeList, Range


@dataclass(eq=False)
class _Slab:
    """Pinned memory, and what of it is free."""

    pointer: Any
    array: np.ndarray
    free: FreeList


@dataclass(eq=False)
class PinnedBytes:
    """A part of a slab, with an address as CuPy's pointers have."""

    slab: _Slab
    place: Range

    @property
    def ptr(self) -> int:
        return int(self.slab.pointer.ptr) + self.place.offset

    def bytes(self, nbytes: int) -> memoryview:
        """The first bytes, for the disk."""
        return self.slab.array.data[self.place.offset : self.place.offset + nbytes]


class PinnedTier:
    """Slabs of `slab_bytes`, or more where a piece is larger; a piece's handle is a part of one.

    `cuda` is the module `cupy.cuda`; inside `current()` the device is the thread's current one.
    """

    name = "host"

    def __init__(self, cuda: Any, current: Callable[[], AbstractContextManager[None]], slab_bytes: int) -> None:
        self._cuda = cuda
        self._current = current
        self._slab_bytes = slab_bytes
        self._lock = threading.Lock()
        self.slabs: list[_Slab] = []

    def allocate(self, nbytes: int) -> Piece:
        with self._lock:
            for slab in self.slabs:
                place = slab.free.take(nbytes)
                if place is not None:
                    return Piece(self.name, nbytes, PinnedBytes(slab, place))
            slab = self._grown(nbytes)
            place = slab.free.take(nbytes)
            assert place is not None
            return Piece(self.name, nbytes, PinnedBytes(slab, place))

    def free(self, piece: Piece) -> None:
        pinned, piece.handle = piece.handle, None
        if pinned is not None:
            with self._lock:
                pinned.slab.free.add(pinned.place)

    def clear(self) -> None:
        """Give the slabs back."""
        with self._lock:
            self.slabs.clear()

    def _grown(self, nbytes: int) -> _Slab:
        """A slab more, or where that is refused, what the request needs."""
        cuda = self._cuda
        free = FreeList()
        wanted = free.rounded(nbytes)
        for size in sorted({max(wanted, self._slab_bytes), wanted}, reverse=True):
            try:
                with self._current():
                    memory = cuda.PinnedMemory(size, cuda.runtime.hostAllocPortable)
            except cuda.runtime.CUDARuntimeError as cause:
                refused = cause
                continue
            pointer = cuda.PinnedMemoryPointer(memory, 0)
            free.add(Range(0, size))
            slab = _Slab(pointer, np.frombuffer(pointer, np.uint8, size), free)
            self.slabs.append(slab)
            return slab
        raise TierRefusedError(
            "the system refused pinned host memory",
            expected=f"{wanted} bytes",
            got=f"{refused}; {sum(s.array.nbytes for s in self.slabs)} bytes are pinned",
            hint="lower the host budget, or raise the limit for locked memory (ulimit -l)",
        ) from refused


__all__ = ["PinnedBytes", "PinnedTier"]
