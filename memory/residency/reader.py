"""Gives blocks to their readers: resident, pinned, and in the order of computation."""

from __future__ import annotations

from typing import Any

from ctrlgrad.errors import ExecutionError, MemoryBudgetError
from ctrlgrad.memory.arena.arena import Slot
from ctrlgrad.memory.chunk import BlockRecord
from ctrlgrad.memory.devices.failures import raised
from ctrlgrad.memory.profile.actions import Close, Open
from ctrlgrad.memory.profile.recorder import Recorder
from ctrlgrad.memory.residency.eviction import Evictor
from ctrlgrad.memory.residency.planner import Planner
from ctrlgrad.memory.residency.prefetch import Prefetcher
from ctrlgrad.memory.residency.throttle import Throttle


class Reader:
    """Opens and closes blocks. The manager's lock is held."""

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

    def open(self, block: BlockRecord) -> Any:
        """A block's array, pinned; None where its chunk must be run again first."""
        self._recorder.phase = "backward"
        self._throttle.confirm()
        if not block.holders:
            raise ExecutionError(f"block {block.label!r}: opened after it was freed")
        slot = self._resident(block) if block.is_anywhere else None
        if slot is None:
            return None
        if self._planner.opened(block.chunk, self._device):
            self._throttle.issued(self._order.mark(self._device.compute))
        block.pins += 1
        self._recorder.log(Open, block.number, slot.number)
        self._prefetcher.fetch_ahead(block.chunk)
        return self._device.array(slot.piece, block.kept_shape, block.dtype)

    def _resident(self, block: BlockRecord) -> Slot | None:
        """The device's bytes of a block, in the order of computation; None where they are lost but can be computed."""
        try:
            slot = self._prefetcher.fetch(block)
            self._follow(block, slot)
            return slot
        except MemoryBudgetError:
            raise
        except Exception as failure:
            self._forget_failed(block)
            if not self._evictor.has_state(block.chunk):
                raise
            self._recorder.fall_back(f"{block.label}: computed again, its copy was lost: {failure}")
            self._mover.drop(block.chunk)
            return None

    def _follow(self, block: BlockRecord, slot: Slot) -> None:
        """Computation goes on after the copy that fills a slot. Raises its error where the host can know it."""
        written = slot.written
        assert written is not None
        if written.stream != self._device.compute.name and not self._order.is_done(written):
            with self._recorder.stalling(f"{block.label} is on its way to the device"):
                try:
                    self._order.follow(self._device.compute, written)
                except Exception:
                    # Where the host computes it has waited, and knows.
                    self._order.wait(written)
                    if written.failure is None:
                        raise
            if not self._order.is_done(written):
                self._throttle.rely_on(written)
        if written.failure is not None:
            raise raised(written.failure)

    def _forget_failed(self, block: BlockRecord) -> None:
        """After a failure: which copies of a block are bad."""
        for level, slot in enumerate(block.slots[:2]):
            if slot is not None and slot.written is not None:
                self._order.wait(slot.written)
                self._mover.check(block, level)

    def close(self, block: BlockRecord) -> None:
        """A reader has issued all that reads a block."""
        if not block.pins:
            if not block.holders:
                return
            raise ExecutionError(f"block {block.label!r}: closed more often than opened")
        self._recorder.log(Close, block.number)
        block.pins -= 1
        slot = block.slots[0]
        if slot is not None:
            slot.last_use = self._order.mark(self._device.compute)
        self._planner.closed(block.chunk, self._device)


__all__ = ["Reader"]
