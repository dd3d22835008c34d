"""The driver's and the library's functions that prepared launches call, as C functions that compute on the processor.

They know what CUDA would: a kernel by its handle, the addresses of its parameters. An address must lie in memory that
the engine has asked the address of, and that is still alive; so must all that a launch reads and writes.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ctrlgrad.engines.cuda import reductions as tree
from ctrlgrad.engines.cuda.indexing import IndexSpec, names
from ctrlgrad.engines.cuda.kernel import Access, KernelLaunch, KernelText, Spec
from ctrlgrad.engines.cuda.prepared.walker import Functions
from ctrlgrad.engines.cuda.reductions import KernelSpec
from instruments.cublas import NAMES, Cublas
from instruments.graph_driver import CAPTURE_STREAM, Graphs, Handle
from instruments.indexing import dtypes_of, launch_shape, run_indexed
from instruments.reductions import Geometry, blocks_of, geometry, reduction, scan
from instruments.text import run_text

_P, _I, _L = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong
_LAUNCH = ctypes.CFUNCTYPE(_I, _P, *[_I] * 7, _P, _P, _P)
_COPY, _WAIT = ctypes.CFUNCTYPE(_I, _P, _P, ctypes.c_size_t, _P), ctypes.CFUNCTYPE(_I, _P)
_GEMM = ctypes.CFUNCTYPE(_I, _P, *[_I] * 5, _P, *[_P, _I, _I, _L] * 2, _P, _P, _I, _I, _L, _I, _I, _I)
STREAM, HANDLE = 11, 7
# Limit of CUDA since 12.1 for cards from Volta on.
PARAMETER_BYTES = 32_764


def _within(x: np.ndarray, sizes: Sequence[int], strides: Sequence[int]) -> np.ndarray:
    """Elements of an array that lie in it."""
    found = as_strided(x, sizes, strides)
    low, high = np.lib.array_utils.byte_bounds(x)
    mine = np.lib.array_utils.byte_bounds(found) if found.size else (low, high)
    assert low <= mine[0] and mine[1] <= high
    return found


def _sizes(spec: Spec) -> list[int]:
    """The bytes of each parameter of a kernel: a number's are at least a word."""
    found = [8] * spec.is_moving
    for access, p in zip(spec.accesses, spec.parameters, strict=True):
        if access.has_parameter:
            found.append(max(8, np.dtype(p.dtype).itemsize) if access.is_number else 8)
        found += [8, 8] * access.words
    return found + [8] * len(spec.numbers)


class Driver:
    """A launcher (see `ctrlgrad.engines.cuda.library.Launcher`)."""

    stream, handle, workspace_bytes = STREAM, HANDLE, 512

    def __init__(self, ran: Callable[[Sequence[np.ndarray], Sequence[np.ndarray]], None]) -> None:
        self._ran = ran
        self.specs: list[Spec] = []
        self._known: dict[tuple[int, int], weakref.ref[np.ndarray]] = {}
        # Index of the array that an address was found in.
        self._owners: dict[int, tuple[int, int]] = {}
        # Threads share a library.
        self._lock = threading.Lock()
        self._fault: BaseException | None = None
        self._cublas = Cublas()
        self.graph_calls = Graphs(self._guarded)
        # Why there are no graphs, if there are none.
        self.without_graphs = ""
        self._capture = threading.Lock()
        self._on = Handle(STREAM)
        # Calls of the first two functions by machine code.
        self.launches = 0
        self._copies: list[tuple[int, np.ndarray]] = []
        # Held, since machine code has their addresses.
        functions = (self._launch, self._multiply, self._copy, self._wait)
        kinds: tuple[Any, ...] = (_LAUNCH, _GEMM, _COPY, _WAIT)
        self._callbacks = [kind(self._guarded(f)) for kind, f in zip(kinds, functions, strict=True)]
        addresses = [ctypes.cast(callback, _P).value or 0 for callback in self._callbacks]
        self.functions = Functions(*addresses)

    def _guarded(self, function: Callable[..., int | None]) -> Callable[..., int]:
        def called(*args: int | None) -> int:
            try:
                return function(*(x or 0 for x in args)) or 0
            except BaseException as error:
                self._fault = error
                return 719

        return called

    def graphs(self) -> Mapping[str, int] | str:
        return self.without_graphs or self.graph_calls.addresses

    @contextmanager
    def capturing(self, workspace: Any) -> Iterator[int]:
        with self._capture:
            if workspace is None:
                yield CAPTURE_STREAM
                return
            self.address(workspace)
            with self._on.on(CAPTURE_STREAM, workspace):
                yield CAPTURE_STREAM

    def error(self, kind: int, status: int) -> BaseException:
        if status != 719:
            return RuntimeError(f"status {status}")
        assert self._fault is not None
        fault, self._fault = self._fault, None
        return fault

    def address(self, array: Any) -> int:
        """Of an array of the stand-in's; from now on launches may name memory of what it is a view of."""
        memory = array.root().data
        low, high = np.lib.array_utils.byte_bounds(memory)
        with self._lock:
            if len(self._known) > 256:
                self._known = {span: x for span, x in self._known.items() if x() is not None}
                self._owners.clear()
            self._known[low, high] = weakref.ref(memory)
        return int(array.data.ctypes.data)

    def function(self, spec: Spec) -> int:
        if spec not in self.specs:
            self.graph_calls.forbid("compilation")
            self.specs.append(spec)
        return 1 + self.specs.index(spec)

    def _is_known(self, low: int, high: int) -> bool:
        """Return true if these bytes lie in live memory."""
        with self._lock:
            # Lists name the same addresses over and over.
            owner = self._known.get(self._owners.get(low, (0, 0)))
            if owner is not None and owner() is not None and high <= self._owners[low][1]:
                return True
            for (start, end), memory in self._known.items():
                if start <= low and high <= end and memory() is not None:
                    self._owners[low] = start, end
                    return True
        return False

    def _array(self, address: int, dtype: str, shape: Sequence[int], strides: Sequence[int]) -> np.ndarray:
        low = high = address
        for n, step in zip(shape, strides, strict=True):
            reach = (n - 1) * step
            low, high = min(low, low + reach), max(high, high + reach)
        high += np.dtype(dtype).itemsize
        assert self._is_known(low, high), f"{high - low} bytes at {low:#x} are no memory of anybody's"
        raw = (ctypes.c_char * (high - low)).from_address(low)
        return np.ndarray(tuple(shape), dtype, raw, address - low, tuple(strides))

    def _launch(self, function: int, *rest: int) -> None:
        *sizes, stream, parameters, extra = rest
        self.launches += 1
        spec = self.specs[function - 1]
        blocks, threads = sizes[0], sizes[3]
        assert sizes == [blocks, 1, 1, threads, 1, 1, 0] and not extra
        pointers = ctypes.cast(parameters, ctypes.POINTER(ctypes.c_void_p))
        # Read at the launch, whenever the kernel runs.
        words = [ctypes.string_at(pointers[n] or 0, size) for n, size in enumerate(_sizes(spec))]
        graph = self.graph_calls.capturing(stream)
        assert graph is not None or stream == STREAM, "a launch on a stream that the caller uses"
        if graph is None:
            self.run(spec, words, blocks, threads)
        else:
            graph.nodes.append(lambda: self.run(spec, words, blocks, threads))

    def _copy(self, target: int, source: int, size: int, stream: int) -> None:
        """A word from the card to the host, where it is once it has been waited for."""
        assert stream == STREAM and size == 8
        self.graph_calls.forbid("copying")
        found = self._array(source, "int64", [1], [8])
        self._ran([found], [])
        self._copies.append((target, found.copy()))

    def _wait(self, stream: int) -> None:
        assert stream == STREAM
        self.graph_calls.forbid("waiting")
        for target, found in self._copies:
            ctypes.c_int64.from_address(target).value = int(found[0])
        self._copies.clear()

    def run(self, spec: Spec, given: Sequence[bytes], blocks: int, threads: int) -> None:
        """Run a kernel with these parameters."""
        left = iter(given)

        def parameter() -> int:
            return int.from_bytes(next(left), sys.byteorder, signed=True)

        words = self._array(parameter(), "int64", [1], [8]) if spec.is_moving else np.zeros(1, np.int64)

        def argument(access: Access, dtype: str) -> Any:
            """A number, or an address."""
            if access.is_number and access.has_parameter:
                return np.frombuffer(next(left), dtype, 1)[0]
            word = parameter() if access.has_parameter else 0
            for _ in range(access.words):
                number, factor = parameter(), parameter()
                word = int(word + self._array(words.ctypes.data, "int64", [1 + number], [8])[number] * factor)
            return np.dtype(dtype).type(word) if access.is_number else word

        with np.errstate(all="ignore"):
            read = len(spec.reads) if isinstance(spec, KernelSpec) else 1 << 20
            found = [
                parameter() if a.is_number and k >= read else argument(a, p.dtype)
                for k, (a, p) in enumerate(zip(spec.accesses, spec.parameters, strict=True))
            ]
            numbers = [parameter() for _ in spec.numbers]
            if isinstance(spec, KernelSpec):
                assert (blocks, threads) == (blocks_of(spec, geometry(spec, numbers)), tree.BLOCK)
                self._reduce(spec, found, numbers)
                return
            assert (blocks, threads) == launch_shape(spec, numbers)
            for k, name in enumerate(spec.numbers):
                if name in names("noted", spec.noted):
                    numbers[k] = int(self._array(words.ctypes.data, "int64", [1 + numbers[k]], [8])[-1])
            self.indexed(spec, found, numbers)

    def _condition(self, handle: int) -> np.ndarray:
        assert self.graph_calls.is_condition(handle), "no condition of a graph"
        return np.ndarray((), np.uint64, (ctypes.c_char * 8).from_address(handle))

    def indexed(self, spec: IndexSpec, addresses: Sequence[int], numbers: Sequence[int], computes: bool = True) -> None:
        """A read or an update by indices."""
        dtypes = list(dtypes_of(spec))

        def at(k: int, shape: Sequence[int], strides: Sequence[int], offset: int = 0) -> np.ndarray:
            return self._array(addresses[k] + offset, dtypes[k], shape, strides)

        run_indexed(spec, numbers, at, self._ran, computes)

    def _reduce(self, spec: KernelSpec, found: list[Any], numbers: Sequence[int]) -> None:
        its, known = geometry(spec, numbers), iter(range(1 << 20))
        read = len(spec.reads)
        arrays = []
        for k, (x, a, p) in enumerate(zip(found, spec.accesses, spec.parameters, strict=True)):
            if a.is_number:
                arrays.append(x if k < read else self._condition(x))
            elif p not in spec.by_part:
                arrays.append(self._array(x, p.dtype, its.sizes, its.strides[next(known)]))
            else:
                size = np.dtype(p.dtype).itemsize
                arrays.append(self._array(x, p.dtype, [its.parts, its.results], [size * its.results, size]))
        written = [x for x, a in zip(arrays[read:], spec.accesses[read:], strict=True) if not a.is_number]
        self._ran([x for x in arrays[:read] if isinstance(x, np.ndarray)], written)
        self.reduced(spec, arrays, its)

    def reduce(self, spec: KernelSpec, arguments: Sequence[Any], numbers: Sequence[int]) -> None:
        """A launch outside of lists, on arrays and numbers."""
        its, known = geometry(spec, numbers), iter(range(1 << 20))
        arrays = []
        for x, a, p in zip(arguments, spec.accesses, spec.parameters, strict=True):
            assert x.dtype == p.dtype, (x.dtype, p)
            if a.is_number:
                arrays.append(x)
            elif p not in spec.by_part:
                arrays.append(_within(x, its.sizes, its.strides[next(known)]))
            else:
                assert x.flags.c_contiguous and x.size == its.parts * its.results
                arrays.append(x.reshape(its.parts, its.results))
        with np.errstate(all="ignore"):
            self.reduced(spec, arrays, its)

    @staticmethod
    def index(launch: KernelLaunch, arrays: Sequence[np.ndarray]) -> None:
        """A read or an update by indices outside of lists, on arrays."""
        dtypes = list(dtypes_of(launch.spec))
        for x, dtype, p in zip(arrays, dtypes, launch.spec.parameters, strict=True):
            assert x.dtype == dtype or p.name in "xvo", (x.dtype, p)

        def at(k: int, shape: Sequence[int], strides: Sequence[int], offset: int = 0) -> np.ndarray:
            low, high = np.lib.array_utils.byte_bounds(arrays[k])
            first = (ctypes.c_char * dtypes[k].itemsize).from_address(arrays[k].ctypes.data + offset)
            found = as_strided(np.ndarray((), dtypes[k], first), shape, strides)
            mine = np.lib.array_utils.byte_bounds(found) if found.size else (low, high)
            assert low <= mine[0] and mine[1] <= high
            return found

        assert launch.blocks == launch_shape(launch.spec, launch.numbers)[0]
        run_indexed(launch.spec, launch.numbers, at, lambda reads, writes: None)

    @staticmethod
    def geometry(spec: KernelSpec, numbers: Sequence[int]) -> Geometry:
        return geometry(spec, numbers)

    def reduced(self, spec: KernelSpec, arrays: list[Any], its: Geometry) -> None:
        """Compute, and write."""
        inputs, read = len(spec.text.inputs), len(spec.reads)
        if spec.is_scan:
            computed = scan(spec, arrays[:inputs], arrays[inputs:read], its)
        elif spec.is_elementwise:
            computed = run_text(spec.text.element, arrays[:inputs])
        else:
            stored, written = reduction(spec, arrays[:inputs], its)
            computed = [*stored, *written]
        for out, value in zip(arrays[read:], computed, strict=True):
            out[...] = value

    def _multiply(self, *given: int) -> None:
        self.launches += 1
        graph = self.graph_calls.capturing(self._on.stream)
        assert graph is not None or self._on.stream == STREAM
        if graph is None:
            self.multiply(given)
            return
        workspace = self._on.workspace
        graph.allocates |= workspace is None or workspace.nbytes < self.workspace_bytes
        span = None if workspace is None else (self.address(workspace), workspace.nbytes)

        def multiply() -> None:
            if span is not None:
                self._array(span[0], "uint8", [span[1]], [1])
            self.multiply(given)

        graph.nodes.append(multiply)

    def multiply(self, given: Sequence[int]) -> None:
        """The product as cuBLAS computes it."""
        (_, ta, tb, m, n, k, _, *factors, beta, out, kind, ldc, apart, count, _, _) = given
        a, a_kind, lda, a_apart, b, b_kind, ldb, b_apart = factors
        assert given[0] == HANDLE
        dtype = NAMES[kind]
        size = np.dtype(dtype).itemsize

        def matrices(address: int, rows: int, leading: int, columns: int, stride: int) -> np.ndarray:
            return self._array(address, dtype, [count, rows, columns], [size * stride, size, size * leading])

        assert NAMES[a_kind] == NAMES[b_kind] == dtype and (count == 1 or apart >= m * n)
        reads = [
            matrices(a, k if ta else m, lda, m if ta else k, a_apart),
            matrices(b, n if tb else k, ldb, k if tb else n, b_apart),
        ]
        result = matrices(out, m, ldc, n, apart)
        adds = np.dtype(dtype).type(np.ctypeslib.as_array((ctypes.c_char * size).from_address(beta)).view(dtype)[0])
        self._ran([*reads, result] if adds else reads, [result])
        self._cublas.gemmStridedBatchedEx(*given)


class OnDriver:
    """A library's part in prepared launches, on a driver of its own."""

    depth: int
    texts: dict[KernelText, None]

    def __init__(self) -> None:
        self.driver = Driver(self._ran)
        self.reductions: dict[KernelSpec, None] = {}
        # Kernels that it was told would be asked for.
        self.announced: set[Spec] = set()
        # How much has been computed, for who must wait for all of it.
        self.work = 0

    def prepared(self, reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
        """Called before each launch with the memory that it reads and writes."""

    def _ran(self, reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
        self.work += 1
        self.prepared(reads, writes)

    def address(self, array: Any) -> int:
        return self.driver.address(array)

    def prepare(self, specs: Sequence[Spec], contracts: bool) -> None:
        self.announced.update(specs)

    def function(self, spec: Spec, contracts: bool) -> int:
        self.seen(spec)
        return self.driver.function(spec)

    def seen(self, spec: Spec) -> None:
        """Remember what a kernel computes, if a card could have it."""
        assert sum(_sizes(spec)) <= PARAMETER_BYTES, "the parameters of a kernel"
        if isinstance(spec, KernelSpec) and spec.lanes > 1:
            shared = sum(tree.BLOCK * np.dtype(state.dtype).itemsize for state in spec.text.states)
            assert shared <= tree.SHARED, f"too much shared data: {shared} bytes"
        if isinstance(spec, KernelSpec) and spec.is_elementwise:
            self.texts[spec.text.element] = None
        elif isinstance(spec, KernelSpec):
            self.reductions[spec] = None

    def launcher(self, multiplies: bool) -> Driver:
        assert self.depth, "work outside of the stream"
        return self.driver


__all__ = ["HANDLE", "STREAM", "Driver", "OnDriver"]
