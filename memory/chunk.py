"""A chunk: some iterations of a loop that run at a stretch, and the blocks that they fill."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ctrlgrad.errors import ExecutionError
from ctrlgrad.memory.arena.arena import Slot
from ctrlgrad.memory.block import Block, BlockRecord, shape_of
from ctrlgrad.memory.residency.policy import Policy

if TYPE_CHECKING:
    from ctrlgrad.memory.checkpointing.recompute import Recompute
    from ctrlgrad.memory.checkpointing.states import States
    from ctrlgrad.memory.manager import Manager


@dataclass(eq=False, slots=True)
class LoopRecord:
    """What the manager knows of one run of a loop that pushes."""

    number: int
    label: str
    # Which policies its chunks may have besides staying where they are.
    may_copy: bool
    recompute: Recompute | None
    states: States
    # Both policies are open and the planner chooses.
    is_mixed: bool
    # Without a device budget, chunks beyond those of one group are dropped as soon as they are sealed.
    drops_eagerly: bool
    # The policy of its chunks when they begin, and why.
    policy: Policy
    reason: str
    chunks: list[ChunkRecord] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)
    # While a chunk of it is run again: the chunk whose entry state that began from.
    recovers_from: int | None = None
    # Its last chunk has run.
    is_finished: bool = False

    @property
    def may_leave(self) -> bool:
        """Whether its blocks may leave the device."""
        return self.may_copy or self.recompute is not None


@dataclass(eq=False, slots=True)
class ChunkRecord:
    """What the manager knows of a chunk. `number` counts over all loops, `index` within the loop."""

    number: int
    index: int
    loop: LoopRecord
    policy: Policy
    reason: str
    blocks: list[BlockRecord] = field(default_factory=list)
    is_sealed: bool = False
    # Its blocks are nowhere: they must be computed again.
    is_dropped: bool = False
    # Its copies are under way, or done.
    is_leaving: bool = False
    nbytes: int = 0

    @property
    def is_alive(self) -> bool:
        return any(block.holders for block in self.blocks)


class Chunk:
    """A chunk while it runs forward, for the first time or again."""

    def __init__(self, manager: Manager, record: ChunkRecord) -> None:
        self._manager = manager
        self._record = record
        self._handles: list[Block] = []

    @property
    def index(self) -> int:
        """Which chunk of its loop, from 0."""
        return self._record.index

    def block(self, shape: Sequence[int], dtype: np.dtype, label: str) -> Block:
        """A fresh block to write to, resident and counted. `shape[0]` is the number of rows.

        Raises `MemoryBudgetError` where not enough bytes can be freed.
        """
        if self._record.is_sealed:
            raise ExecutionError(f"chunk {self.index} of {self._record.loop.label!r}: a block after it was sealed")
        block = self._manager.new_block(self._record, shape_of(shape), np.dtype(dtype), label)
        self._handles.append(block)
        return block

    def seal(self, seconds: float) -> None:
        """All computation that fills the blocks has been issued; it takes so many seconds."""
        for handle in self._handles:
            handle.sealed()
        # The handles are the caller's from now on.
        self._handles.clear()
        self._manager.seal(self._record, seconds)

    def discard(self) -> None:
        """The chunk is run again in larger blocks: these go. The next `begin` is for the same iterations."""
        for handle in self._handles:
            handle.sealed()
        self._handles.clear()
        self._manager.discard(self._record)


class RepeatedChunk(Chunk):
    """A chunk that is run again; gives the blocks of the first run, or bytes for the while where none is wanted."""

    def __init__(self, manager: Manager, record: ChunkRecord, keep: bool) -> None:
        super().__init__(manager, record)
        self._keep = keep
        self._next = 0
        self.filled: list[tuple[BlockRecord, Slot]] = []

    def block(self, shape: Sequence[int], dtype: np.dtype, label: str) -> Block:
        """The next block of the first run, to be filled again."""
        record = self._record
        if self._next >= len(record.blocks):
            raise self._differs("one block more", f"{len(record.blocks)} blocks")
        stored = record.blocks[self._next]
        self._next += 1
        wanted = (stored.shape, stored.dtype, stored.label)
        asked = (shape_of(shape), np.dtype(dtype), label)
        if asked != wanted:
            raise self._differs(f"a block of shape, dtype and label {asked}", f"{wanted}")
        slot, array = self._manager.block_again(stored, self._keep)
        self.filled.append((stored, slot))
        block = Block(self._manager, stored, array, is_owner=False)
        self._handles.append(block)
        return block

    def seal(self, seconds: float) -> None:
        """Nothing: the manager knows that a chunk that was run again is complete."""

    def discard(self) -> None:
        raise self._differs("to run with more room", "the room of the first run")

    def check_complete(self) -> None:
        """All blocks of the first run have been asked for."""
        if self._next != len(self._record.blocks):
            raise self._differs(f"{self._next} blocks", f"{len(self._record.blocks)} blocks")
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


__all__ = ["Chunk", "ChunkRecord", "LoopRecord", "RepeatedChunk"]
