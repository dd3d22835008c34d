"""Pinned host memory, allocated in slabs and cut here.

CuPy's pool rounds every request for pinned memory up, to a power of two at worst, and pinning is slow; a slab is pinned
once, with exactly its bytes. Slabs count as a whole: their sum never passes the host budget.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctrlgrad.errors import TierRefusedError
from ctrlgrad.memory.devices.device import Piece
from ctrlgrad.memory.devices.free_list import FreeList, Range


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

    `limit` is what all slabs may have in all, None for no limit. `cuda` is the module `cupy.cuda`; inside `current()`
    the device is the thread's current one; `let_go()` ends the hold that finished copies have on parts of slabs.
    """

    name = "host"
    granule = 1

    def __init__(
        self,
        cuda: Any,
        current: Callable[[], AbstractContextManager[None]],
        let_go: Callable[[], None],
        slab_bytes: int,
        limit: int | None,
    ) -> None:
        self._cuda = cuda
        self._current = current
        self._let_go = let_go
        self._slab_bytes = slab_bytes
        self.limit = limit
        self._lock = threading.Lock()
        self.slabs: list[_Slab] = []

    @property
    def nbytes(self) -> int:
        """Bytes that are pinned, in use or not."""
        return sum(slab.array.nbytes for slab in self.slabs)

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
        """A slab more, or where that is refused or passes the limit, what the request needs."""
        cuda = self._cuda
        free = FreeList()
        wanted = free.rounded(nbytes)
        for size in sorted({max(wanted, min(self._slab_bytes, self._room(wanted))), wanted}, reverse=True):
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
            got=f"{refused}; {self.nbytes} bytes are pinned",
            hint="lower the host budget, or raise the limit for locked memory (ulimit -l)",
        ) from refused

    def _room(self, wanted: int) -> int:
        """Bytes that a slab may have; slabs that are free as a whole go where they are too small."""
        if self.limit is None:
            return self._slab_bytes
        if self.nbytes + wanted > self.limit:
            self.slabs = [slab for slab in self.slabs if slab.free.nbytes < slab.array.nbytes]
            self._let_go()
        if self.nbytes + wanted > self.limit:
            free = sum(slab.free.nbytes for slab in self.slabs)
            raise TierRefusedError(
                "the host budget is pinned and has no free part that is large enough",
                expected=f"{wanted} bytes in one part",
                got=f"{self.nbytes} of {self.limit} bytes pinned, of which {free} are free in smaller parts",
                hint="a larger host budget: blocks lie in whole pages there, and not across two slabs",
            )
        return self.limit - self.nbytes


__all__ = ["PinnedBytes", "PinnedTier"]
