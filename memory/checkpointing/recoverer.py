"""Runs dropped chunks again: from the nearest kept state, in the bytes that there are."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Generator
from contextlib import closing
from typing import Any

from ctrlgrad.errors import BlockLostError, ExecutionError
from ctrlgrad.memory.arena.ledger import BLOCKS, RUNNING, STATES
from ctrlgrad.memory.checkpointing.recovery import Recovery, plan_recovery
from ctrlgrad.memory.checkpointing.replay import ReplayedChunk, ReplayOwner
from ctrlgrad.memory.checkpointing.store import StateStore
from ctrlgrad.memory.chunk import BlockRecord, ChunkRecord, LoopRecord
from ctrlgrad.memory.profile.actions import Fill, Recompute
from ctrlgrad.memory.profile.recorder import Recorder
from ctrlgrad.memory.profile.statistics import Statistics
from ctrlgrad.memory.residency.eviction import Evictor
from ctrlgrad.memory.residency.throttle import Throttle


class Recoverer:
    """Computes chunks again for a manager. The manager's lock is not held while a chunk runs."""

    def __init__(
        self,
        owner: ReplayOwner,
        lock: threading.RLock,
        evictor: Evictor,
        state_store: StateStore,
        throttle: Throttle,
        recorder: Recorder,
        statistics: Statistics,
    ) -> None:
        self._owner, self._lock = owner, lock
        self._evictor, self._state_store, self._throttle = evictor, state_store, throttle
        self._mover, self._arena, self._order = evictor.mover, evictor.arena, evictor.order
        self._account, self._device = evictor.accounts[0], evictor.mover.device
        self._recorder, self._statistics = recorder, statistics

    def recover(self, block: BlockRecord) -> None:
        """Bring the blocks of a dropped block's chunk back, and of as many chunks before it as fit."""
        chunk = block.chunk
        loop = chunk.loop
        with loop.lock:
            with self._lock:
                if block.is_anywhere:
                    # Another thread was faster.
                    return
                if not chunk.is_dropped:
                    raise BlockLostError(f"loop {loop.label!r}: no tier has {block.label!r} of chunk {chunk.index}")
                base = loop.states.nearest(chunk.index)
                if base is None or loop.recompute is None:
                    raise BlockLostError(f"loop {loop.label!r}: no state to run chunk {chunk.index} again from")
                loop.recovers_from = base
                recovery = self._plan(loop, base, chunk)
                state = loop.states.kept[base].state
                spare = loop.states.largest * (2 if recovery.length > 1 else 1)
                self._evictor.reserve(0, spare, f"running {loop.label} again", chunk)
                self._account.add(spare, RUNNING)
            try:
                self._run(loop, base, recovery, state)
            finally:
                loop.recovers_from = None
                with self._lock:
                    used = self._order.mark(self._device.compute)
                    self._arena.vacate(used)
                    loop.states.last_run = used
                    self._account.subtract(spare, RUNNING)

    def _plan(self, loop: LoopRecord, base: int, chunk: ChunkRecord) -> Recovery:
        states = loop.states
        length = chunk.index - base + 1
        largest = loop.most_bytes
        places = None if states.limit is None else max(0, states.limit - len(states.kept))
        if self._account.limit is None:
            kept = 1 if states.limit is not None else min(length, states.distance)
            return plan_recovery(length, largest, states.largest, None, places or 0, kept)
        free = self._account.limit - self._fixed_bytes() - 2 * states.largest
        return plan_recovery(length, largest, states.largest, free, places)

    def _fixed_bytes(self) -> int:
        """Bytes of the device that will not leave it: blocks in use, all that is no block, and what that may take."""
        other = self._account.used - self._account.kinds[BLOCKS] + self._account.below_peaks(BLOCKS, STATES, RUNNING)
        pinned = sum(
            block.slots[0].nbytes
            for chunk in self._evictor.index.in_level(0)
            for block in chunk.blocks
            if block.slots[0] is not None and block.slots[0].kind == BLOCKS and (block.pins or block.is_open)
        )
        return other + pinned

    def _run(self, loop: LoopRecord, base: int, recovery: Recovery, state: Any) -> None:
        assert loop.recompute is not None
        step, first_kept = 0, recovery.first_kept
        # Where the run from each kept state ends that keeps no blocks.
        ends = [*(s for s in recovery.states if s < first_kept), first_kept]
        while step < recovery.length:
            if step in recovery.states:
                with self._lock:
                    self._state_store.keep(loop, base + step, state, loop.recompute.copy_bytes(state))
            entry = base if not step else None
            if step < first_kept:
                end = ends[bisect_right(ends, step)]
                after = self._skip(loop, base + step, base + end, entry, state)
                if after is not None:
                    step, state = end, after
                    continue
            stop = step + 1 if step < first_kept else recovery.length
            chunks = self._chunks(loop, range(base + step, base + stop), entry, step >= first_kept)
            with closing(chunks):
                state = loop.recompute.advance(state, chunks, base + step, base + stop)
                # The last one is filled.
                if next(chunks, None) is not None:
                    raise ExecutionError(f"loop {loop.label!r}: fewer chunks were run again than were to be")
            step = stop

    def _skip(self, loop: LoopRecord, first: int, last: int, entry: int | None, state: Any) -> Any:
        """Run chunks without their blocks; None where the loop cannot."""
        assert loop.recompute is not None
        with self._recorder.running(f"{loop.label} again", self._recorder.phase, loop.label, first, again=True):
            after = loop.recompute.skip(state, first, last)
        if after is not None:
            with self._lock:
                self._statistics.recomputed_chunks += last - first
                for index in range(first, last) if self._recorder.is_on else ():
                    self._recorder.log(Recompute, loop.number, index, entry if index == first else None)
                self._throttle.issued(self._order.mark(self._device.compute))
        return after

    def _chunks(
        self, loop: LoopRecord, indexes: range, entry: int | None, keep: bool
    ) -> Generator[ReplayedChunk, None, None]:
        """Chunks that are filled one after the other; their blocks stay if `keep`, of those that were dropped."""
        for index in indexes:
            record = loop.chunks[index]
            with self._lock:
                self._recorder.log(Recompute, loop.number, index, entry)
                self._statistics.recomputed_chunks += 1
                is_kept = keep and record.is_dropped
            entry = None
            chunk = ReplayedChunk(self._owner, record, is_kept)
            complete = False
            try:
                with self._recorder.running(f"{loop.label} again", self._recorder.phase, loop.label, index, again=True):
                    yield chunk
                chunk.check_complete()
                complete = True
            finally:
                with self._lock:
                    self._take_in(record, chunk, is_kept and complete)

    def _take_in(self, record: ChunkRecord, chunk: ReplayedChunk, keep: bool) -> None:
        """The blocks that were filled become the chunk's again; unwanted bytes are freed."""
        wanted = {block.number for block, _ in chunk.filled if keep and block.holders and not block.is_anywhere}
        for block, slot in chunk.filled:
            if block.number in wanted:
                self._mover.place(block, slot)
            self._recorder.log(Fill, block.number, slot.number)
        written = self._order.mark(self._device.compute)
        if keep:
            record.is_dropped = False
        for block, slot in chunk.filled:
            if block.number in wanted:
                slot.written = slot.last_use = written
            else:
                slot.last_use = written
                self._arena.retire(slot)
        self._throttle.issued(written)


__all__ = ["Recoverer"]
