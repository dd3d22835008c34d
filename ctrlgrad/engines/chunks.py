"""The chunks of a running loop in a session, and their memory.

A loop begins a chunk, takes blocks from it, runs, and seals it. The manager counts the blocks, may ask for the state
that the chunk starts from, and may copy the blocks away, or drop them and have the chunk run again: then it takes the
same blocks from a `Replaying`. What an engine does with its stacks meanwhile is its own business.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from ctrlgrad import memory
from ctrlgrad.engines.account import with_room
from ctrlgrad.engines.reference.control_kernels import loop_name
from ctrlgrad.errors import UserInputError
from ctrlgrad.ir import Node, attributes
from ctrlgrad.memory.profile.records import Phase
from ctrlgrad.memory.session import current
from ctrlgrad.passes import CHUNK_BYTES
from ctrlgrad.records import record
from ctrlgrad.stacks.storage import Blocks, Storage

# The share of a budget that one chunk may push.
SHARE = 4

Snapshot = Callable[[], tuple[Any, int]]


def chunk_bytes() -> int:
    """Bytes that one chunk may push now: less under a budget in which several must find room.

    A power of two, so that budgets of about one size share what is compiled.
    """
    session = current()
    limit = None if session is None else session.budget.device
    return CHUNK_BYTES if limit is None else min(CHUNK_BYTES, 1 << max((limit // SHARE).bit_length() - 1, 0))


class Chunk(Blocks, Protocol):
    """A chunk that runs: where it gets its blocks, and when it is over."""

    def running(self) -> AbstractContextManager[object]:
        """Around the computation itself, to measure it."""

    def overwritten(self, count: int, ran: Any) -> list[list[Storage]]:
        """So many chunks ran in its blocks before it, each in this way: the blocks of each, which are nowhere."""

    def seal(self, ran: Any = None, seconds: float | None = None) -> None:
        """End the chunk; its blocks are written.

        `ran` is the record of its run, for a replay; `seconds` is its time, where `running` does not measure it.
        """

    def discard(self) -> None:
        """Drop the chunk: it has failed, or is run again with more room."""


_NOTHING: AbstractContextManager[None] = nullcontext()


class Held:
    """A block of a memory manager as a storage: an array to write to until its chunk is over, then to open."""

    __slots__ = ("block", "is_writable", "opened")

    def __init__(self, block: memory.Block, is_writable: bool = True) -> None:
        self.block = block
        self.is_writable = is_writable
        self.opened = 0

    def open(self) -> Any:
        if self.is_writable:
            return self.block.array
        array = with_room(self.block.open, self.block.nbytes)
        self.opened += 1
        return array

    def close(self) -> None:
        if self.opened:
            self.opened -= 1
            self.block.close()

    def shrink(self, rows: int) -> None:
        self.block.shrink(rows)

    def settle(self) -> None:
        if self.is_writable:
            self.is_writable = False
            self.block.settle()

    def share(self) -> None:
        self.block.share()

    def free(self) -> None:
        self.block.free()


class ManagedChunk:
    """A chunk of a managed loop."""

    def __init__(self, loop: ManagedLoop, chunk: memory.Chunk) -> None:
        self.manager, self.label, self.phase, self.is_part = loop.manager, loop.label, loop.phase, loop.is_part
        self.chunk, self.replay = chunk, loop.replay
        self.seconds, self.chunks_timed = 0.0, 1
        self._recorded: AbstractContextManager[None] | None = None
        self._held: list[Held] = []

    def block(self, shape: Sequence[int], dtype: np.dtype, label: str, stack: int = 0) -> Storage:
        self._held.append(_held(self.chunk, shape, dtype, label, stack))
        return self._held[-1]

    def running(self) -> ManagedChunk:
        return self

    def __enter__(self) -> None:
        if not self.is_part:
            self._recorded = self.manager.running(self.label, self.phase, self.label, self.chunk.index)
            self._recorded.__enter__()
        self.seconds -= time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter()
        if self._recorded is not None:
            self._recorded.__exit__(None, None, None)

    def overwritten(self, count: int, ran: Any) -> list[list[Storage]]:
        assert self.replay is not None
        first = self.chunk.index
        self.replay.ran.update(dict.fromkeys(range(first, first + count), ran))
        # The chunks that ran in these blocks before took their share of the time so far.
        self.chunks_timed += count
        return [[Held(block, is_writable=False) for block in blocks] for blocks in self.chunk.overwritten(count)]

    def seal(self, ran: Any = None, seconds: float | None = None) -> None:
        self._over()
        if self.replay is not None:
            self.replay.ran[self.chunk.index] = ran
        self.chunk.seal(self.seconds / self.chunks_timed if seconds is None else seconds)

    def discard(self) -> None:
        self._over()
        self.chunk.discard()

    def _over(self) -> None:
        for held in self._held:
            held.is_writable = False
        self._held.clear()


class ManagedLoop:
    """One run of a loop that pushes."""

    def __init__(
        self,
        node: Node,
        manager: memory.Manager,
        replay: Replay[Any] | None,
        phase: Phase,
        swap: bool | None,
        is_part: bool,
    ) -> None:
        self.manager, self.replay, self.label, self.phase = manager, replay, loop_name(node), phase
        self.is_part, self.lock = is_part, manager.lock
        # Of a loop over chunks and the loop over one chunk inside it, the outer one is run again.
        checkpoint = None if attributes.Loop.of(node).chunk is not None else attributes.Loop.of(node).checkpoint
        if checkpoint and replay is None:
            if phase == "forward":
                raise _cannot_repeat(node)
            # A loop that runs backward and is differentiated itself: what it pops is gone.
            checkpoint = None
        self.loop = manager.loop(self.label, swap=swap, checkpoint=checkpoint, recompute=replay)

    def begin(self, snapshot: Snapshot | None, state_bytes: int | None = None) -> Chunk:
        return ManagedChunk(self, self.loop.begin(snapshot, state_bytes))

    def passing(self) -> int:
        """Number of chunks that may run in the blocks of the chunk that has begun."""
        return self.loop.passing()

    def finish(self) -> None:
        self.loop.finish()

    def abandon(self) -> None:
        self.loop.abandon()


def _cannot_repeat(node: Node) -> UserInputError:
    return UserInputError(
        f"{loop_name(node)}: checkpoint is given, but its iterations cannot be run again",
        source=node.source,
        expected="a loop that only reads the arrays that it is given, and only appends to those that it fills",
        got="a loop that changes a TensorArray, reads one that it fills, or calls back",
        hint="leave checkpoint out, or use swap_memory=True",
    )


class _Unsealed:
    """A chunk that needs no seal, since no manager waits for its end."""

    def overwritten(self, count: int, ran: Any) -> list[list[Storage]]:
        raise AssertionError("its blocks are wanted")

    def passing(self) -> int:
        return 0

    def running(self) -> AbstractContextManager[None]:
        return _NOTHING

    def seal(self, ran: Any = None, seconds: float | None = None) -> None:
        pass

    def discard(self) -> None:
        pass


class Measured(_Unsealed):
    """A loop that pushes nothing, and each of its chunks: their time is recorded."""

    replay = None

    def __init__(self, node: Node, manager: memory.Manager, phase: Phase, is_part: bool) -> None:
        self.manager, self.label, self.phase = manager, loop_name(node), phase
        self.is_part, self.lock = is_part, manager.lock

    def begin(self, snapshot: Snapshot | None, state_bytes: int | None = None) -> Chunk:
        return self

    def block(self, shape: Sequence[int], dtype: np.dtype, label: str, stack: int = 0) -> Storage:
        raise AssertionError("a loop that pushes nothing needs no block")

    def running(self) -> AbstractContextManager[None]:
        return _NOTHING if self.is_part else self.manager.running(self.label, self.phase)

    def finish(self) -> None:
        pass

    abandon = finish


class Replaying(_Unsealed):
    """A chunk that is run again: its blocks are those of the first time."""

    def __init__(self, chunk: memory.Chunk) -> None:
        self.chunk = chunk

    def block(self, shape: Sequence[int], dtype: np.dtype, label: str, stack: int = 0) -> Storage:
        return _held(self.chunk, shape, dtype, label, stack)


def _held(chunk: memory.Chunk, shape: Sequence[int], dtype: np.dtype, label: str, stack: int) -> Held:
    """Block of a chunk; makes room for it where the budget is used up."""
    nbytes = math.prod(shape) * dtype.itemsize
    return Held(with_room(lambda: chunk.block(shape, dtype, label, stack), nbytes))


@record
class EntryState:
    """Entry state of a chunk: the carry, without the loop's captures. None stands for a stack that is made anew."""

    carry: tuple[Any, ...]

    @property
    def nbytes(self) -> int:
        return sum(map(bytes_of, self.carry))


def bytes_of(x: Any) -> int:
    """Bytes of a carried value that is held: an array or a number; rows of a stack count with the stack."""
    return int(x.nbytes) if hasattr(x, "ndim") else 0


R = TypeVar("R")


class Replay(Generic[R]):
    """Runs chunks of one run of a loop again. Implements `ctrlgrad.memory.Recompute`; `R` says how a chunk ran."""

    def __init__(self) -> None:
        # By the chunk's index.
        self.ran: dict[int, R] = {}

    def run(self, state: EntryState, chunk: Replaying, ran: R) -> EntryState:
        """Run the chunk that began with a state as it ran, into its blocks; gives the state after it."""
        raise NotImplementedError

    def advance(self, state: EntryState, chunks: Iterator[memory.Chunk], first: int, last: int) -> EntryState:
        for chunk in chunks:
            state = self.run(state, Replaying(chunk), self.ran[chunk.index])
        return state

    def skip(self, state: EntryState, first: int, last: int) -> EntryState | None:
        """The state some chunks later; None where those chunks have to fill their blocks for that."""
        return None

    def copy_bytes(self, state: EntryState) -> int:
        return state.nbytes


def managed(
    node: Node,
    manager: memory.Manager,
    replay: Replay[Any] | None,
    phase: Phase,
    *,
    pushes: bool,
    is_recorded: bool = False,
) -> ManagedLoop | Measured:
    """A run of a loop that begins; `replay` where its chunks can be run again.

    Its time is a part of that of the loop over chunks around it, and of whatever else is recorded already.
    """
    given = attributes.Loop.of(node)
    is_part = is_recorded or given.chunk is not None
    if not pushes:
        return Measured(node, manager, phase, is_part)
    # The products after a loop over one chunk use its rows at once, so they are not swapped.
    return ManagedLoop(node, manager, replay, phase, False if given.chunk is not None else given.swap_memory, is_part)
