"""A CUDA device through CuPy: its own memory, pinned host memory, and with a folder a file on disk.

Three non-blocking streams compute, copy out and copy in; nothing synchronises the whole device. CuPy is imported when a
device is created, not before.

Three rules of CuPy's memory shape this file. Pinned memory is allocated in slabs and cut here, as the pool rounds every
request up. Device memory comes from a cache: a block that is freed carries an event of the compute stream, and a copy
into it waits for that event on the copy's own stream. And a copy's blocks are held until the copy's own event has
passed: a block that Python collects goes back at once to the arena of the stream that allocated it, whatever still
reads it.

A stream of the device cannot wait for a thread, so where it must (the disk), the driver calls a function that waits.
"""

from __future__ import annotations

import importlib
import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctrlgrad.errors import ExecutionError, TierRefusedError, UserInputError
from ctrlgrad.memory.devices.device import Event, Piece, Stream, Tier
from ctrlgrad.memory.devices.spill import SpillFile, SpillTier
from ctrlgrad.memory.devices.streams import WorkerEvent, WorkerStream
from ctrlgrad.memory.pool import FreeList, Pool, Range
from ctrlgrad.memory.sizes import rounded_up

# CUDA's answer as long as an event is not done.
NOT_READY = 600
# For so many seconds the host looks again and again; then it sleeps between two looks, at most so long.
SPINNING, LONGEST_PAUSE = 2e-4, 1e-3


def wait_for(cupy: Any, event: Any) -> None:
    """As `event.synchronize()`, which gives signals no turn until the card is done. Raises CuPy's errors."""
    end, pause = time.perf_counter() + SPINNING, LONGEST_PAUSE / 64
    # CuPy's `event.done` takes an error for work that is not done.
    while cupy.cuda.runtime.eventQuery(event.ptr) == NOT_READY:
        if time.perf_counter() > end:
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
    event.synchronize()


# Up to here neighbouring float32 milliseconds are at most a microsecond apart.
MOST_SECONDS = 8.0
# Origins that are remembered, for events that are done long after they were recorded.
_REMEMBERED = 64


@dataclass(frozen=True)
class Origin:
    """An event that is done, and when it was."""

    raw: Any
    time: float


class EventClock:
    """`record` puts an event on the clock's stream; `elapsed` gives the milliseconds from one event to another."""

    def __init__(
        self, record: Callable[[], Any], elapsed: Callable[[Any, Any], float], now: Callable[[], float]
    ) -> None:
        self._record, self._elapsed, self._now = record, elapsed, now
        self._lock = threading.Lock()
        self._origins: deque[Origin] = deque(maxlen=_REMEMBERED)
        self.origin()

    def origin(self) -> Origin:
        """Origin from which an event that is recorded now is measured."""
        with self._lock:
            before = self._now()
            if not self._origins or before - self._origins[-1].time > MOST_SECONDS:
                raw = self._record()
                raw.synchronize()
                # It was done somewhere in between, microseconds apart.
                self._origins.append(Origin(raw, (before + self._now()) / 2))
            return self._origins[-1]

    def time_of(self, raw: Any, origin: Origin) -> float:
        """Time at which an event was done, on the host's clock; `origin` is the one from when it was recorded."""
        time = origin.time + self._elapsed(origin.raw, raw) / 1e3
        with self._lock:
            nearer = [o for o in self._origins if origin.time < o.time <= time]
        if nearer:
            return nearer[-1].time + self._elapsed(nearer[-1].raw, raw) / 1e3
        return time


@dataclass(eq=False)
class _Slab:
    """Pinned memory, and what of it is free."""

    pointer: Any
    array: np.ndarray
    free: FreeList


@dataclass(eq=False)
class PinnedBytes:
    """A part of a slab, with an address as CuPy's pointers have."""

    slab: _Slab
    place: Range

    @property
    def ptr(self) -> int:
        return int(self.slab.pointer.ptr) + self.place.offset

    def bytes(self, nbytes: int) -> memoryview:
        """The first bytes, for the disk."""
        return self.slab.array.data[self.place.offset : self.place.offset + nbytes]


class PinnedTier:
    """Slabs of `slab_bytes`, or more where a piece is larger; a piece's handle is a part of one.

    `limit` is what all slabs may have in all, None for no limit. `cuda` is the module `cupy.cuda`; inside `current()`
    the device is the thread's current one; `let_go()` ends the hold that finished copies have on parts of slabs.
    """

    name = "host"
    granule = 1

    def __init__(
        self,
        cuda: Any,
        current: Callable[[], AbstractContextManager[None]],
        let_go: Callable[[], None],
        slab_bytes: int,
        limit: int | None,
    ) -> None:
        self._cuda = cuda
        self._current = current
        self._let_go = let_go
        self._slab_bytes = slab_bytes
        self.limit = limit
        self._lock = threading.Lock()
        self.slabs: list[_Slab] = []

    @property
    def nbytes(self) -> int:
        """Bytes that are pinned, in use or not."""
        return sum(slab.array.nbytes for slab in self.slabs)

    def allocate(self, nbytes: int) -> Piece:
        with self._lock:
            for slab in self.slabs:
                place = slab.free.take(nbytes)
                if place is not None:
                    return Piece(self.name, nbytes, PinnedBytes(slab, place))
            slab = self._grown(nbytes)
            place = slab.free.take(nbytes)
            assert place is not None
            return Piece(self.name, nbytes, PinnedBytes(slab, place))

    def free(self, piece: Piece) -> None:
        pinned, piece.handle = piece.handle, None
        if pinned is not None:
            with self._lock:
                pinned.slab.free.add(pinned.place)

    def clear(self) -> None:
        """Give the slabs back."""
        with self._lock:
            self.slabs.clear()

    def _grown(self, nbytes: int) -> _Slab:
        """A slab more, or where that is refused or passes the limit, what the request needs."""
        cuda = self._cuda
        free = FreeList()
        wanted = free.rounded(nbytes)
        for size in sorted({max(wanted, min(self._slab_bytes, self._room(wanted))), wanted}, reverse=True):
            try:
                with self._current():
                    memory = cuda.PinnedMemory(size, cuda.runtime.hostAllocPortable)
            except cuda.runtime.CUDARuntimeError as cause:
                refused = cause
                continue
            pointer = cuda.PinnedMemoryPointer(memory, 0)
            free.add(Range(0, size))
            slab = _Slab(pointer, np.frombuffer(pointer, np.uint8, size), free)
            self.slabs.append(slab)
            return slab
        raise TierRefusedError(
            "the system refused pinned host memory",
            expected=f"{wanted} bytes",
            got=f"{refused}; {self.nbytes} bytes are pinned",
            hint="lower the host budget, or raise the limit for locked memory (ulimit -l)",
        ) from refused

    def _room(self, wanted: int) -> int:
        """Bytes that a slab may have; slabs that are free as a whole go where they are too small."""
        if self.limit is None:
            return self._slab_bytes
        if self.nbytes + wanted > self.limit:
            self.slabs = [slab for slab in self.slabs if slab.free.nbytes < slab.array.nbytes]
            self._let_go()
        if self.nbytes + wanted > self.limit:
            free = sum(slab.free.nbytes for slab in self.slabs)
            raise TierRefusedError(
                "the host budget is pinned and has no free part that is large enough",
                expected=f"{wanted} bytes in one part",
                got=f"{self.nbytes} of {self.limit} bytes pinned, of which {free} are free in smaller parts",
                hint="a larger host budget: blocks lie in whole pages there, and not across two slabs",
            )
        return self.limit - self.nbytes


# CuPy's pool gives device memory in multiples of this.
GRANULE = 512


@dataclass(eq=False)
class _Guard:
    """A thread's event for which a stream waits: its error is the error of the stream's events."""

    event: WorkerEvent
    # True if the host has seen the error.
    seen: bool = False

    @property
    def is_over(self) -> bool:
        return self.seen or (self.event.is_done() and not self.event.failed)


class CudaEvent:
    """A CUDA event, and the threads' events that came before it."""

    def __init__(self, device: CudaDevice, raw: Any, guards: tuple[_Guard, ...]) -> None:
        self._device = device
        self._guards = guards
        self._origin = device.clock.origin() if device.clock is not None else None
        self.raw = raw

    def is_done(self) -> bool:
        return bool(self.raw.done)

    def wait(self) -> None:
        self._synchronize()
        for guard in self._guards:
            try:
                guard.event.wait()
            except BaseException:
                guard.seen = True
                raise

    def join(self) -> None:
        """As `wait`, from another stream: the host has not seen the error yet."""
        self._synchronize()
        for guard in self._guards:
            guard.event.join()

    @property
    def time(self) -> float | None:
        if self._device.clock is None or self._origin is None or not self.raw.done:
            return None
        return self._device.clock.time_of(self.raw, self._origin)

    def _synchronize(self) -> None:
        with self._device.errors("waiting for an event"):
            wait_for(self._device.cupy, self.raw)


class CudaStream:
    """A non-blocking CUDA stream; `raw` is CuPy's, for `with device.compute.raw:`."""

    def __init__(self, device: CudaDevice, name: str, raw: Any) -> None:
        self._device = device
        self._guards: tuple[_Guard, ...] = ()
        self.name = name
        self.raw = raw

    def record(self) -> CudaEvent:
        self._guards = tuple(guard for guard in self._guards if not guard.is_over)
        with self._device.errors("recording an event"):
            raw = self._device.cupy.cuda.Event(disable_timing=not self._device.timing)
            raw.record(self.raw)
        return CudaEvent(self._device, raw, self._guards)

    def wait(self, event: Event) -> None:
        if isinstance(event, CudaEvent):
            with self._device.errors("waiting for an event"):
                self.raw.wait_event(event.raw)
            self._guards += tuple(guard for guard in event._guards if guard not in self._guards)
        elif isinstance(event, WorkerEvent):
            guard = _Guard(event)
            if not guard.is_over:
                self._guards += (guard,)
                with self._device.errors("waiting for a thread"):
                    self.raw.launch_host_func(WorkerEvent.settle, event)
        else:
            raise ExecutionError(f"stream {self.name!r} of {self._device.name}: no event of this device: {event!r}")


@dataclass(eq=False)
class _Slot:
    """Device memory, and the event of the compute stream from which on other streams may write to it."""

    pointer: Any
    released: Any


class CudaMemory:
    """The device's own memory; a piece's handle is a buffer of the cache."""

    name = "device"
    granule = GRANULE

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        # A copy into a buffer waits until the computation has passed its release: long ago, where it is the oldest.
        self.cache = Pool(self._make, oldest_first=True)

    def allocate(self, nbytes: int) -> Piece:
        size = rounded_up(nbytes, GRANULE)
        out_of_memory = self._device.cupy.cuda.memory.OutOfMemoryError
        try:
            slot = self.cache.take(size)
        except out_of_memory:
            # The cache's free buffers of other sizes may be what is missing.
            self._device.let_go()
            self.cache.clear()
            try:
                slot = self.cache.take(size)
            except out_of_memory as cause:
                raise self._refusal(size) from cause
        return Piece(self.name, nbytes, slot)

    def free(self, piece: Piece) -> None:
        slot, piece.handle = piece.handle, None
        if slot is not None:
            # The computation may still use it; the next owner's copies wait for that, not the host.
            self.cache.give(rounded_up(piece.nbytes, GRANULE), _Slot(slot.pointer, self._device.mark_compute()))

    def _make(self, size: int) -> _Slot:
        """From the arena of the compute stream, which may still use the bytes for a temporary that is gone."""
        with self._device.current(), self._device.compute.raw:
            pointer = self._device.cupy.cuda.alloc(size)
        return _Slot(pointer, self._device.mark_compute())

    def _refusal(self, size: int) -> TierRefusedError:
        free, total = self._device.memory_info()
        return TierRefusedError(
            f"{self._device.name} has no memory left, although the budget allows it: other programs use this card too",
            expected=f"{size} bytes",
            got=f"{free} free of {total}, {self.cache.used} bytes in use by blocks",
            hint="lower the device budget, or end what else uses the card",
        )


@dataclass(frozen=True)
class _InFlight:
    """A copy's event, and what must live until it has passed."""

    event: Any
    held: tuple[Any, Any]


class CudaDevice:
    """CUDA device number `number`, pinned host memory, and a spill file where `directory` is given.

    `slab_bytes` is how much is pinned at once, `host_bytes` the most that is ever pinned; None: no limit.
    With `timing` events carry times, which costs a little for each. It computes, copies out and copies in on three
    CUDA streams: its own, or those that it is given. Raises `UserInputError` without CuPy or without the device.
    """

    def __init__(
        self,
        number: int = 0,
        *,
        directory: str | os.PathLike[str] | None = None,
        slab_bytes: int = 256 << 20,
        host_bytes: int | None = None,
        timing: bool = False,
        streams: Sequence[Any] | None = None,
    ) -> None:
        self.cupy = _cupy(number)
        self.name = f"cuda:{number}"
        self.copies_take_cores = False
        self.timing = timing
        self._number = number
        self._in_flight: deque[_InFlight] = deque()
        self._lock = threading.Lock()
        self._closed = False
        self._idle: Any = None
        if streams is None:
            with self.current():
                streams = [self.cupy.cuda.Stream(non_blocking=True) for _ in range(3)]
        self.compute, self.out, self.into = (
            CudaStream(self, name, raw) for name, raw in zip(("compute", "out", "in"), streams, strict=True)
        )
        self.disk = WorkerStream("disk")
        # A device that was not closed must not leave a thread behind.
        weakref.finalize(self, self.disk.close)
        self.memory = CudaMemory(self)
        self.pinned = PinnedTier(self.cupy.cuda, self.current, self.let_go, slab_bytes, host_bytes)
        self.spill: SpillFile | None = None
        tiers: list[Tier] = [self.memory, self.pinned]
        if directory is not None:
            self.spill = SpillFile(directory)
            tiers.append(SpillTier(self.spill))
        self.tiers = tuple(tiers)
        self.clock = EventClock(self._mark_idle, self._elapsed, self.now) if timing else None

    def copy(self, source: Piece, target: Piece, nbytes: int, stream: Stream) -> None:
        if self._closed:
            raise ExecutionError(f"{self.name}: it is closed")
        runtime = self.cupy.cuda.runtime
        link = (source.tier, target.tier)
        if link == ("device", "host") and isinstance(stream, CudaStream):
            self._copy(target.handle.ptr, source.handle.pointer.ptr, nbytes, runtime.memcpyDeviceToHost, stream)
        elif link == ("host", "device") and isinstance(stream, CudaStream):
            with self.errors("waiting for an event"):
                stream.raw.wait_event(target.handle.released)
            self._copy(target.handle.pointer.ptr, source.handle.ptr, nbytes, runtime.memcpyHostToDevice, stream)
        elif "disk" in link and isinstance(stream, WorkerStream) and self.spill is not None:
            near = source if source.tier == PinnedTier.name else target
            stream.put(self.spill.work(source, target, near.handle.bytes(nbytes)))
            return
        else:
            raise ExecutionError(
                f"{self.name}: no copy from tier {source.tier!r} to {target.tier!r} on stream {stream.name!r}"
            )
        self._hold(source.handle, target.handle, stream)

    def array(self, piece: Piece, shape: Sequence[int], dtype: np.dtype) -> Any:
        """A CuPy array in the piece's memory, to be used on the compute stream."""
        assert math.prod(shape) * np.dtype(dtype).itemsize <= piece.nbytes
        return self.cupy.ndarray(tuple(shape), dtype, memptr=piece.handle.pointer)

    def now(self) -> float:
        return time.perf_counter()

    def _mark_idle(self) -> Any:
        """An event with a time, on a stream where nothing is ever put."""
        with self.errors("recording an event"):
            if self._idle is None:
                self._idle = self.cupy.cuda.Stream(non_blocking=True)
            event = self.cupy.cuda.Event()
            event.record(self._idle)
        return event

    def _elapsed(self, start: Any, end: Any) -> float:
        return float(self.cupy.cuda.get_elapsed_time(start, end))

    def memory_info(self) -> tuple[int, int]:
        """Free and total bytes of the card."""
        with self.current():
            free, total = self.cupy.cuda.runtime.memGetInfo()
        return int(free), int(total)

    def mark_compute(self) -> Any:
        """A CUDA event without time after the computation so far."""
        return self._mark(self.compute)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make this device the thread's current one inside."""
        with self.cupy.cuda.Device(self._number):
            yield

    @contextmanager
    def errors(self, operation: str) -> Iterator[None]:
        """CUDA's errors inside are the library's, and the device is the current one."""
        try:
            with self.current():
                yield
        except self.cupy.cuda.runtime.CUDARuntimeError as cause:
            raise ExecutionError(f"{self.name}: {operation}: {cause}") from cause

    def close(self) -> None:
        """Wait for this device's own streams, end the thread, remove the file, give pinned and cached memory back."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        # First the thread: the streams may wait for it.
        self.disk.close()
        try:
            for stream in (self.compute, self.out, self.into):
                with self.errors("closing"):
                    stream.raw.synchronize()
        finally:
            if self.spill is not None:
                self.spill.close()
            self._in_flight.clear()
            self.memory.cache.clear()
            self.pinned.clear()

    def _copy(self, target: int, source: int, nbytes: int, kind: int, stream: CudaStream) -> None:
        with self.errors(f"a copy of {nbytes} bytes on stream {stream.name!r}"):
            self.cupy.cuda.runtime.memcpyAsync(target, source, nbytes, kind, stream.raw.ptr)

    def _hold(self, source: Any, target: Any, stream: CudaStream) -> None:
        event = self._mark(stream)
        with self._lock:
            self._in_flight.append(_InFlight(event, (source, target)))
            # Two streams share the list: one that is behind only makes it longer.
            while self._in_flight and self._in_flight[0].event.done:
                self._in_flight.popleft()

    def let_go(self) -> None:
        """Hold the ends of finished copies no longer."""
        with self._lock:
            self._in_flight = deque(held for held in self._in_flight if not held.event.done)

    def _mark(self, stream: CudaStream) -> Any:
        with self.errors("recording an event"):
            event = self.cupy.cuda.Event(disable_timing=True)
            event.record(stream.raw)
        return event


def _cupy(number: int) -> Any:
    """The CuPy module, on a machine that has the device."""
    try:
        cupy: Any = importlib.import_module("cupy")
    except ImportError as cause:
        raise UserInputError(
            "a CUDA device needs CuPy, which cannot be imported", got=str(cause), hint="pip install -e '.[cuda12]'"
        ) from cause
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as cause:
        raise UserInputError(
            "CUDA cannot be used on this machine", got=str(cause), hint="check the driver with nvidia-smi"
        ) from cause
    if not 0 <= number < count:
        raise UserInputError("there is no such CUDA device", expected=f"a number below {count}", got=str(number))
    return cupy
