"""Where the rows of a block lie, and where loops get the memory for their blocks.

A storage is opened before its rows are touched and closed after; between two uses a memory manager may keep the rows
elsewhere. Without a budget rows stay where they are, and both do nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np


class Storage(Protocol):
    """An array `[capacity, *element]`."""

    def open(self) -> Any:
        """The array, which stays where it is until `close`."""

    def close(self) -> None:
        """The array is not used any more, for now."""

    def shrink(self, rows: int) -> None:
        """Only the first rows matter from now on."""

    def share(self) -> None:
        """Another block holds this storage too."""

    def free(self) -> None:
        """One block less holds it; no row is read again through that one."""


class Blocks(Protocol):
    """Where a running chunk gets memory for what it pushes."""

    def block(self, shape: Sequence[int], dtype: np.dtype, label: str) -> Storage:
        """Memory for values that the backward pass takes back, the last first."""


class Supply(Protocol):
    """Where all other arrays of a loop come from."""

    def array(self, shape: Sequence[int], dtype: np.dtype, label: str) -> Storage:
        """Memory that stays where it is until it is freed."""


class Resident:
    """An array of this process's own memory."""

    __slots__ = ("array",)

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def open(self) -> np.ndarray:
        return self.array

    def close(self) -> None:
        pass

    def shrink(self, rows: int) -> None:
        if rows * 2 < len(self.array):
            self.array = self.array[:rows].copy()

    def share(self) -> None:
        pass

    def free(self) -> None:
        pass


class Unlimited:
    """Memory without a budget."""

    def array(self, shape: Sequence[int], dtype: np.dtype, label: str) -> Storage:
        return Resident(np.empty(shape, dtype))


UNLIMITED: Supply = Unlimited()

__all__ = ["UNLIMITED", "Blocks", "Resident", "Storage", "Supply", "Unlimited"]
