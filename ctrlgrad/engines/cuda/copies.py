"""Copies between a device and the host beside the computation.

Out: an event behind the work so far, for which the copy stream waits; the copy into a slab; an event behind that. When
it has passed the bytes go from the slab into an array of their own. In: from the array into a slab, by the host; the
copy into fresh memory of the device; an event, for which the compute stream waits before the first use.

Invariants:

- what is copied out is held until the event behind the copy has passed: no kernel takes it for its own and writes to
  it, and its memory is not handed out again;
- a piece of a slab belongs to one copy, from before it is written to until the event behind the copy has passed and, on
  the way out, its bytes have been taken. Only then may another copy have it;
- memory that a copy lands in is handed out by the cache of the device, so the copy waits until the computation is done
  with what lay there before. It goes back when the array in it and the copy into it are both over. An array may die at
  any point, also while the cache is at work: its memory is only noted then, in `due`, and freed with the next copy;
- when a run ends, by whatever, its copies are over.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctrlgrad.engines.cuda.library import ArrayLibrary
from ctrlgrad.errors import CtrlgradError
from ctrlgrad.memory.devices.device import Event, Piece


@dataclass(eq=False)
class _Copied:
    """An array of a copy out, and the slab's piece for it; none where it has no bytes."""

    array: Any
    shape: tuple[int, ...]
    slab: Piece | None


class OutCopy:
    """Arrays on their way to the host."""

    def __init__(self, copies: Copies, parts: list[_Copied], event: Event) -> None:
        self._copies, self._parts, self._event = copies, parts, event

    def is_done(self) -> bool:
        return self._event.is_done()

    def arrays(self) -> list[np.ndarray]:
        """The arrays on the host; waits for them. Raises the error of a copy that has failed."""
        self._event.wait()
        found = []
        for part in self._parts:
            array = np.empty(part.shape, part.array.dtype)
            if part.slab is not None:
                array[...] = self._copies.seen(part.slab, part.shape, part.array.dtype)
            found.append(array)
        self.free()
        return found

    def free(self) -> None:
        """Let go of the arrays and the slab. The event has passed, or the copy has failed."""
        for part in self._parts:
            if part.slab is not None:
                self._copies.free_slab(part.slab)
        self._parts.clear()
        self._copies.leaving.remove(self)

    def abandon(self) -> None:
        """Wait for the end, good or bad."""
        with suppress(CtrlgradError):
            self._event.wait()
        self.free()


class _Landing:
    """The memory that a copy lands in, as long as the copy goes on or an array in it lives."""

    __slots__ = ("_due", "_piece")

    def __init__(self, due: deque[Piece], piece: Piece) -> None:
        self._due, self._piece = due, piece

    def __del__(self) -> None:
        self._due.append(self._piece)


@dataclass(eq=False)
class InCopy:
    """An array of the device whose bytes are under way; None is the event of one that has none."""

    array: Any
    event: Event | None


@dataclass(eq=False)
class _Arriving:
    """A copy in, until its event has passed."""

    event: Event
    slab: Piece
    landing: _Landing


class Copies:
    """The copies of one run on one device."""

    def __init__(self, library: ArrayLibrary) -> None:
        self._library = library
        self._device = library.copier()
        self._memory, self._slabs = self._device.tiers[0], self._device.tiers[1]
        self.leaving: list[OutCopy] = []
        self._arriving: deque[_Arriving] = deque()

    def out(self, arrays: Sequence[Any]) -> OutCopy:
        """Begin to copy arrays to the host, as they are after the work so far."""
        self.settle()
        parts: list[_Copied] = []
        try:
            for x in arrays:
                # A transposed or strided view has no bytes in a row.
                compact = self._library.xp.ascontiguousarray(x)
                slab = self._slabs.allocate(x.nbytes) if x.nbytes else None
                parts.append(_Copied(compact, tuple(x.shape), slab))
        except BaseException:
            for part in parts:
                if part.slab is not None:
                    self.free_slab(part.slab)
            raise
        device = self._device
        device.out.wait(device.compute.record())
        try:
            for part in parts:
                if part.slab is not None:
                    device.copy(device.piece_of(part.array), part.slab, part.slab.nbytes, device.out)
        finally:
            # The copies that began before one was refused are under way.
            self.leaving.append(OutCopy(self, parts, device.out.record()))
        return self.leaving[-1]

    def into(self, shape: Sequence[int], dtype: np.dtype, fill: Callable[[np.ndarray], None]) -> InCopy:
        """Begin to copy what `fill` writes into an array of the given shape; `landed` has it on the device."""
        self.settle()
        nbytes = dtype.itemsize * math.prod(shape)
        if not nbytes:
            return InCopy(self._library.empty(shape, dtype), None)
        slab = self._slabs.allocate(nbytes)
        try:
            fill(self.seen(slab, shape, dtype))
            memory = self._memory.allocate(nbytes)
        except BaseException:
            self.free_slab(slab)
            raise
        device = self._device
        landing = _Landing(device.due, memory)
        device.copy(slab, memory, nbytes, device.into)
        event = device.into.record()
        self._arriving.append(_Arriving(event, slab, landing))
        return InCopy(self._library.borrowed(device.array(memory, shape, dtype), landing), event)

    def landed(self, copy: InCopy) -> Any:
        """The array that a copy lands in: what is computed from now on waits for it."""
        if copy.event is not None:
            self._device.compute.wait(copy.event)
        self.settle()
        return copy.array

    def settle(self) -> None:
        """Free what copies that are over had."""
        while self._arriving and self._arriving[0].event.is_done():
            self.free_slab(self._arriving.popleft().slab)
        due = self._device.due
        while due:
            # Another run on the device may be quicker.
            with suppress(IndexError):
                self._memory.free(due.popleft())

    def close(self) -> None:
        """Wait for all copies, and free what they had. One that has failed has been told of, or its run has."""
        while self.leaving:
            self.leaving[-1].abandon()
        while self._arriving:
            arriving = self._arriving.popleft()
            with suppress(CtrlgradError):
                arriving.event.wait()
            self.free_slab(arriving.slab)
            del arriving
        self.settle()

    def seen(self, slab: Piece, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        """A slab's piece as an array."""
        nbytes = dtype.itemsize * math.prod(shape)
        return self._device.host_bytes(slab)[:nbytes].view(dtype).reshape(tuple(shape))

    def free_slab(self, slab: Piece) -> None:
        self._slabs.free(slab)
