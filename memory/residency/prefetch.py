"""Copies that are started before they are needed: backups forward, fetches backward.

Forward, the oldest blocks are copied while younger ones are still being computed, so that they can leave at no cost
when bytes are needed. What would still fit at the end of the loop is not copied: blocks without a backup may fill about
half of the device's budget. Backward, blocks that are read next are fetched as far ahead as there are free bytes that
no other read is about to use.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ctrlgrad.errors import BlockLostError
from ctrlgrad.memory.arena.arena import Slot
from ctrlgrad.memory.arena.ledger import BLOCKS, STATES, Account
from ctrlgrad.memory.chunk import BlockRecord, ChunkRecord
from ctrlgrad.memory.residency.eviction import Evictor
from ctrlgrad.memory.residency.planner import Planner
from ctrlgrad.memory.residency.policy import uncopied_bytes

# Chunks off the device that one call looks at for something to fetch: the next call comes with the next block.
AHEAD = 4


class Prefetcher:
    """Starts copies early, without making anybody wait."""

    def __init__(self, evictor: Evictor, accounts: Sequence[Account]) -> None:
        self._evictor, self._mover, self._accounts = evictor, evictor.mover, accounts

    # Forward.

    def leave_early(self, sealed: ChunkRecord, planner: Planner) -> None:
        """A chunk was sealed: copy the oldest blocks that have no backup, down to `uncopied_bytes`."""
        limit = self._accounts[0].limit
        if limit is None or len(self._accounts) == 1:
            return
        self._spill(sealed.nbytes)
        most, index = uncopied_bytes(limit, sealed.nbytes), self._evictor.index
        if sealed.policy == "copy" and sealed.is_alive:
            index.put_uncopied(sealed, self._uncopied(sealed))
        # One more such chunk, and the device would still be half empty: nothing may ever have to leave.
        is_near = self._accounts[0].used + sealed.nbytes > limit // 2
        for chunk in index.uncopied() if is_near else ():
            if index.uncopied_bytes <= most:
                break
            if chunk.policy == "copy" and not chunk.is_leaving and self._uncopied(chunk):
                planner.decide(chunk)
                if chunk.policy == "copy" and not self._copy_chunk(chunk):
                    break
            index.put_uncopied(chunk, 0)

    def _uncopied(self, chunk: ChunkRecord) -> int:
        total = 0
        for block in chunk.blocks:
            if block.slots[0] is not None and not block.failures and block.is_in_one_place:
                total += block.slots[0].nbytes
        return total

    def _copy_chunk(self, chunk: ChunkRecord) -> bool:
        """Start copies of a chunk's blocks; False where the next tier has no bytes just now."""
        for block in chunk.blocks:
            if block.slots[0] is None or block.failures or not block.is_in_one_place:
                continue
            target = self._evictor.take_if_free(1, block.nbytes, BLOCKS)
            if target is None:
                return False
            self._mover.copy_out(block, 0, target)
        chunk.is_leaving = True
        return True

    def _spill(self, chunk_bytes: int) -> None:
        """Copy the oldest blocks of the second tier to the third, where there is one and the second fills up."""
        if len(self._accounts) < 3 or self._accounts[1].limit is None:
            return
        limit = self._accounts[1].limit
        waiting = [
            block
            for block in self._evictor.movable(1)
            if block.slots[2] is None and not block.failures and block.slots[1] is not None
        ]
        total = sum(block.nbytes for block in waiting)
        for block in waiting:
            if total <= uncopied_bytes(limit, chunk_bytes):
                break
            target = self._evictor.take_if_free(2, block.nbytes, BLOCKS)
            if target is None:
                break
            self._mover.copy_out(block, 1, target)
            total -= block.nbytes

    # Backward.

    def fetch(self, block: BlockRecord) -> Slot:
        """Bytes of a block on the device; a copy is started where there is none, and other blocks leave for it."""
        slot = block.slots[0]
        if slot is not None:
            return slot
        block.pins += 1
        try:
            if len(block.slots) > 2 and block.slots[1] is None and block.slots[2] is not None:
                landing = self._evictor.take(1, block.nbytes, BLOCKS, f"reading {block.label}", block.chunk)
                self._mover.fetch(block, 2, landing)
            slot = self._take_to_read(block)
            if block.slots[1] is None:
                self._evictor.arena.retire(slot)
                raise BlockLostError(f"block {block.label!r}: no tier has its bytes")
            self._mover.fetch(block, 1, slot)
        finally:
            block.pins -= 1
        return slot

    def _take_to_read(self, block: BlockRecord) -> Slot:
        """The device's bytes for a block, for which blocks of its own chunk leave only as a last resort."""
        nbytes, what = block.nbytes, f"reading {block.label}"
        try:
            return self._evictor.take(0, nbytes, BLOCKS, what, block.chunk)
        except MemoryError:
            return self._evictor.take(0, nbytes, BLOCKS, what)

    def fetch_ahead(self, current: ChunkRecord) -> None:
        """Fetch blocks that are read after those of a chunk, the next ones first, into free bytes."""
        account = self._accounts[0]
        if account.limit is None or not self._evictor.index.has_copies:
            return
        self._evictor.arena.sweep(0)
        # Bytes that other parts had at their peak may be needed again; a block that had to leave for it would be
        # fetched twice.
        free = account.limit - account.used - account.below_peaks(BLOCKS, STATES)
        # Chunks that are run again in between need bytes one after the other.
        spare = 0
        for chunk in itertools.islice(self._evictor.index.away(current), AHEAD):
            if not chunk.is_sealed:
                continue
            if chunk.is_dropped:
                again = chunk.nbytes + 2 * chunk.loop.states.largest
                free -= max(0, again - spare)
                spare = max(spare, again)
            for block in chunk.blocks:
                if not block.holders or block.slots[0] is not None or not block.is_anywhere:
                    continue
                if block.nbytes > free or not self._fetch_into_free(block):
                    return
                free -= block.nbytes
            if free <= 0:
                return

    def _fetch_into_free(self, block: BlockRecord) -> bool:
        if len(block.slots) > 2 and block.slots[1] is None:
            landing = self._evictor.take_if_free(1, block.nbytes, BLOCKS)
            if landing is None:
                return False
            self._mover.fetch(block, 2, landing)
        if not self._accounts[0].fits(block.nbytes):
            return False
        slot = self._evictor.take_if_free(0, block.nbytes, BLOCKS)
        if slot is None:
            return False
        self._mover.fetch(block, 1, slot)
        return True


__all__ = ["Prefetcher"]
