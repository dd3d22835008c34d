"""A loop's chunks and their blocks: what the manager knows of each, and what a loop holds of them.

A chunk is some iterations of a loop that run at a stretch. A block is one contiguous array of rows that a chunk pushed,
wherever its bytes are now. The manager has one record of each, which refer to each other; a loop has handles. Record
and handle are two objects, since a handle that is collected frees its block, and the manager could not see that of an
object that it holds itself.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Any, Protocol

import numpy as np

from ctrlgrad.errors import ExecutionError
from ctrlgrad.memory.arena.arena import Slot
from ctrlgrad.memory.arena.ordered import OrderedNumbers
from ctrlgrad.memory.checkpointing.states import States
from ctrlgrad.memory.residency.policy import Policy
from ctrlgrad.records import record

# Records.


@record(eq=False, frozen=False)
class BlockRecord:
    """Manager's record of a block. `slots` has the block's bytes by level, None where they are not."""

    number: int
    label: str
    shape: tuple[int, ...]
    dtype: np.dtype
    chunk: ChunkRecord
    slots: list[Slot | None]
    # Rows that are worth keeping.
    rows: int
    # Number of its stack in the chunk: a chunk that runs again asks for a stack's blocks in their order.
    stack: int = 0
    holders: int = 1
    pins: int = 0
    # It is still being written.
    is_open: bool = True
    failures: list[BaseException] = field(default_factory=list)
    # Bytes of the rows that are worth keeping.
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.nbytes = math.prod(self.shape) * self.dtype.itemsize

    def keep(self, rows: int) -> None:
        """Only so many rows are worth keeping."""
        self.rows = rows
        self.nbytes = math.prod(self.kept_shape) * self.dtype.itemsize

    @property
    def kept_shape(self) -> tuple[int, ...]:
        return (self.rows, *self.shape[1:]) if self.shape else ()

    @property
    def full_nbytes(self) -> int:
        """Bytes as the block was asked for."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def is_in_one_place(self) -> bool:
        return self.slots.count(None) == len(self.slots) - 1

    @property
    def is_anywhere(self) -> bool:
        return self.slots.count(None) < len(self.slots)


@record(eq=False, frozen=False)
class ChunkRecord:
    """Manager's record of a chunk. `number` counts over all loops, `index` within the loop."""

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
    # Blocks with a holder.
    held: int = 0
    # In which tiers it has a block, and whether a block with a holder is not on the device: kept by `ResidencyIndex`.
    places: list[bool] = field(default_factory=list)

    @property
    def is_alive(self) -> bool:
        return self.held > 0


@record(eq=False, frozen=False)
class LoopRecord:
    """Manager's record of one run of a loop that pushes."""

    number: int
    label: str
    # Policies that its chunks may have besides staying in place.
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
    # Indexes of the chunks that run, or have a block with a holder.
    alive: OrderedNumbers = field(default_factory=OrderedNumbers)
    lock: threading.RLock = field(default_factory=threading.RLock)
    # While a chunk of it is run again: the chunk whose entry state that began from.
    recovers_from: int | None = None
    # Its last chunk has run.
    is_finished: bool = False
    # Bytes of its largest chunk.
    most_bytes: int = 0
    # A chunk of it was dropped: bytes are short.
    has_dropped: bool = False

    @property
    def may_leave(self) -> bool:
        """True if its blocks may leave the device."""
        return self.may_copy or self.recompute is not None


# Handles.


class BlockOwner(Protocol):
    """Manager's interface to a block."""

    def shrink(self, block: BlockRecord, rows: int) -> None:
        """Only the first rows are worth keeping."""

    def settle(self, block: BlockRecord) -> None:
        """The block is complete."""

    def open(self, block: BlockRecord) -> Any:
        """The block's array, resident and pinned."""

    def close_block(self, block: BlockRecord) -> None:
        """A reader is done."""

    def share(self, block: BlockRecord) -> None:
        """One holder more."""

    def free(self, block: BlockRecord) -> None:
        """One holder less."""

    def forget(self, block: BlockRecord) -> None:
        """The block's handle is gone; runs in a finalizer."""


class Block:
    """A handle of a block; the block is freed when all holders have freed it, or at the latest with the handle."""

    def __init__(self, manager: BlockOwner, record: BlockRecord, array: Any, is_owner: bool = True) -> None:
        self._manager = manager
        self._record = record
        self._array = array
        self._writable = array is not None
        self._is_owner = is_owner

    def __del__(self) -> None:
        if self._is_owner and self._record.holders:
            self._manager.forget(self._record)

    @property
    def label(self) -> str:
        return self._record.label

    @property
    def nbytes(self) -> int:
        """Bytes of the rows that are worth keeping."""
        return self._record.nbytes

    @property
    def shape(self) -> tuple[int, ...]:
        """The block's shape: as it was asked for while it is written, then of the rows that are worth keeping."""
        return self._record.shape if self._writable else self._record.kept_shape

    @property
    def dtype(self) -> np.dtype:
        return self._record.dtype

    @property
    def array(self) -> Any:
        """The device's array of the rows while the block is being written or is open."""
        if self._array is None:
            raise ExecutionError(f"block {self.label!r}: its array is there only between open and close")
        return self._array

    def shrink(self, rows: int) -> None:
        """Only the first rows are worth keeping. Before the chunk is sealed."""
        record = self._record
        if not record.shape or not 0 <= rows <= record.shape[0]:
            raise ExecutionError(f"block {self.label!r}: it has no {rows} rows, its shape is {record.shape}")
        self._manager.shrink(record, rows)

    def settle(self) -> None:
        """All computation that fills the rows has been issued: the block may leave before its chunk is over."""
        if self._writable:
            self.sealed()
            self._manager.settle(self._record)

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
            raise ExecutionError(f"block {self.label!r}: opened before its chunk was sealed, or it was settled")
        array = self._manager.open(self._record)
        self._array = array
        return array

    def close(self) -> None:
        """The reader has issued all work that reads the rows."""
        self._manager.close_block(self._record)
        if not self._record.pins:
            self._array = None

    def share(self) -> Block:
        """One holder more; each holder calls `free` once. Gives the same handle."""
        self._manager.share(self._record)
        return self

    def free(self) -> None:
        """One holder less. With the last one the bytes go, in every tier."""
        self._manager.free(self._record)
        if not self._record.holders:
            self._array = None


class ChunkOwner(BlockOwner, Protocol):
    """Manager's interface to a chunk."""

    def new_block(self, chunk: ChunkRecord, shape: tuple[int, ...], dtype: np.dtype, label: str, stack: int) -> Block:
        """A fresh block."""

    def overwritten(self, chunk: ChunkRecord, count: int) -> list[list[Block]]:
        """Chunks have run in the blocks of this one."""

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
        """Number of the chunk in its loop, from 0."""
        return self._record.index

    def block(self, shape: Sequence[int], dtype: np.dtype, label: str, stack: int = 0) -> Block:
        """A fresh block to write to, resident and counted. `shape[0]` is the number of rows.

        `stack` numbers the stacks whose blocks a chunk that runs again may ask for in another order.

        Raises `MemoryBudgetError` where not enough bytes can be freed.
        """
        if self._record.is_sealed:
            raise ExecutionError(f"chunk {self.index} of {self._record.loop.label!r}: a block after it was sealed")
        block = self._manager.new_block(self._record, shape_of(shape), np.dtype(dtype), label, stack)
        self._handles.append(block)
        return block

    def overwritten(self, count: int) -> list[list[Block]]:
        """So many chunks have run in these blocks, one after the other, before the one that they are of now: the blocks
        of each, which are nowhere, and have all their rows. `LoopMemory.passing` says how many chunks may."""
        return self._manager.overwritten(self._record, count)

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
    """Loop's interface to the manager: run chunks again from the state at the start of one."""

    def advance(self, state: Any, chunks: Iterator[Chunk], first: int, last: int) -> Any:
        """Run the chunks from `first` to before `last` and give the state after them, the entry state of chunk `last`.

        It takes a chunk when the one before it is filled, and asks `chunk.block` for the same blocks in the same order
        as the first time, fills them and shrinks them alike. It does not seal chunks, and it leaves `state` as it was:
        the state may be used again.
        """

    def skip(self, state: Any, first: int, last: int) -> Any:
        """Give the state before chunk `last` from the one before chunk `first`, filling no blocks; or None, where a
        chunk cannot be run without its blocks."""

    def copy_bytes(self, state: Any) -> int:
        """Bytes that holding a state costs."""


def shape_of(shape: Sequence[int]) -> tuple[int, ...]:
    """A shape as a tuple of Python ints."""
    return tuple(map(int, shape))


__all__ = ["Block", "BlockRecord", "Chunk", "ChunkOwner", "ChunkRecord", "LoopRecord", "Recompute", "shape_of"]
