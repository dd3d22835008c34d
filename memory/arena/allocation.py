"""Counted bytes of the device that are no block: they never leave it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from ctrlgrad.errors import ExecutionError
from ctrlgrad.memory.arena.arena import Slot


class Reservation:
    """Counted bytes of the device that lie in another allocator's memory."""

    def __init__(self, nbytes: int, kind: str, forget: Callable[[Reservation], None]) -> None:
        self.nbytes, self.kind = nbytes, kind
        self._forget = forget
        self._is_released = False

    def release(self) -> None:
        """The bytes are not used any more. Calling it again does nothing; a finalizer may call it."""
        if not self._is_released:
            self._is_released = True
            self._forget(self)


class Allocation:
    """Counted bytes of the device that never leave it: temporaries, states, results."""

    def __init__(
        self, slot: Slot, array: Any, label: str, release: Callable[[Slot], None], forget: Callable[[Slot], None]
    ) -> None:
        self.label = label
        self.nbytes = slot.nbytes
        self._array = array
        self._release = release
        self._finalizer = weakref.finalize(self, forget, slot)
        self._finalizer.atexit = False
        self._slot: Slot | None = slot

    @property
    def array(self) -> Any:
        """The device's array. Using it after `release` is an error of the caller."""
        if self._slot is None:
            raise ExecutionError(f"allocation {self.label!r}: it was released")
        return self._array

    def release(self) -> None:
        """All work that uses the array has been issued. Calling it again does nothing."""
        slot, self._slot, self._array = self._slot, None, None
        if slot is not None:
            self._finalizer.detach()
            self._release(slot)


__all__ = ["Allocation", "Reservation"]
