"""Calls of CuPy for prepared launches, and calls by address; the card's part is in `tests/gpu`."""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ctrlgrad.engines.cuda import cupy_library as cupy_launches
from ctrlgrad.engines.cuda.cupy_library import CupyLaunches
from ctrlgrad.engines.cuda.kernel import NAME, Access, KernelText, Parameter, source
from ctrlgrad.engines.cuda.prepared.entries import setting
from ctrlgrad.engines.cuda.prepared.graphs import FUNCTIONS
from ctrlgrad.engines.cuda.prepared.model import contiguous
from ctrlgrad.engines.cuda.prepared.walker import KERNEL, PRODUCT, Functions
from ctrlgrad.engines.cuda.reductions import elementwise
from ctrlgrad.engines.native import ahead


class Cupy:
    """As much of CuPy as is asked, and what was asked."""

    def __init__(self) -> None:
        self.compiled: list[tuple[str, tuple[str, ...]]] = []
        self.loaded: list[bytes] = []
        self.launched: list[tuple[Any, ...]] = []
        self.told: list[tuple[int, int]] = []
        self.current = Current()
        self.cuda = SimpleNamespace(
            get_current_stream=lambda: SimpleNamespace(ptr=5),
            get_cublas_handle=lambda: 7,
            cublas=SimpleNamespace(setStream=lambda *given: self.told.append(given), CUBLASError=KeyError),
            driver=SimpleNamespace(CUDADriverError=ValueError),
            runtime=SimpleNamespace(runtimeGetVersion=lambda: 13010, driverGetVersion=lambda: 12040),
            nvrtc=SimpleNamespace(getVersion=lambda: (12, 4)),
            Stream=lambda non_blocking: SimpleNamespace(ptr=6 if non_blocking else 0),
            Device=lambda: Device(self),
            Module=lambda: Module(self),
            compiler=SimpleNamespace(compile_using_nvrtc=self.compile),
        )

    def compile(self, source: str, options: tuple[str, ...] = (), cache_in_memory: bool = False) -> tuple[bytes, None]:
        assert cache_in_memory and self.current.device is not None
        self.compiled.append((source, options))
        return f"code {len(self.compiled)}".encode(), None


class Current(threading.local):
    """Of a thread; None: the first device, whatever that is."""

    device: Device | None = None


class Device:
    """The one that is current where it is made."""

    def __init__(self, cupy: Cupy, capability: str = "90") -> None:
        self.cupy, self.compute_capability = cupy, capability

    def __enter__(self) -> None:
        self.cupy.current.device = self

    def __exit__(self, *_: object) -> None:
        self.cupy.current.device = None


class Module:
    """Code, when it is loaded."""

    def __init__(self, cupy: Cupy) -> None:
        self.cupy = cupy

    def load(self, code: bytes) -> None:
        self.cupy.loaded.append(code)

    def get_function(self, name: str) -> Any:
        assert name == NAME
        return Function(self.cupy, 100 + int(self.cupy.loaded[-1].split()[1]))


class Function:
    """Launches of CuPy."""

    def __init__(self, cupy: Cupy, ptr: int) -> None:
        self.cupy, self.ptr = cupy, ptr

    def __call__(self, grid: tuple[int, ...], block: tuple[int, ...], given: tuple[Any, ...]) -> None:
        # Arguments that CuPy passes by value, beside arrays.
        assert all(isinstance(x, np.generic | Array) for x in given)
        self.cupy.launched.append((self.ptr, grid, block, given))


class Array:
    """An array on the card, as far as its launch asks."""

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        self.shape, self.dtype, self.ndim = shape, np.dtype(dtype), len(shape)
        self.strides = contiguous(shape, self.dtype)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CTRLGRAD_CACHE_DIR", str(tmp_path))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Functions of libraries whose addresses are asked for."""
    found: list[tuple[str, str]] = []

    def address_of(library: str, function: str) -> int:
        found.append((library, function))
        return len(found)

    monkeypatch.setattr(cupy_launches, "address_of", address_of)
    return found


def test_a_kernel_is_compiled_once_for_each_way_of_rounding() -> None:
    cupy = Cupy()
    launches = CupyLaunches(cupy, 512)
    spec = setting(2)
    assert [launches.function(spec, c) for c in (False, True, False)] == [101, 102, 101]
    # And subnormal numbers are not flushed: CuPy's own kernels are compiled with -ftz=true.
    assert cupy.compiled == [(source(spec), ("--std=c++17", f"--fmad={c}")) for c in ("false", "true")]
    assert f"void {NAME}(" in source(spec)


def test_the_next_process_has_the_code_from_disk(tmp_path: Path) -> None:
    spec, cupy = setting(2), Cupy()
    CupyLaunches(cupy, 512).function(spec, False)
    again = Cupy()
    assert CupyLaunches(again, 512).function(spec, False) == 101
    assert (again.compiled, again.loaded) == ([], cupy.loaded)
    # For another card, and by another compiler, it is other code.
    for change in ("card", "compiler"):
        other = Cupy()
        if change == "card":
            other.cuda.Device = lambda other=other: Device(other, "100")
        else:
            other.cuda.nvrtc.getVersion = lambda: (13, 0)
        CupyLaunches(other, 512).function(spec, False)
        assert len(other.compiled) == 1
    for path in tmp_path.iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    broken = Cupy()
    CupyLaunches(broken, 512).function(spec, False)
    assert len(broken.compiled) == 1


def test_kernels_that_will_be_asked_for_are_compiled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """By this thread and another one, each for the device that is current here, and none twice."""
    monkeypatch.setattr(ahead, "_most_threads", lambda: 1)
    # Objects that former tests of this process prepared and never asked for are none of this test's.
    monkeypatch.setattr(ahead, "_jobs", {})
    cupy, both = Cupy(), threading.Barrier(2, timeout=60)
    compiled = cupy.compile
    cupy.cuda.compiler.compile_using_nvrtc = lambda *given, **options: (both.wait(), compiled(*given, **options))[1]
    launches, specs = CupyLaunches(cupy, 512), [setting(2), setting(4)]
    launches.prepare(specs, False)
    assert sorted(launches.function(spec, False) for spec in specs) == [101, 102]
    assert sorted(text for text, _ in cupy.compiled) == sorted(map(source, specs))
    # Kernels in memory or on disk are not compiled again.
    for those in (launches, CupyLaunches(cupy, 512)):
        those.prepare(specs, False)
        assert sorted(those.function(spec, False) for spec in specs) == [101, 102]
    assert len(cupy.compiled) == 2 and not ahead._jobs


def test_a_launch_outside_of_lists() -> None:
    cupy = Cupy()
    launches = CupyLaunches(cupy, 512)
    x, out = Array((300, 2), "float32"), Array((300, 2), "float32")
    text = KernelText((Parameter("float32", "a0"),), (Parameter("float32", "o0"),), "o0 = a0 * a0;")
    (launch,) = elementwise(text, (300, 2), [x], [out], lambda _: Access())
    launches.launch(launch, False)
    numbers = (600, 1, 1, 600, 4, 4)
    assert cupy.launched == [(101, (3,), (256,), (x, out, *numbers))]


def test_products_are_on_the_stream_of_the_kernels(asked: list[tuple[str, str]]) -> None:
    cupy = Cupy()
    found = CupyLaunches(cupy, 512).launcher(True)
    assert (found.stream, found.handle, cupy.told) == (5, 7, [(7, 5)])
    driver = [("libcuda.so.1", name) for name in ("cuLaunchKernel", "cuMemcpyDtoHAsync_v2", "cuStreamSynchronize")]
    assert asked == [("libcublas.so.13", "cublasGemmStridedBatchedEx"), *driver]
    assert found.functions == Functions(launch=2, multiply=1, copy=3, wait=4)


def test_without_products_there_is_no_handle(asked: list[tuple[str, str]]) -> None:
    cupy = Cupy()
    found = CupyLaunches(cupy, 512).launcher(False)
    assert (found.handle, cupy.told, found.functions) == (0, [], Functions(1, 0, 2, 3))


def test_a_status_is_an_error_of_whom_it_came_from() -> None:
    cupy = Cupy()
    found = cupy_launches.CupyLauncher(CupyLaunches(cupy, 512), Functions(0, 0, 0, 0), 5, 7)
    assert isinstance(found.error(KERNEL, 700), ValueError) and isinstance(found.error(PRODUCT, 13), KeyError)


def test_the_address_of_a_function() -> None:
    """Of a library that every machine has."""
    address = cupy_launches.address_of("libm.so.6", "fabs")
    assert ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(address)(-2.0) == 2.0


# Graphs.


def test_addresses_of_the_driver_for_graphs(asked: list[tuple[str, str]]) -> None:
    found = CupyLaunches(Cupy(), 512).launcher(False).graphs()
    assert asked[3:] == [("libcuda.so.1", name) for name in FUNCTIONS]
    assert found == {name: number for number, name in enumerate(FUNCTIONS, 4)}


@pytest.mark.parametrize(
    ("driver", "compiler", "reason"),
    [
        (12030, (12, 4), "the driver is CUDA 12.3's"),
        (12040, (12, 3), "the compiler is CUDA 12.3's"),
        (11080, (11, 8), "the driver is CUDA 11.8's"),
    ],
)
def test_graphs_need_a_driver_and_a_compiler_that_have_while_nodes(
    driver: int, compiler: tuple[int, int], reason: str, asked: list[tuple[str, str]]
) -> None:
    cupy = Cupy()
    cupy.cuda.runtime.driverGetVersion, cupy.cuda.nvrtc.getVersion = lambda: driver, lambda: compiler
    assert CupyLaunches(cupy, 512).launcher(False).graphs() == f"{reason}, and while nodes came with 12.4"


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Calls of cuBLAS by address: the function, and what it is given."""
    found: list[tuple[Any, ...]] = []
    held = []

    def address_of(library: str, function: str) -> int:
        count = {"cublasSetStream_v2": 2, "cublasSetWorkspace_v2": 3}.get(function, 1)

        def called(*given: int) -> int:
            found.append((library, function, *given))
            return 7 if given[1] == 77 else 0

        held.append(ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_size_t] * count)(called))
        return ctypes.cast(held[-1], ctypes.c_void_p).value or 0

    monkeypatch.setattr(cupy_launches, "address_of", address_of)
    return found


def test_products_are_captured_in_their_own_workspace_and_then_as_before(told: list[tuple[str, ...]]) -> None:
    launches, library = CupyLaunches(Cupy(), 512), "libcublas.so.13"
    workspace = SimpleNamespace(data=SimpleNamespace(ptr=4096), nbytes=512)
    with launches.launcher(True).capturing(workspace) as stream:
        assert stream == 6
        assert told == [(library, "cublasSetStream_v2", 7, 6), (library, "cublasSetWorkspace_v2", 7, 4096, 512)]
        assert launches.captures.locked()
    assert told[2:] == [(library, "cublasSetStream_v2", 7, 5)] and not launches.captures.locked()
    with launches.launcher(False).capturing(None) as stream:
        assert stream == 6
    assert len(told) == 3


def test_a_workspace_that_cublas_does_not_take_is_its_error(told: list[tuple[str, ...]]) -> None:
    launches = CupyLaunches(Cupy(), 512)
    workspace = SimpleNamespace(data=SimpleNamespace(ptr=77), nbytes=512)
    with pytest.raises(KeyError), launches.launcher(True).capturing(workspace):
        raise AssertionError("nothing is captured")
    assert told[-1][1:] == ("cublasSetStream_v2", 7, 5) and not launches.captures.locked()
