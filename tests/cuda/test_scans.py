"""Sums and products that grow along an axis: what they give, by which kernels, and their text as compilers read it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from instruments.comparing import assert_same
from instruments.compiled_kernels import written
from instruments.launch_records import Record, differing, recording, specs_of
from instruments.stand_in_runs import on_reference, on_stand_in, step_by_step

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines.cuda import reductions as tree

DTYPES = ["int8", "uint16", "int64", "float16", "bfloat16", "float32", "float64", "complex64"]
SHAPES = [(7,), (1, 5), (3, 1), (3, 300, 2), (2, 3, 70), (1000,), (5, 0, 3)]
COMPILER = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")


def numbers(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    rng = np.random.default_rng(0)
    if np.dtype(dtype).kind in "iu":
        return rng.integers(1, 4, shape).astype(dtype)
    x = rng.normal(size=shape) / 8
    return (x + 1j * x[::-1]).astype(dtype) if dtype.startswith("c") else x.astype(dtype)


def grown(x: Any, axis: int) -> tuple[Any, ...]:
    found = [np.cumsum(x, axis=axis), np.cumsum(np.flip(x, 0), axis=axis)]
    found += [cnp.cumulative_sum(np.swapaxes(x, 0, -1), axis=axis)]
    if np.dtype(x.dtype).kind in "iu":
        found.append(np.cumprod(x, axis=axis))
    return tuple(found)


def run_all(x: np.ndarray, gradient: bool = False) -> None:
    for axis in range(x.ndim):
        _agrees(x, axis)
        if gradient:
            # From the end.
            loss = lambda x, axis=axis: np.sum(np.sin(np.cumsum(x, axis=axis)))
            graph = cg.function(cg.grad(loss)).graph(x)
            assert_same(on_stand_in(graph, [x]).results, on_reference(graph, [x]), 1e-10)


def _agrees(x: np.ndarray, axis: int) -> None:
    graph = cg.function(lambda x: grown(x, axis)).graph(x)
    ran = on_stand_in(graph, [x], "iufc")
    assert_same(ran.results, on_reference(graph, [x]), {"float16": 5e-3, "bfloat16": 4e-2}.get(x.dtype.name, 1e-4))
    # Of an operand that is converted first, the conversion; and those of parts, if there are any.
    assert ran.counts.kernels <= 4 * len(ran.results) and not ran.counts.host_ops


@pytest.mark.parametrize("dtype", DTYPES)
def test_as_in_numpy(dtype: str) -> None:
    for shape in SHAPES:
        run_all(numbers(shape, dtype), gradient=dtype == "float64")


def test_a_long_one_is_more_exact_than_one_number_after_the_other() -> None:
    x = np.random.default_rng(0).random(200_000).astype(np.float32)
    (found,) = on_stand_in(cg.function(np.cumsum).graph(x), [x]).results
    exact = np.cumsum(x.astype(np.float64))
    error, serial = (np.max(np.abs(y - exact) / exact) for y in (found, np.cumsum(x)))
    assert error < serial / 2 and error < 2e-5


# How many kernels: of one block a row, or of more.
@pytest.mark.parametrize(
    ("shape", "axis", "kernels"),
    [
        ((8192,), 0, 1),
        ((8193,), 0, 3),
        ((300, 9000), 1, 1),
        ((130, 9000), 1, 1),
        ((128, 9000), 1, 3),
        ((9000, 40), 0, 3),
        ((300, 3000), 0, 3),
        ((300, 9000), 0, 1),
    ],
)
def test_blocks_share_a_row_where_there_are_few(shape: tuple[int, ...], axis: int, kernels: int) -> None:
    x = np.random.default_rng(0).integers(-3, 4, shape)
    graph = cg.function(lambda x: np.cumsum(x, axis=axis)).graph(x)
    ran = on_stand_in(graph, [x])
    np.testing.assert_array_equal(ran.results[0], np.cumsum(x, axis=axis))
    assert ran.counts.kernels == kernels


def test_the_blocks_of_a_row_are_as_many_as_keep_a_card_busy() -> None:
    for count in (8193, 100_000, 10_000_000, 1 << 33):
        its = tree.scan_tree(1, count, True)
        assert min(-(-count // 8192), 128) <= its.blocks(1) <= 256 and its.span % 8192 == 0
        assert (its.parts - 1) * its.span < count <= its.parts * its.span
    assert 128 <= tree.scan_tree(64, 10_000_000, True).blocks(64) <= 256
    # One block of a row scans the results of its parts.
    for rows in (1, 2, 31, 32, 33, 1000):
        for is_inner in (True, False):
            parts = tree.scan_tree(rows, 1 << 33, is_inner).parts
            assert tree.scan_tree(rows, parts, rows == 1).parts == 1


@pytest.mark.parametrize("width", [50, 9000])
def test_in_a_list_of_launches(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fn(x: Any) -> Any:
        return cg.fori_loop(0, 3, lambda i, c: np.cumsum(np.sin(c), axis=1) - np.flip(np.cumsum(c, axis=0), 0), x)

    x = numbers((4, width), "float64")
    for function in (fn, cg.grad(lambda x: np.sum(fn(x)))):
        graph = cg.function(function).graph(x)
        ran = on_stand_in(graph, [x])
        assert_same(ran.results, on_reference(graph, [x]), 1e-10)
        assert ran.counts.runs > 0
        # Step by step it has the same bits.
        steps = step_by_step(cg.function(function).graph(x), [x])
        assert steps.counts.runs == 0
        np.testing.assert_array_equal(steps.results[0], ran.results[0])


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[Record]:
    monkeypatch.setattr(tree, "MOST_BLOCKS", 2)
    found = recording(monkeypatch)
    for dtype in DTYPES:
        _agrees(numbers((3, 70, 2), dtype), 1)
    for shape in ((20_000,), (600,), (40, 5), (5, 40), (3000, 9)):
        run_all(numbers(shape, "float64"), gradient=True)
    _agrees(numbers((9000,), "complex64"), 0)
    monkeypatch.setattr(tree, "SCAN_BLOCKS", 2)
    _agrees(numbers((30_000,), "float16"), 0)
    return found


@COMPILER
def test_as_a_compiler_reads_it(launches: list[Record], tmp_path: Path) -> None:
    """The emitted text, run thread by thread in any order, gives the bits of the stand-in."""
    scans = [launch for launch in launches if launch.spec.is_scan]
    found = {(spec.is_inner, spec.continues) for spec in specs_of(scans)}
    assert found == {(True, True), (True, False), (False, True), (False, False)}
    assert differing(scans, tmp_path) == (0, 0)


MISTAKES = {
    "a step is left out": ("step < 256; step *= 2", "step < 256; step *= 4"),
    "what came before is forgotten": ("w0 = c0;", "w0 = float64(0.0);"),
    "the lanes before are forgotten": ("if (lane > 0)", "if (lane > 1)"),
    "no barrier before states change": ("__syncthreads();\nh0[threadIdx.x] = r0;\n}", "h0[threadIdx.x] = r0;\n}"),
    "no barrier after the last": ("}\n__syncthreads();\nl0", "}\nl0"),
    "no barrier before the next elements": ("}\n__syncthreads();\nw0", "}\nw0"),
    "the tail is not masked": ("begin + turn < end ? begin + turn : end", "begin + turn"),
    "a part goes on beyond its end": ("? count : (part + 1) * span", "? count : count"),
    "a part begins with nothing": ("if (part && result < results)", "if (0)"),
    "a part begins with what is up to its end": ("[(part - 1) * results", "[part * results"),
}


@COMPILER
@pytest.mark.parametrize("mistake", MISTAKES, ids="{}".format)
def test_a_mistake_in_the_text_shows(mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Parts of two turns, and of one.
    monkeypatch.setattr(tree, "SCAN_BLOCKS", 2)
    launches, x = recording(monkeypatch), numbers((20_000,), "float64")
    on_stand_in(cg.function(np.cumsum).graph(x), [x])
    right, wrong = MISTAKES[mistake]

    def changed(text: str) -> str:
        assert right in text
        return text.replace(right, wrong)

    assert max(differing(launches, tmp_path, changed)) > 0


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no CUDA compiler")
def test_as_the_cuda_compiler_reads_it(launches: list[Record], tmp_path: Path) -> None:
    specs = [spec for spec in specs_of(launches) if spec.is_scan]
    (tmp_path / "kernels.cu").write_text(written(specs), encoding="utf-8")
    command = ["nvcc", "--ptx", "-arch=sm_90", "-Werror", "all-warnings", "-diag-suppress", "177"]
    subprocess.run([*command, str(tmp_path / "kernels.cu"), "-o", str(tmp_path / "kernels.ptx")], check=True)
    assert (tmp_path / "kernels.ptx").read_text(encoding="utf-8").count(".entry") == len(specs)
