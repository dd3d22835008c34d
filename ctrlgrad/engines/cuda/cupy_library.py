"""CuPy as the engine's array library: the only module that imports it, and only when a device is asked for.

All work goes on one non-blocking stream, which neither waits for the default stream nor makes it wait; in a session on
the compute stream of the session's device. An array that the user has on another stream is waited for by an event. A
read copies into pinned memory behind the work so far, records an event, and waits for that alone. Copies beside the
computation go by a `CopyDevice`, whose compute stream is this one.

In a session an allocator of the thread's own counts all memory that CuPy's functions ask for, scratch space of the
libraries included, before it is taken. Blocks of the memory manager's device are not counted again. Both come from a
pool of the session's that takes no more from the card than the budget has: free memory in it is within the limit too.
A pool of CuPy cuts small arrays off large pieces of the card's memory. A piece goes back only when nothing in it is
used, so one number can keep megabytes from a larger array. So a session with a budget for the device has a pool for
each size. These pools never split a piece; where one must grow, the least recently used ones give back their free
memory. Without a budget one pool is enough.

Prepared launches call functions of the driver and of cuBLAS by their addresses; CuPy has loaded these libraries. Its
own kernels, and `RawKernel`, are compiled so that subnormal float32 numbers count as zero (`-ftz=true`, behind all
other options), and with its headers. Here the compiler is called without that: kernels have the bits of the
processor's, are compiled sooner, several at once (CuPy holds no lock of Python's meanwhile), and are kept on disk with
the objects of machine code.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import importlib.util
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctrlgrad.engines.cuda.kernel import NAME, KernelLaunch, Spec, source
from ctrlgrad.engines.cuda.library import Memory
from ctrlgrad.engines.cuda.prepared.graphs import FUNCTIONS, NEEDED
from ctrlgrad.engines.cuda.prepared.walker import PRODUCT, Functions
from ctrlgrad.engines.cuda.products import WORKSPACE, WORKSPACE_VARIABLE, largest_piece, workspace_bytes
from ctrlgrad.engines.cuda.sites import FLAG_WORDS
from ctrlgrad.engines.native import ahead, objects
from ctrlgrad.errors import UserInputError
from ctrlgrad.memory.devices.cuda import GRANULE, CudaDevice, wait_for
from ctrlgrad.memory.devices.device import Piece
from ctrlgrad.memory.session import register_device
from ctrlgrad.memory.sizes import Budget, rounded_up


class SessionPool:
    """As CuPy's `MemoryPool`, as far as a session needs it, and for the device that is current."""

    def __init__(self, cupy: Any) -> None:
        self._make, self._out_of_memory = cupy.cuda.MemoryPool, cupy.cuda.memory.OutOfMemoryError
        # One pool for sessions without a limit; else one pool for each size, the most recently used at the end.
        self._any = self._make()
        self._sized: OrderedDict[int, Any] = OrderedDict()
        self._limit: int | None = None
        # Release memory that is kept for later.
        self.give_back: Callable[[], object] = lambda: None
        # Where Python looks for garbage in the middle of it, a finalizer may ask for memory.
        self._lock = threading.RLock()

    def malloc(self, nbytes: int) -> Any:
        """Memory for the current stream. Raises CuPy's `OutOfMemoryError` where the limit or the card has none."""
        with self._lock:
            if self._limit is None or not nbytes:
                return self._any.malloc(nbytes)
            size = rounded_up(nbytes, GRANULE)
            if size not in self._sized:
                self._sized[size] = self._make()
            self._sized.move_to_end(size)
            pool = self._sized[size]
            if pool.free_bytes() < size:
                self._let_grow(pool, size, self._limit)
            try:
                return pool.malloc(size)
            except self._out_of_memory:
                # The pool's free memory belonged to another stream; or the card is full by now.
                self.free_all_blocks()
                self._let_grow(pool, size, self._limit)
                return pool.malloc(size)

    def total_bytes(self) -> int:
        """Bytes taken from the card, used and free."""
        return sum(pool.total_bytes() for pool in self._pools())

    def set_limit(self, size: int | None) -> None:
        """The most that is ever taken from the card from now on; None: all that there is."""
        with self._lock:
            self._limit = size
            # Sizes of sessions before, of which nothing is left, are looked through no more.
            self._sized = OrderedDict((n, pool) for n, pool in self._sized.items() if pool.total_bytes())

    def free_all_blocks(self) -> None:
        """Give back all that is free."""
        for pool in self._pools():
            pool.free_all_blocks()

    def _pools(self) -> list[Any]:
        """All pools, the least recently used first."""
        return [self._any, *self._sized.values()]

    def _let_grow(self, pool: Any, size: int, limit: int) -> None:
        """Have a pool take so many bytes from the card and no more. Raises CuPy's error where they are not there."""
        for free_more in (lambda: None, self.give_back, gc.collect):
            free_more()
            taken = self.total_bytes()
            for other in self._pools():
                if taken + size <= limit:
                    break
                before = other.total_bytes()
                other.free_all_blocks()
                taken -= before - other.total_bytes()
            if taken + size <= limit:
                pool.set_limit(size=pool.total_bytes() + size)
                return
        raise self._out_of_memory(size, taken, limit)


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


@functools.cache
def address_of(library: str, function: str) -> int:
    """The address of a function of a shared library."""
    return ctypes.cast(getattr(ctypes.CDLL(library), function), ctypes.c_void_p).value or 0


@dataclass(frozen=True)
class CupyLauncher:
    """See `ctrlgrad.engines.cuda.library.Launcher`."""

    launches: CupyLaunches
    functions: Functions
    stream: int
    handle: int

    @property
    def workspace_bytes(self) -> int:
        return self.launches.captured_bytes

    def error(self, kind: int, status: int) -> Exception:
        cuda = self.launches.cupy.cuda
        found: Exception = cuda.cublas.CUBLASError(status) if kind == PRODUCT else cuda.driver.CUDADriverError(status)
        return found

    def graphs(self) -> Mapping[str, int] | str:
        cuda = self.launches.cupy.cuda
        version = cuda.runtime.driverGetVersion()
        versions = {"driver": (version // 1000, version % 1000 // 10), "compiler": tuple(cuda.nvrtc.getVersion())}
        for what, (major, minor) in versions.items():
            if (major, minor) < NEEDED:
                return f"the {what} is CUDA {major}.{minor}'s, and while nodes came with {'.'.join(map(str, NEEDED))}"
        return {name: address_of("libcuda.so.1", name) for name in FUNCTIONS}

    @contextmanager
    def capturing(self, workspace: Any) -> Iterator[int]:
        with self.launches.captures:
            stream = int(self.launches.capture_stream.ptr)
            if workspace is None:
                yield stream
                return
            # CuPy itself has no products in a capture.
            library = self.launches.cublas
            try:
                self._called(library, "cublasSetStream_v2", stream)
                self._called(library, "cublasSetWorkspace_v2", int(workspace.data.ptr), int(workspace.nbytes))
                yield stream
            finally:
                # And the workspace that it had.
                self._called(library, "cublasSetStream_v2", self.stream)

    def _called(self, library: str, function: str, *given: int) -> None:
        types = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)[: 1 + len(given)]
        call = ctypes.CFUNCTYPE(ctypes.c_int, *types)(address_of(library, function))
        if status := call(self.handle, *given):
            raise self.error(PRODUCT, status)


class CupyLaunches:
    """Kernels and launch lists on one device. Products that are captured get a workspace of so many bytes."""

    def __init__(self, cupy: Any, captured_bytes: int) -> None:
        self.cupy, self.captured_bytes = cupy, captured_bytes
        # CuPy's functions, which hold the code.
        self._functions: dict[tuple[Spec, bool], Any] = {}
        # One capture at a time: they have one stream.
        self.captures = threading.Lock()

    @functools.cached_property
    def capture_stream(self) -> Any:
        """Of the device that is current when it is first asked for, which is the library's."""
        return self.cupy.cuda.Stream(non_blocking=True)

    @property
    def cublas(self) -> str:
        """The name of cuBLAS's library, which CuPy has loaded."""
        return f"libcublas.so.{self.cupy.cuda.runtime.runtimeGetVersion() // 1000}"

    def function(self, spec: Spec, contracts: bool) -> int:
        """A kernel as the driver knows it; `contracts`: a product and a sum may be rounded once."""
        return int(self._function(spec, contracts).ptr)

    def launch(self, launch: KernelLaunch, contracts: bool) -> None:
        """Launch a kernel on CuPy's current stream."""
        given = (*launch.arguments, *map(np.int64, launch.numbers))
        self._function(launch.spec, contracts)((launch.blocks,), (launch.spec.threads,), given)

    def prepare(self, specs: Sequence[Spec], contracts: bool) -> None:
        """Have kernels that will be asked for compiled meanwhile: the compiler needs no Python."""
        for spec in specs:
            if (spec, contracts) not in self._functions:
                objects.prepare(*self._compiling(spec, contracts))

    def _function(self, spec: Spec, contracts: bool) -> Any:
        if (spec, contracts) not in self._functions:
            module = self.cupy.cuda.Module()
            module.load(self._code(spec, contracts))
            self._functions[spec, contracts] = module.get_function(NAME)
        return self._functions[spec, contracts]

    def _code(self, spec: Spec, contracts: bool) -> bytes:
        """The machine code of a kernel for the device that is current, from disk where it is there."""
        disk, (key, make) = objects.open_cache(), self._compiling(spec, contracts)
        found = disk.read(key) if disk is not None and key is not None else None
        if found is None:
            found = make() if key is None else ahead.made(key, make)
            if disk is not None and key is not None:
                disk.write(key, found)
        return found.code

    def _compiling(self, spec: Spec, contracts: bool) -> tuple[str | None, Callable[[], objects.ObjectCode]]:
        """The key of a kernel's code for the device that is current, and what compiles it, in any thread."""
        cuda, text = self.cupy.cuda, source(spec)
        options, device = ("--std=c++17", f"--fmad={str(contracts).lower()}"), cuda.Device()
        card = (str(device.compute_capability), *map(str, cuda.nvrtc.getVersion()))

        def make() -> objects.ObjectCode:
            # NVRTC compiles for the thread's current device, which is the first device by default.
            with device:
                code, _ = cuda.compiler.compile_using_nvrtc(text, options, cache_in_memory=True)
            return objects.ObjectCode((NAME,), code)

        return objects.key_of(["kernel of a card", text, *options, *card], []), make

    def launcher(self, multiplies: bool) -> CupyLauncher:
        """For the stream that is CuPy's current one; where there are products, the handle is told of it."""
        cuda = self.cupy.cuda
        stream, handle, multiply = int(cuda.get_current_stream().ptr), 0, 0
        if multiplies:
            handle = int(cuda.get_cublas_handle())
            cuda.cublas.setStream(handle, stream)
            multiply = address_of(self.cublas, "cublasGemmStridedBatchedEx")
        driver = [
            address_of("libcuda.so.1", name)
            for name in ("cuLaunchKernel", "cuMemcpyDtoHAsync_v2", "cuStreamSynchronize")
        ]
        functions = Functions(driver[0], multiply, *driver[1:])
        return CupyLauncher(self, functions, stream, handle)


# Results of fewer bytes are read through pinned memory, which is quicker for a number; larger ones are never pinned.
_PINNED_READ = 64 << 10


class CupyLibrary(CupyLaunches):
    """One device."""

    def __init__(self, cupy: Any, number: int) -> None:
        # Before cuBLAS is first used. What the user has set stays.
        workspace = os.environ.setdefault(WORKSPACE_VARIABLE, WORKSPACE)
        super().__init__(cupy, largest_piece(workspace))
        self.workspace_bytes = workspace_bytes(workspace)
        self._device, self._number = cupy.cuda.Device(number), number
        self.name = f"cuda:{number}"
        self._process = os.getpid()
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
        return self.cupy

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
        stream = self._stream if memory is None else memory.device.compute.raw
        with self._device, ExitStack() as leaving:
            before = self.cupy.cuda.get_current_stream()
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
                leaving.enter_context(self.cupy.cuda.using_allocator(self._counting(memory)))
            yield

    def _hold_lent(self, stream: Any) -> None:
        """Hold other libraries' arrays until the work so far is done: they know nothing of it."""
        lent, self._of_thread.lent = getattr(self._of_thread, "lent", []), []
        if lent:
            event = self.cupy.cuda.Event(disable_timing=True)
            event.record(stream)
            self._in_flight.append((event, lent))
        while self._in_flight and self._in_flight[0][0].done:
            # Another thread may be quicker.
            with suppress(IndexError):
                self._in_flight.popleft()

    def _counting(self, memory: Memory) -> Callable[[int], Any]:
        """An allocator whose memory counts as long as it lives, with what the pool rounds it up by."""
        cuda = self.cupy.cuda

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

    def strided(self, array: Any, shape: Sequence[int], strides: Sequence[int], offset: int) -> Any:
        # The memory object holds the array, so the view does not count as the only owner.
        memory = self.cupy.cuda.UnownedMemory(array.data.ptr, array.nbytes, array, self._number)
        pointer = self.cupy.cuda.MemoryPointer(memory, offset)
        return self.cupy.ndarray(tuple(shape), array.dtype, memptr=pointer, strides=tuple(strides)).view()

    def borrowed(self, array: Any, owner: object) -> Any:
        cuda = self.cupy.cuda
        memory = cuda.UnownedMemory(array.data.ptr, array.nbytes, (owner, array.data), self._number)
        return self.cupy.ndarray(array.shape, array.dtype, memptr=cuda.MemoryPointer(memory, 0))

    def is_array(self, x: Any) -> bool:
        return isinstance(x, self.cupy.ndarray)

    def empty(self, shape: Sequence[int], dtype: np.dtype) -> Any:
        return self.cupy.empty(tuple(shape), dtype)

    def upload(self, x: Any) -> Any:
        return self.cupy.asarray(x)

    def lent(self, x: Any) -> Any:
        if self.is_array(x):
            return x.view()
        self._of_thread.__dict__.setdefault("lent", []).append(x)
        if hasattr(type(x), "__dlpack__"):
            # The producer makes our stream wait for its own.
            try:
                return self.cupy.from_dlpack(x).view()
            except (BufferError, RuntimeError) as error:
                raise UserInputError(
                    "an array of another library cannot be lent to the card",
                    got=f"{type(x).__name__}: {error}",
                    hint="of a PyTorch tensor with requires_grad, pass x.detach()",
                ) from error
        # Here CuPy waits for the stream that the interface names.
        return self.cupy.asarray(x).view()

    def read(self, arrays: Sequence[Any]) -> list[np.ndarray]:
        sizes = [int(x.nbytes) for x in arrays]
        if sum(sizes) > _PINNED_READ:
            stream = self.cupy.cuda.get_current_stream()
            found = [np.empty(x.shape, x.dtype) for x in arrays]
            for x, out in zip(arrays, found, strict=True):
                if out.size:
                    x.get(stream=stream, out=out, blocking=False)
            self.wait(self.mark())
            return found
        starts = np.cumsum([0, *(-(-size // 16) * 16 for size in sizes)])
        total = max(int(starts[-1]), 1)
        pinned = np.frombuffer(self.cupy.cuda.alloc_pinned_memory(total), np.uint8, total)
        found = []
        stream = self.cupy.cuda.get_current_stream()
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
        return SessionDevice(self.cupy, self._pools, self._streams, self._number, limits)

    def bytes_beside_pools(self) -> int:
        """Bytes of the card that are in use, by whomever, and lie in no pool that this library takes arrays from.

        CUDA's own are among them, such as the code of kernels and what graphs need, and other processes' ones.
        """
        with self._device:
            free, total = self.cupy.cuda.runtime.memGetInfo()
            pools = [self.cupy.get_default_memory_pool(), *self._pools]
            return int(total - free - sum(pool.total_bytes() for pool in pools))

    def copier(self) -> CopyDevice:
        self._check_process()
        with self._lock:
            if self._copier is None:
                self._copier = CopyDevice(self._number, self._streams)
            return self._copier

    def address(self, array: Any) -> int:
        return int(array.data.ptr)

    def launcher(self, multiplies: bool) -> CupyLauncher:
        if multiplies:
            self._count_workspace()
        return super().launcher(multiplies)

    def take_flag(self) -> Any:
        with suppress(IndexError):
            return self._flags.pop()
        # In memory that is no pool's: it outlives sessions, and is none's.
        with self.cupy.cuda.using_allocator():
            return self.cupy.zeros(FLAG_WORDS, np.int64)

    def give_back_flag(self, flag: Any) -> None:
        self._flags.append(flag)

    def mark(self) -> Any:
        event = self.cupy.cuda.Event(disable_timing=True)
        event.record(self.cupy.cuda.get_current_stream())
        return event

    def wait(self, event: Any) -> None:
        wait_for(self.cupy, event)

    def stopped(self) -> Any:
        with self._stops:
            if self._stopped is None:
                with self.cupy.cuda.using_allocator():
                    word = self.cupy.zeros(1, np.int64)
                self._stopping = self.cupy.cuda.alloc_pinned_memory(word.nbytes)
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
            runtime = self.cupy.cuda.runtime
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

    def multiply(self, given: Sequence[int]) -> None:
        self._count_workspace()
        self.cupy.cuda.cublas.gemmStridedBatchedEx(self.cupy.cuda.get_cublas_handle(), *given)


def _cupy() -> Any:
    """CuPy, of an installation that can be loaded."""
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
    return cupy


def device_count() -> int:
    """Number of CUDA devices.

    Raises:
        UserInputError: CuPy is not installed or cannot be loaded, or there is no device at all.
    """
    cupy = _cupy()
    try:
        return int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise UserInputError(
            "there is no CUDA device",
            expected="a device, and a driver for it",
            got=str(error),
            hint="use engine='native' on this machine",
        ) from error


def check_device(number: int) -> None:
    """Refuse a device that is not there.

    Raises:
        UserInputError: there is none of that number; says how many there are, or what is missing.
    """
    count = device_count()
    if number >= count:
        raise UserInputError(
            f"there is no CUDA device {number}",
            expected="cuda:0, the only one" if count == 1 else f"cuda:0 to cuda:{count - 1}",
            got=f"cuda:{number}",
            hint="change the name in ctrlgrad.device(...), or run where there are more",
        )


@functools.cache
def cupy_library(number: int = 0) -> CupyLibrary:
    """The library of a device.

    Raises:
        UserInputError: CuPy is not installed, or there is no such device.
    """
    check_device(number)
    library = CupyLibrary(_cupy(), number)
    register_device(library.name, library.device)
    return library
