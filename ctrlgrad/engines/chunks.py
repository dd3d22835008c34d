"""The chunks of a running loop and their memory: from the pool, or from the memory manager of the session.

A loop begins a chunk, takes blocks from it, runs, and seals it. Without a session that is all there is to it. In one,
the manager counts the blocks, may ask for the state that the chunk starts from, and may copy the blocks away, or drop
them and have the chunk run again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import numpy as np

from ctrlgrad import memory
from ctrlgrad.engines.account import CPU, empty, with_room
from ctrlgrad.engines.reference.control_kernels import loop_name
from ctrlgrad.errors import UserInputError
from ctrlgrad.ir import Node, attributes
from ctrlgrad.memory.chunk import Recompute
from ctrlgrad.memory.profile.records import Phase
from ctrlgrad.memory.session import current
from ctrlgrad.passes import CHUNK_BYTES
from ctrlgrad.stacks.storage import Blocks, Resident, Storage

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

    def running(self) -> AbstractContextManager[None]:
        """Around the computation itself, to measure it."""

    def seal(self) -> None:
        """It is over, and its blocks are written."""

    def discard(self) -> None:
        """It failed, or is run again with more room."""


class Chunks(Protocol):
    """One run of a loop."""

    is_counted: bool

    def begin(self, snapshot: Snapshot | None, state_bytes: int | None = None) -> Chunk:
        """The next chunk; `snapshot` gives the state that it starts from, of `state_bytes` bytes."""

    def finish(self) -> None:
        """The loop is over."""

    def abandon(self) -> None:
        """The loop has failed: nobody reads what it pushed."""


class _Loose:
    """A run of a loop and at once each of its chunks, where nobody has to know when a chunk begins and ends."""

    is_counted = True

    def begin(self, snapshot: Snapshot | None, state_bytes: int | None = None) -> Chunk:
        return self

    def block(self, shape: Sequence[int], dtype: np.dtype, label: str) -> Storage:
        return Resident(empty(shape, dtype, label))

    def running(self) -> AbstractContextManager[None]:
        return _NOTHING

    def seal(self) -> None:
        pass

    discard = finish = abandon = seal


class _Uncounted(_Loose):
    """A loop without a session: its blocks come from the pool."""

    is_counted = False


_NOTHING: AbstractContextManager[None] = nullcontext()
UNCOUNTED = _Uncounted()


class Held:
    """A block of a memory manager as a storage: an array to write to until its chunk is over, then to open."""

    __slots__ = ("block", "is_writable", "opened")

    def __init__(self, block: memory.Block) -> None:
        self.block = block
        self.is_writable = True
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

    def share(self) -> None:
        self.block.share()

    def free(self) -> None:
        self.block.free()


class ManagedChunk:
    """A chunk of a managed loop."""

    def __init__(self, loop: ManagedLoop, chunk: memory.Chunk) -> None:
        self.manager, self.label, self.phase, self.is_part = loop.manager, loop.label, loop.phase, loop.is_part
        self.chunk = chunk
        self.seconds = 0.0
        self._held: list[Held] = []

    def block(self, shape: Sequence[int], dtype: np.dtype, label: str) -> Storage:
        nbytes = math.prod(shape) * dtype.itemsize
        self._held.append(Held(with_room(lambda: self.chunk.block(shape, dtype, label), nbytes)))
        return self._held[-1]

    @contextmanager
    def running(self) -> Iterator[None]:
        start = time.perf_counter()
        with _NOTHING if self.is_part else self.manager.running(self.label, self.phase, self.label, self.chunk.index):
            yield
        self.seconds += time.perf_counter() - start

    def seal(self) -> None:
        self._over()
        self.chunk.seal(self.seconds)

    def discard(self) -> None:
        self._over()
        self.chunk.discard()

    def _over(self) -> None:
        for held in self._held:
            held.is_writable = False
        self._held.clear()


class ManagedLoop:
    """One run of a loop in a session."""

    is_counted = True

    def __init__(self, node: Node, manager: memory.Manager, replay: Recompute | None, phase: Phase, swap: Any) -> None:
        self.manager, self.label, self.phase = manager, loop_name(node), phase
        # The loop over chunks around it is what is recorded.
        self.is_part = attributes.Loop.of(node).chunk is not None
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


class Measured(_Loose):
    """A loop that pushes nothing, in a session: its time is recorded."""

    def __init__(self, node: Node, manager: memory.Manager, phase: Phase) -> None:
        self.manager, self.label, self.phase = manager, loop_name(node), phase
        self.is_part = attributes.Loop.of(node).chunk is not None

    def running(self) -> AbstractContextManager[None]:
        return _NOTHING if self.is_part else self.manager.running(self.label, self.phase)


class Replaying(_Loose):
    """A chunk that is run again: its blocks are those of the first time."""

    def __init__(self, chunk: memory.Chunk) -> None:
        self.chunk = chunk

    def block(self, shape: Sequence[int], dtype: np.dtype, label: str) -> Storage:
        nbytes = math.prod(shape) * dtype.itemsize
        return Held(with_room(lambda: self.chunk.block(shape, dtype, label), nbytes))


def managed(node: Node, replay: Recompute | None, phase: Phase, pushes: bool) -> Chunks:
    """The chunks of a loop in the session that there is."""
    session = current()
    assert session is not None
    manager = session.manager(CPU)
    if not pushes:
        return Measured(node, manager, phase)
    # What the loop over one chunk collects for itself is used at once, by the products after it.
    swap = False if attributes.Loop.of(node).chunk is not None else attributes.Loop.of(node).swap_memory
    return ManagedLoop(node, manager, replay, phase, swap)


def chunks_of(node: Node, replay: Recompute | None, phase: Phase, pushes: bool) -> Chunks:
    """The chunks of a loop that runs now."""
    return UNCOUNTED if current() is None else managed(node, replay, phase, pushes)


__all__ = ["UNCOUNTED", "Chunk", "Chunks", "Replaying", "Snapshot", "chunk_bytes", "chunks_of", "managed"]
