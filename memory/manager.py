"""The memory manager of one device: blocks inside a hard budget, wherever they have to be.

Loops fill blocks chunk by chunk and read them back, the newest first. Counted bytes (blocks, entry states, temporaries,
bytes that copies land in) never pass the limit of a tier: blocks leave before an allocation (`residency.eviction`).
How is the policy of their chunk: keep, copy, recompute; the planner chooses where the user has not. Several threads may
use a manager. What finalizers find waits for the next call.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from ctrlgrad.errors import ExecutionError
from ctrlgrad.memory.arena.allocation import Allocation, Reservation
from ctrlgrad.memory.arena.arena import Arena, Slot
from ctrlgrad.memory.arena.ledger import TEMPORARY, Account
from ctrlgrad.memory.arena.order import Order
from ctrlgrad.memory.budget import Budget
from ctrlgrad.memory.checkpointing.recoverer import Recoverer
from ctrlgrad.memory.checkpointing.store import StateStore
from ctrlgrad.memory.chunk import Block, BlockRecord, Chunk, ChunkRecord, LoopRecord, Recompute, shape_of
from ctrlgrad.memory.devices.device import Device
from ctrlgrad.memory.loop import LoopMemory, Snapshot
from ctrlgrad.memory.profile.actions import Use
from ctrlgrad.memory.profile.recorder import Recorder
from ctrlgrad.memory.profile.records import Phase, Recording
from ctrlgrad.memory.profile.statistics import Statistics
from ctrlgrad.memory.residency.eviction import Evictor
from ctrlgrad.memory.residency.index import ResidencyIndex
from ctrlgrad.memory.residency.loop_policy import loop_record
from ctrlgrad.memory.residency.mover import Mover
from ctrlgrad.memory.residency.planner import Planner
from ctrlgrad.memory.residency.prefetch import Prefetcher
from ctrlgrad.memory.residency.reader import Reader
from ctrlgrad.memory.residency.throttle import Throttle
from ctrlgrad.memory.residency.writer import Writer

_NUMBERS = itertools.count(1)


class Manager:
    """Blocks, allocations and states of one device; see the module's docstring.

    >>> from ctrlgrad.memory.devices.simulated import SimulatedDevice
    >>> device = SimulatedDevice({"device": 1 << 20, "host": 1 << 20}, blocking=True)
    >>> manager = Manager(device, Budget(device=100))
    >>> loop = manager.loop("loop", swap=True)
    >>> blocks = []
    >>> for number in range(4):
    ...     chunk = loop.begin()
    ...     block = chunk.block((5,), np.dtype(np.float64), "x")
    ...     block.array[:] = number
    ...     chunk.seal(seconds=1e-3)
    ...     blocks.append(block)
    >>> loop.finish()
    >>> for block in reversed(blocks):
    ...     print(block.open()[0])
    ...     block.close()
    ...     block.free()
    3.0
    2.0
    1.0
    0.0
    >>> manager.close()
    """

    def __init__(self, device: Device, budget: Budget | None = None, recording: Recording | None = None) -> None:
        budget = budget or Budget()
        self.number, self.device, self.budget = next(_NUMBERS), device, budget
        self.lock = threading.RLock()
        self.accounts = [Account(tier.name, budget.limit(tier.name)) for tier in device.tiers]
        self.stats = Statistics(self.accounts)
        self.recorder = Recorder(self.number, device, self.accounts, recording, self.stats)
        self.order = Order(self.recorder)
        self.arena = Arena(device, self.accounts, self.order, self.recorder)
        self.index = ResidencyIndex(len(device.tiers))
        self.mover = Mover(device, self.arena, self.index, self.order, self.recorder, self.stats)
        self.evictor = Evictor(self.mover, self.recorder, lambda: self.state_store.spare())
        self.planner = Planner(device.copies_take_cores)
        self.prefetcher = Prefetcher(self.evictor, self.accounts)
        self.state_store = StateStore(self.evictor, self.recorder, self.planner, self.stats)
        self.throttle = Throttle(device, self.order)
        self.reader = Reader(self.evictor, self.prefetcher, self.planner, self.recorder, self.throttle)
        self.writer = Writer(self.evictor, self.prefetcher, self.planner, self.recorder, self.throttle)
        self.recoverer = Recoverer(
            self, self.lock, self.evictor, self.state_store, self.throttle, self.recorder, self.stats
        )
        self._chunks, self._loops = itertools.count(1), itertools.count(1)
        # Blocks that finalizers found without a holder: appended from anywhere, worked off under the lock.
        self._forgotten: deque[BlockRecord | Slot | Reservation] = deque()
        self.is_closed = False

    # Allocations.

    def allocate(self, shape: Sequence[int], dtype: np.dtype, label: str, kind: str = TEMPORARY) -> Allocation:
        """Counted, uninitialised bytes of the device that stay there until they are released.

        Raises `MemoryBudgetError` where not enough bytes can be freed.
        """
        shape, dtype = shape_of(shape), np.dtype(dtype)
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        with self.lock:
            self._enter()
            slot = self.evictor.take(0, nbytes, kind, label)
            array = self.device.array(slot.piece, shape, dtype)
            return Allocation(slot, array, label, self.release, self._forgotten.append)

    def release(self, slot: Slot) -> None:
        """Give an allocation's bytes back; `Allocation.release` calls it."""
        with self.lock:
            self._retire_used(slot)

    def _retire_used(self, slot: Slot) -> None:
        """Give back a slot that computation issued so far may use."""
        self.recorder.log(Use, slot.number)
        slot.last_use = self.order.mark(self.device.compute)
        self.arena.retire(slot)

    def fits(self, nbytes: int) -> bool:
        """Return true if this number of bytes is free on the device without an eviction."""
        with self.lock:
            self._enter()
            return self.accounts[0].fits(nbytes)

    def reserve(self, nbytes: int, label: str, kind: str = TEMPORARY) -> Reservation:
        """Count bytes of the device that another allocator owns, until they are released.

        Raises `MemoryBudgetError` where not enough bytes can be freed.
        """
        with self.lock:
            self._enter()
            self.evictor.reserve(0, nbytes, label)
            self.accounts[0].add(nbytes, kind)
            return Reservation(nbytes, kind, self._forgotten.append)

    # Loops and chunks.

    def loop(
        self,
        label: str,
        *,
        swap: bool | None = None,
        checkpoint: bool | int | None = None,
        recompute: Recompute | None = None,
    ) -> LoopMemory:
        """One run of a loop that pushes.

        `swap`: False: blocks never leave the device; True: they are copied away and never computed again; None: the
        planner chooses. `checkpoint`: True: blocks are computed again, from entry states that the manager thins; a
        number: from at most so many states; None: the planner chooses; False: never. Computing again needs `recompute`.
        """
        if swap is True and len(self.accounts) == 1:
            self.recorder.fall_back(f"{label}: swap_memory=True on a device without a second tier")
        is_limited = self.accounts[0].limit is not None
        tiers = len(self.accounts)
        record = loop_record(next(self._loops), label, swap, checkpoint, recompute, tiers=tiers, is_limited=is_limited)
        return LoopMemory(self, record)

    def wants_state(self, loop: LoopRecord) -> bool:
        """Return true if the next chunk's entry state is to be kept; `LoopMemory.wants_state` asks it."""
        with self.lock:
            return self.state_store.wants(loop)

    def keep_to_copies(self, label: str) -> bool:
        """Choose copies for loops with this label from now on; whether the planner had chosen otherwise.

        For a caller that can begin anew what a choice by measured times has left without room.
        """
        with self.lock:
            was_chosen = self.planner.keep_to_copies(label)
            if was_chosen:
                self.recorder.fall_back(f"{label}: there was no room to compute chunks again; begun anew, with copies")
            return was_chosen

    def begin(self, loop: LoopRecord, snapshot: Snapshot | None, state_bytes: int | None) -> Chunk:
        """A new chunk; `LoopMemory.begin` calls it."""
        with self.lock:
            self._enter()
            self.recorder.phase = "forward"
            index = len(loop.chunks)
            wants = snapshot is not None and self.state_store.wants(loop)
            if wants:
                self.state_store.expect(loop, state_bytes)
        # Without the lock: it is the caller's code.
        kept = snapshot() if wants and snapshot is not None else None
        with self.lock:
            if kept is not None:
                self.state_store.keep(loop, index, *kept)
            record = ChunkRecord(next(self._chunks), index, loop, loop.policy, loop.reason)
            loop.chunks.append(record)
            loop.alive.put(index, True)
            self.index.add(record)
            return Chunk(self, record)

    def new_block(self, chunk: ChunkRecord, shape: tuple[int, ...], dtype: np.dtype, label: str, stack: int) -> Block:
        """A fresh block of a chunk; `Chunk.block` calls it."""
        with self.lock:
            self._enter()
            block, array = self.writer.new_block(chunk, shape, dtype, label, stack)
            return Block(self, block, array)

    def block_again(self, block: BlockRecord, keep: bool) -> tuple[Slot, Any]:
        """Bytes for a block that is being filled again; they are its own from the chunk's end on if `keep`."""
        with self.lock:
            self._enter()
            return self.writer.block_again(block, keep)

    def shrink(self, block: BlockRecord, rows: int) -> None:
        """Only the first rows of a block are worth keeping; `Block.shrink` calls it."""
        with self.lock:
            if block.is_open:
                block.keep(rows)
            elif rows != block.rows:
                raise ExecutionError(f"block {block.label!r}: {rows} rows this time, {block.rows} the first time")

    def passing(self, loop: LoopRecord) -> int:
        """Number of chunks that may run in the bytes of the current one, each overwriting its predecessor.

        Bytes are short, so they would be dropped before they are read, and none of them begins with a state to keep.
        """
        distance = loop.states.distance
        is_steady = self.accounts[0].limit is not None and loop.has_dropped and loop.states.limit is None
        if not (is_steady and loop.recompute is not None and self.planner.computes_again(loop)):
            return 0
        return distance - 1 - (len(loop.chunks) - 1) % distance

    def overwritten(self, chunk: ChunkRecord, count: int) -> list[list[Block]]:
        """So many chunks ran in the bytes of one before it; `Chunk.overwritten` calls it. Their blocks are nowhere."""
        with self.lock:
            loop, first = chunk.loop, chunk.index
            self.index.remove(chunk)
            loop.chunks.pop()
            found = []
            for index in range(first, first + count):
                record = ChunkRecord(next(self._chunks), index, loop, "recompute", chunk.reason)
                loop.chunks.append(record)
                found.append([Block(self, block, None) for block in self.writer.overwritten(chunk, record)])
            self.planner.computed_again(loop)
            for index in range(first, first + count + 1):
                loop.alive.put(index, True)
            chunk.number, chunk.index = next(self._chunks), first + count
            loop.chunks.append(chunk)
            self.index.add(chunk)
            return found

    def settle(self, block: BlockRecord) -> None:
        """A block of a chunk that goes on is written; `Block.settle` calls it."""
        with self.lock:
            self._enter()
            self.writer.settle(block)

    def seal(self, chunk: ChunkRecord, seconds: float) -> None:
        """A chunk's blocks are written; `Chunk.seal` calls it."""
        with self.lock:
            self._enter()
            self.writer.seal(chunk, seconds)
            self.state_store.thin(chunk.loop)
            self.writer.leave_early(chunk)
            if not chunk.is_alive:  # nothing was pushed
                self._ended(chunk)

    def discard(self, chunk: ChunkRecord) -> None:
        """A chunk is run again in larger blocks; `Chunk.discard` calls it. Its entry state stays."""
        with self.lock:
            self._free_blocks(chunk)
            self._leave_out(chunk)

    def _free_blocks(self, chunk: ChunkRecord) -> None:
        for block in chunk.blocks:
            block.pins = 0
            if block.holders:
                self._let_go_of(block)
                self.mover.free(block)

    def _let_go_of(self, block: BlockRecord) -> None:
        block.holders = 0
        block.chunk.held -= 1

    def _ended(self, chunk: ChunkRecord) -> None:
        """Nothing reads a chunk again."""
        self.index.remove(chunk)
        chunk.loop.alive.put(chunk.index, False)

    def _leave_out(self, chunk: ChunkRecord) -> None:
        """A chunk is given up while it runs."""
        self._ended(chunk)
        chunks = chunk.loop.chunks
        if chunks and chunks[-1] is chunk:
            chunks.pop()
        else:
            chunks[:] = [other for other in chunks if other is not chunk]

    def finish(self, loop: LoopRecord) -> None:
        """A loop has run its last chunk; `LoopMemory.finish` calls it."""
        with self.lock:
            self._enter()
            loop.is_finished = True
            for index in list(loop.states.indexes):
                self.state_store.discard_unneeded(loop, index)
            self._end(loop)

    def abandon(self, loop: LoopRecord) -> None:
        """Drop the blocks of a loop whose run has failed."""
        with self.lock:
            self.throttle.settle()
            for chunk in loop.chunks:
                self._free_blocks(chunk)
                self._ended(chunk)
            self.state_store.discard_all(loop)
            self._let_go(loop)

    # Reading.

    def open(self, block: BlockRecord) -> Any:
        """A block's array, resident and pinned; `Block.open` calls it."""
        while True:
            with self.lock:
                self._enter()
                try:
                    array = self.reader.open(block)
                except Exception:
                    self.throttle.settle()
                    raise
                if array is not None:
                    return array
            self.recoverer.recover(block)

    def synchronize(self) -> None:
        """Wait for the copies that computation was put behind, and raise the first error among them."""
        with self.lock:
            try:
                self.throttle.synchronize()
            except Exception:
                self.throttle.settle()
                raise

    def close_block(self, block: BlockRecord) -> None:
        """A reader is done; `Block.close` calls it."""
        with self.lock:
            self.reader.close(block)

    # Holders.

    def share(self, block: BlockRecord) -> None:
        """One holder more; `Block.share` calls it."""
        with self.lock:
            if not block.holders:
                raise ExecutionError(f"block {block.label!r}: shared after it was freed")
            block.holders += 1

    def free(self, block: BlockRecord) -> None:
        """One holder less; `Block.free` calls it."""
        with self.lock:
            if not block.holders:
                return
            if block.holders > 1:
                block.holders -= 1
            else:
                self._let_go_of(block)
                self._release(block)
                self._enter()
                if self.recorder.phase == "backward":
                    self.prefetcher.fetch_ahead(block.chunk)

    def forget(self, block: BlockRecord) -> None:
        """A block's handle is gone; runs in a finalizer."""
        self._forgotten.append(block)

    def _enter(self) -> None:
        """Entry housekeeping: refuse if closed, free lost blocks."""
        if self.is_closed:
            raise ExecutionError(f"memory: the manager of device {self.device.name!r} is closed")
        while self._forgotten:
            lost = self._forgotten.popleft()
            if isinstance(lost, Slot):
                self._retire_used(lost)
            elif isinstance(lost, Reservation):
                self.accounts[0].subtract(lost.nbytes, lost.kind)
            elif lost.holders:
                self._let_go_of(lost)
                self._release(lost)
                if not lost.chunk.is_sealed:  # it held its blocks' handles: it is gone too
                    self._leave_out(lost.chunk)

    def _release(self, block: BlockRecord) -> None:
        block.pins = 0
        self.mover.free(block)
        chunk = block.chunk
        if chunk.is_alive or not chunk.is_sealed:
            return
        self.recorder.ended(chunk)
        self._ended(chunk)
        self.state_store.discard_unneeded(chunk.loop, chunk.index)
        self._end(chunk.loop)

    def _end(self, loop: LoopRecord) -> None:
        if loop.is_finished and not loop.alive:
            self._let_go(loop)

    def _let_go(self, loop: LoopRecord) -> None:
        """Drop what running again needs at once: the records know each other, so it would wait for the collector."""
        loop.recompute = None
        self.planner.forget(loop)

    # Profiles and the end.

    def record(self, recording: Recording | None) -> None:
        """Write to a recording from now on, or to none."""
        with self.lock:
            self.recorder.record(recording)

    def running(
        self, label: str, phase: Phase = "forward", loop: str = "", chunk: int = -1
    ) -> AbstractContextManager[None]:
        """Computation of a chunk is being issued; for the profile."""
        return self.recorder.running(label, phase, loop, chunk)

    def close(self) -> None:
        """Give everything back and close the device. Calling it again does nothing."""
        with self.lock:
            if self.is_closed:
                return
            try:
                self._drop_all()
            finally:
                self.is_closed = True
                self.device.close()

    def _drop_all(self) -> None:
        self._enter()
        for chunk in self.index.all():
            self.abandon(chunk.loop)
        self.state_store.close()
        for level in range(len(self.accounts)):
            for slot in self.arena.retired[level]:
                for mark in slot.users:
                    self.order.wait(mark)
            self.arena.sweep(level)


__all__ = ["Manager"]
