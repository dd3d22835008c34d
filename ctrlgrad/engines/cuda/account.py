"""Accounting of one run in a session: its arrays and blocks, reported to the memory manager of its device.

Every array that the run makes on the device is counted before it is allocated, so the budget is hard for them too: the
library's allocator asks here. The bytes are given back when the array's memory is freed. An array or a block may die
at any point, also while the manager works. Its end is only noted then, and handled at the run's next request.

A row is a view that its reader may hold for as long as it likes. So a block is open (resident, at its place) as long
as an array of its rows or a view of one lives, and it is freed when no stack and no such array holds it: the array's
memory holds a `Lease`, which tells the manager when it dies.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ctrlgrad.engines.cuda.library import ArrayLibrary
from ctrlgrad.memory.arena import Reservation
from ctrlgrad.memory.manager import Manager
from ctrlgrad.runtime.stack import Storage

_BYTE = np.dtype(np.uint8)


class RunMemory:
    """Counts what one run allocates. Implements `ctrlgrad.engines.cuda.library.Memory`."""

    def __init__(self, manager: Manager, library: ArrayLibrary) -> None:
        self.manager, self.library = manager, library
        # The profile has a slice for what runs now: the loops inside are parts of it.
        self.is_recorded = False
        self._is_counting = True
        self._due: deque[Callable[[], None]] = deque()

    @property
    def stream(self) -> Any:
        return self.manager.device.compute

    @property
    def device(self) -> Any:
        return self.manager.device

    def count(self, nbytes: int) -> Reservation | None:
        """See to it that there is room for an array; its bytes count as long as the result lives.

        Raises `MemoryBudgetError` where no room can be made.
        """
        if not self._is_counting:
            return None
        self.settle()
        return self.manager.reserve(nbytes, "a value of the computation")

    def allocate(self, nbytes: int) -> Any:
        """Bytes from the manager itself, where the card is full although the budget has room: blocks leave for them.

        Raises `MemoryBudgetError` or `TierRefusedError` where no room can be made.
        """
        self.settle()
        return self.manager.allocate((nbytes,), _BYTE, "a value of the computation")

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Leave the arrays that are allocated inside uncounted: a replay's copies, which the manager counts as entry
        states."""
        before, self._is_counting = self._is_counting, False
        try:
            yield
        finally:
            self._is_counting = before

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Mark the work inside as part of a slice of the profile."""
        before, self.is_recorded = self.is_recorded, True
        try:
            yield
        finally:
            self.is_recorded = before

    def later(self, action: Callable[[], None]) -> None:
        """Do something with the manager, but not now; finalizers call it."""
        self._due.append(action)

    def settle(self) -> None:
        """Do what was to be done later."""
        while self._due:
            self._due.popleft()()


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
