"""What prepared launches call, in CuPy's company: functions of the driver and of cuBLAS by their addresses.

CuPy is asked for the stream, the handle and the compiled code. It has loaded both libraries.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from typing import Any

from ctrlgrad.engines.cuda.prepared.kernel_text import NAME, source
from ctrlgrad.engines.cuda.prepared.model import KernelSpec
from ctrlgrad.engines.cuda.prepared.walker import PRODUCT, Functions


@functools.cache
def address_of(library: str, function: str) -> int:
    """The address of a function of a shared library."""
    return ctypes.cast(getattr(ctypes.CDLL(library), function), ctypes.c_void_p).value or 0


@dataclass(frozen=True)
class CupyLauncher:
    """See `ctrlgrad.engines.cuda.library.Launcher`."""

    cupy: Any
    functions: Functions
    stream: int
    handle: int

    def error(self, kind: int, status: int) -> Exception:
        cuda = self.cupy.cuda
        found: Exception = cuda.cublas.CUBLASError(status) if kind == PRODUCT else cuda.driver.CUDADriverError(status)
        return found


class CupyLaunches:
    """Of one device."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        # CuPy's kernels, which hold the code.
        self._kernels: dict[tuple[KernelSpec, bool], Any] = {}

    def function(self, spec: KernelSpec, contracts: bool) -> int:
        """A kernel as the driver knows it; `contracts`: a product and a sum may be rounded once."""
        if (spec, contracts) not in self._kernels:
            options = (f"--fmad={str(contracts).lower()}",)
            self._kernels[spec, contracts] = self._cupy.RawKernel(source(spec), NAME, options)
        return int(self._kernels[spec, contracts].kernel.ptr)

    def launcher(self, multiplies: bool) -> CupyLauncher:
        """For the stream that is CuPy's current one; where there are products, the handle is told of it."""
        cuda = self._cupy.cuda
        stream, handle, multiply = int(cuda.get_current_stream().ptr), 0, 0
        if multiplies:
            handle = int(cuda.get_cublas_handle())
            cuda.cublas.setStream(handle, stream)
            version = cuda.runtime.runtimeGetVersion() // 1000
            multiply = address_of(f"libcublas.so.{version}", "cublasGemmStridedBatchedEx")
        return CupyLauncher(
            self._cupy, Functions(address_of("libcuda.so.1", "cuLaunchKernel"), multiply), stream, handle
        )


__all__ = ["CupyLauncher", "CupyLaunches", "address_of"]
