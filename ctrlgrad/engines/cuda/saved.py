"""Blocks of stacks that a memory manager has: a chunk gets them, fills them and leaves them to the manager.

What a loop carries out of a chunk is copied where it is a view into the chunk's own blocks; else the blocks could not
leave.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ctrlgrad.engines.cuda.account import RunMemory
from ctrlgrad.engines.cuda.leases import Saved
from ctrlgrad.engines.cuda.stacks import DeviceBlock, DeviceStack
from ctrlgrad.runtime.stack import Blocks

# Rows of a stack's first block in a chunk where the number of rows is unknown.
FIRST_ROWS = 4


class RowSupply:
    """Source of one stack's blocks in one chunk."""

    def __init__(self, chunk: PushedChunk, label: str, expected: int, number: int) -> None:
        self._chunk, self._number = chunk, number
        self.label = label
        # Rows that it will push in the chunk, as far as that is known; rows that it asked for so far; the most that
        # it may ask for, where that is known.
        self.expected = expected
        self.rows = 0
        self.most: int | None = None
        self._blocks: list[DeviceBlock] = []

    @property
    def is_over(self) -> bool:
        return self._chunk.is_over

    def enter(self, label: str, most: int) -> None:
        """A loop inside is going to push at most so many rows."""
        self.label, self.most = label, self.rows + most

    def block(self, shape: tuple[int, ...], dtype: np.dtype) -> DeviceBlock:
        """A block to push on."""
        rows = self.expected - self.rows if self.rows < self.expected else max(FIRST_ROWS, self.rows)
        if self.most is not None:
            rows = max(1, min(rows, self.most - self.rows))
        self.rows += rows
        self._blocks.append(self._chunk.block(rows, shape, dtype, self.label, self._number))
        return self._blocks[-1]

    @property
    def pushed(self) -> int:
        """The rows that it has pushed so far."""
        return sum(block.count for block in self._blocks)

    def forget(self) -> None:
        """The chunk is over. A stack may hold on to the supply; the supply must not hold on to blocks."""
        self._blocks.clear()


class PushedChunk:
    """The blocks that are filled while a chunk runs, for the first time or, where it is not their owner, again."""

    def __init__(self, memory: RunMemory, chunk: Blocks, is_owner: bool = True, needs: object = None) -> None:
        self.memory, self.chunk, self.is_owner, self._needs = memory, chunk, is_owner, needs
        self.is_over = False
        self._blocks: list[DeviceBlock] = []
        self._supplies: list[RowSupply] = []

    def supply(self, label: str, expected: int) -> RowSupply:
        """New source of a stack's blocks."""
        self._supplies.append(RowSupply(self, label, expected, len(self._supplies)))
        return self._supplies[-1]

    def block(self, rows: int, shape: tuple[int, ...], dtype: np.dtype, label: str, stack: int) -> DeviceBlock:
        """A fresh block that counts."""
        self.memory.settle()
        saved = Saved(self.memory, self.chunk.block((rows, *shape), dtype, label, stack), self.is_owner, self._needs)
        self._blocks.append(DeviceBlock(shape, rows, 0, True, saved.write(), saved))
        return self._blocks[-1]

    @property
    def nbytes(self) -> int:
        """Bytes of the rows that were pushed."""
        return sum(block.count * math.prod(block.shape) * block.array.dtype.itemsize for block in self._blocks)

    def detach(self, carry: list[Any]) -> int:
        """Copy what lies in the chunk's blocks and is carried on. Answers how many copies that were."""
        roots = {id(block.array) for block in self._blocks}
        copies = 0
        for holder, place in _arrays(carry):
            x = holder[place]
            if x is not None and id(getattr(x, "base", None)) in roots:
                holder[place] = self.memory.library.xp.array(x)
                copies += 1
        return copies

    def end(self) -> None:
        """The chunk has run, and nothing is pushed on its blocks any more."""
        self._close()
        for block in self._blocks:
            saved = block.saved
            assert saved is not None
            if self.is_owner and not saved.is_shared:
                saved.storage.shrink(block.count)
            block.open, block.array = False, None

    def leave(self) -> None:
        """Leave the blocks to the manager, after `end`. A block with a row that is still read stays at its place until
        then.

        In a chunk that runs again the manager takes them by itself.
        """
        blocks, self._blocks = self._blocks, []
        for block in blocks:
            assert block.saved is not None
            assert self.is_owner or not block.saved.is_in_use
            block.saved.stay()

    def abandon(self) -> None:
        """The chunk has failed."""
        self._close()
        self._blocks.clear()

    def _close(self) -> None:
        self.is_over = True
        for supply in self._supplies:
            supply.forget()
        self._supplies.clear()


def _arrays(carry: list[Any]) -> Iterator[tuple[Any, Any]]:
    """The places of the arrays that a loop carries: in the carry itself, and in lists of rows on the device."""
    for place, x in enumerate(carry):
        if isinstance(x, list):
            if not any(isinstance(row, np.generic) for row in x[-1:]):
                yield from ((x, number) for number in range(len(x)))
        elif not isinstance(x, DeviceStack):
            yield carry, place
