"""CuPy's interface as far as `ctrlgrad.memory.devices.cuda` uses it, on NumPy and threads, that checks the rules.

A stream is a thread; an event is done when the thread reaches it. Memory has addresses. A block of device memory goes
back to the arena when Python collects its pointer, as in CuPy, whatever still uses it: here it is filled with a pattern
then, and a copy that reads or writes a block after that is noted in `broken`. So is pinned memory that is gone.

`install` puts a fresh module in the place of `cupy`; `install_with_arrays` one that has arrays too.
"""

from __future__ import annotations

import bisect
import queue
import random
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from instruments.fake_pool import pool_class

GONE = 0xDD
# Of a slab, which is cut from its beginning, so many bytes are overwritten: tests need few, and slabs have 256 MiB.
TOUCHED = 4 << 20


class CUDARuntimeError(RuntimeError):
    """An error of CUDA."""


class OutOfMemoryError(MemoryError):
    """The card is full."""


class Card:
    """The state of the fake: what lives where, what was broken, what is to go wrong."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.live: dict[int, np.ndarray] = {}
        # Memory that is gone stays mapped here, so that no address comes twice.
        self.graveyard: list[np.ndarray] = []
        self.broken: list[str] = []
        self.capacity = 1 << 30
        self.pinned_limit = 1 << 30
        self.device_bytes = 0
        self.pinned_bytes = 0
        self.allocated: list[int] = []
        self.pinned: list[int] = []
        self.streams = 0
        self.delays = random.Random(0)
        self.delay = 0.0
        # The next copies fail so often.
        self.failures = 0
        self.current = threading.local()
        # True if work is done as soon as it is put on a stream; and the log of all calls, in the host's order.
        self.is_inline = False
        # How often the host, when it looks, finds done what has been done at once.
        self.haste = 1.0
        self.tell: Callable[..., None] = lambda *_: None

    def place(self, nbytes: int) -> np.ndarray:
        data = np.empty(nbytes, np.uint8)
        data[:TOUCHED].fill(0xFF)
        with self.lock:
            self.live[data.ctypes.data] = data
        return data

    def remove(self, data: np.ndarray) -> None:
        self.tell("freed", data.ctypes.data)
        with self.lock:
            del self.live[data.ctypes.data]
            data[:TOUCHED].fill(GONE)
            self.graveyard.append(data)

    def bytes_at(self, address: int, nbytes: int, what: str) -> np.ndarray | None:
        with self.lock:
            starts = sorted(self.live)
            position = bisect.bisect_right(starts, address) - 1
            if position >= 0:
                data = self.live[starts[position]]
                offset = address - starts[position]
                if offset + nbytes <= data.nbytes:
                    return data[offset : offset + nbytes]
            self.broken.append(f"{what} of {nbytes} bytes that do not live")
            return None

    def stream(self) -> Any:
        return getattr(self.current, "stream", None)


def install(monkeypatch: pytest.MonkeyPatch) -> Card:
    """A fresh fake as the module `cupy`."""
    card = Card()
    monkeypatch.setitem(sys.modules, "cupy", module(card))
    return card


def module(card: Card) -> types.ModuleType:
    """The module; its classes belong to one card."""

    class Event:
        def __init__(self, block: bool = False, disable_timing: bool = False) -> None:
            self.disable_timing = disable_timing
            self.reached = threading.Event()
            self.is_known = False
            self.recorded = False
            self.moment = 0.0
            self.failed = False
            self.ptr = id(self)
            events[self.ptr] = self

        @property
        def done(self) -> bool:
            found = not self.recorded or self.reached.is_set()
            if card.is_inline and not self.is_known:
                found = card.delays.random() < card.haste
            self.is_known = found
            if found:
                card.tell("host waited", self)
            return found

        def record(self, stream: Stream) -> None:
            self.recorded = True
            card.tell("recorded", self, stream)
            stream.put(lambda: self.reach(stream))

        def reach(self, stream: Stream) -> None:
            self.moment = time.perf_counter()
            self.failed = stream.failed
            self.reached.set()

        def synchronize(self) -> None:
            if self.recorded:
                self.reached.wait()
            self.is_known = True
            card.tell("host waited", self)
            if self.failed:
                raise CUDARuntimeError("cudaErrorUnknown: an earlier copy failed")

    events: weakref.WeakValueDictionary[int, Event] = weakref.WeakValueDictionary()

    def event_query(address: int) -> int:
        """CUDA's status: an error is one too."""
        event = events[address]
        is_done = not event.recorded or event.reached.is_set() or card.is_inline
        return 999 * event.failed if is_done else 600

    class Stream:
        def __init__(self, non_blocking: bool = False) -> None:
            assert non_blocking, "a blocking stream synchronises with the legacy default stream"
            card.streams += 1
            self.work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
            self.failed = False
            self.before: list[Any] = []
            self.ptr = id(self)
            streams[self.ptr] = self
            if not card.is_inline:
                threading.Thread(target=self.serve, daemon=True).start()

        def serve(self) -> None:
            while (work := self.work.get()) is not None:
                if card.delay and card.delays.random() < 0.5:
                    time.sleep(card.delay * card.delays.random())
                work()
                del work

        def put(self, work: Callable[[], None]) -> None:
            if card.is_inline:
                work()
            else:
                self.work.put(work)

        def wait_event(self, event: Event) -> None:
            card.tell("waited", event, self)
            if event.recorded:
                self.put(lambda: (event.reached.wait(), None)[1])

        def record(self) -> Event:
            event = Event()
            event.record(self)
            return event

        def launch_host_func(self, callback: Callable[[Any], None], arg: Any) -> None:
            self.put(lambda: callback(arg))

        def synchronize(self) -> None:
            event = Event(disable_timing=True)
            event.record(self)
            event.synchronize()

        def __enter__(self) -> Stream:
            self.before.append(card.stream())
            card.current.stream = self
            return self

        def __exit__(self, *_: object) -> None:
            card.current.stream = self.before.pop()

    streams: dict[int, Stream] = {}

    class Device:
        def __init__(self, number: int) -> None:
            assert number == 0

        def __enter__(self) -> Device:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    class Memory:
        """Collected: the bytes are in the arena again, even where a copy of them still runs."""

        def __init__(self, size: int) -> None:
            self.data = card.place(size)
            card.tell("allocated", self.data.ctypes.data, size, card.stream())
            card.device_bytes += size

        def __del__(self) -> None:
            card.device_bytes -= self.data.nbytes
            card.remove(self.data)

    class MemoryPointer:
        def __init__(self, mem: Memory, offset: int) -> None:
            self.mem = mem
            self.ptr = mem.data.ctypes.data + offset

    def alloc(size: int) -> MemoryPointer:
        assert card.stream() is not None, "allocated outside of a stream: the default stream's arena"
        if card.device_bytes + size > card.capacity:
            raise OutOfMemoryError(f"out of memory allocating {size} bytes")
        card.allocated.append(size)
        return MemoryPointer(Memory(size), 0)

    class PinnedMemory:
        def __init__(self, size: int, flags: int = 0) -> None:
            if card.pinned_bytes + size > card.pinned_limit:
                raise CUDARuntimeError("cudaErrorMemoryAllocation: out of memory")
            self.data = card.place(size)
            card.tell("allocated", self.data.ctypes.data, size, None)
            card.pinned_bytes += size
            card.pinned.append(size)

        def __del__(self) -> None:
            if hasattr(self, "data"):
                card.pinned_bytes -= self.data.nbytes
                card.remove(self.data)

    class PinnedMemoryPointer(np.ndarray):
        """An array, as the interface asks for a buffer."""

        def __new__(cls, mem: PinnedMemory, offset: int) -> PinnedMemoryPointer:
            made = mem.data[offset:].view(cls)
            made.mem = mem
            made.ptr = mem.data.ctypes.data + offset
            return made

    def memcpy_async(target: int, source: int, nbytes: int, kind: int, stream: int) -> None:
        assert kind in (1, 2)
        card.tell("launched", streams[stream], [(source, nbytes)], [(target, nbytes)])

        def run() -> None:
            if card.failures:
                card.failures -= 1
                streams[stream].failed = True
                return
            read = card.bytes_at(source, nbytes, "read")
            written = card.bytes_at(target, nbytes, "write")
            if read is not None and written is not None:
                written[:] = read

        streams[stream].put(run)

    def elapsed(start: Event, end: Event) -> float:
        assert not start.disable_timing
        assert not end.disable_timing
        for event in (start, end):
            if not event.recorded:
                raise CUDARuntimeError("cudaErrorInvalidResourceHandle: the event was never recorded")
            if not event.done:
                raise CUDARuntimeError("cudaErrorNotReady: the event is not done")
        return float(np.float32((end.moment - start.moment) * 1e3))

    def array(shape: Sequence[int], dtype: Any, memptr: MemoryPointer) -> np.ndarray:
        nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        return memptr.mem.data[:nbytes].view(dtype).reshape(shape)

    runtime = types.SimpleNamespace(
        CUDARuntimeError=CUDARuntimeError,
        getDeviceCount=lambda: 1,
        eventQuery=event_query,
        hostAllocPortable=1,
        memcpyAsync=memcpy_async,
        memcpyDeviceToHost=2,
        memcpyHostToDevice=1,
        memGetInfo=lambda: (card.capacity - card.device_bytes, card.capacity),
    )
    made = types.ModuleType("cupy")
    made.ndarray = array  # type: ignore[attr-defined]
    made.cuda = types.SimpleNamespace(  # type: ignore[attr-defined]
        Device=Device,
        Event=Event,
        PinnedMemory=PinnedMemory,
        PinnedMemoryPointer=PinnedMemoryPointer,
        Stream=Stream,
        alloc=alloc,
        alloc_pinned_memory=lambda size: PinnedMemoryPointer(PinnedMemory(size), 0),
        get_elapsed_time=elapsed,
        memory=types.SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
        runtime=runtime,
    )
    return made


class Array(np.ndarray):
    """An array that knows the pointer to its memory, as CuPy's do."""

    pointer: Any = None

    @property
    def data(self) -> Any:
        return self.pointer

    def get(self, stream: Any, out: np.ndarray, blocking: bool) -> None:
        assert not blocking
        stream.put(lambda: np.copyto(out, self))


def elementwise_kernel(
    inputs: str, outputs: str, operation: str, name: str, *, options: tuple[str, ...] = (), **_: object
) -> None:
    """CuPy's checks of the parameters of a kernel."""
    for parameter in [*inputs.split(","), *outputs.split(",")]:
        *kind, its = parameter.split()
        assert kind in (["raw", kind[-1]], [kind[-1]]) and its.isidentifier()
        if its == "i":
            raise ValueError("Can not use 'i' as a parameter name")


def install_with_arrays(monkeypatch: pytest.MonkeyPatch) -> Card:
    """The fake with CuPy's rules for allocators: a thread's own one, else one for all."""
    found = install(monkeypatch)
    cupy = sys.modules["cupy"]
    cuda, make, arrays = cupy.cuda, cupy.cuda.alloc, cupy.ndarray
    allocators: list[Callable[[int], Any]] = [make]

    @contextmanager
    def using_allocator(allocator: Callable[[int], Any] = make) -> Iterator[None]:
        allocators.append(allocator)
        try:
            yield
        finally:
            allocators.pop()

    class UnownedMemory:
        def __init__(self, ptr: int, size: int, owner: object, device_id: int) -> None:
            assert device_id == 0
            self.ptr, self.size, self._owner = ptr, size, owner
            data = found.bytes_at(ptr, size, "view")
            assert data is not None
            self.data = data

    class MemoryPointer:
        def __init__(self, mem: Any, offset: int) -> None:
            self.mem, self.ptr = mem, mem.ptr + offset

    MemoryPool = pool_class(found, make, OutOfMemoryError, MemoryPointer)

    class Ndarray:
        def __new__(cls, shape: Any, dtype: Any, memptr: Any, strides: Any = None) -> Any:
            if strides is None:
                made = arrays(shape, dtype, memptr).view(Array)
            else:
                offset = memptr.ptr - memptr.mem.ptr
                made = np.ndarray(shape, dtype, memptr.mem.data, offset, strides).view(Array)
            made.pointer = memptr
            return made

    class Adopting(Array):
        """In memory of another library's array, which it holds."""

        owner: Any = None

    def adopt(x: Any) -> Adopting:
        made: Adopting = x.memory.view(Adopting)
        made.owner = x
        return made

    def from_dlpack(x: Any) -> Adopting:
        x.__dlpack__(stream=found.stream().ptr)
        return adopt(x)

    def zeros(count: int, dtype: Any) -> Any:
        made = Ndarray((count,), dtype, cuda.alloc(count * np.dtype(dtype).itemsize))
        found.stream().put(lambda: made.fill(0))
        return made

    cupy.zeros, cupy.from_dlpack, cupy.asarray = zeros, from_dlpack, adopt  # type: ignore[attr-defined]
    cuda.alloc = lambda size: allocators[-1](size)
    cuda.get_allocator = lambda: allocators[-1]
    cuda.MemoryPool = MemoryPool
    cuda.using_allocator, cuda.UnownedMemory, cuda.MemoryPointer = using_allocator, UnownedMemory, MemoryPointer
    cupy.ndarray = Ndarray  # type: ignore[attr-defined]
    cupy.ElementwiseKernel = elementwise_kernel  # type: ignore[attr-defined]
    return found
