"""Gives blocks to their readers: resident, pinned, and in the order of computation."""

from __future__ import annotations

from typing import Any

from ctrlgrad.errors import ExecutionError, MemoryBudgetError
from ctrlgrad.memory.arena.arena import Slot
from ctrlgrad.memory.block import BlockRecord
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

    def open(self, stored: BlockRecord) -> Any:
        """A block's array, pinned; None where its chunk must be run again first."""
        self._recorder.phase = "backward"
        self._throttle.confirm()
        if not stored.holders:
            raise ExecutionError(f"block {stored.label!r}: opened after it was freed")
        slot = self._resident(stored) if stored.is_anywhere else None
        if slot is None:
            return None
        if self._planner.opened(stored.chunk, self._device):
            self._throttle.issued(self._order.mark(self._device.compute))
        stored.pins += 1
        self._recorder.log(Open(stored.number, slot.number))
        self._prefetcher.fetch_ahead(stored.chunk)
        return self._device.array(slot.piece, stored.kept_shape, stored.dtype)

    def _resident(self, stored: BlockRecord) -> Slot | None:
        """The device's bytes of a block, in the order of computation; None where they are lost but can be computed."""
        try:
            slot = self._prefetcher.fetch(stored)
            self._follow(stored, slot)
            return slot
        except MemoryBudgetError:
            raise
        except Exception as failure:
            self._forget_failed(stored)
            if not self._evictor.has_state(stored.chunk):
                raise
            self._recorder.fall_back(f"{stored.label}: computed again, its copy was lost: {failure}")
            self._mover.drop(stored.chunk)
            return None

    def _follow(self, stored: BlockRecord, slot: Slot) -> None:
        """Computation goes on after the copy that fills a slot. Raises its error where the host can know it."""
        written = slot.written
        assert written is not None
        if written.stream != self._device.compute.name and not self._order.is_done(written):
            with self._recorder.stalling(f"{stored.label} is on its way to the device"):
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

    def _forget_failed(self, stored: BlockRecord) -> None:
        """After a failure: which copies of a block are bad."""
        for level, slot in enumerate(stored.slots[:2]):
            if slot is not None and slot.written is not None:
                self._order.wait(slot.written)
                self._mover.check(stored, level)

    def close(self, stored: BlockRecord) -> None:
        """A reader has issued all that reads a block."""
        if not stored.pins:
            if not stored.holders:
                return
            raise ExecutionError(f"block {stored.label!r}: closed more often than opened")
        self._recorder.log(Close(stored.number))
        stored.pins -= 1
        slot = stored.slots[0]
        if slot is not None:
            slot.last_use = self._order.mark(self._device.compute)
        self._planner.closed(stored.chunk, self._device)


__all__ = ["Reader"]
