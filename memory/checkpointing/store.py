"""Keeps and lets go of the entry states that loops are run again from, counted like all other bytes."""

from __future__ import annotations

from typing import Any

from ctrlgrad.memory.arena.ledger import BLOCKS, STATES
from ctrlgrad.memory.checkpointing.states import Kept, most_state_bytes
from ctrlgrad.memory.chunk import LoopRecord
from ctrlgrad.memory.profile.actions import KeepState, LetStateGo
from ctrlgrad.memory.profile.recorder import Recorder
from ctrlgrad.memory.profile.statistics import Statistics
from ctrlgrad.memory.residency.eviction import Evictor
from ctrlgrad.memory.residency.planner import Planner


class StateStore:
    """The entry states of all loops of a manager."""

    def __init__(self, evictor: Evictor, recorder: Recorder, planner: Planner, statistics: Statistics) -> None:
        self._evictor, self._recorder, self._planner, self._statistics = evictor, recorder, planner, statistics
        self._account = evictor.accounts[0]
        self._mover = evictor.mover
        # Loops with a kept state, by number.
        self._loops: dict[int, LoopRecord] = {}

    def wants(self, loop: LoopRecord) -> bool:
        """Return true if the next chunk's entry state is to be kept."""
        index = len(loop.chunks)
        if loop.recompute is None or index in loop.states.kept or not loop.states.wants(index):
            return False
        return not loop.is_mixed or index == 0 or self._planner.wants_state(loop.label)

    def expect(self, loop: LoopRecord, nbytes: int | None) -> None:
        """Free bytes for the next chunk's state: drop other states for it, and see that its bytes fit."""
        for gone in loop.states.displaced_by(len(loop.chunks)):
            self.discard(loop, gone)
        self._evictor.reserve(0, loop.states.largest if nbytes is None else nbytes, f"the state of {loop.label}")

    def keep(self, loop: LoopRecord, index: int, state: Any, nbytes: int) -> None:
        """Count and keep the state at a chunk's start."""
        self._evictor.reserve(0, nbytes, f"the state of {loop.label}")
        self._account.add(nbytes, STATES)
        self._recorder.log(KeepState, loop.number, index, nbytes)
        self._loops[loop.number] = loop
        loop.states.put(index, Kept(state, nbytes, self._mover.order.mark(self._mover.device.compute)))
        self._statistics.most_states = max(self._statistics.most_states, len(loop.states.kept))

    def discard(self, loop: LoopRecord, index: int) -> None:
        """Forget a kept state."""
        kept = loop.states.pop(index)
        self._mover.arena.vacate(kept.last_use)
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
            if loop.states.limit is not None:
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


__all__ = ["StateStore"]
