"""Copies beside the computation on the real device and the fake CuPy, recorded with the host's part in them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np

from ctrlgrad.memory.devices.device import Piece
from instruments.fake_cupy import Card
from instruments.order import HOST
from instruments.recorded import RecordedDevice, RecordedLibrary
from instruments.stand_in import StandInArray


class RecordedCopier(RecordedDevice):
    """See `ctrlgrad.engines.cuda.library.CopyDevice`."""

    def __init__(self, card: Card) -> None:
        super().__init__(slab_bytes=1 << 12)
        self.card = card
        self.due: deque[Piece] = deque()

    def piece_of(self, array: StandInArray) -> Piece:
        address = SimpleNamespace(ptr=array.data.ctypes.data)
        return Piece("device", array.nbytes, SimpleNamespace(pointer=address))

    def host_bytes(self, piece: Piece) -> np.ndarray:
        # Counts as a read and a write: the caller may do both.
        self.card.tell("launched", HOST, [], [(piece.handle.ptr, piece.nbytes)])
        return np.frombuffer(piece.handle.bytes(piece.nbytes), np.uint8)

    def computed(self, library: RecordedLibrary, values: Sequence[float]) -> StandInArray:
        """An array in the card's memory, written by the computation."""
        with self.compute.raw:
            pointer = self.cupy.cuda.alloc(8 * len(values))
        array = StandInArray(self.cupy.ndarray((len(values),), np.float64, memptr=pointer), held=pointer)
        array.data[...] = values
        library.launched([], [array])
        return array


def recorded_copies(card: Card) -> tuple[RecordedLibrary, RecordedCopier]:
    """A library whose copies are recorded."""
    library = RecordedLibrary(card)
    copier = RecordedCopier(card)
    library.stream = copier.compute.raw
    library.copier = lambda: copier  # type: ignore[assignment, method-assign, return-value]
    return library, copier


__all__ = ["RecordedCopier", "recorded_copies"]
