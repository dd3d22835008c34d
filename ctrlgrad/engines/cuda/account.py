"""Accounting of one run in a session: its arrays and blocks, reported to the memory manager of its device.

Every array that the run makes on the device is counted before it is allocated, so the budget is hard for them too: the
library's allocator asks here. The bytes are given back when the array's memory is freed.

An array or a block may die at any point, also in the middle of what the manager does. What is to be done then is only
noted, and done when the run next has something to ask of the manager.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ctrlgrad.engines.cuda.library import ArrayLibrary
from ctrlgrad.memory.arena import Reservation
from ctrlgrad.memory.manager import Manager

_BYTE = np.dtype(np.uint8)


class Counted:
    """Bytes that are counted as long as this lives."""

    __slots__ = ("_reservation",)

    def __init__(self, reservation: Reservation) -> None:
        self._reservation = reservation

    def __del__(self) -> None:
        self._reservation.release()


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

    def count(self, nbytes: int) -> Counted | None:
        """See to it that there is room for an array; its bytes count as long as the result lives.

        Raises `MemoryBudgetError` where no room can be made.
        """
        if not self._is_counting:
            return None
        self.settle()
        return Counted(self.manager.reserve(nbytes, "a value of the computation"))

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
