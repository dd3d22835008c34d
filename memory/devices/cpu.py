"""The CPU as a device: its memory is RAM, and the tier behind it is a file on disk.

Computation happens in the caller's thread, so the compute stream is the host. Two worker threads write and read the
file; both let go of Python's global lock meanwhile.
"""

from __future__ import annotations

import math
import os
import time
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from ctrlgrad.errors import ExecutionError, TierRefusedError
from ctrlgrad.memory.devices.device import Piece, Stream
from ctrlgrad.memory.devices.spill import SpillFile, SpillTier
from ctrlgrad.memory.devices.streams import HostStream, WorkerStream
from ctrlgrad.memory.pool import LIMIT_BYTES, Pool
from ctrlgrad.memory.sizes import rounded_up

PAGE = 4096
# The most bytes that are copied in the caller's thread: it is done before a worker would have begun.
SHORT_BYTES = 1 << 18


def _page_aligned(size: int) -> np.ndarray:
    whole = np.empty(size + PAGE, np.uint8)
    start = -whole.ctypes.data % PAGE
    return whole[start : start + size]


# Buffers of all devices. What a session leaves is for the next one: the system clears a page that is touched for the
# first time, which takes longer than to fill it.
RAM = Pool(_page_aligned)


class RamTier:
    """Page-aligned buffers of RAM; a piece's handle is an array of bytes."""

    name = "device"
    granule = 1

    def allocate(self, nbytes: int) -> Piece:
        size = rounded_up(nbytes, PAGE)
        try:
            return Piece(self.name, nbytes, RAM.take(size))
        except MemoryError as cause:
            raise TierRefusedError(
                "the system has no RAM left", expected=f"{size} bytes", got=f"{RAM.used} bytes in use by blocks"
            ) from cause

    def free(self, piece: Piece) -> None:
        buffer, piece.handle = piece.handle, None
        if buffer is not None:
            RAM.give(buffer.nbytes, buffer)


class CpuDevice:
    """RAM, and a spill file in `directory` (default: the system's folder for temporary files).

    >>> device = CpuDevice()
    >>> block, far = device.tiers[0].allocate(32), device.tiers[1].allocate(32)
    >>> device.array(block, [4], np.dtype("f8"))[:] = [1, 2, 3, 4]
    >>> device.copy(block, far, 32, device.out)
    >>> device.into.wait(device.out.record())
    >>> landing = device.tiers[0].allocate(32)
    >>> device.copy(far, landing, 32, device.into)
    >>> device.compute.wait(device.into.record())
    >>> device.array(landing, [4], np.dtype("f8"))
    array([1., 2., 3., 4.])
    >>> device.close()
    """

    name = "cpu"
    copies_take_cores = True

    def __init__(self, directory: str | os.PathLike[str] | None = None) -> None:
        self.spill = SpillFile(directory)
        self.ram = RamTier()
        self.tiers = (self.ram, SpillTier(self.spill))
        self.compute = HostStream("compute")
        self.out, self.into, self.disk = (WorkerStream(name) for name in ("out", "in", "disk"))
        # A device that was not closed must not leave threads behind.
        self._finalizer = weakref.finalize(self, _close, (self.out, self.into, self.disk), self.spill)

    def copy(self, source: Piece, target: Piece, nbytes: int, stream: Stream) -> None:
        if not isinstance(stream, WorkerStream):
            raise ExecutionError(f"copy on stream {stream.name!r}: it has no thread")
        if source.tier == target.tier:
            raise ExecutionError(f"copy from tier {source.tier!r} to {target.tier!r}: they are not neighbours")
        near = source if source.tier == RamTier.name else target
        stream.put(self.spill.work(source, target, memoryview(near.handle)[:nbytes]), nbytes <= SHORT_BYTES)

    def array(self, piece: Piece, shape: Sequence[int], dtype: np.dtype) -> Any:
        dtype = np.dtype(dtype)
        return piece.handle[: math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)

    def now(self) -> float:
        return time.perf_counter()

    def close(self) -> None:
        """End the threads after what they are doing, remove the file, and give back RAM that is not kept."""
        self._finalizer()
        RAM.restrict(LIMIT_BYTES)


def _close(streams: Sequence[WorkerStream], spill: SpillFile) -> None:
    for stream in streams:
        stream.close()
    spill.close()
