"""What CuPy is asked for prepared launches, and what is called by its address; the card's part is in `tests/gpu`."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from ctrlgrad.engines.cuda import cupy_launches
from ctrlgrad.engines.cuda.cupy_launches import CupyLaunches
from ctrlgrad.engines.cuda.prepared.binding import setting
from ctrlgrad.engines.cuda.prepared.kernel_text import NAME, source
from ctrlgrad.engines.cuda.prepared.walker import KERNEL, PRODUCT, Functions


class Cupy:
    """As much of CuPy as is asked, and what was asked."""

    def __init__(self) -> None:
        self.compiled: list[tuple[str, str, tuple[str, ...]]] = []
        self.told: list[tuple[int, int]] = []
        self.cuda = SimpleNamespace(
            get_current_stream=lambda: SimpleNamespace(ptr=5),
            get_cublas_handle=lambda: 7,
            cublas=SimpleNamespace(setStream=lambda *given: self.told.append(given), CUBLASError=KeyError),
            driver=SimpleNamespace(CUDADriverError=ValueError),
            runtime=SimpleNamespace(runtimeGetVersion=lambda: 13010),
        )

    def RawKernel(self, code: str, name: str, options: tuple[str, ...]) -> Any:
        self.compiled.append((code, name, options))
        return SimpleNamespace(kernel=SimpleNamespace(ptr=100 + len(self.compiled)))


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
    launches = CupyLaunches(cupy)
    spec = setting(2)
    assert [launches.function(spec, c) for c in (False, True, False)] == [101, 102, 101]
    assert cupy.compiled == [(source(spec), NAME, (f"--fmad={c}",)) for c in ("false", "true")]
    assert f"void {NAME}(" in source(spec)


def test_products_are_on_the_stream_of_the_kernels(asked: list[tuple[str, str]]) -> None:
    cupy = Cupy()
    found = CupyLaunches(cupy).launcher(True)
    assert (found.stream, found.handle, cupy.told) == (5, 7, [(7, 5)])
    assert asked == [("libcublas.so.13", "cublasGemmStridedBatchedEx"), ("libcuda.so.1", "cuLaunchKernel")]
    assert found.functions == Functions(launch=2, multiply=1)


def test_without_products_there_is_no_handle(asked: list[tuple[str, str]]) -> None:
    cupy = Cupy()
    found = CupyLaunches(cupy).launcher(False)
    assert (found.handle, cupy.told, found.functions) == (0, [], Functions(1, 0))


def test_a_status_is_an_error_of_whom_it_came_from() -> None:
    cupy = Cupy()
    found = cupy_launches.CupyLauncher(cupy, Functions(0, 0), 5, 7)
    assert isinstance(found.error(KERNEL, 700), ValueError) and isinstance(found.error(PRODUCT, 13), KeyError)


def test_the_address_of_a_function() -> None:
    """Of a library that every machine has."""
    address = cupy_launches.address_of("libm.so.6", "fabs")
    assert ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(address)(-2.0) == 2.0
