"""Storage of a block's rows, and the sources of memory for the blocks of loops.

A storage is opened before its rows are touched and closed afterwards; between two uses a memory manager may keep the
rows in another tier. Without a budget rows stay in place, and both do nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from ctrlgrad.memory.arena.pool import POOL


class Storage(Protocol):
    """An array `[capacity, *element]`."""

    def open(self) -> Any:
        """The array, which stays where it is until `close`."""

    def close(self) -> None:
        """The array is not used any more, for now."""

    def shrink(self, rows: int) -> None:
        """Only the first rows matter from now on."""

    def settle(self) -> None:
        """No more rows are written."""

    def share(self) -> None:
        """Another block holds this storage too."""

    def free(self) -> None:
        """One block less holds it; no row is read again through that one."""


class Blocks(Protocol):
    """Source of memory for the values that a running chunk pushes."""

    def block(self, shape: Sequence[int], dtype: np.dtype, label: str, stack: int = 0) -> Storage:
        """Memory for values that the backward pass takes back, the last first.

        Where the chunk runs again, it asks for the blocks of each `stack` in the same order.
        """


class Tail(Storage, Protocol):
    """A storage that rows are put into one by one, until it is full, opened or shared."""

    capacity: int

    def put(self, row: Any) -> bool:
        """Write the next row; False where no more are taken, or none like this one."""


class Tails(Protocol):
    """Source of storages for rows that a stack gets one by one."""

    def tail(self, row: Any, before: int) -> Tail:
        """An empty storage for rows like this one; `before` is how many the one below it took, 0 without one."""


class Supply(Protocol):
    """Source of memory for all other arrays of a loop."""

    def array(self, shape: Sequence[int], dtype: np.dtype, label: str) -> Storage:
        """Memory that stays where it is until it is freed."""


class Resident:
    """An array of this process's own memory.

    Several stacks may share its first rows; the unwritten rows after them go to the first stack that claims them.
    """

    __slots__ = ("_unclaimed", "array")

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        # The first unwritten row; empty while a stack writes there, or if no stack may.
        self._unclaimed: list[int] = []

    def release(self, row: int) -> None:
        """Release the rows from this one on, for another stack to claim."""
        self._unclaimed = [row]

    def claim(self, row: int) -> bool:
        """Take the rows from this one on, to write to them; False where there are none, or another stack has them."""
        try:
            # One step, also where several threads come at once.
            first = self._unclaimed.pop()
        except IndexError:
            return False
        if first != row or row == len(self.array):
            self._unclaimed.append(first)
            return False
        return True

    def open(self) -> np.ndarray:
        return self.array

    def close(self) -> None:
        pass

    def shrink(self, rows: int) -> None:
        if rows * 2 < len(self.array):
            self.array = self.array[:rows].copy()
            self._unclaimed = []

    def settle(self) -> None:
        pass

    def share(self) -> None:
        pass

    def free(self) -> None:
        pass


class ClaimedRows(Resident):
    """The rows of a block's memory that a stack has claimed; what it writes becomes a part of that block."""

    __slots__ = ("memory",)

    def __init__(self, memory: Resident, start: int) -> None:
        super().__init__(memory.array[start:])
        self.memory = memory


class Unlimited:
    """Memory without a budget: large arrays are buffers that were used before, where there are free ones."""

    def array(self, shape: Sequence[int], dtype: np.dtype, label: str) -> Storage:
        return Resident(POOL.empty(shape, dtype))


UNLIMITED: Supply = Unlimited()
