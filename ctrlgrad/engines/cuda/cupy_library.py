"""CuPy as the engine's array library: the only file that imports it, and only when a device is asked for.

All work goes on one non-blocking stream, which neither waits for the default stream nor makes it wait; in a session on
the compute stream of the session's device. An array that the user has on another stream is waited for by an event. A
read copies into pinned memory behind the work so far, records an event, and waits for that alone. What is copied
beside the computation goes by a `CopyDevice`, whose compute stream is this one.

In a session an allocator of the thread's own counts all memory that CuPy's functions ask for, scratch space of the
libraries included, before it is taken. What the memory manager's device takes for blocks is not counted again. Both
come from a pool of the session's (`cupy_pool.py`) that takes no more from the card than the budget has: what is free in
it is within the limit too.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import numpy as np

from ctrlgrad.engines.cuda.cupy_devices import CopyDevice, SessionDevice
from ctrlgrad.engines.cuda.cupy_launches import CupyLaunches
from ctrlgrad.engines.cuda.indexing.model import IndexLaunch, IndexSpec
from ctrlgrad.engines.cuda.library import Launcher, Memory
from ctrlgrad.engines.cuda.prepared.model import KernelSpec
from ctrlgrad.engines.cuda.products import WORKSPACE, WORKSPACE_VARIABLE, largest_piece, product, workspace_bytes
from ctrlgrad.engines.cuda.reductions.model import ReductionLaunch, ReductionSpec
from ctrlgrad.engines.cuda.sites import FLAG_WORDS
from ctrlgrad.engines.precision import Precision
from ctrlgrad.errors import UserInputError
from ctrlgrad.memory.devices.cuda import GRANULE, CudaDevice, wait_for
from ctrlgrad.memory.session import register_device
from ctrlgrad.memory.sizes import Budget, rounded_up

# Results of fewer bytes are read through pinned memory, which is quicker for a number; larger ones are never pinned.
_PINNED_READ = 64 << 10


class CupyLibrary:
    """One device."""

    def __init__(self, cupy: Any, number: int) -> None:
        self._cupy = cupy
        # Before cuBLAS is first used. What the user has set stays.
        workspace = os.environ.setdefault(WORKSPACE_VARIABLE, WORKSPACE)
        self.workspace_bytes = workspace_bytes(workspace)
        self._device, self._number = cupy.cuda.Device(number), number
        self.name = f"cuda:{number}"
        self._process = os.getpid()
        self._launches = CupyLaunches(cupy, largest_piece(workspace))
        self._copier: CopyDevice | None = None
        self._lock = threading.Lock()
        # Arrays that other libraries have lent: of a thread those of the run under way, and those of runs whose work
        # may not be done, with the event behind it.
        self._of_thread = threading.local()
        self._in_flight: deque[tuple[Any, list[Any]]] = deque()
        # Where kernels note indices that are out of range, of runs that are over.
        self._flags: list[Any] = []
        # The word by which runs are stopped, and where it is written from; one is stopped at a time.
        self._stopped: Any = None
        self._stopping: Any = None
        self._stops = threading.Lock()
        # Of sessions that are over: their pools, with what these hold, serve the next ones, and count there.
        self._pools: list[Any] = []
        with self._device:
            # Compute, out and in, of all sessions too: the arenas of a pool belong to streams. And one to stop runs by.
            *self._streams, self._beside = (cupy.cuda.Stream(non_blocking=True) for _ in range(4))
            self._stream = self._streams[0]

    @property
    def xp(self) -> Any:
        return self._cupy

    def _check_process(self) -> None:
        """CUDA itself would say of every call that it is not initialised, and name no reason."""
        if os.getpid() != self._process:
            raise UserInputError(
                f"a process that was forked cannot use {self.name}, which its parent has used",
                expected="a process that was started by itself, or forked before the card was first used",
                got=f"process {os.getpid()}, forked from process {self._process}",
                hint='multiprocessing.get_context("spawn"), or compute with engine="native" in such processes',
            )

    @contextmanager
    def running(self, memory: Memory | None = None) -> Iterator[None]:
        self._check_process()
        stream = self._stream if memory is None else memory.stream.raw
        with self._device, ExitStack() as leaving:
            before = self._cupy.cuda.get_current_stream()
            if before != stream:
                stream.wait_event(before.record())
                # Whatever the caller puts on its stream from now on comes after: it reads results, and may give back
                # memory that it lent.
                leaving.callback(lambda: before.wait_event(stream.record()))
            leaving.callback(self._hold_lent, stream)
            leaving.enter_context(stream)
            self._of_thread.memory, before_it = memory, getattr(self._of_thread, "memory", None)
            leaving.callback(setattr, self._of_thread, "memory", before_it)
            if memory is not None:
                leaving.enter_context(self._cupy.cuda.using_allocator(self._counting(memory)))
            yield

    def _hold_lent(self, stream: Any) -> None:
        """Hold other libraries' arrays until the work so far is done: they know nothing of it."""
        lent, self._of_thread.lent = getattr(self._of_thread, "lent", []), []
        if lent:
            event = self._cupy.cuda.Event(disable_timing=True)
            event.record(stream)
            self._in_flight.append((event, lent))
        while self._in_flight and self._in_flight[0][0].done:
            # Another thread may be quicker.
            with suppress(IndexError):
                self._in_flight.popleft()

    def _counting(self, memory: Memory) -> Callable[[int], Any]:
        """An allocator whose memory counts as long as it lives, with what the pool rounds it up by."""
        cuda = self._cupy.cuda

        def allocate(size: int) -> Any:
            counted = memory.count(rounded_up(size, GRANULE))
            try:
                pointer = memory.device.pool.malloc(size)
            except cuda.memory.OutOfMemoryError:
                # The card is full, though the budget is not: other programs use it too. The manager has blocks leave.
                del counted
                counted = memory.allocate(size)
                pointer = counted.array.data
            owned = cuda.UnownedMemory(pointer.ptr, size, (counted, pointer), self._number)
            return cuda.MemoryPointer(owned, 0)

        return allocate

    def borrowed(self, array: Any, owner: object) -> Any:
        cuda = self._cupy.cuda
        memory = cuda.UnownedMemory(array.data.ptr, array.nbytes, (owner, array.data), self._number)
        return self._cupy.ndarray(array.shape, array.dtype, memptr=cuda.MemoryPointer(memory, 0))

    def is_array(self, x: Any) -> bool:
        return isinstance(x, self._cupy.ndarray)

    def empty(self, shape: Sequence[int], dtype: np.dtype) -> Any:
        return self._cupy.empty(tuple(shape), dtype)

    def upload(self, x: Any) -> Any:
        return self._cupy.asarray(x)

    def lent(self, x: Any) -> Any:
        if self.is_array(x):
            return x.view()
        self._of_thread.__dict__.setdefault("lent", []).append(x)
        if hasattr(type(x), "__dlpack__"):
            # The producer makes our stream wait for its own.
            try:
                return self._cupy.from_dlpack(x).view()
            except (BufferError, RuntimeError) as error:
                raise UserInputError(
                    "an array of another library cannot be lent to the card",
                    got=f"{type(x).__name__}: {error}",
                    hint="of a PyTorch tensor with requires_grad, pass x.detach()",
                ) from error
        # Here CuPy waits for the stream that the interface names.
        return self._cupy.asarray(x).view()

    def read(self, arrays: Sequence[Any]) -> list[np.ndarray]:
        sizes = [int(x.nbytes) for x in arrays]
        if sum(sizes) > _PINNED_READ:
            stream = self._cupy.cuda.get_current_stream()
            found = [np.empty(x.shape, x.dtype) for x in arrays]
            for x, out in zip(arrays, found, strict=True):
                if out.size:
                    x.get(stream=stream, out=out, blocking=False)
            self.wait(self.mark())
            return found
        starts = np.cumsum([0, *(-(-size // 16) * 16 for size in sizes)])
        total = max(int(starts[-1]), 1)
        pinned = np.frombuffer(self._cupy.cuda.alloc_pinned_memory(total), np.uint8, total)
        found = []
        stream = self._cupy.cuda.get_current_stream()
        for x, start, size in zip(arrays, starts, sizes, strict=False):
            out = pinned[int(start) : int(start) + size].view(x.dtype).reshape(x.shape)
            if size:
                x.get(stream=stream, out=out, blocking=False)
            found.append(out)
        self.wait(self.mark())
        # Pinned memory is scarce: it goes back to the pool.
        return [out.copy() for out in found]

    def device(self, limits: Budget) -> CudaDevice:
        """The device of a session's memory manager. Its events have times: the planner compares them."""
        self._check_process()
        return SessionDevice(self._cupy, self._pools, self._streams, self._number, limits)

    def bytes_beside_pools(self) -> int:
        """Bytes of the card that are in use, by whomever, and lie in no pool that this library takes arrays from.

        CUDA's own are among them, such as the code of kernels and what graphs need, and other processes' ones.
        """
        with self._device:
            free, total = self._cupy.cuda.runtime.memGetInfo()
            pools = [self._cupy.get_default_memory_pool(), *self._pools]
            return int(total - free - sum(pool.total_bytes() for pool in pools))

    def copier(self) -> CopyDevice:
        self._check_process()
        with self._lock:
            if self._copier is None:
                self._copier = CopyDevice(self._number, self._streams)
            return self._copier

    def launch(self, launch: ReductionLaunch | IndexLaunch, contracts: bool) -> None:
        self._launches.launch(launch, contracts)

    def address(self, array: Any) -> int:
        return int(array.data.ptr)

    def prepare(self, specs: Sequence[KernelSpec | ReductionSpec | IndexSpec], contracts: bool) -> None:
        self._launches.prepare(specs, contracts)

    def function(self, spec: KernelSpec | ReductionSpec | IndexSpec, contracts: bool) -> int:
        return self._launches.function(spec, contracts)

    def launcher(self, multiplies: bool) -> Launcher:
        if multiplies:
            self._count_workspace()
        return self._launches.launcher(multiplies)

    def take_flag(self) -> Any:
        with suppress(IndexError):
            return self._flags.pop()
        # In memory that is no pool's: it outlives sessions, and is none's.
        with self._cupy.cuda.using_allocator():
            return self._cupy.zeros(FLAG_WORDS, np.int64)

    def give_back_flag(self, flag: Any) -> None:
        self._flags.append(flag)

    def mark(self) -> Any:
        event = self._cupy.cuda.Event(disable_timing=True)
        event.record(self._cupy.cuda.get_current_stream())
        return event

    def wait(self, event: Any) -> None:
        wait_for(self._cupy, event)

    def stopped(self) -> Any:
        with self._stops:
            if self._stopped is None:
                with self._cupy.cuda.using_allocator():
                    word = self._cupy.zeros(1, np.int64)
                self._stopping = self._cupy.cuda.alloc_pinned_memory(word.nbytes)
                # Nothing is ordered behind this but what the host has seen.
                self.wait(self.mark())
                self._stopped = word
        return self._stopped

    def stop(self, run: int) -> None:
        """A copy engine writes the word beside the graphs, which read it in the card's memory: where they had to look
        at memory of the host's, each iteration would wait for the bus."""
        word = self.stopped()
        with self._stops:
            np.frombuffer(self._stopping, np.int64, 1)[0] = run
            runtime = self._cupy.cuda.runtime
            runtime.memcpyAsync(
                word.data.ptr, self._stopping.ptr, word.nbytes, runtime.memcpyHostToDevice, self._beside.ptr
            )
            # Before the next one writes it.
            self.wait(self.mark())

    def _count_workspace(self) -> None:
        """A session in which there are products has their workspace too."""
        memory = getattr(self._of_thread, "memory", None)
        if memory is not None and memory.device.workspace is None:
            memory.device.has_workspace(memory.count(self.workspace_bytes), self.workspace_bytes)

    def matmul(self, a: Any, b: Any, precision: Precision) -> Any:
        self._count_workspace()
        return product(self._cupy, a, b, precision)

    def add_product(self, total: Any, a: Any, b: Any, precision: Precision) -> None:
        self._count_workspace()
        product(self._cupy, a, b, precision, total)


def _cupy() -> tuple[Any, int]:
    """CuPy, and how many devices there are; one at least."""
    if importlib.util.find_spec("cupy") is None:
        raise UserInputError(
            "the CUDA engine is not installed",
            expected="the package cupy",
            got="an installation without it",
            hint="pip install -e '.[cuda12]' or '.[cuda13]', after the CUDA version of the driver",
        )
    try:
        import cupy
        import cupy.cublas  # an installation without the toolkit's libraries fails here
    except ImportError as error:
        raise UserInputError(
            "the CUDA engine cannot be loaded",
            expected="CuPy and the libraries of the CUDA toolkit",
            got=str(error),
            hint="pip install -e '.[cuda12]' or '.[cuda13]', which bring them",
        ) from error
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise UserInputError(
            "there is no CUDA device",
            expected="a device, and a driver for it",
            got=str(error),
            hint="use engine='native' on this machine",
        ) from error
    return cupy, int(count)


def device_count() -> int:
    """Number of CUDA devices.

    Raises:
        UserInputError: CuPy is not installed or cannot be loaded, or there is no device at all.
    """
    return _cupy()[1]


@functools.cache
def cupy_library(number: int = 0) -> CupyLibrary:
    """The library of a device.

    Raises:
        UserInputError: CuPy is not installed, or there is no such device.
    """
    cupy, count = _cupy()
    if number >= count:
        raise UserInputError(f"there is no CUDA device {number}", expected=f"a number below {count}", got=str(number))
    library = CupyLibrary(cupy, number)
    register_device(library.name, library.device)
    return library
