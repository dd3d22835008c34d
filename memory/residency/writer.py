"""Gives running chunks the blocks that they fill, and lets them leave early once they are written."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from ctrlgrad.memory.arena.arena import Slot
from ctrlgrad.memory.arena.ledger import BLOCKS, STAYING, TEMPORARY
from ctrlgrad.memory.arena.order import Mark
from ctrlgrad.memory.chunk import BlockRecord, ChunkRecord
from ctrlgrad.memory.profile.actions import Fill
from ctrlgrad.memory.profile.recorder import Recorder
from ctrlgrad.memory.residency.eviction import Evictor
from ctrlgrad.memory.residency.planner import Planner
from ctrlgrad.memory.residency.prefetch import Prefetcher
from ctrlgrad.memory.residency.throttle import Throttle

# One count for all managers: several may write to one recording.
_BLOCKS = itertools.count(1)


class Writer:
    """Adds blocks to chunks and seals them. The manager's lock is held."""

    def __init__(
        self,
        evictor: Evictor,
        prefetcher: Prefetcher,
        planner: Planner,
        recorder: Recorder,
        throttle: Throttle,
    ) -> None:
        self._evictor, self._prefetcher, self._planner = evictor, prefetcher, planner
        self._recorder, self._throttle = recorder, throttle
        self._mover, self._order, self._device = evictor.mover, evictor.order, evictor.mover.device

    def new_block(
        self, chunk: ChunkRecord, shape: tuple[int, ...], dtype: np.dtype, label: str, stack: int
    ) -> tuple[BlockRecord, Any]:
        """A fresh block of a chunk, resident, with its array."""
        rows = shape[0] if shape else 1
        slots: list[Slot | None] = [None] * len(self._evictor.accounts)
        block = BlockRecord(next(_BLOCKS), label, shape, dtype, chunk, slots, rows, stack)
        kind = BLOCKS if chunk.loop.may_leave else STAYING
        slot = self._evictor.take(0, block.nbytes, kind, label, chunk)
        chunk.blocks.append(block)
        chunk.held += 1
        self._mover.place(block, slot)
        return block, self._device.array(slot.piece, shape, dtype)

    def overwritten(self, running: ChunkRecord, chunk: ChunkRecord) -> list[BlockRecord]:
        """Blocks of a chunk that ran in the bytes of one that is still running, as they were; they are nowhere."""
        for like in running.blocks:
            slots: list[Slot | None] = [None] * len(self._evictor.accounts)
            block = BlockRecord(
                next(_BLOCKS),
                like.label,
                like.shape,
                like.dtype,
                chunk,
                slots,
                like.shape[0],
                like.stack,
                is_open=False,
            )
            chunk.blocks.append(block)
            chunk.nbytes += block.nbytes
        chunk.held, chunk.is_sealed, chunk.is_dropped = len(chunk.blocks), True, True
        chunk.loop.most_bytes = max(chunk.loop.most_bytes, chunk.nbytes)
        self._evictor.index.add(chunk)
        self._recorder.overwritten(chunk)
        return chunk.blocks

    def block_again(self, block: BlockRecord, keep: bool) -> tuple[Slot, Any]:
        """Bytes and their array for a block that is being filled again, to become its own if `keep`."""
        kind = BLOCKS if keep and block.holders and not block.is_anywhere else TEMPORARY
        nbytes = block.full_nbytes
        slot = self._evictor.take(0, nbytes, kind, f"computing {block.label} again", block.chunk)
        return slot, self._device.array(slot.piece, block.shape, block.dtype)

    def settle(self, block: BlockRecord) -> None:
        """All computation that fills one of a chunk's blocks has been issued."""
        if block.is_open:
            self._written(block.chunk, [block])

    def seal(self, chunk: ChunkRecord, seconds: float) -> None:
        """All computation that fills a chunk's blocks has been issued; it takes so many seconds."""
        written = self._written(chunk, [block for block in chunk.blocks if block.is_open])
        chunk.is_sealed = True
        chunk.loop.most_bytes = max(chunk.loop.most_bytes, chunk.nbytes)
        self._planner.ran(chunk, seconds)
        if chunk.places and chunk.places[-1]:
            # Its blocks do not fit all at once, as they would have to for it to be computed again.
            self._planner.copy_only(chunk.loop.label)
        self._recorder.sealed(chunk)
        self._throttle.issued(written)

    def _written(self, chunk: ChunkRecord, blocks: Sequence[BlockRecord]) -> Mark:
        """Close blocks; a mark after the computation that fills them."""
        slots = [(block, slot) for block in blocks if (slot := block.slots[0]) is not None]
        for block, slot in slots:
            self._recorder.log(Fill, block.number, slot.number)
        written = self._order.mark(self._device.compute)
        for block in blocks:
            block.is_open = False
        for _, slot in slots:
            slot.written = slot.last_use = written
            chunk.nbytes += slot.nbytes
        return written

    def leave_early(self, sealed: ChunkRecord) -> None:
        """Start copies before the bytes are needed, and drop what a loop without a budget need not keep."""
        self._planner.observe(self._mover.transfers)
        loop = sealed.loop
        if loop.drops_eagerly:
            held = 1 if loop.states.limit is not None else loop.states.distance
            own = (chunk for chunk in self._evictor.index.in_level(0) if chunk.loop is loop)
            here = [c for c in own if c.is_sealed and not c.is_dropped and c.is_alive]
            for chunk in here[:-held]:
                if self._evictor.recoverable(chunk):
                    self._mover.drop(chunk)
            return
        self._prefetcher.leave_early(sealed, self._planner)


__all__ = ["Writer"]
