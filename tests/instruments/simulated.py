"""A device without hardware: the bytes and the threads are real, the time is arithmetic.

Every rule of the memory manager is tested here. Worker threads copy, so a missing wait shows as wrong
bytes; deliberate delays in the workers make it show often. Freed and fresh memory is filled with a pattern, so a use
after free shows too, and freeing what a copy still uses is an error at once. Faults are injected by number.

Time is virtual and the same in every run. The host has a clock, and each stream is free from some time on. Work that is
put on a stream starts at the latest of: the stream free, the events that the stream waits for, and the host's clock. A
copy takes the latency and its bytes over the bandwidth. A host that waits for an event moves its clock there; an event
is done when the host's clock has reached it, however far the threads are. Nothing else moves the clock, so a loop that
only polls `is_done` polls forever: wait, or `advance`.
"""

from __future__ import annotations

import random
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from ctrlgrad.errors import BlockLostError, CtrlgradError, ExecutionError, TierRefusedError, UserInputError
from ctrlgrad.memory.devices.device import Event, Piece, Stream
from ctrlgrad.memory.devices.streams import Work, WorkerEvent, WorkerStream

# Fresh bytes read as NaN in every floating-point type; freed ones as a huge negative number.
FRESH = 0xFF
FREED = 0xFB


class ProtocolError(CtrlgradError, AssertionError):
    """The rules of `ctrlgrad.memory.devices.device` were broken: a defect of the manager."""


class WorkerKilled(BaseException):
    """Exception of an injected fault in a worker, which nothing there catches."""


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong, counted from 1.

    "fail": the nth copy on stream `place` raises and copies nothing. "corrupt": one byte of its target is changed.
    "kill": the worker of stream `place` dies at its nth operation (copies, computations and waits for an event; not
    records). "refuse": the nth allocation of tier `place` is refused although it would fit.
    """

    kind: Literal["fail", "corrupt", "kill", "refuse"]
    place: str
    nth: int


@dataclass(eq=False)
class _Clock:
    """The host's virtual clock, in seconds."""

    now: float = 0.0
    lock: threading.RLock = field(default_factory=threading.RLock)

    def reach(self, moment: float) -> None:
        with self.lock:
            self.now = max(self.now, moment)


class SimulatedEvent:
    """A place in a simulated stream: a virtual time, and the worker's coming by."""

    def __init__(self, clock: _Clock, moment: float, real: WorkerEvent) -> None:
        self._clock = clock
        self.moment = moment
        self.real = real

    def is_done(self) -> bool:
        """Return true if the host's clock has reached it; then wait for the worker. Takes no virtual time."""
        if self._clock.now < self.moment:
            return False
        self.real.settle()
        return True

    def wait(self) -> None:
        """Move the host's clock here, and let the worker come by."""
        self._clock.reach(self.moment)
        self.real.wait()

    def join(self) -> None:
        """Let the worker come by; the host's clock stays."""
        self.real.join()

    @property
    def time(self) -> float | None:
        return self.moment if self._clock.now >= self.moment else None


class SimulatedStream:
    """A worker thread with a virtual time at which it is free."""

    def __init__(self, name: str, clock: _Clock, faults: Iterable[Fault], seed: int | None, delay: float) -> None:
        self._clock = clock
        self._worker = WorkerStream(name, lambda: clock.now)
        self._kills = {f.nth for f in faults if f.kind == "kill" and f.place == name}
        self._random = None if seed is None else random.Random(f"{seed} {name}")
        self._delay = delay
        self._operations = 0
        self.free = 0.0
        self.busy = 0.0

    @property
    def name(self) -> str:
        return self._worker.name

    def put(self, work: Work, seconds: float) -> float:
        """Queue real work that takes a virtual time; answer when it ends."""
        with self._clock.lock:
            self.free = max(self.free, self._clock.now) + seconds
            self.busy += seconds
            self._put(work)
            return self.free

    def _put(self, work: Work) -> None:
        self._operations += 1
        number = self._operations
        # Drawn here, in the order of issue, so that a seed gives the same delays in every run.
        pause = 0.0 if self._random is None else self._random.choice((0.0, 0.0, 1.0)) * self._random.random()

        def run() -> None:
            if number in self._kills:
                raise WorkerKilled(f"operation {number} of stream {self.name!r}")
            if pause:
                time.sleep(pause * self._delay)
            work()

        self._worker.put(run)

    def poison(self, data: np.ndarray) -> None:
        """Fill freed bytes after all work so far. Takes no time and is no operation that a fault counts."""
        self._worker.put(lambda: data.fill(FREED))

    def record(self) -> SimulatedEvent:
        with self._clock.lock:
            return SimulatedEvent(self._clock, max(self.free, self._clock.now), self._worker.record())

    def wait(self, event: Event) -> None:
        if not isinstance(event, SimulatedEvent):
            raise ProtocolError(f"stream {self.name!r}: waits for an event of another device: {event!r}")
        with self._clock.lock:
            self.free = max(self.free, event.moment)
            self._put(event.join)

    def close(self) -> None:
        self._worker.close()


class BlockingStream(SimulatedStream):
    """A compute stream that is the host's own thread: recording waits for nothing, waiting blocks."""

    def wait(self, event: Event) -> None:
        event.wait()

    def put(self, work: Work, seconds: float) -> float:
        with self._clock.lock:
            end = super().put(work, seconds)
            real = self._worker.record()
            self._clock.reach(end)
        real.wait()
        return end

    def poison(self, data: np.ndarray) -> None:
        data.fill(FREED)


@dataclass(eq=False)
class _Bytes:
    """Simulated piece: bytes, and the time until which copies use them."""

    data: np.ndarray
    freed: bool = False
    used_until: float = 0.0
    used_by: str = ""
    # Of a piece on disk: the checksum of the bytes that were written, and how many.
    checksum: int = 0
    written: int = 0


class SimulatedTier:
    """Bytes up to a capacity, with counts."""

    granule = 1

    def __init__(self, device: SimulatedDevice, name: str, capacity: int, refused: Iterable[int]) -> None:
        self._device = device
        self._refused = frozenset(refused)
        self.name = name
        self.capacity = capacity
        self.allocations = 0
        self.used = 0
        self.peak = 0

    def allocate(self, nbytes: int) -> Piece:
        self._device.check_open()
        with self._device.clock.lock:
            self.allocations += 1
            if self.allocations in self._refused or self.used + nbytes > self.capacity:
                raise TierRefusedError(
                    f"tier {self.name!r} of device {self._device.name!r} is full",
                    expected=f"{nbytes} free bytes",
                    got=f"{self.capacity - self.used} free of {self.capacity}, {self.used} used",
                )
            self.used += nbytes
            self.peak = max(self.peak, self.used)
        return Piece(self.name, nbytes, _Bytes(np.full(nbytes, FRESH, np.uint8)))

    def free(self, piece: Piece) -> None:
        """Poison the bytes after the computation so far, as memory that the compute stream may use next."""
        device = self._device
        with device.clock.lock:
            content = device.check_piece(piece, "free", self.name)
            if content.used_until > device.clock.now:
                raise ProtocolError(
                    f"tier {self.name!r}: bytes are freed at {device.clock.now:.9f} s while {content.used_by} uses "
                    f"them until {content.used_until:.9f} s"
                )
            content.freed = True
            self.used -= piece.nbytes
            if self is device.tiers[0] and not device.closed:
                device.compute.poison(content.data)
            else:
                content.data.fill(FREED)


class SimulatedDevice:
    """Tiers and streams with set capacities, bandwidths, latency and faults; see the module's docstring.

    `capacities` are the bytes of each tier, the fastest first: one, two or three tiers named "device", "host" and
    "disk" as you like. Bandwidths are bytes per second: `bandwidth_out` from the first to the second tier,
    `bandwidth_in` back, `disk_bandwidth` between the second and the third, both ways; a copy takes `latency` seconds
    more. With a `seed`, workers sleep before some operations, for at most `delay` real seconds. With `blocking` the
    compute stream is the caller's thread, as on the CPU; else it is asynchronous, as on a GPU.

    >>> device = SimulatedDevice({"device": 1024, "host": 4096}, bandwidth_out=1000.0, latency=0.5)
    >>> block, backup = device.tiers[0].allocate(500), device.tiers[1].allocate(500)
    >>> device.array(block, [500], np.dtype("u1"))[:] = 7
    >>> device.copy(block, backup, 500, device.out)
    >>> copied = device.out.record()
    >>> copied.is_done(), device.now()
    (False, 0.0)
    >>> copied.wait()
    >>> copied.time, device.now()
    (1.0, 1.0)
    >>> device.close()
    """

    name = "simulated"
    copies_take_cores = False

    def __init__(
        self,
        capacities: Mapping[str, int],
        *,
        bandwidth_out: float = 1e9,
        bandwidth_in: float = 1e9,
        disk_bandwidth: float = 1e9,
        latency: float = 0.0,
        blocking: bool = False,
        seed: int | None = None,
        delay: float = 5e-4,
        faults: Sequence[Fault] = (),
    ) -> None:
        if not 1 <= len(capacities) <= 3:
            raise UserInputError("SimulatedDevice: one to three tiers", got=f"{list(capacities)}")
        self.clock = _Clock()
        self.closed = False
        self.latency = latency
        self._faults = tuple(faults)
        self._copies: dict[str, int] = {}
        kind = BlockingStream if blocking else SimulatedStream
        self.compute = kind("compute", self.clock, faults, seed, delay)
        self.out, self.into, self.disk = (
            SimulatedStream(name, self.clock, faults, seed, delay) for name in ("out", "in", "disk")
        )
        self.tiers = tuple(
            SimulatedTier(self, name, size, (f.nth for f in faults if f.kind == "refuse" and f.place == name))
            for name, size in capacities.items()
        )
        self._level = {tier.name: level for level, tier in enumerate(self.tiers)}
        self._bandwidth = {(0, 1): bandwidth_out, (1, 0): bandwidth_in, (1, 2): disk_bandwidth, (2, 1): disk_bandwidth}

    def copy(self, source: Piece, target: Piece, nbytes: int, stream: Stream) -> None:
        self.check_open()
        if not isinstance(stream, SimulatedStream):
            raise ProtocolError(f"copy on a stream of another device: {stream!r}")
        with self.clock.lock:
            read = self.check_piece(source, "copy from", source.tier)
            written = self.check_piece(target, "copy to", target.tier)
            bandwidth = self._bandwidth.get((self._level[source.tier], self._level[target.tier]))
            if bandwidth is None:
                raise ProtocolError(f"copy from tier {source.tier!r} to {target.tier!r}: they are not neighbours")
            if not 0 <= nbytes <= min(source.nbytes, target.nbytes):
                raise ProtocolError(f"copy of {nbytes} bytes from {source.nbytes} bytes to {target.nbytes} bytes")
            number = self._copies[stream.name] = self._copies.get(stream.name, 0) + 1
            faults = {f.kind for f in self._faults if f.place == stream.name and f.nth == number}

            def run() -> None:
                if "fail" in faults:
                    raise ExecutionError(f"copy {number} on stream {stream.name!r} of a simulated device failed")
                written.data[:nbytes] = read.data[:nbytes]
                if target.tier == "disk":
                    written.checksum, written.written = zlib.crc32(written.data[:nbytes].data), nbytes
                if "corrupt" in faults and nbytes:
                    written.data[nbytes // 2] ^= 0x10
                if source.tier == "disk":
                    _check(read, nbytes)

            end = stream.put(run, self.latency + nbytes / bandwidth)
            for content in (read, written):
                if end > content.used_until:
                    content.used_until, content.used_by = end, f"copy {number} on stream {stream.name!r}"

    def run(self, seconds: float, work: Callable[[], None] = lambda: None) -> None:
        """Compute for so many virtual seconds on the compute stream, and do real work there."""
        self.check_open()
        self.compute.put(work, seconds)

    def advance(self, seconds: float) -> None:
        """The host does something else for so many virtual seconds."""
        self.clock.reach(self.clock.now + seconds)

    def array(self, piece: Piece, shape: Sequence[int], dtype: np.dtype) -> Any:
        content = self.check_piece(piece, "view", self.tiers[0].name)
        dtype = np.dtype(dtype)
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        return content.data[:nbytes].view(dtype).reshape(shape)

    def now(self) -> float:
        return self.clock.now

    def peek(self, piece: Piece) -> np.ndarray:
        """The bytes of a piece of any tier, for tests. Wait for the streams before."""
        content: _Bytes = piece.handle
        return content.data

    def check_open(self) -> None:
        """Raise where the device is closed."""
        if self.closed:
            raise ExecutionError("the simulated device is closed")

    def check_piece(self, piece: Piece, operation: str, tier: str) -> _Bytes:
        """The bytes of a live piece of a tier; else the protocol is broken."""
        content: _Bytes = piece.handle
        if piece.tier != tier:
            raise ProtocolError(f"{operation}: a piece of tier {piece.tier!r} is not one of {tier!r}")
        if content.freed:
            raise ProtocolError(f"{operation}: {piece.nbytes} bytes of tier {piece.tier!r} were freed before")
        return content

    def close(self) -> None:
        self.closed = True
        for stream in (self.compute, self.out, self.into, self.disk):
            stream.close()


def _check(read: _Bytes, nbytes: int) -> None:
    if nbytes != read.written or zlib.crc32(read.data[:nbytes].data) != read.checksum:
        raise BlockLostError(
            "a block on the simulated disk has changed",
            expected=f"{read.written} bytes with checksum {read.checksum:08x}",
            got=f"{nbytes} bytes with checksum {zlib.crc32(read.data[:nbytes].data):08x}",
        )
