"""The memory manager of one device, and what a loop holds of it: its memory, its chunks, its blocks.

Blocks lie inside a hard budget, wherever they have to be. Loops fill them chunk by chunk and read them back, the newest
first. An allocation first makes its bytes free (`residency`), so counted bytes (blocks, entry states, temporaries,
targets of copies) never pass the limit of a tier. Each chunk has a policy for leaving the device: keep, copy, or
recompute. The user's options set it, or else the planner does.

All methods may be called from several threads. A finalizer only notes a block or an allocation that was lost; the next
call frees it.
"""

from __future__ import annotations

import itertools
import math
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar

import numpy as np

from ctrlgrad.errors import ExecutionError, MemoryBudgetError
from ctrlgrad.memory.arena import (
    BLOCKS,
    STAYING,
    TEMPORARY,
    Account,
    Allocation,
    Arena,
    Mark,
    Reservation,
    Slot,
    Throttle,
)
from ctrlgrad.memory.checkpointing import Checkpoints
from ctrlgrad.memory.chunk import BlockRecord, ChunkRecord, LoopRecord, Recompute, shape_of
from ctrlgrad.memory.devices.device import Device, raised
from ctrlgrad.memory.devices.streams import Worker
from ctrlgrad.memory.planner import Planner, loop_record
from ctrlgrad.memory.profile.recorder import Recorder
from ctrlgrad.memory.profile.records import Close, Fill, Open, Place, Recording, Use
from ctrlgrad.memory.residency import Residency
from ctrlgrad.memory.sizes import Budget
from ctrlgrad.memory.turns import Turns

Snapshot = Callable[[], tuple[Any, int]]
T = TypeVar("T")

_NUMBERS = itertools.count(1)
# One count for all managers: several may write to one recording.
_BLOCKS = itertools.count(1)
# Callback that makes room for a running call where a budget is used up; returns true if it did something.
MAKE_ROOM: ContextVar[Callable[[], bool] | None] = ContextVar("makes room", default=None)
# Callbacks that give back counted memory which the running calls do not need any more.
GIVE_BACK: ContextVar[tuple[Callable[[], None], ...]] = ContextVar("gives idle memory back", default=())


class Manager:
    """Blocks, allocations and states of one device; see the module's docstring.

    >>> from ctrlgrad.memory.devices.cpu import CpuDevice
    >>> manager = Manager(CpuDevice(), Budget(device=100))
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
        self.recorder = Recorder(self.number, device, self.accounts, recording)
        self.stats = self.recorder.statistics
        self.arena = Arena(device, self.accounts, self.recorder)
        self.order = self.arena.order
        self.planner = Planner(device.copies_take_cores)
        self.residency = Residency(self.arena, self.recorder, self.planner, lambda: self.checkpoints.spare())
        self.index = self.residency.index
        self.throttle = Throttle(device, self.order)
        self.turns = Turns()
        self.checkpoints = Checkpoints(
            self.residency, self.planner, self.throttle, self.recorder, self.lock, partial(ReplayedChunk, self)
        )
        self.chunks, self._loops = itertools.count(1), itertools.count(1)
        # Blocks that finalizers found without a holder: appended from anywhere, worked off by `enter` under the lock.
        self.forgotten: deque[BlockRecord | Slot | Reservation | None] = deque()
        # Those that `close` waits for: a set, since one step adds or removes one, also in a finalizer.
        self.stays: set[int] = set()
        self.is_ending = self.is_closed = False

    # Allocations.

    def allocate(self, shape: Sequence[int], dtype: np.dtype, label: str, kind: str = TEMPORARY) -> Allocation:
        """Counted, uninitialised bytes of the device that stay there until they are released.

        Raises `MemoryBudgetError` where not enough bytes can be freed.
        """
        shape, dtype = shape_of(shape), np.dtype(dtype)
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        with self.lock:
            self.enter()
            slot = self.residency.take(0, nbytes, kind, label)
            array = self.device.array(slot.piece, shape, dtype)
            return Allocation(slot, array, label, self._release, self.forgotten.append)

    def _release(self, slot: Slot) -> None:
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
            self.enter()
            return self.accounts[0].fits(nbytes)

    def reserve(self, nbytes: int, label: str, kind: str = TEMPORARY) -> Reservation:
        """Count bytes of the device that another allocator owns, until they are released.

        Raises `MemoryBudgetError` where not enough bytes can be freed.
        """
        with self.lock:
            self.enter()
            self.residency.reserve(0, nbytes, label)
            self.accounts[0].add(nbytes, kind)
            return Reservation(nbytes, kind, self.forgotten.append)

    def with_room(self, take: Callable[[], T], nbytes: int) -> T:
        """Take so many bytes of the device. Idle memory goes before anything else leaves; where they are refused even
        so, once more after the running call has made room. The caller does not hold the lock."""
        account = self.accounts[0]
        is_short = account.limit is not None and account.used + nbytes > account.limit
        if is_short and not (self.forgotten and self.fits(nbytes)):
            for give_back in GIVE_BACK.get():
                give_back()
        try:
            return take()
        except MemoryBudgetError:
            make_room = MAKE_ROOM.get()
            if make_room is None or not make_room():
                raise
        return take()

    # Loops.

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

    def keep_to_least(self, label: str) -> bool:
        """Choose the least memory for loops with this label from now on: short chunks, and copies. Answers whether more
        had been chosen, for a caller that can begin anew then if it began with more."""
        with self.lock:
            took_more = self.planner.keep_to_least(label)
            if took_more:
                what = "long chunks, or to compute chunks again"
                self.recorder.fall_back(f"{label}: there was no room for {what}; begun anew, with copies of short ones")
            return took_more

    def abandon(self, loop: LoopRecord) -> None:
        """Drop the blocks and states of a loop whose run has failed. Calling it again does nothing."""
        with self.lock:
            self.throttle.settle()
            for chunk in loop.chunks:
                self.give_up(chunk)
            self.checkpoints.discard_all(loop)
            loop.recompute = None

    def synchronize(self) -> None:
        """Wait for the copies that computation was put behind, and raise the first error among them."""
        with self.lock:
            try:
                self.throttle.synchronize()
            except Exception:
                self.throttle.settle()
                raise

    # For the handles, with the lock held.

    def enter(self) -> None:
        """Entry housekeeping, where anything is `forgotten`: refuse if closed, free lost blocks."""
        if self.is_closed:
            raise ExecutionError(f"memory: the manager of device {self.device.name!r} is closed")
        while self.forgotten:
            lost = self.forgotten.popleft()
            if isinstance(lost, Slot):
                self._retire_used(lost)
            elif isinstance(lost, Reservation):
                self.accounts[0].subtract(lost.nbytes, lost.kind)
            elif lost is not None and lost.holders:
                self.release(lost)
                if not lost.chunk.is_sealed:  # it held its blocks' handles: it is gone too
                    self.leave_out(lost.chunk)

    def block_record(
        self, label: str, shape: tuple[int, ...], dtype: np.dtype, chunk: ChunkRecord, stack: int
    ) -> BlockRecord:
        """Record of a block that is nowhere yet."""
        slots: list[Slot | None] = [None] * len(self.accounts)
        rows, nbytes = shape[0] if shape else 1, math.prod(shape) * dtype.itemsize
        places = self.index.away_bit
        return BlockRecord(next(_BLOCKS), label, shape, dtype, chunk, slots, places, rows, nbytes, nbytes, stack)

    def written(self, chunk: ChunkRecord, blocks: Sequence[BlockRecord]) -> Mark:
        """Close blocks of a chunk; a mark after the computation that fills them."""
        slots = []
        for block in blocks:
            slot = block.slots[0]
            if slot is not None and block.is_open:
                self.recorder.log(Fill, block.number, slot.number)
                slots.append(slot)
            block.is_open = False
        written = self.order.mark(self.device.compute)
        for slot in slots:
            slot.written = slot.last_use = written
            chunk.nbytes += slot.nbytes
        return written

    def release(self, block: BlockRecord) -> None:
        """Free a block that has no holder any more."""
        chunk = block.chunk
        block.holders = 0
        chunk.held -= 1
        self.residency.free(block)
        if not chunk.held and chunk.is_sealed:
            self.recorder.ended(chunk)
            self.ended(chunk)
            if chunk.loop.states.kept:
                self.checkpoints.discard_unneeded(chunk.loop, chunk.index)
            self.end(chunk.loop)

    def give_up(self, chunk: ChunkRecord) -> None:
        """Free the blocks of a chunk; nothing reads it again."""
        for block in chunk.blocks:
            if block.holders:
                block.holders = 0
                chunk.held -= 1
                self.residency.free(block)
        self.ended(chunk)

    def ended(self, chunk: ChunkRecord) -> None:
        """Nothing reads a chunk again."""
        self.index.remove(chunk)
        chunk.loop.alive.put(chunk.index, False)

    def leave_out(self, chunk: ChunkRecord) -> None:
        """A chunk is given up while it runs."""
        self.give_up(chunk)
        chunks = chunk.loop.chunks
        if chunks and chunks[-1] is chunk:
            chunks.pop()
        else:
            chunks[:] = [other for other in chunks if other is not chunk]

    def end(self, loop: LoopRecord) -> None:
        """Drop what running again needs at once: the records know each other, so it would wait for the collector."""
        if loop.is_finished and not loop.alive:
            loop.recompute = None

    # The end.

    def close(self) -> None:
        """Give everything back and close the device, at once or with the last `Stay`. Calling it again does nothing."""
        # First this, then the look: a `Stay` that ends meanwhile looks the other way round.
        self.is_ending = True
        with self.lock:
            if self.is_closed or self.stays:
                return
            try:
                self._drop_all()
            finally:
                self.is_closed = True
                # Something is always due from now on: `enter` refuses.
                self.forgotten.append(None)
                self.device.close()

    def _drop_all(self) -> None:
        self.enter()
        for chunk in self.index.all():
            self.abandon(chunk.loop)
        self.checkpoints.close()
        for level in range(len(self.accounts)):
            for slot in self.arena.retired[level]:
                for mark in slot.users:
                    self.order.wait(mark)
            self.arena.sweep(level)


class Stay:
    """As long as it lives, its manager stays open: stacks that leave their call hold one, and their blocks stay."""

    def __init__(self, manager: Manager) -> None:
        self.manager = manager
        manager.stays.add(id(self))

    def __del__(self) -> None:
        self.manager.stays.discard(id(self))
        # At the end of the process its device has been closed.
        if self.manager.is_ending and not self.manager.stays and not sys.is_finalizing():
            if isinstance(threading.current_thread(), Worker):
                # The collector runs in a thread whose copies `close` waits for.
                threading.Thread(target=self.manager.close, name="ctrlgrad close").start()
            else:
                self.manager.close()


class LoopMemory:
    """Memory of one run of a loop: gives it its chunks, and keeps the states that chunks may be run again from."""

    def __init__(self, manager: Manager, record: LoopRecord) -> None:
        self._manager, self._record = manager, record

    def begin(self, snapshot: Snapshot | None = None, state_bytes: Callable[[], int] | None = None) -> Chunk:
        """A chunk that is about to run.

        `snapshot` gives the state that the chunk starts from, which stays unchanged afterwards, and the bytes that
        holding it costs. `state_bytes` gives those bytes beforehand, so that they are free first; without it they are
        assumed to be those of the last state. Both are called only if the state is to be kept.
        """
        manager, loop = self._manager, self._record
        index, kept = len(loop.chunks), None
        if snapshot is not None and loop.recompute is not None:
            with manager.lock:
                if manager.forgotten:
                    manager.enter()
                wants = manager.checkpoints.wants(loop)
                if wants:
                    manager.checkpoints.expect(loop, None if state_bytes is None else state_bytes())
            # Without the lock: it is the caller's code.
            kept = snapshot() if wants else None
        with manager.lock:
            if manager.forgotten:
                manager.enter()
            manager.recorder.phase = "forward"
            if kept is not None:
                manager.checkpoints.keep(loop, index, *kept)
            record = ChunkRecord(next(manager.chunks), index, loop, loop.policy, loop.reason)
            loop.chunks.append(record)
            loop.alive.put(index, True)
            manager.index.add(record)
            return Chunk(manager, record)

    def passing(self) -> int:
        """Number of chunks that may run in the blocks of the current one before it; `Chunk.overwritten` takes them.

        Bytes are short, so they would be dropped before they are read, and none of them begins with a state to keep.
        """
        loop, planner = self._record, self._manager.planner
        is_steady = self._manager.accounts[0].limit is not None and loop.has_dropped and loop.states.limit is None
        if not (is_steady and loop.recompute is not None and planner.computes_again(loop)):
            return 0
        distance = loop.states.distance
        return distance - 1 - (len(loop.chunks) - 1) % distance

    def longer(self, nbytes: int, most: int, state_bytes: Callable[[], int], stacks: int) -> int:
        """Bytes that a chunk may push from now on: `nbytes`, or up to `most` where there is room beside two states; 0
        while nothing may ever have to leave.

        For a caller that can begin anew: what else will need room is unknown. Of two stacks the first is read from the
        chunk before while the other still holds rows: two chunks have to fit. Of one, a chunk and some more states.
        """
        manager, loop = self._manager, self._record
        account = manager.accounts[0]
        if account.limit is None or nbytes >= most:
            return nbytes
        with manager.lock:
            if account.used + nbytes <= account.limit // 2:
                return 0
            states = 0 if loop.recompute is None else 2 * state_bytes()
            room = account.limit - manager.checkpoints.fixed_bytes() - states
            longer = min(most, room // 2 if stacks > 1 else room * 3 // 4)
            return longer if longer > nbytes and manager.planner.takes_more(loop.label) else nbytes

    def finish(self) -> None:
        """The loop has run its last chunk."""
        manager, loop = self._manager, self._record
        with manager.lock:
            if manager.forgotten:
                manager.enter()
            loop.is_finished = True
            for index in list(loop.states.indexes):
                manager.checkpoints.discard_unneeded(loop, index)
            manager.end(loop)

    def abandon(self) -> None:
        """The run has failed: all blocks and states of the loop go. Calling it again does nothing."""
        self._manager.abandon(self._record)


class Chunk:
    """A chunk while it runs forward, for the first time or again."""

    def __init__(self, manager: Manager, record: ChunkRecord) -> None:
        self._manager, self._record = manager, record
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
        shape, dtype = shape_of(shape), np.dtype(dtype)
        block = self._manager.with_room(
            lambda: self._new_block(shape, dtype, label, stack), math.prod(shape) * dtype.itemsize
        )
        self._handles.append(block)
        return block

    def _new_block(self, shape: tuple[int, ...], dtype: np.dtype, label: str, stack: int) -> Block:
        manager, chunk = self._manager, self._record
        with manager.lock:
            if manager.forgotten:
                manager.enter()
            block = manager.block_record(label, shape, dtype, chunk, stack)
            may_leave = chunk.loop.may_copy or chunk.loop.recompute is not None
            kind = BLOCKS if may_leave else STAYING
            slot = manager.residency.take(0, block.nbytes, kind, label, chunk)
            chunk.blocks.append(block)
            chunk.held += 1
            manager.recorder.log(Place, block.number, slot.number)
            manager.index.put(block, slot)
            return Block(manager, block, manager.device.array(slot.piece, shape, dtype))

    def overwritten(self, count: int) -> list[list[Block]]:
        """So many chunks have run in these blocks, one after the other, before the one that they are of now: the blocks
        of each, which are nowhere, and have all their rows. `LoopMemory.passing` says how many chunks may."""
        manager, chunk = self._manager, self._record
        with manager.lock:
            loop, first = chunk.loop, chunk.index
            manager.index.remove(chunk)
            loop.chunks.pop()
            found = []
            for index in range(first, first + count):
                record = ChunkRecord(next(manager.chunks), index, loop, "recompute", chunk.reason)
                loop.chunks.append(record)
                loop.alive.put(index, True)
                found.append([Block(manager, block, None) for block in self._blocks_like_these(record)])
            manager.planner.computed_again(loop)
            loop.alive.put(first + count, True)
            chunk.number, chunk.index = next(manager.chunks), first + count
            loop.chunks.append(chunk)
            manager.index.add(chunk)
            return found

    def _blocks_like_these(self, chunk: ChunkRecord) -> list[BlockRecord]:
        """Blocks of a chunk that ran in the bytes of this one, as they were; they are nowhere."""
        manager = self._manager
        for like in self._record.blocks:
            block = manager.block_record(like.label, like.shape, like.dtype, chunk, like.stack)
            block.is_open = False
            chunk.blocks.append(block)
            chunk.nbytes += block.nbytes
        chunk.held, chunk.is_sealed, chunk.is_dropped = len(chunk.blocks), True, True
        chunk.loop.most_bytes = max(chunk.loop.most_bytes, chunk.nbytes)
        manager.index.add(chunk)
        manager.recorder.overwritten(chunk)
        return chunk.blocks

    def seal(self, seconds: float) -> None:
        """All computation that fills the blocks has been issued; it takes so many seconds."""
        self._let_handles_go()
        manager, chunk = self._manager, self._record
        with manager.lock:
            if manager.forgotten:
                manager.enter()
            written = manager.written(chunk, chunk.blocks)
            chunk.is_sealed = True
            chunk.loop.most_bytes = max(chunk.loop.most_bytes, chunk.nbytes)
            manager.planner.ran(chunk, seconds)
            if manager.index.is_away(chunk):
                # Its blocks do not fit all at once, as they would have to for it to be computed again.
                manager.planner.copy_only(chunk.loop.label)
            manager.recorder.sealed(chunk)
            manager.throttle.issued(written)
            manager.checkpoints.thin(chunk.loop)
            manager.residency.leave_early(chunk)
            if not chunk.held:  # nothing was pushed
                manager.ended(chunk)

    def discard(self) -> None:
        """The chunk is run again in larger blocks: these go, and its entry state stays. The next `begin` is for the
        same iterations."""
        self._let_handles_go()
        with self._manager.lock:
            self._manager.leave_out(self._record)

    def _let_handles_go(self) -> None:
        """The handles are the caller's from now on, and not to be written to."""
        for handle in self._handles:
            handle.sealed()
        self._handles.clear()


class ReplayedChunk(Chunk):
    """A chunk that is run again; gives the blocks of the first run, or bytes for the while where none is wanted."""

    def __init__(self, manager: Manager, record: ChunkRecord, is_kept: bool) -> None:
        super().__init__(manager, record)
        self._is_kept = is_kept
        # The blocks that were not asked for yet.
        self._left = list(record.blocks)
        self.filled: list[tuple[BlockRecord, Slot]] = []

    def block(self, shape: Sequence[int], dtype: np.dtype, label: str, stack: int = 0) -> Block:
        """The next block of the first run, of those of a stack, to be filled again.

        It has as many rows as then: under another budget the caller may ask for more or fewer.
        """
        for place, block in enumerate(self._left):
            if block.stack == stack:
                del self._left[place]
                break
        else:
            raise self._differs("one block more", f"{len(self._record.blocks)} blocks")
        wanted = (block.shape[1:], block.dtype, block.label)
        asked = (shape_of(shape)[1:], np.dtype(dtype), label)
        if asked != wanted:
            raise self._differs(f"a block of row shape, dtype and label {asked}", f"{wanted}")
        manager = self._manager
        slot = manager.with_room(lambda: self._take_again(block), block.full_nbytes)
        self.filled.append((block, slot))
        array = manager.device.array(slot.piece, block.shape, block.dtype)
        handle = Block(manager, block, array, is_owner=False)
        self._handles.append(handle)
        return handle

    def _take_again(self, block: BlockRecord) -> Slot:
        """Bytes for a block, its own from the chunk's end on if it is kept."""
        manager = self._manager
        with manager.lock:
            if manager.forgotten:
                manager.enter()
            kind = BLOCKS if self._is_kept and block.holders and not block.is_anywhere else TEMPORARY
            what = f"computing {block.label} again"
            return manager.residency.take(0, block.full_nbytes, kind, what, block.chunk)

    def seal(self, seconds: float) -> None:
        """Nothing: the manager knows that a chunk that was run again is complete."""

    def discard(self) -> None:
        raise self._differs("to run with more room", "the room of the first run")

    def check_complete(self) -> None:
        """All blocks of the first run have been asked for."""
        if self._left:
            count = len(self._record.blocks)
            raise self._differs(f"{count - len(self._left)} blocks", f"{count} blocks")
        self._let_handles_go()

    def _differs(self, got: str, expected: str) -> ExecutionError:
        record = self._record
        return ExecutionError(
            f"loop {record.loop.label!r}: chunk {record.index} was run again and asked for other blocks",
            expected=expected,
            got=got,
            hint="a chunk must do the same each time it runs from the same state",
        )


class Block:
    """A handle of a block; the block is freed when all holders have freed it, or at the latest with the handle.

    A storage of a run-time stack (`ctrlgrad.runtime.stack.Storage`): first to be written to, then to be opened.
    """

    def __init__(self, manager: Manager, record: BlockRecord, array: Any, is_owner: bool = True) -> None:
        self.manager, self._record, self._array, self._is_owner = manager, record, array, is_owner
        self.is_writable = array is not None

    def __del__(self) -> None:
        if self._is_owner and self._record.holders:
            self.manager.forgotten.append(self._record)

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
        return self._record.shape if self.is_writable else self._record.kept_shape

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
        block = self._record
        if not block.shape or not 0 <= rows <= block.shape[0]:
            raise ExecutionError(f"block {self.label!r}: it has no {rows} rows, its shape is {block.shape}")
        with self.manager.lock:
            if block.is_open:
                block.keep(rows)
            elif rows != block.rows:
                raise ExecutionError(f"block {block.label!r}: {rows} rows this time, {block.rows} the first time")

    def settle(self) -> None:
        """All computation that fills the rows has been issued: the block may leave before its chunk is over."""
        if self.is_writable:
            self.sealed()
            with self.manager.lock:
                if self.manager.forgotten:
                    self.manager.enter()
                if self._record.is_open:
                    self.manager.written(self._record.chunk, [self._record])

    def sealed(self) -> None:
        """The array is no longer to be written to; the chunk calls it."""
        self._array, self.is_writable = None, False

    def open(self) -> Any:
        """The rows, resident and pinned until `close`; the computation issued next may read them.

        Waits for a copy where it must, and starts the copies of the blocks that are read next. A block may be opened
        several times; each `open` has its `close`. While it is written to, its array, without a `close`.

        Raises `MemoryBudgetError`, `TierRefusedError` or `BlockLostError` where the rows cannot be had.
        """
        if self.is_writable:
            return self._array
        self._array = self.manager.with_room(self._opened, self._record.nbytes)
        return self._array

    def _opened(self) -> Any:
        manager, block = self.manager, self._record
        while True:
            with manager.lock:
                if manager.forgotten:
                    manager.enter()
                try:
                    slot = self._resident()
                except Exception:
                    manager.throttle.settle()
                    raise
                if slot is not None:
                    block.pins += 1
                    manager.recorder.log(Open, block.number, slot.number)
                    manager.residency.fetch_ahead(block.chunk)
                    return manager.device.array(slot.piece, block.kept_shape, block.dtype)
            manager.checkpoints.recover(block)

    def _resident(self) -> Slot | None:
        """The device's bytes, in the order of computation; None where the chunk must be run again first."""
        manager, block = self.manager, self._record
        manager.recorder.phase = "backward"
        manager.throttle.confirm()
        if not block.holders:
            raise ExecutionError(f"block {block.label!r}: opened after it was freed")
        manager.residency.forget_unmarked(block)
        slot = block.slots[0]
        if slot is None and not block.is_anywhere:
            return None
        try:
            slot = slot or manager.residency.fetch(block)
            self._follow(slot)
        except MemoryBudgetError:
            raise
        except Exception as failure:
            self._forget_failed()
            if not manager.residency.has_state(block.chunk):
                raise
            manager.recorder.fall_back(f"{block.label}: computed again, its copy was lost: {failure}")
            manager.residency.drop(block.chunk)
            return None
        if manager.planner.opened(block.chunk, manager.device):
            manager.throttle.issued(manager.order.mark(manager.device.compute))
        return slot

    def _follow(self, slot: Slot) -> None:
        """Computation goes on after the copy that fills a slot. Raises its error where the host can know it."""
        manager, written = self.manager, slot.written
        assert written is not None
        if written.stream != manager.device.compute.name and not manager.order.is_done(written):
            with manager.recorder.stalling(f"{self.label} is on its way to the device"):
                try:
                    manager.order.follow(manager.device.compute, written)
                except Exception:
                    # Where the host computes it has waited, and knows.
                    manager.order.wait(written)
                    if written.failure is None:
                        raise
            if not manager.order.is_done(written):
                manager.throttle.rely_on(written)
        if written.failure is not None:
            raise raised(written.failure)

    def _forget_failed(self) -> None:
        """After a failure: which copies are bad."""
        for level, slot in enumerate(self._record.slots[:2]):
            if slot is not None and slot.written is not None:
                self.manager.order.wait(slot.written)
                self.manager.residency.check(self._record, level)

    def close(self) -> None:
        """The reader has issued all work that reads the rows."""
        manager, block = self.manager, self._record
        if self.is_writable:
            return
        with manager.lock:
            if block.pins:
                manager.recorder.log(Close, block.number)
                block.pins -= 1
                slot = block.slots[0]
                if slot is not None:
                    slot.last_use = manager.order.mark(manager.device.compute)
                manager.planner.closed(block.chunk, manager.device)
            elif block.holders:
                raise ExecutionError(f"block {block.label!r}: closed more often than opened")
            if not block.pins:
                self._array = None

    def share(self) -> Block:
        """One holder more; each holder calls `free` once. Gives the same handle."""
        with self.manager.lock:
            if not self._record.holders:
                raise ExecutionError(f"block {self.label!r}: shared after it was freed")
            self._record.holders += 1
        return self

    def free(self) -> None:
        """One holder less. With the last one the bytes go, in every tier."""
        manager, block = self.manager, self._record
        with manager.lock:
            if block.holders > 1:
                block.holders -= 1
            elif block.holders:
                self._array = None
                manager.release(block)
                if manager.forgotten:
                    manager.enter()
                if manager.recorder.phase == "backward":
                    manager.residency.fetch_ahead(block.chunk)
