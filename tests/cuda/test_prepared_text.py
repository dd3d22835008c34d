"""The text of prepared kernels as compilers read it: on the processor they are run, by the CUDA compiler compiled."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from instruments.comparing import assert_same
from instruments.driver import Driver
from instruments.stand_in import StandIn
from instruments.stand_in_runs import on_reference, on_stand_in
from programs import BY_NAME

import ctrlgrad as cg
from ctrlgrad.engines.cuda.prepared import kernel_text
from ctrlgrad.engines.cuda.prepared.kernel_text import NAME, source
from ctrlgrad.engines.cuda.prepared.model import KernelSpec
from ctrlgrad.ir import Graph

# One thread does what all do, and takes a kernel's arguments as the driver does: by the addresses of its parameters.
AS_THE_DRIVER = """\
#include <cmath>
#include <utility>
using namespace std;
#define __device__
#define __global__
static const struct { unsigned x; } blockIdx = {0}, threadIdx = {0}, blockDim = {1}, gridDim = {1};
template <class... A, size_t... I> void called(void (*kernel)(A...), void** given, index_sequence<I...>) {
    kernel(*(typename remove_const<A>::type*)given[I]...);
}
template <class... A> void called(void (*kernel)(A...), void** given) {
    called(kernel, given, index_sequence_for<A...>());
}
"""


def mixed(x: Any, k: Any) -> Any:
    """Numbers of the host, bools, an index that goes down, sums, and an array that lies transposed."""

    def body(i: Any, c: Any) -> Any:
        y, large, total = c
        y = y * 0.5 + x[2 - i] * i - k
        return np.where(large, y.T, y) + i, y > 0.1, total + np.sum(y, axis=0)

    return cg.fori_loop(0, 3, body, (x[0], x[0] > 0, x[0, 0] * 0.0))


def programs() -> list[tuple[Graph, list[Any]]]:
    x = np.linspace(-1.0, 1.0, 27).reshape(3, 3, 3)
    found = [(cg.function(mixed).graph(x, np.float32(2.0)), [x, np.float32(2.0)])]
    for name in ("lstm", "attention_over_a_growing_memory", "conjugate_gradients", "soft_sorting_network"):
        found.append((BY_NAME[name].graph(1), BY_NAME[name].leaves))
    return found


def specs_of(cases: Sequence[tuple[Graph, list[Any]]]) -> list[KernelSpec]:
    found: dict[KernelSpec, None] = {}
    for graph, arguments in cases:
        library = StandIn()
        on_stand_in(graph, arguments, library=library)
        found |= dict.fromkeys(library.driver.specs)
    return list(found)


def written(specs: Sequence[KernelSpec]) -> str:
    """All kernels, each in a namespace of its own."""
    parts = []
    for number, spec in enumerate(specs):
        text = source(spec).replace('extern "C" ', "")
        parts += [f"namespace n{number} {{", text, "}"]
    return "\n".join(parts)


def compiled(specs: Sequence[KernelSpec], folder: Path) -> list[Callable[[Any], None]]:
    calls = [f'extern "C" void call_{n}(void** given) {{ called(n{n}::{NAME}, given); }}' for n in range(len(specs))]
    (folder / "kernels.cpp").write_text("\n".join([AS_THE_DRIVER, written(specs), *calls]), encoding="utf-8")
    command = ["g++", "-std=c++14", "-O0", "-fwrapv", "-ffp-contract=off", "-w", "-shared", "-fPIC"]
    subprocess.run([*command, str(folder / "kernels.cpp"), "-o", str(folder / "kernels.so")], check=True, timeout=300)
    loaded = ctypes.CDLL(str(folder / "kernels.so"))
    return [getattr(loaded, f"call_{n}") for n in range(len(specs))]


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")
def test_as_a_compiler_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole programs, each prepared kernel by its compiled text, which finds all elements by itself."""
    cases = programs()
    specs = specs_of(cases)
    functions = dict(zip(specs, compiled(specs, tmp_path), strict=True))
    interpret, launched = Driver._launch, set()

    def launch(self: Driver, function: int, *rest: int) -> None:
        spec = self.specs[function - 1]
        launched.add(spec)
        # The stand-in looks whether all addresses are somebody's; the compiled text computes.
        monkeypatch.setattr(self, "_computed", lambda spec, inputs, outer: [])
        interpret(self, function, *rest)
        functions[spec](ctypes.c_void_p(rest[-2]))

    monkeypatch.setattr(Driver, "_launch", launch)
    for graph, arguments in cases:
        assert_same(on_stand_in(graph, arguments).results, on_reference(graph, arguments), 1e-9)
    assert launched == set(specs) and len(specs) > 30
    assert any(spec.reduced for spec in specs)


def test_a_launch_has_threads_for_all_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_text, "MOST_BLOCKS", 2)
    found = {}
    for size in (2, 128, 129, 1000):
        graph = cg.function(lambda x: cg.fori_loop(0, 2, lambda i, x: x * 2.0, x)).graph(np.ones(size))
        spec = next(s for s in specs_of([(graph, [np.ones(size)])]) if s.shape == (size,))
        found[size] = kernel_text.grid_of(spec)
    assert found == {2: 1, 128: 1, 129: 2, 1000: 2}


@pytest.mark.long
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no CUDA compiler")
def test_as_the_cuda_compiler_reads_it(tmp_path: Path) -> None:
    specs = specs_of(programs())
    (tmp_path / "kernels.cu").write_text(written(specs), encoding="utf-8")
    command = ["nvcc", "--ptx", "-arch=sm_90", "-Werror", "all-warnings", "-diag-suppress", "177"]
    subprocess.run(
        [*command, str(tmp_path / "kernels.cu"), "-o", str(tmp_path / "kernels.ptx")], check=True, timeout=600
    )
    assert (tmp_path / "kernels.ptx").read_text(encoding="utf-8").count(".entry") == len(specs)
