"""The devices of CuPy's library: those of sessions' memory managers, and the one that copies beside the computation."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctrlgrad.engines.cuda.cupy_pool import SessionPool
from ctrlgrad.memory.devices.cuda import CudaDevice
from ctrlgrad.memory.devices.device import Piece
from ctrlgrad.memory.sizes import Budget

# The most pinned memory that is allocated at once, where the host budget does not ask for less.
_SLAB_BYTES = 256 << 20
# How much pinned memory is allocated at once for copies beside the computation.
_COPY_SLAB_BYTES = 32 << 20


class SessionDevice(CudaDevice):
    """A device with a pool of its own, which never takes more from the card than the budget has.

    Its own allocations do not go through a run's counting allocator.
    """

    def __init__(self, cupy: Any, pools: list[Any], streams: Sequence[Any], number: int, limits: Budget) -> None:
        self._pools, self._using_allocator = pools, cupy.cuda.using_allocator
        # Account of the products' workspace, once there was a product.
        self.workspace: Any = None
        self._limits = limits
        with cupy.cuda.Device(number):
            self.pool = pools.pop() if pools else SessionPool(cupy)
            self._limit(limits.device)
        super().__init__(
            number,
            directory=limits.disk,
            slab_bytes=_SLAB_BYTES,
            host_bytes=limits.host,
            timing=True,
            streams=streams,
        )
        self.pool.give_back = self._give_back

    def _limit(self, nbytes: int | None) -> None:
        """The most that the pool takes from the card; None: all that there is."""
        if nbytes is not None and self.pool.total_bytes() > nbytes:
            self.pool.free_all_blocks()
        self.pool.set_limit(nbytes)

    def _give_back(self) -> None:
        """Buffers that blocks had go back to the pool: what comes next may need them in another size."""
        self.let_go()
        self.memory.cache.clear()

    def has_workspace(self, counted: Any, nbytes: int) -> None:
        """Products have taken so much beside the pool; it counts as long as the session lasts."""
        self.workspace = counted
        if self._limits.device is not None:
            self._limit(self._limits.device - nbytes)

    @contextmanager
    def current(self) -> Iterator[None]:
        with super().current(), self._using_allocator(self.pool.malloc):
            yield

    def close(self) -> None:
        super().close()
        self.workspace = None
        pool, self.pool = self.pool, None
        if pool is not None:
            pool.give_back = lambda: None
            self._pools.append(pool)


@dataclass(frozen=True)
class _Address:
    """Address of memory that another object owns."""

    ptr: int


@dataclass(frozen=True)
class _ArrayMemory:
    """The memory of an array, as a piece's handle."""

    pointer: _Address


class CopyDevice(CudaDevice):
    """A device that computes on the library's stream."""

    def __init__(self, number: int, streams: Sequence[Any]) -> None:
        super().__init__(number, slab_bytes=_COPY_SLAB_BYTES, streams=streams)
        self.due: deque[Piece] = deque()

    def piece_of(self, array: Any) -> Piece:
        return Piece("device", int(array.nbytes), _ArrayMemory(_Address(int(array.data.ptr))))

    def host_bytes(self, piece: Piece) -> np.ndarray:
        return np.frombuffer(piece.handle.bytes(piece.nbytes), np.uint8)
