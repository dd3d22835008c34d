"""Runs of the CUDA engine whose streams, events, copies, kernels and addresses are recorded, for `instruments.order`.

The memory manager has the real device (`ctrlgrad.memory.devices.cuda`) on the fake CuPy, the engine the stand-in on
NumPy. All is done at once, in the order in which it is put on streams, which is one of those that a card may choose.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from ctrlgrad import memory
from ctrlgrad.engines import optimised_graph
from ctrlgrad.engines.cuda.engine import run_with
from ctrlgrad.engines.cuda.program import Context
from ctrlgrad.ir import Graph
from ctrlgrad.memory.devices.cuda import CudaDevice
from ctrlgrad.memory.devices.device import Piece
from instruments.fake_cupy import Card, install
from instruments.order import Entry
from instruments.stand_in import StandIn, StandInArray


class RecordedDevice(CudaDevice):
    """The device, whose arrays are the stand-in's."""

    def array(self, piece: Piece, shape: Sequence[int], dtype: np.dtype) -> StandInArray:
        return StandInArray(super().array(piece, shape, dtype), held=piece.handle)


class RecordedLibrary(StandIn):
    """The stand-in, whose work is on the compute stream of a device, from whose arena its arrays are."""

    def __init__(self, card: Card, **copies: Any) -> None:
        super().__init__(**copies)
        self.card = card
        self.stream: Any = None
        # Where memory is that arrays lie in, and how far it goes.
        self._known: dict[int, int] = {}

    def allocated(self, array: StandInArray) -> None:
        self._knows(array.data)

    def launched(self, reads: Sequence[Any], writes: Sequence[Any]) -> None:
        if self.stream is not None:
            self.card.tell("launched", self.stream, self._spans(reads), self._spans(writes))

    def flag_taken(self, flag: StandInArray) -> None:
        if self._knows(flag.data):
            self.launched([], [flag])

    def lent(self, x: Any) -> StandInArray:
        found = super().lent(x)
        # The lender has written it.
        if self._knows(found.data):
            self.launched([], [found])
        return found

    def read(self, arrays: Sequence[StandInArray]) -> list[np.ndarray]:
        found = super().read(arrays)
        event = object()
        self.card.tell("recorded", event, self.stream)
        self.card.tell("host waited", event)
        return found

    def _knows(self, data: np.ndarray) -> bool:
        """Take note of the memory that an array lies in; whether it was not known."""
        while isinstance(data.base, np.ndarray):
            data = data.base
        start = data.ctypes.data
        if self.stream is None or not data.nbytes or self._is_known(start):
            return False
        self._known[start] = start + data.nbytes
        self.card.tell("allocated", start, data.nbytes, self.stream)
        weakref.finalize(data, self._forget, start)
        return True

    def _forget(self, start: int) -> None:
        del self._known[start]
        self.card.tell("freed", start)

    def _is_known(self, address: int) -> bool:
        # Copies: the garbage collector may free an array at any allocation, which changes both.
        manager = ((start, start + data.nbytes) for start, data in self.card.live.copy().items())
        return any(start <= address < end for start, end in (*self._known.copy().items(), *manager))

    def _spans(self, arrays: Sequence[Any]) -> list[tuple[int, int]]:
        """Addresses of arrays."""
        found = []
        for x in arrays:
            if isinstance(x, list | tuple):
                found += self._spans(x)
            if isinstance(x, StandInArray) and x.size:
                low, high = np.lib.array_utils.byte_bounds(x.data)
                assert self._is_known(low), "an array of which the library was not told"
                found.append((low, high - low))
        return found


def recorded_run(
    monkeypatch: pytest.MonkeyPatch,
    graph: Graph,
    arguments: Sequence[Any],
    limit: int | None,
    haste: float,
    installed: Callable[[Card], None] = lambda card: None,
) -> tuple[list[Any], list[Entry], Any]:
    """The results of a run under a budget, its record, and what the manager did.

    `haste` is how often the host finds an event done when it looks, from 0 to 1. `installed` is called with the
    fake before anything runs.
    """
    card = install(monkeypatch)
    installed(card)
    card.is_inline, card.haste = True, haste
    entries: list[Entry] = []
    library = RecordedLibrary(card)
    card.tell = lambda *entry: entries.append(entry)
    device = RecordedDevice(slab_bytes=1 << 16, timing=True)
    library.stream = device.compute.raw
    with memory.budget(device=limit, devices={library.name: device}) as session:
        results = run_with(Context(library), optimised_graph(graph, is_for_gpu=True), list(arguments))
        stats = session.manager(library.name).stats
    assert card.broken == []
    card.tell = lambda *_: None
    return results, entries, stats


__all__ = ["RecordedDevice", "RecordedLibrary", "recorded_run"]
