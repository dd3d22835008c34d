"""A block: one contiguous array of rows that a loop pushed, wherever its bytes are now.

The manager has the block's one record; who pushed or reads it has a handle. They are two objects since a handle that is
collected frees the block, which the manager could not see of an object that it holds itself.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ctrlgrad.errors import ExecutionError
from ctrlgrad.memory.arena.arena import Slot

if TYPE_CHECKING:
    from ctrlgrad.memory.chunk import ChunkRecord


@dataclass(eq=False, slots=True)
class BlockRecord:
    """What the manager knows of a block. `slots` has the block's bytes by level, None where they are not."""

    number: int
    label: str
    shape: tuple[int, ...]
    dtype: np.dtype
    chunk: ChunkRecord
    slots: list[Slot | None]
    # Rows that are worth keeping.
    rows: int
    holders: int = 1
    pins: int = 0
    is_open: bool = True
    failures: list[BaseException] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """Bytes of the rows that are worth keeping."""
        return math.prod(self.kept_shape) * self.dtype.itemsize

    @property
    def kept_shape(self) -> tuple[int, ...]:
        return (self.rows, *self.shape[1:]) if self.shape else ()

    @property
    def full_nbytes(self) -> int:
        """Bytes as the block was asked for."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def is_anywhere(self) -> bool:
        return any(slot is not None for slot in self.slots)


class BlockOwner(Protocol):
    """What a block asks of its manager."""

    def shrink(self, stored: BlockRecord, rows: int) -> None:
        """Only the first rows are worth keeping."""

    def open(self, stored: BlockRecord) -> Any:
        """The block's array, resident and pinned."""

    def close_block(self, stored: BlockRecord) -> None:
        """A reader is done."""

    def share(self, stored: BlockRecord) -> None:
        """One holder more."""

    def free(self, stored: BlockRecord) -> None:
        """One holder less."""

    def forget(self, stored: BlockRecord) -> None:
        """The block's handle is gone; runs in a finalizer."""


class Block:
    """A handle of a block; the block is freed when all holders have freed it, or at the latest with the handle."""

    def __init__(self, manager: BlockOwner, stored: BlockRecord, array: Any, is_owner: bool = True) -> None:
        self._manager = manager
        self._stored = stored
        self._array = array
        self._writable = True
        if is_owner:
            self._finalizer = weakref.finalize(self, manager.forget, stored)
            self._finalizer.atexit = False

    @property
    def label(self) -> str:
        return self._stored.label

    @property
    def nbytes(self) -> int:
        """Bytes of the rows that are worth keeping."""
        return self._stored.nbytes

    @property
    def shape(self) -> tuple[int, ...]:
        """The block's shape: as it was asked for while it is written, then of the rows that are worth keeping."""
        return self._stored.shape if self._writable else self._stored.kept_shape

    @property
    def dtype(self) -> np.dtype:
        return self._stored.dtype

    @property
    def array(self) -> Any:
        """The device's array of the rows while the block is being written or is open."""
        if self._array is None:
            raise ExecutionError(f"block {self.label!r}: its array is there only between open and close")
        return self._array

    def shrink(self, rows: int) -> None:
        """Only the first rows are worth keeping. Before the chunk is sealed."""
        stored = self._stored
        if not stored.shape or not 0 <= rows <= stored.shape[0]:
            raise ExecutionError(f"block {self.label!r}: it has no {rows} rows, its shape is {stored.shape}")
        self._manager.shrink(stored, rows)

    def sealed(self) -> None:
        """The array is no longer to be written to; the chunk calls it."""
        self._array = None
        self._writable = False

    def open(self) -> Any:
        """The rows, resident and pinned until `close`; the computation issued next may read them.

        Waits for a copy where it must, and starts the copies of the blocks that are read next. A block may be opened
        several times; each `open` has its `close`.

        Raises `MemoryBudgetError`, `TierRefusedError` or `BlockLostError` where the rows cannot be had.
        """
        if self._writable:
            raise ExecutionError(f"block {self.label!r}: opened before its chunk was sealed")
        array = self._manager.open(self._stored)
        self._array = array
        return array

    def close(self) -> None:
        """The reader has issued all work that reads the rows."""
        self._manager.close_block(self._stored)
        if not self._stored.pins:
            self._array = None

    def share(self) -> Block:
        """One holder more; each holder calls `free` once. Gives the same handle."""
        self._manager.share(self._stored)
        return self

    def free(self) -> None:
        """One holder less. With the last one the bytes go, in every tier."""
        self._manager.free(self._stored)
        if not self._stored.holders:
            self._array = None


def shape_of(shape: Sequence[int]) -> tuple[int, ...]:
    """A shape as a tuple of Python ints."""
    return tuple(int(n) for n in shape)


__all__ = ["Block", "BlockRecord", "shape_of"]
