"""Eviction: what leaves a tier when bytes are wanted, and in which order.

The oldest chunks leave first, for they are popped last. What costs nothing goes before what costs a wait: slots that
nothing uses any more, blocks that another tier also has, chunks that were planned to be computed again; then the host
waits for copies under way; then copies are started that had not been; and a chunk that could also be computed again is
dropped though that was not planned. Only when nothing is left is the request refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ctrlgrad.errors import MemoryBudgetError, TierRefusedError
from ctrlgrad.memory.arena.arena import Slot
from ctrlgrad.memory.arena.ledger import BLOCKS, budget_error
from ctrlgrad.memory.arena.order import Mark
from ctrlgrad.memory.chunk import BlockRecord, ChunkRecord
from ctrlgrad.memory.devices.failures import raised
from ctrlgrad.memory.profile.recorder import Recorder
from ctrlgrad.memory.residency.mover import Mover
from ctrlgrad.memory.sizes import show_exactly

HINTS = {
    0: "a larger device budget, shorter chunks, or swap_memory/checkpoint on the loops that push",
    1: "a larger host budget, a disk, or checkpoint on the loops that push",
    2: "a larger disk",
}

# How often a block is copied away in vain before its error reaches the caller.
TRIES = 2


class Evictor:
    """Allocates slots, and evicts other blocks for them."""

    def __init__(self, mover: Mover, recorder: Recorder, spare_state: Callable[[], bool]) -> None:
        self.mover = mover
        self.arena, self.order = mover.arena, mover.order
        self.accounts = mover.arena.accounts
        self._recorder = recorder
        # By level: why the tier itself had no bytes when it was last asked.
        self._refusals: dict[int, TierRefusedError] = {}
        self.index = mover.index
        # The last resort: an entry state less, and more to compute. False where there is none to spare.
        self._spare_state = spare_state

    def take(self, level: int, nbytes: int, kind: str, what: str, keep: ChunkRecord | None = None) -> Slot:
        """Bytes of a tier; blocks of other chunks than `keep` leave it where they must.

        Raises `MemoryBudgetError`, or `TierRefusedError` where the tier has fewer bytes than the budget.
        """
        nbytes = self.arena.counted(level, nbytes)
        while True:
            self.reserve(level, nbytes, what, keep)
            try:
                return self._take(level, nbytes, kind)
            except TierRefusedError as refused:
                # Other processes use the tier too: it may be full before the budget is.
                if not self._step(level, keep):
                    raise self._refused(level, nbytes, what, refused) from refused

    def _take(self, level: int, nbytes: int, kind: str) -> Slot:
        try:
            slot = self.arena.take(level, nbytes, kind)
        except TierRefusedError as refused:
            self._refusals[level] = refused
            raise
        self._refusals.pop(level, None)
        return slot

    def reserve(self, level: int, nbytes: int, what: str, keep: ChunkRecord | None = None) -> None:
        """See to it that so many bytes fit the account."""
        account = self.accounts[level]
        while not account.fits(nbytes):
            is_possible = account.limit is None or nbytes <= account.limit
            if not (is_possible and self._step(level, keep)):
                refused = self._refusals.values()
                hint = "; ".join([HINTS[level], *(error.hint for error in refused if error.hint)])
                raise budget_error(self.accounts, level, nbytes, what, hint, [error.problem for error in refused])

    def _refused(self, level: int, nbytes: int, what: str, refused: TierRefusedError) -> TierRefusedError:
        account = self.accounts[level]
        within = "" if account.limit is None else ", although its budget has room"
        return TierRefusedError(
            f"memory: {what} needs {show_exactly(nbytes)} of tier {account.tier!r}{within}: {refused.problem}",
            expected=refused.expected,
            got="\n".join([*([refused.got] if refused.got else []), *(a.show() for a in self.accounts)]),
            hint=refused.hint or "a smaller budget, so that blocks leave the tier before it is full; or more memory",
        )

    def _step(self, level: int, keep: ChunkRecord | None) -> bool:
        """Do one thing that frees bytes, or brings that nearer; False where there is none."""
        if self.arena.sweep(level) or self._leave_now(level, keep):
            return True
        if self._wait(level, keep):
            return True
        return self._start(level, keep) or self._give_up_copies(level, keep) or (level == 0 and self._spare_state())

    def movable(self, level: int, keep: ChunkRecord | None = None) -> Iterator[BlockRecord]:
        """Blocks that lie in a level and may leave it, the oldest first.

        Complete blocks of a chunk under way may leave, whichever caller asks.
        """
        for chunk in self.index.in_level(level):
            if chunk is keep and chunk.is_sealed:
                continue
            for block in chunk.blocks:
                if block.slots[level] is not None and not (block.is_open or block.pins) and block.holders:
                    yield block

    def recoverable(self, chunk: ChunkRecord) -> bool:
        """Return true if a chunk may be dropped and computed again: it is not being read."""
        return self.has_state(chunk) and not any(block.pins for block in chunk.blocks)

    def has_state(self, chunk: ChunkRecord) -> bool:
        """Return true if a chunk can be computed again."""
        loop = chunk.loop
        return chunk.is_sealed and loop.recompute is not None and loop.states.nearest(chunk.index) is not None

    def _leave_now(self, level: int, keep: ChunkRecord | None) -> bool:
        """Something leaves that costs no wait."""
        for block in self.movable(level, keep):
            slot = block.slots[level]
            assert slot is not None
            if slot.written is None or not self.order.is_done(slot.written):
                # Being copied in, or its computation is still under way.
                if level == 0 and block.chunk.policy == "recompute" and self._drop(block.chunk):
                    return True
                continue
            if self.mover.check(block, level) is not None:
                return True
            if self.mover.is_clean(block, level) and self._is_quiet(slot):
                self.mover.evict(block, level)
                return True
            if level == 0 and block.chunk.policy == "recompute" and self._drop(block.chunk):
                return True
        if level == 0:
            return False
        return self._leave_backups(level, keep)

    def _leave_backups(self, level: int, keep: ChunkRecord | None) -> bool:
        """A block that is on the device too leaves the tiers behind it: the newest first, which is popped soon."""
        oldest_need = keep.number if keep is not None else -1
        for block in reversed(list(self.movable(level))):
            slot = block.slots[level]
            assert slot is not None
            is_newer = block.chunk.number > oldest_need
            is_backup = is_newer and self.mover.is_whole(block, 0) and self.mover.is_whole(block, level)
            if is_backup and self._is_quiet(slot):
                block.chunk.is_leaving = False
                self.index.put_uncopied(block.chunk, block.chunk.nbytes)
                self.mover.evict(block, level)
                return True
        return False

    def _is_quiet(self, slot: Slot) -> bool:
        return not self.arena.pending(slot)

    def _drop(self, chunk: ChunkRecord) -> bool:
        if not self.recoverable(chunk):
            return False
        self.mover.drop(chunk)
        return True

    def _wait(self, level: int, keep: ChunkRecord | None) -> bool:
        """Wait for a copy after which something can leave. What has ended since the last look counts as waited for."""
        for slot in self.arena.retired[level]:
            for mark in self.arena.pending(slot):
                self._wait_for(mark, f"{self.accounts[level].tier}: bytes that are still being copied")
                break
            return True
        for block in self.movable(level, keep):
            lying = block.slots[level]
            assert lying is not None
            for mark in self.arena.pending(lying):
                self._wait_for(mark, f"{self.accounts[level].tier}: {block.label} is on its way")
                return True
            if self.mover.is_clean(block, level):
                # Its copy began after this mark, but until the host has seen the mark itself the block stays.
                assert lying.written is not None
                self._wait_for(lying.written, f"{self.accounts[level].tier}: {block.label} is still being written")
                return True
        return False

    def _wait_for(self, mark: Mark, cause: str) -> None:
        with self._recorder.stalling(cause):
            self.order.wait(mark)

    def _start(self, level: int, keep: ChunkRecord | None) -> bool:
        """Start the copy of the oldest block that has none further away."""
        if level + 1 >= len(self.accounts):
            return False
        for block in self.movable(level, keep):
            if not block.chunk.loop.may_copy or block.chunk.policy == "recompute":
                continue
            if len(block.failures) >= TRIES:
                if self.recoverable(block.chunk) and level == 0:
                    continue
                raise raised(block.failures[-1])
            if self.start_copy(block, level):
                return True
        return False

    def start_copy(self, block: BlockRecord, level: int = 0) -> bool:
        """Start a copy away from a level. False where it has one, or where the chunk can be computed again instead."""
        if any(slot is not None for slot in block.slots[level + 1 :]):
            return False
        try:
            target = self.take(level + 1, block.nbytes, BLOCKS, f"the copy of {block.label}", block.chunk)
        except (MemoryBudgetError, TierRefusedError) as error:
            if not self.recoverable(block.chunk):
                raise
            block.chunk.policy = "recompute"
            cause = error.__cause__ if isinstance(error.__cause__, TierRefusedError) else error
            block.chunk.reason = f"no room in the next tier: {cause.problem}"
            self._recorder.fall_back(f"{block.label}: {block.chunk.reason}")
            return level == 0
        if block.failures:
            # Work that is put on a stream before its errors have been seen fails with it.
            self.order.settle((self.mover.device.out, self.mover.device.disk))
        self.mover.copy_out(block, level, target)
        return True

    def take_if_free(self, level: int, nbytes: int, kind: str) -> Slot | None:
        """Bytes of a tier if they are free without any wait; None otherwise."""
        nbytes = self.arena.counted(level, nbytes)
        while not self.accounts[level].fits(nbytes):
            if not (self.arena.sweep(level) or self._leave_now(level, None)):
                return None
        try:
            return self._take(level, nbytes, kind)
        except TierRefusedError:
            return None

    def _give_up_copies(self, level: int, keep: ChunkRecord | None) -> bool:
        """Drop a chunk that was not meant to be computed again, but can be."""
        if level:
            return False
        for block in self.movable(level, keep):
            if self.recoverable(block.chunk):
                chunk = block.chunk
                chunk.policy, chunk.reason = "recompute", "its copy was not possible"
                self._recorder.fall_back(f"{block.label}: {chunk.reason}")
                self.mover.drop(chunk)
                return True
        return False


__all__ = ["Evictor"]
