"""Records of loops, their chunks and the chunks' blocks, which refer to each other.

A chunk is some iterations of a loop that run at a stretch. A block is one contiguous array of rows that a chunk pushed,
wherever its bytes are now. Only the manager has records; a loop has handles (`ctrlgrad.memory.manager`). They are two
objects, since a handle that is collected frees its block, and the manager could not see that of an object that it holds
itself.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Any, Literal, Protocol

import numpy as np

from ctrlgrad.memory.arena import Slot
from ctrlgrad.memory.schedule import OrderedNumbers, States
from ctrlgrad.records import record

Policy = Literal["keep", "copy", "recompute"]
# The reason of a chunk's policy, before anything had to leave.
UNDECIDED = "not decided yet"


@record(eq=False, frozen=False)
class BlockRecord:
    """Manager's record of a block. `slots` has the block's bytes by level, None where they are not."""

    number: int
    label: str
    shape: tuple[int, ...]
    dtype: np.dtype
    chunk: ChunkRecord
    slots: list[Slot | None]
    # A bit for each tier that it lies in, and the next one if it is wanted and not on the device: kept by
    # `ResidencyIndex`.
    places: int
    # Rows that are worth keeping, their bytes, and the bytes as the block was asked for.
    rows: int
    nbytes: int
    full_nbytes: int
    # Number of its stack in the chunk: a chunk that runs again asks for a stack's blocks in their order.
    stack: int = 0
    holders: int = 1
    pins: int = 0
    # It is still being written.
    is_open: bool = True
    failures: list[BaseException] = field(default_factory=list)

    def keep(self, rows: int) -> None:
        """Only so many rows are worth keeping."""
        self.rows = rows
        self.nbytes = math.prod(self.kept_shape) * self.dtype.itemsize

    @property
    def kept_shape(self) -> tuple[int, ...]:
        return (self.rows, *self.shape[1:]) if self.shape else ()

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
    # The places of all its blocks, and the bytes of them that wait for copies: kept by `ResidencyIndex`.
    places: int = 0
    uncopied: int = 0


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
    # Policies of groups of its chunks that the planner has decided, and how many copies it owes the best share.
    decided: dict[int, Policy] = field(default_factory=dict)
    debt: float = 0.0
    # Its last chunk has run.
    is_finished: bool = False
    # Bytes of its largest chunk.
    most_bytes: int = 0
    # A chunk of it was dropped: bytes are short.
    has_dropped: bool = False


class Recompute(Protocol):
    """Loop's interface to the manager: run chunks again from the state at the start of one."""

    def advance(self, state: Any, chunks: Iterator[Any], first: int, last: int) -> Any:
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
