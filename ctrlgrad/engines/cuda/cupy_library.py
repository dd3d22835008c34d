"""CuPy as the engine's array library: the only file that imports it, and only when a device is asked for.

All work goes on one non-blocking stream, which neither waits for the default stream nor makes it wait. An array that
the user made on another stream is waited for by an event. A read copies into pinned memory behind the work so far,
records an event, and waits for that alone.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ctrlgrad.engines.cuda.functions import PREAMBLE
from ctrlgrad.engines.cuda.kernel import KernelText
from ctrlgrad.engines.cuda.library import Kernel
from ctrlgrad.errors import UserInputError

# An index that is out of range is noted; where several are, one of them is.
_CHECK = "if (i < -n || i >= n) { flag[0] = site; flag[1] = i; flag[2] = n; }"
# What CuPy can add to positions that repeat is the hardware's choice. The bits of a sum are the same for both kinds of
# integer; narrow ones are added as wide ones.
_ADDED_AS = {"int64": "uint64"}
_WIDENED = frozenset({"int8", "int16", "uint8", "uint16"})


class CupyLibrary:
    """One device."""

    def __init__(self, cupy: Any, gemm: Callable[..., Any], number: int) -> None:
        self._cupy, self._gemm = cupy, gemm
        self._device = cupy.cuda.Device(number)
        self.name = f"cuda:{number}"
        self._kernels: dict[KernelText, Kernel] = {}
        with self._device:
            self._stream = cupy.cuda.Stream(non_blocking=True)
        self._check = cupy.ElementwiseKernel("int64 i, int64 n, int64 site", "raw int64 flag", _CHECK, "check_indices")

    @property
    def xp(self) -> Any:
        return self._cupy

    @contextmanager
    def running(self) -> Iterator[None]:
        with self._device:
            before = self._cupy.cuda.get_current_stream()
            if before != self._stream:
                self._stream.wait_event(before.record())
            with self._stream:
                yield

    def is_array(self, x: Any) -> bool:
        return isinstance(x, self._cupy.ndarray)

    def empty(self, shape: Sequence[int], dtype: np.dtype) -> Any:
        return self._cupy.empty(tuple(shape), dtype)

    def upload(self, x: Any) -> Any:
        # A copy that does not wait: of another library's array, the interface says on which stream it was made.
        return self._cupy.asarray(x)

    def read(self, arrays: Sequence[Any]) -> list[np.ndarray]:
        sizes = [int(x.nbytes) for x in arrays]
        starts = np.cumsum([0, *(-(-size // 16) * 16 for size in sizes)])
        total = max(int(starts[-1]), 1)
        pinned = np.frombuffer(self._cupy.cuda.alloc_pinned_memory(total), np.uint8, total)
        found = []
        for x, start, size in zip(arrays, starts, sizes, strict=False):
            out = pinned[int(start) : int(start) + size].view(x.dtype).reshape(x.shape)
            if size:
                x.get(stream=self._stream, out=out, blocking=False)
            found.append(out)
        self._stream.record().synchronize()
        # Pinned memory is scarce: it goes back to the pool.
        return [out.copy() for out in found]

    def kernel(self, text: KernelText) -> Kernel:
        if text not in self._kernels:
            self._kernels[text] = self._compiled(text)
        return self._kernels[text]

    def _compiled(self, text: KernelText) -> Kernel:
        run: Callable[..., Any] = self._cupy.ElementwiseKernel(
            ", ".join(map(str, text.inputs)),
            ", ".join(map(str, text.outputs)),
            text.operation,
            text.name,
            preamble=PREAMBLE,
            no_return=True,
        )

        def kernel(inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
            run(*inputs, *outputs)

        return kernel

    def check_indices(self, indices: Any, size: int, site: int, flag: Any) -> None:
        self._check(indices.astype(np.int64, copy=False), size, site, flag)

    def add_at(self, x: Any, key: tuple[Any, ...], value: Any) -> None:
        name = x.dtype.name
        if name in _WIDENED:
            wide = x.astype(np.int32)
            self._cupy.add.at(wide, key, value.astype(np.int32))
            x[...] = wide.astype(x.dtype)
        elif name in _ADDED_AS:
            bits = np.dtype(_ADDED_AS[name])
            self._cupy.add.at(x.view(bits), key, value.astype(x.dtype).view(bits))
        else:
            self._cupy.add.at(x, key, value)

    def add_product(self, total: Any, a: Any, b: Any) -> None:
        if a.size and b.size:
            self._gemm("N", "N", a, b, out=total, beta=1.0)


@functools.cache
def cupy_library(number: int = 0) -> CupyLibrary:
    """The library of a device.

    Raises:
        UserInputError: CuPy is not installed, or there is no such device.
    """
    if importlib.util.find_spec("cupy") is None:
        raise UserInputError(
            "the CUDA engine is not installed",
            expected="the package cupy",
            got="an installation without it",
            hint="pip install 'ctrlgrad[cuda12]' or 'ctrlgrad[cuda13]', after the CUDA version of the driver",
        )
    try:
        import cupy
        from cupy import cublas
    except ImportError as error:
        raise UserInputError(
            "the CUDA engine cannot be loaded",
            expected="CuPy and the libraries of the CUDA toolkit",
            got=str(error),
            hint="pip install 'ctrlgrad[cuda12]' or 'ctrlgrad[cuda13]', which bring them",
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
    if number >= count:
        raise UserInputError(f"there is no CUDA device {number}", expected=f"a number below {count}", got=str(number))
    return CupyLibrary(cupy, cublas.gemm, number)


__all__ = ["CupyLibrary", "cupy_library"]
