"""A block of rows that a memory manager has, and who holds it.

A row is a view that its reader may hold for as long as it likes. So a block is open (resident, at its place) as long
as an array of its rows or a view of one lives, and it is freed when no stack and no such array holds it: the array's
memory holds a `Lease`, which tells the manager when it dies.
"""

from __future__ import annotations

import weakref
from typing import Any

from ctrlgrad.engines.cuda.account import RunMemory
from ctrlgrad.runtime.stack import Storage


class Lease:
    """Lives as long as an array of a block's rows. Where it pins the block, the block is closed with its end."""

    __slots__ = ("__weakref__", "is_pinning", "saved")

    def __init__(self, saved: Saved, is_pinning: bool) -> None:
        self.saved, self.is_pinning = saved, is_pinning

    def __del__(self) -> None:
        if self.is_pinning:
            self.saved.memory.later(self.saved.storage.close)


class Saved:
    """A block of the manager; freed with its last holder where it `is_owner`, which a chunk that runs again is not.

    It holds what its loop needs to be run again: that lives as long as one of the loop's blocks.
    """

    __slots__ = ("_needs", "_writing", "is_owner", "is_shared", "memory", "storage")

    def __init__(self, memory: RunMemory, storage: Storage, is_owner: bool, needs: object) -> None:
        self.memory, self.storage, self.is_owner, self._needs = memory, storage, is_owner, needs
        # True if two stacks hold it; they may differ in their numbers of rows.
        self.is_shared = False
        self._writing: weakref.ref[Lease] | None = None

    def __del__(self) -> None:
        if self.is_owner:
            self.memory.later(self.storage.free)

    def write(self) -> Any:
        """The array of the rows, to be written to until the chunk is over."""
        lease = Lease(self, False)
        self._writing = weakref.ref(lease)
        return self.memory.library.borrowed(self.storage.open(), lease)

    def open(self) -> Any:
        """The array of the rows, which stay where they are as long as it or a view of it lives."""
        self.memory.settle()
        return self.memory.library.borrowed(self.storage.open(), Lease(self, True))

    @property
    def is_in_use(self) -> bool:
        """Return true if a reader still holds one of the written rows."""
        return self._writing is not None and self._writing() is not None

    def stay(self) -> None:
        """End the chunk; while a reader still holds a row, the block stays at its place."""
        lease = self._writing() if self._writing is not None else None
        if lease is not None and not lease.is_pinning:
            self.storage.open()
            lease.is_pinning = True
