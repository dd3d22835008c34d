"""Kernels and what prepared launches call, in CuPy's company: functions of the driver and of cuBLAS by their addresses.

CuPy is asked for the stream, the handle and the compiler. It has loaded all these libraries. Its own kernels, and
`RawKernel`, are compiled so that subnormal float32 numbers count as zero (`-ftz=true`, behind all other options), and
with its headers. Here the compiler is called without that: kernels have the bits of the processor's, are compiled
sooner, several at once (CuPy holds no lock of Python's meanwhile), and are kept on disk with the objects of machine
code.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctrlgrad.engines.cuda.arguments import NAME
from ctrlgrad.engines.cuda.indexing.model import BLOCK as INDEX_BLOCK
from ctrlgrad.engines.cuda.indexing.model import IndexLaunch, IndexSpec
from ctrlgrad.engines.cuda.prepared.graphs import FUNCTIONS, NEEDED
from ctrlgrad.engines.cuda.prepared.kernel_text import source
from ctrlgrad.engines.cuda.prepared.model import KernelSpec
from ctrlgrad.engines.cuda.prepared.walker import PRODUCT, Functions
from ctrlgrad.engines.cuda.reductions.model import ReductionLaunch, ReductionSpec
from ctrlgrad.engines.cuda.reductions.tree import BLOCK
from ctrlgrad.engines.native import ahead, objects


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
        return self.launches.workspace_bytes

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
    """Of one device. Products that are captured get a workspace of so many bytes."""

    def __init__(self, cupy: Any, workspace_bytes: int) -> None:
        self.cupy, self.workspace_bytes = cupy, workspace_bytes
        # CuPy's functions, which hold the code.
        self._functions: dict[tuple[KernelSpec | ReductionSpec | IndexSpec, bool], Any] = {}
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

    def function(self, spec: KernelSpec | ReductionSpec | IndexSpec, contracts: bool) -> int:
        """A kernel as the driver knows it; `contracts`: a product and a sum may be rounded once."""
        return int(self._function(spec, contracts).ptr)

    def launch(self, launch: ReductionLaunch | IndexLaunch, contracts: bool) -> None:
        """Launch a kernel on CuPy's current stream."""
        given = (*launch.arguments, *map(np.int64, launch.numbers))
        threads = BLOCK if isinstance(launch, ReductionLaunch) else INDEX_BLOCK
        self._function(launch.spec, contracts)((launch.blocks,), (threads,), given)

    def prepare(self, specs: Sequence[KernelSpec | ReductionSpec | IndexSpec], contracts: bool) -> None:
        """Have kernels that will be asked for compiled meanwhile: the compiler needs no Python."""
        for spec in specs:
            if (spec, contracts) not in self._functions:
                objects.prepare(*self._compiling(spec, contracts))

    def _function(self, spec: KernelSpec | ReductionSpec | IndexSpec, contracts: bool) -> Any:
        if (spec, contracts) not in self._functions:
            module = self.cupy.cuda.Module()
            module.load(self._code(spec, contracts))
            self._functions[spec, contracts] = module.get_function(NAME)
        return self._functions[spec, contracts]

    def _code(self, spec: KernelSpec | ReductionSpec | IndexSpec, contracts: bool) -> bytes:
        """The machine code of a kernel for the device that is current, from disk where it is there."""
        disk, (key, make) = objects.open_cache(), self._compiling(spec, contracts)
        found = disk.read(key) if disk is not None and key is not None else None
        if found is None:
            found = make() if key is None else ahead.made(key, make)
            if disk is not None and key is not None:
                disk.write(key, found)
        return found.code

    def _compiling(
        self, spec: KernelSpec | ReductionSpec | IndexSpec, contracts: bool
    ) -> tuple[str | None, Callable[[], objects.ObjectCode]]:
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
