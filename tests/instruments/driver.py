"""The driver's and the library's functions that prepared launches call, as C functions that compute on the processor.

They know what CUDA would: a kernel by its handle, the addresses of its parameters. An address must lie in memory that
the engine has asked the address of, and that is still held by somebody; so must all that a launch reads and writes.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ctrlgrad.engines.cuda.kernel import KernelText
from ctrlgrad.engines.cuda.prepared.kernel_text import BLOCK, grid_of
from ctrlgrad.engines.cuda.prepared.model import Access, KernelSpec
from ctrlgrad.engines.cuda.prepared.walker import Functions
from instruments.cublas import NAMES, Cublas

_P, _I, _L = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong
_LAUNCH = ctypes.CFUNCTYPE(_I, _P, *[_I] * 7, _P, _P, _P)
_GEMM = ctypes.CFUNCTYPE(_I, _P, *[_I] * 5, _P, *[_P, _I, _I, _L] * 2, _P, _P, _I, _I, _L, _I, _I, _I)
STREAM, HANDLE = 11, 7

Text = Callable[..., list[np.ndarray]]


class Driver:
    """A launcher (see `ctrlgrad.engines.cuda.library.Launcher`). `run_text` says what a kernel's statements mean."""

    stream, handle = STREAM, HANDLE

    def __init__(self, ran: Callable[[Sequence[np.ndarray], Sequence[np.ndarray]], None], run_text: Text) -> None:
        self._ran, self._run_text = ran, run_text
        self.specs: list[KernelSpec] = []
        self._known: dict[tuple[int, int], weakref.ref[np.ndarray]] = {}
        # Threads share a library.
        self._lock = threading.Lock()
        self._fault: BaseException | None = None
        self._cublas = Cublas()
        # Held, since machine code has their addresses.
        self._callbacks = _LAUNCH(self._guarded(self._launch)), _GEMM(self._guarded(self._multiply))
        addresses = [ctypes.cast(callback, _P).value or 0 for callback in self._callbacks]
        self.functions = Functions(*addresses)

    def _guarded(self, function: Callable[..., None]) -> Callable[..., int]:
        def called(*args: int | None) -> int:
            try:
                function(*(x or 0 for x in args))
            except BaseException as error:
                self._fault = error
                return 719
            return 0

        return called

    def error(self, kind: int, status: int) -> BaseException:
        assert status == 719 and self._fault is not None
        fault, self._fault = self._fault, None
        return fault

    def address(self, array: Any) -> int:
        """Of an array of the stand-in's; from now on launches may name memory of what it is a view of."""
        memory = array._root().data
        low, high = np.lib.array_utils.byte_bounds(memory)
        with self._lock:
            if len(self._known) > 256:
                self._known = {span: x for span, x in self._known.items() if x() is not None}
            self._known[low, high] = weakref.ref(memory)
        return int(array.data.ctypes.data)

    def function(self, spec: KernelSpec) -> int:
        if spec not in self.specs:
            self.specs.append(spec)
        return 1 + self.specs.index(spec)

    def _array(self, address: int, dtype: str, shape: Sequence[int], strides: Sequence[int]) -> np.ndarray:
        spans = [(n - 1) * step for n, step in zip(shape, strides, strict=True)]
        low, high = address + sum(min(0, s) for s in spans), address + sum(max(0, s) for s in spans)
        high += np.dtype(dtype).itemsize
        with self._lock:
            owners = [memory() for (start, end), memory in self._known.items() if start <= low and high <= end]
        assert any(x is not None for x in owners), f"{high - low} bytes at {low:#x} are no memory of anybody's"
        raw = (ctypes.c_char * (high - low)).from_address(low)
        return np.ndarray(tuple(shape), dtype, raw, address - low, tuple(strides))

    def _launch(self, function: int, *rest: int) -> None:
        *sizes, stream, parameters, extra = rest
        spec = self.specs[function - 1]
        assert sizes == [grid_of(spec), 1, 1, BLOCK, 1, 1, 0] and stream == STREAM and not extra
        left = iter(range(1 << 20))
        pointers = ctypes.cast(parameters, ctypes.POINTER(ctypes.c_void_p))

        def parameter() -> int:
            return ctypes.c_int64.from_address(pointers[next(left)] or 0).value

        words = self._array(parameter(), "int64", [1], [8]) if spec.is_moving else np.zeros(1, np.int64)
        text = spec.text
        outer = spec.shape[: len(spec.shape) - spec.reduced]

        def argument(access: Access, dtype: str, shape: Sequence[int]) -> Any:
            word = parameter() if access.has_parameter else 0
            if access.word is not None:
                known = self._array(words.ctypes.data, "int64", [access.word + 1], [8])
                word += int(known[access.word] + words[0] * access.step)
            if access.strides is not None:
                return self._array(word, dtype, shape, access.strides)
            if access.word is not None:
                return np.dtype(dtype).type(word)
            return np.array([word]).view(np.uint8)[: np.dtype(dtype).itemsize].view(dtype)[0]

        inputs = [argument(a, p.dtype, spec.shape) for a, p in zip(spec.inputs, text.inputs, strict=True)]
        outputs = [argument(a, p.dtype, outer) for a, p in zip(spec.outputs, text.outputs, strict=True)]
        self._ran([x for x in inputs if isinstance(x, np.ndarray)], outputs)
        with np.errstate(all="ignore"):
            for out, value in zip(outputs, self._computed(spec, inputs, outer), strict=False):
                out[...] = value

    def _computed(self, spec: KernelSpec, inputs: list[Any], outer: Sequence[int]) -> list[np.ndarray]:
        if not spec.reduced:
            return self._run_text(spec.text, inputs)
        found = [np.zeros(outer, p.dtype) for p in spec.text.outputs]
        for index in np.ndindex(*spec.shape[len(outer) :]):
            found = self._run_text(spec.text, [x[(..., *index)] for x in inputs], found)
        return found

    def _multiply(self, *given: int) -> None:
        (_, ta, tb, m, n, k, _, *factors, beta, out, kind, ldc, _, count, _, _) = given
        a, a_kind, lda, _, b, b_kind, ldb, _ = factors
        assert given[0] == HANDLE and count == 1
        dtype = NAMES[kind]
        size = np.dtype(dtype).itemsize

        def matrix(address: int, rows: int, leading: int, columns: int) -> np.ndarray:
            return self._array(address, dtype, [rows, columns], [size, size * leading])

        assert NAMES[a_kind] == NAMES[b_kind] == dtype
        reads = [matrix(a, k if ta else m, lda, m if ta else k), matrix(b, n if tb else k, ldb, k if tb else n)]
        result = matrix(out, m, ldc, n)
        adds = np.dtype(dtype).type(np.ctypeslib.as_array((ctypes.c_char * size).from_address(beta)).view(dtype)[0])
        self._ran([*reads, result] if adds else reads, [result])
        self._cublas.gemmStridedBatchedEx(*given)


class OnDriver:
    """A library's part in prepared launches, on a driver of its own."""

    depth: int
    texts: dict[KernelText, None]

    def __init__(self, run_text: Text) -> None:
        self.driver = Driver(self._ran, run_text)
        # How much has been computed, for who must wait for all of it.
        self.work = 0

    def prepared(self, reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
        """Called before each launch with the memory that it reads and writes."""

    def _ran(self, reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
        self.work += 1
        self.prepared(reads, writes)

    def address(self, array: Any) -> int:
        return self.driver.address(array)

    def function(self, spec: KernelSpec, contracts: bool) -> int:
        self.texts[spec.text] = None
        return self.driver.function(spec)

    def launcher(self, multiplies: bool) -> Driver:
        assert self.depth, "work outside of the stream"
        return self.driver


__all__ = ["HANDLE", "STREAM", "Driver", "OnDriver"]
