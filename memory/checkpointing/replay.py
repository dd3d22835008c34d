"""A chunk that runs again: it asks for the blocks of its first run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from ctrlgrad.errors import ExecutionError
from ctrlgrad.memory.arena.arena import Slot
from ctrlgrad.memory.chunk import Block, BlockRecord, Chunk, ChunkOwner, ChunkRecord, shape_of


class ReplayOwner(ChunkOwner, Protocol):
    """Manager's interface to a chunk that runs again."""

    def block_again(self, block: BlockRecord, keep: bool) -> tuple[Slot, Any]:
        """Bytes for a block that is being filled again; they are its own from the chunk's end on if `keep`."""


class ReplayedChunk(Chunk):
    """A chunk that is run again; gives the blocks of the first run, or bytes for the while where none is wanted."""

    def __init__(self, manager: ReplayOwner, record: ChunkRecord, keep: bool) -> None:
        super().__init__(manager, record)
        self._owner = manager
        self._keep = keep
        # The blocks that were not asked for yet.
        self._left = list(record.blocks)
        self.filled: list[tuple[BlockRecord, Slot]] = []

    def block(self, shape: Sequence[int], dtype: np.dtype, label: str, stack: int = 0) -> Block:
        """The next block of the first run, of those of a stack, to be filled again."""
        block = next((block for block in self._left if block.stack == stack), None)
        if block is None:
            raise self._differs("one block more", f"{len(self._record.blocks)} blocks")
        self._left.remove(block)
        wanted = (block.shape, block.dtype, block.label)
        asked = (shape_of(shape), np.dtype(dtype), label)
        if asked != wanted:
            raise self._differs(f"a block of shape, dtype and label {asked}", f"{wanted}")
        slot, array = self._owner.block_again(block, self._keep)
        self.filled.append((block, slot))
        handle = Block(self._owner, block, array, is_owner=False)
        self._handles.append(handle)
        return handle

    def seal(self, seconds: float) -> None:
        """Nothing: the manager knows that a chunk that was run again is complete."""

    def discard(self) -> None:
        raise self._differs("to run with more room", "the room of the first run")

    def check_complete(self) -> None:
        """All blocks of the first run have been asked for."""
        if self._left:
            count = len(self._record.blocks)
            raise self._differs(f"{count - len(self._left)} blocks", f"{count} blocks")
        for handle in self._handles:
            handle.sealed()

    def _differs(self, got: str, expected: str) -> ExecutionError:
        record = self._record
        return ExecutionError(
            f"loop {record.loop.label!r}: chunk {record.index} was run again and asked for other blocks",
            expected=expected,
            got=got,
            hint="a chunk must do the same each time it runs from the same state",
        )


__all__ = ["ReplayOwner", "ReplayedChunk"]
