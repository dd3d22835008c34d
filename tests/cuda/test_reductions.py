"""Reductions: what they give, by which kernels, and the text of these as compilers read it."""

from __future__ import annotations

import math
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from instruments.comparing import assert_same
from instruments.compiled_kernels import written
from instruments.launch_records import Record, differing, recording, specs_of
from instruments.reductions import blocks_of
from instruments.stand_in import StandIn
from instruments.stand_in_runs import on_reference, on_stand_in

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines.cuda import reductions as stages
from ctrlgrad.engines.cuda import reductions as tree
from ctrlgrad.engines.cuda import regions
from ctrlgrad.engines.cuda.indexing import Chosen, Surroundings, gather
from ctrlgrad.engines.cuda.kernel import Access, KernelLaunch, copy_text, source
from ctrlgrad.engines.cuda.prepared import reading as listing
from ctrlgrad.engines.cuda.prepared import runner as forms
from ctrlgrad.engines.cuda.prepared.model import CannotPrepare, Given, View
from ctrlgrad.engines.cuda.reductions import BLOCK, SERIAL
from ctrlgrad.errors import CtrlgradError
from ctrlgrad.ir import Graph

DTYPES = [
    "bool",
    "int8",
    "int16",
    "uint8",
    "uint32",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "complex128",
]
# Of the dtypes that are computed in float32.
ROUNDING = {"float16": 2e-3, "bfloat16": 1.6e-2}
COMPILER = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")


def numbers(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    kind = np.dtype(dtype).kind
    if kind in "biu":
        return rng.integers(0 if kind != "i" else -3, 2 if kind == "b" else 5, shape).astype(dtype)
    x = rng.normal(size=shape) * 0.5
    return (x + 1j * rng.normal(size=shape)).astype(dtype) if kind == "c" else x.astype(dtype)


# Views of an array in all orders of elements.
SEEN: list[Callable[[Any], Any]] = [
    lambda x: x,
    lambda x: np.flip(x, (0, 2)),
    lambda x: np.transpose(x, (2, 0, 1)),
    lambda x: np.broadcast_to(x[:, :1], (5, 3, 7, 6))[1:],
]
AXES: list[Any] = [-1, 0, 1, (0, -1), (0, 1), None]


def reduced(x: Any, axes: Any, seen: Callable[[Any], Any]) -> tuple[Any, ...]:
    """All that there is for a dtype."""
    x, found = seen(x), []
    if x.dtype == bool:
        return np.any(x, axis=axes), np.all(x, axis=axes, keepdims=True), np.argmax(x, axis=-1), np.argmin(x, axis=1)
    found = [np.sum(x, axis=axes), np.sum(x * x, axis=axes, keepdims=True)]
    if np.dtype(x.dtype).kind != "c":
        found += [np.max(x, axis=axes), np.min(x * x, axis=axes, keepdims=True), np.argmax(x, axis=1)]
        found += [np.argmin(x, axis=0)]
    if np.dtype(x.dtype).kind in "iu":
        found.append(np.prod(x, axis=axes))
    return tuple(found)


def graph_of(x: np.ndarray, axes: Any, seen: Callable[[Any], Any]) -> Graph:
    return cg.function(lambda x: reduced(x, axes, seen)).graph(x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_of_them_on_all_views(dtype: str) -> None:
    x = numbers((3, 7, 6), dtype)
    for seen in SEEN:
        for axes in AXES:
            graph = graph_of(x, axes, seen)
            ran = on_stand_in(graph, [x], "biufc")
            assert_same(ran.results, on_reference(graph, [x]), ROUNDING.get(dtype, 1e-5))
            assert not ran.counts.host_ops


@pytest.mark.parametrize("size", [1, 2, 31, 257, BLOCK * SERIAL, BLOCK * SERIAL + 1, 100_003])
def test_sizes_at_which_another_thread_or_block_begins(size: int) -> None:
    x = numbers((size,), "float64")
    x[size // 2] = 7.0
    graph = cg.function(lambda x: (np.sum(x), np.max(x), np.argmax(x), np.argmin(x))).graph(x)
    assert_same(on_stand_in(graph, [x]).results, on_reference(graph, [x]), 1e-12)


@pytest.mark.parametrize("axis", [0, 1])
def test_few_and_many_columns(axis: int) -> None:
    for shape in ((2000, 3), (3, 2000), (700, 65), (1, 9), (9, 1), (40, 300)):
        x = numbers(shape, "float32")
        graph = cg.function(lambda x: (np.sum(x, axis=axis), np.argmax(x, axis=axis))).graph(x)
        assert_same(on_stand_in(graph, [x]).results, on_reference(graph, [x]), 1e-5)


def test_the_error_of_a_sum_does_not_grow_with_its_length() -> None:
    """No thread adds more than a few numbers one after the other, at any length."""
    worst = 0.0
    for size in (1_000, 30_000, 1_000_000):
        x = np.random.default_rng(size).random(size).astype(np.float32)
        (found,) = on_stand_in(cg.function(np.sum).graph(x), [x]).results
        exact = math.fsum(x.tolist())
        worst = max(worst, abs(float(found) - exact) / exact)
    assert worst < 4 * np.finfo(np.float32).eps


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_nan_is_beyond_all_numbers(dtype: str) -> None:
    x = numbers((4, 300), dtype)
    x[1, 17] = x[1, 200] = x[2, 299] = np.nan
    x[3] = -np.inf
    functions = (np.max, np.min, np.argmax, np.argmin, np.sum)
    graph = cg.function(lambda x: tuple(f(x, axis=axis) for f in functions for axis in (0, 1))).graph(x)
    for found, expected in zip(on_stand_in(graph, [x]).results, on_reference(graph, [x]), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-3)


def test_of_no_elements() -> None:
    x = np.zeros((3, 0))
    graph = cg.function(lambda x: (np.sum(x, axis=1), np.sum(x, axis=0), np.all(x > 0), np.sum(x))).graph(x)
    assert_same(on_stand_in(graph, [x]).results, on_reference(graph, [x]))


@pytest.mark.parametrize("function", [np.max, np.argmin])
def test_of_no_elements_there_is_no_extreme(function: Any) -> None:
    graph = cg.function(lambda x: function(x * 2.0), signature=[cg.TensorSpec((None,), "float64")]).graph(np.zeros(5))
    assert_same(on_stand_in(graph, [np.arange(5.0)]).results, on_reference(graph, [np.arange(5.0)]))
    with pytest.raises(CtrlgradError, match="no elements along a reduced axis"):
        on_stand_in(graph, [np.zeros(0)])


def test_sizes_that_are_known_in_the_run() -> None:
    def fn(x: Any, y: Any) -> Any:
        z = np.tanh(x) + y
        return z, np.sum(z, axis=0), np.max(z, axis=0, keepdims=True)

    specs = [cg.TensorSpec((None, 3), "float64")] * 2
    graph = cg.function(fn, signature=specs).graph(*[np.zeros((5, 3))] * 2)
    for rows in ((5, 5), (5, 1), (1, 5), (1, 1)):
        arguments = [numbers((n, 3), "float64", n) for n in rows]
        assert_same(on_stand_in(graph, arguments).results, on_reference(graph, arguments))


def test_a_softmax_is_three_kernels() -> None:
    """One for the greatest, one for the exponentials and their sum, one that divides.

    The gradient has seven: one of them writes the number 1 to the array that the sum's gradient is broadcast from.
    """

    def softmax(x: Any) -> Any:
        y = np.exp(x - np.max(x, axis=-1, keepdims=True))
        return y / np.sum(y, axis=-1, keepdims=True)

    x = numbers((64, 2000), "float32")
    graph = cg.function(softmax).graph(x)
    library = StandIn()
    ran = on_stand_in(graph, [x], library=library)
    assert_same(ran.results, on_reference(graph, [x]), 1e-5)
    assert (ran.counts.kernels, ran.counts.calls) == (3, 0)
    gradient = cg.function(cg.grad(lambda x: np.sum(softmax(x) ** 2))).graph(x)
    ran = on_stand_in(gradient, [x])
    assert_same(ran.results, on_reference(gradient, [x]), 1e-4)
    # One more writes a number into an array.
    assert (ran.counts.kernels, ran.counts.calls) == (6 + 1, 0)


def test_reductions_over_other_axes_are_separate_kernels() -> None:
    def fn(x: Any) -> Any:
        y = np.tanh(x)
        return np.sum(y, axis=0), np.sum(y, axis=1), np.max(y, axis=1)

    x = numbers((5, 8), "float64")
    graph = cg.function(fn).graph(x)
    ran = on_stand_in(graph, [x])
    assert_same(ran.results, on_reference(graph, [x]))
    assert ran.counts.kernels == 2


def test_a_list_has_the_bits_of_what_is_run_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def fn(x: Any) -> Any:
        def body(i: Any, c: Any) -> Any:
            y = np.exp(c - np.max(c, axis=1, keepdims=True))
            y = np.flip(y / np.sum(y, axis=1, keepdims=True), 0) + np.sum(c, axis=0)
            return y + np.argmax(c, axis=1)[:, None].astype(np.float32)

        return cg.fori_loop(0, 4, body, x)

    x = numbers((6, 1000), "float32")
    graph = cg.function(fn).graph(x)
    prepared = on_stand_in(graph, [x])
    assert prepared.counts.runs == 1

    def refuse(*given: Any) -> Any:
        raise CannotPrepare("a test")

    monkeypatch.setattr(forms, "prepared", refuse)
    steps = on_stand_in(cg.function(fn).graph(x), [x])
    assert steps.counts.runs == 0
    np.testing.assert_array_equal(prepared.results[0], steps.results[0])
    assert_same(steps.results, on_reference(graph, [x]), 1e-5)


# By compilers.


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[Record]:
    return recording(monkeypatch)


def run_all(x: np.ndarray) -> None:
    for seen in SEEN:
        for axes in AXES:
            on_stand_in(graph_of(x, axes, seen), [x], "biufc")


def large(x: Any) -> tuple[Any, ...]:
    """Of more elements than a block goes through."""
    y = x * 2.0 + 1.0
    return y, np.sum(y), np.max(y), np.argmax(x), np.sum(x.reshape(-1, 3), axis=0), np.sum(x.reshape(3, -1), axis=1)


@COMPILER
def test_as_a_compiler_reads_it(launches: list[Record], tmp_path: Path) -> None:
    """The emitted text, run thread by thread in any order, gives the bits of the stand-in."""
    run_all(numbers((3, 7, 6), "float32"))
    for k, dtype in enumerate(DTYPES):
        x = numbers((3, 7, 6), dtype)
        on_stand_in(graph_of(x, AXES[k % len(AXES)], SEEN[k % len(SEEN)]), [x], "biufc")
    x = numbers((20_001,), "float32")
    on_stand_in(cg.function(large).graph(x), [x])
    specs = specs_of(launches)
    assert len(specs) > 50 and {spec.is_inner for spec in specs} == {True, False}
    assert {1, 2, 4, 256} <= {spec.lanes for spec in specs}
    assert differing(launches, tmp_path) == (0, 0)


@COMPILER
@pytest.mark.parametrize("most", [125, 126, 127])
def test_kernels_over_many_elements_divide_in_64_bits(
    most: int, launches: list[Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "MOST_SHORT", most)
    x, row = numbers((3, 7, 6), "float64"), numbers((7, 1), "float64")
    graph = cg.function(lambda x, row: x * row + 1.0).graph(x, row)
    on_stand_in(graph, [x, row])
    specs = specs_of(launches)
    assert [spec.is_short for spec in specs] == [most >= 126]
    assert ["unsigned int i1" in source(spec) for spec in specs] == [most >= 126]
    assert differing(launches, tmp_path) == (0, 0)


@pytest.mark.parametrize("count", [2**31 - 2, 2**31 - 1, 2**31])
def test_the_most_elements_that_are_divided_in_32_bits(count: int) -> None:
    dtype, access = np.dtype(np.float32), lambda _: Access()
    x = View(Given(0), dtype, (3, count), (4, 12))
    index = View(Given(1), np.dtype(np.int64), (1,), (8,))
    flat, row = (replace(x, shape=shape, strides=shape[1:] + (4,)) for shape in ((count,), (1, count)))
    (copied,) = stages.elementwise(copy_text(dtype), (count,), [flat], [flat], access)
    (read,) = gather(Chosen(x, (0,), 0, (index,)), row, Surroundings(access, lambda *_: None, None, 1))
    (summed, *_) = stages.stages(
        stages.plain_text("sum", dtype), (count,), [0], [flat], [], [row], access, lambda *_: flat
    )
    assert [launch.spec.is_short for launch in (copied, read, summed)] == [count < 2**31] * 3


@COMPILER
def test_a_block_goes_on_where_there_are_too_few(
    launches: list[Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree, "MOST_BLOCKS", 3)
    x = numbers((30_000,), "float64")
    on_stand_in(cg.function(large).graph(x), [x])
    assert max(blocks_of(launch.spec, launch.geometry) for launch in launches) == 3
    assert differing(launches, tmp_path) == (0, 0)


MISTAKES = {
    "a lane is forgotten": ("lane < step", "lane < step - 1"),
    "the tail is not masked": ("? count : (part + 1) * span", "? (part + 1) * span : (part + 1) * span"),
    "results beyond the last are written": ("if (lane == 0 && result < results)", "if (lane == 0)"),
    "a level of the tree is left out": ("step; step /= 2", "step; step /= 4"),
    "threads do not wait for each other": ("{\n__syncthreads();\nif (lane < step)", "{\nif (lane < step)"),
    "a tile does not wait for the one before": ("__syncthreads();\nh0[threadIdx.x]", "h0[threadIdx.x]"),
    "a part is that of another": ("part * span + lane", "lane"),
    "positions are swapped": ("x1 = r1", "x1 = y1"),
}


@COMPILER
@pytest.mark.parametrize("mistake", MISTAKES, ids="{}".format)
def test_a_mistake_in_the_text_shows(
    mistake: str, launches: list[Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree, "MOST_BLOCKS", 3)
    x = numbers((30_000,), "float64")
    on_stand_in(cg.function(large).graph(x), [x])
    right, wrong = MISTAKES[mistake]

    def changed(text: str) -> str:
        assert right in text
        return text.replace(right, wrong)

    assert max(differing(launches, tmp_path, changed)) > 0


def test_a_reduction_without_its_second_stage_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, x = stages.stages, numbers((30_000,), "float64")

    def first(*given: Any) -> Iterator[KernelLaunch]:
        yield next(iter(whole(*given)))

    graph = cg.function(np.sum).graph(x)
    monkeypatch.setattr(listing, "stages", first)
    with pytest.raises(AssertionError):
        assert_same(on_stand_in(graph, [x]).results, on_reference(graph, [x]))


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no CUDA compiler")
def test_as_the_cuda_compiler_reads_it(launches: list[Record], tmp_path: Path) -> None:
    for dtype in DTYPES:
        x = numbers((3, 7, 6), dtype)
        on_stand_in(graph_of(x, -1, SEEN[0]), [x], "biufc")
    x = numbers((20_001,), "float32")
    on_stand_in(cg.function(large).graph(x), [x])
    specs = specs_of(launches)
    (tmp_path / "kernels.cu").write_text(written(specs), encoding="utf-8")
    command = ["nvcc", "--ptx", "-arch=sm_90", "-Werror", "all-warnings", "-diag-suppress", "177"]
    subprocess.run(
        [*command, str(tmp_path / "kernels.cu"), "-o", str(tmp_path / "kernels.ptx")], check=True, timeout=600
    )
    assert (tmp_path / "kernels.ptx").read_text(encoding="utf-8").count(".entry") == len(specs)


assert cnp  # the namespace is there


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_many_reductions_share_what_memory_a_block_has(dtype: str) -> None:
    """No card has a kernel whose states do not fit into it: a complex sum has two."""
    x, library = numbers((300,), dtype), StandIn()
    graph = cg.function(lambda x: tuple(np.sum(x * (1.0 + k)) for k in range(23))).graph(x)
    assert_same(on_stand_in(graph, [x], library=library).results, on_reference(graph, [x]), 1e-9)
    assert max(len(spec.text.results) for spec in library.reductions) == 12


def test_kernels_that_no_card_has_are_refused_by_the_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regions, "LIMITS", replace(regions.LIMITS, reductions=None))
    x = numbers((301,), "complex128")
    graph = cg.function(lambda x: tuple(np.sum(x * (1.0 + k)) for k in range(23))).graph(x)
    with pytest.raises(AssertionError, match="too much shared data: "):
        on_stand_in(graph, [x])
