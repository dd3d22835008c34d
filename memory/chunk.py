"""A chunk: some iterations of a loop that run at a stretch, and the blocks that they fill."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ctrlgrad.errors import ExecutionError
from ctrlgrad.memory.block import Block, BlockOwner, BlockRecord, shape_of
from ctrlgrad.memory.checkpointing.states import States
from ctrlgrad.memory.residency.policy import Policy


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


class ChunkOwner(BlockOwner, Protocol):
    """What a chunk asks of its manager."""

    def new_block(self, chunk: ChunkRecord, shape: tuple[int, ...], dtype: np.dtype, label: str) -> Block:
        """A fresh block."""

    def seal(self, chunk: ChunkRecord, seconds: float) -> None:
        """The chunk's blocks are written."""

    def discard(self, chunk: ChunkRecord) -> None:
        """The chunk's blocks go."""


class Chunk:
    """A chunk while it runs forward, for the first time or again."""

    def __init__(self, manager: ChunkOwner, record: ChunkRecord) -> None:
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


class Recompute(Protocol):
    """What the manager asks of a loop that can run a chunk again from the state at its start."""

    def advance(self, state: Any, chunk: Chunk) -> Any:
        """Run one chunk from its entry state and give the state after it, which is the next chunk's entry state.

        It asks `chunk.block` for the same blocks in the same order as the first time, fills them and shrinks them
        alike. It does not seal the chunk, and it leaves `state` as it was: the state may be used again.
        """

    def copy_bytes(self, state: Any) -> int:
        """Bytes that holding a state costs."""


__all__ = ["Chunk", "ChunkOwner", "ChunkRecord", "LoopRecord", "Recompute"]
