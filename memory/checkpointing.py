"""Entry states of loops, counted like all other bytes, and runs of dropped chunks again from them."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import Any

from ctrlgrad.errors import BlockLostError, ExecutionError, MemoryBudgetError, forget_values
from ctrlgrad.memory.arena import BLOCKS, RUNNING, STATES, Slot, Throttle
from ctrlgrad.memory.chunk import BlockRecord, ChunkRecord, LoopRecord
from ctrlgrad.memory.planner import Planner
from ctrlgrad.memory.profile.recorder import Recorder
from ctrlgrad.memory.profile.records import Fill, KeepState, LetStateGo, Place, Recompute
from ctrlgrad.memory.residency import Residency
from ctrlgrad.memory.schedule import Kept, Recovery, most_state_bytes, plan_recovery


class Checkpoints:
    """Entry states of all loops of a manager, and the runs from them.

    The manager's lock is held, except by `recover`, which takes it: not while a chunk runs. `again` makes the chunk
    that a loop fills again; its blocks stay where the second argument says so.
    """

    def __init__(
        self,
        residency: Residency,
        planner: Planner,
        throttle: Throttle,
        recorder: Recorder,
        lock: threading.RLock,
        again: Callable[[ChunkRecord, bool], Any],
    ) -> None:
        self._residency, self._planner, self._throttle = residency, planner, throttle
        self._recorder, self._statistics, self._lock, self._again = recorder, recorder.statistics, lock, again
        self._arena, self._order, self._device = residency.arena, residency.order, residency.device
        self._account = residency.accounts[0]
        # Loops with a kept state, by number.
        self._loops: dict[int, LoopRecord] = {}

    # States.

    def wants(self, loop: LoopRecord) -> bool:
        """Return true if the next chunk's entry state is to be kept."""
        index = len(loop.chunks)
        if loop.recompute is None or index in loop.states.kept or not loop.states.wants(index):
            return False
        return not loop.is_mixed or index == 0 or self._planner.wants_state(loop)

    def expect(self, loop: LoopRecord, nbytes: int | None) -> None:
        """Free bytes for the next chunk's state: drop other states for it, and see that its bytes fit."""
        gone = loop.states.displaced_by(len(loop.chunks))
        if gone is not None:
            self.discard(loop, gone)
        self._residency.reserve(0, loop.states.largest if nbytes is None else nbytes, f"the state of {loop.label}")

    def keep(self, loop: LoopRecord, index: int, state: Any, nbytes: int) -> None:
        """Count and keep the state at a chunk's start."""
        self._residency.reserve(0, nbytes, f"the state of {loop.label}")
        self._account.add(nbytes, STATES)
        self._recorder.log(KeepState, loop.number, index, nbytes)
        self._loops[loop.number] = loop
        loop.states.put(index, Kept(state, nbytes, self._order.mark(self._device.compute)))
        self._statistics.most_states = max(self._statistics.most_states, len(loop.states.kept))

    def discard(self, loop: LoopRecord, index: int) -> None:
        """Forget a kept state."""
        kept = loop.states.pop(index)
        self._arena.vacate(kept.last_use)
        self._account.subtract(kept.nbytes, STATES)
        self._recorder.log(LetStateGo, loop.number, index)
        if not loop.states.kept:
            del self._loops[loop.number]

    def thin(self, loop: LoopRecord) -> None:
        """Let states go that take too many bytes: without a budget more than the blocks between two of them."""
        states = loop.states
        if loop.recompute is None or not loop.chunks:
            return
        limit = self._account.limit
        if limit is None:
            most = states.distance * max(chunk.nbytes for chunk in loop.chunks[-2:])
        else:
            fixed = self._account.used - self._account.kinds[BLOCKS] - self._account.kinds[STATES]
            most = most_state_bytes(limit, fixed, states.largest, loop.most_bytes)
        if loop.is_mixed and states.nbytes > most:
            self._discard_copied(loop)
        while gone := states.thin(most):
            for index in gone:
                self.discard(loop, index)
            if limit is None:
                most *= 2

    def spare(self) -> bool:
        """Let one state go because bytes are short: the one whose absence has least computed again; False without one.

        A loop's first state stays, so that every chunk can still be run again, and so does one that a run began from.
        """
        found: tuple[int, LoopRecord, int] | None = None
        for loop in self._loops.values():
            if loop.states.limit is not None and not loop.is_finished:
                # The states that it will keep are known by the levels of these.
                continue
            kept = list(loop.states.indexes)
            for before, index, after in zip(kept, kept[1:], [*kept[2:], len(loop.chunks)], strict=False):
                cost = (index - before) * max(after - index, 1)
                if index != loop.recovers_from and (found is None or cost < found[0]):
                    found = (cost, loop, index)
        if found is None:
            return False
        self.discard(found[1], found[2])
        return True

    def _discard_copied(self, loop: LoopRecord) -> None:
        """Forget the states of chunks that are being copied, and from which no other chunk would be run again."""
        for index in list(loop.states.indexes)[1:-1]:
            end = loop.states.indexes.first_from(index + 1)
            if all(chunk.is_leaving and chunk.policy == "copy" for chunk in loop.chunks[index:end]):
                self.discard(loop, index)

    def discard_unneeded(self, loop: LoopRecord, index: int) -> None:
        """Forget the state that a chunk would be run again from, if no living chunk would be."""
        base = loop.states.nearest(index)
        if base is None:
            return
        end = loop.states.indexes.first_from(base + 1)
        if end is None and not loop.is_finished:
            return  # it may serve a chunk that is still to come
        alive = loop.alive.first_from(base)
        if alive is None or (end is not None and alive >= end):
            self.discard(loop, base)

    def close(self) -> None:
        """No loop goes on, not even one that has a state and no chunk, as between a chunk that failed and the next."""
        for loop in list(self._loops.values()):
            self.discard_all(loop)

    def discard_all(self, loop: LoopRecord) -> None:
        """The loop's run is over."""
        for index in list(loop.states.kept):
            self.discard(loop, index)

    # Runs from them.

    def recover(self, block: BlockRecord) -> None:
        """Bring the blocks of a dropped block's chunk back, and of as many chunks before it as fit.

        Where there is no room to run it from its nearest state, that state goes: the run begins from an earlier one.
        """
        while True:
            try:
                return self._recover(block)
            except MemoryBudgetError as error:
                with self._lock:
                    if not self.spare():
                        raise
                forget_values(error)

    def _recover(self, block: BlockRecord) -> None:
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
                self._residency.reserve(0, spare, f"running {loop.label} again", chunk)
                self._account.add(spare, RUNNING)
                begun, filled = self._device.compute.record() if loop.is_mixed else None, 0
            try:
                self._run(loop, base, recovery, state)
                if begun is not None:
                    filled = sum([c.nbytes for c in loop.chunks[base + recovery.first_kept : base + recovery.length]])
            finally:
                loop.recovers_from = None
                with self._lock:
                    used = self._order.mark(self._device.compute)
                    if begun is not None and filled:
                        self._planner.recovered(loop.label, filled, begun, used.event)
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
        free = self._account.limit - self.fixed_bytes() - 2 * states.largest
        return plan_recovery(length, largest, states.largest, free, places)

    def fixed_bytes(self) -> int:
        """Bytes of the device that will not leave it: blocks in use, all that is no block, and what that may take."""
        other = self._account.used - self._account.kinds[BLOCKS] + self._account.below_peaks(BLOCKS, STATES, RUNNING)
        pinned = sum(
            block.slots[0].nbytes
            for chunk in self._residency.index.in_level(0)
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
                    self.keep(loop, base + step, state, loop.recompute.copy_bytes(state))
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

    def _chunks(self, loop: LoopRecord, indexes: range, entry: int | None, keep: bool) -> Generator[Any, None, None]:
        """Chunks that are filled one after the other; their blocks stay if `keep`, of those that were dropped."""
        for index in indexes:
            record = loop.chunks[index]
            with self._lock:
                self._recorder.log(Recompute, loop.number, index, entry)
                self._statistics.recomputed_chunks += 1
                is_kept = keep and record.is_dropped
            entry = None
            chunk = self._again(record, is_kept)
            complete = False
            try:
                with self._recorder.running(f"{loop.label} again", self._recorder.phase, loop.label, index, again=True):
                    yield chunk
                chunk.check_complete()
                complete = True
            finally:
                with self._lock:
                    self._take_in(record, chunk.filled, is_kept and complete)

    def _take_in(self, record: ChunkRecord, filled: Sequence[tuple[BlockRecord, Slot]], keep: bool) -> None:
        """The blocks that were filled become the chunk's again; unwanted bytes are freed."""
        for block, slot in filled:
            if keep and block.holders and not block.is_anywhere:
                self._recorder.log(Place, block.number, slot.number)
                self._residency.index.put(block, slot)
            self._recorder.log(Fill, block.number, slot.number)
        written = self._order.mark(self._device.compute)
        if keep:
            record.is_dropped = False
        for block, slot in filled:
            slot.written = slot.last_use = written
            if block.slots[0] is not slot:
                self._arena.retire(slot)
        self._throttle.issued(written)
