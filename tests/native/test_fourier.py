"""Fourier transforms agree with SciPy at every size, thread count and norm, and their derivatives are exact."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.fft
from instruments.machines import THREADS
from instruments.tables import in_turn

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines import optimised_graph
from ctrlgrad.engines.native import engine
from ctrlgrad.engines.native.products.library import products
from ctrlgrad.engines.reference.linalg_kernels import LEAST_ELEMENTS
from ctrlgrad.plan.checker import check
from ctrlgrad.plan.checking.memory import PlanError
from ctrlgrad.plan.effects import walk
from ctrlgrad.plan.lowering.fourier import MOST_ACROSS, MOST_ALONE, MOST_POINTS
from ctrlgrad.plan.model import Outside, Plan, Transform
from ctrlgrad.plan.printer import format_plan
from ctrlgrad.threads import default_threads

SIZES = (1, 2, 3, 4, 7, 8, 15, 32)
SMOOTH = [2**a * 3**b * 5**c for a in range(13) for b in range(8) for c in range(6) if 2**a * 3**b * 5**c <= 4096]
BATCHES = ((), (0,), (1,), (2,), (3,), (7,), (33,), (2, 9))


def plan_of(fn: Callable[..., Any], *arguments: Any) -> Plan:
    graph = optimised_graph(cg.function(fn).graph(*arguments))
    return engine.plan_of(graph, engine.shapes_of(graph, arguments))


def is_native(fn: Callable[..., Any], *arguments: Any) -> bool:
    steps = list(walk(plan_of(fn, *arguments).body))
    assert any(isinstance(step, Transform | Outside) for step in steps)
    return not any(isinstance(step, Outside) for step in steps)


def four(lib: Any, n: int, axis: int = -1) -> Callable[..., Any]:
    """The four transforms of size n: of complex numbers, of real ones, and of half a spectrum."""
    return lambda z, x, half: (
        lib.fft.fft(z, axis=axis),
        lib.fft.ifft(z, axis=axis, norm="forward"),
        lib.fft.rfft(x, axis=axis),
        lib.fft.irfft(half, n, axis=axis, norm="forward"),
    )


def operands(n: int, batch: tuple[int, ...], dtype: str, axis: int = -1) -> list[np.ndarray]:
    """Arrays of a batch for `four`, `n` along an axis."""
    rng = np.random.default_rng(n)
    shapes = [[*batch], [*batch], [*batch]]
    for shape, size in zip(shapes, (n, n, n // 2 + 1), strict=True):
        shape.insert(len(batch) if axis == -1 else axis, size)
    z, x, half = (rng.normal(size=shape) + 1j * rng.normal(size=shape) for shape in shapes)
    wide = np.result_type(dtype, np.complex64)
    return [z.astype(wide), x.real.astype(dtype), half.astype(wide)]


class LongFloats:
    """SciPy's transforms in the longest float."""

    class fft:
        fft, ifft, rfft, irfft = scipy.fft.fft, scipy.fft.ifft, scipy.fft.rfft, scipy.fft.irfft


def rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.abs(x) ** 2))) if x.size else 0.0


def judge(n: int, batch: tuple[int, ...], dtype: str, axis: int = -1) -> None:
    """Transforms whose error is at most twice that of SciPy in the same precision, beside a fifth of its rounding."""
    given = operands(n, batch, dtype, axis)
    found = cg.function(four(cnp, n, axis))(*given)
    scipys = four(LongFloats, n, axis)(*given)
    wide = [np.asarray(x, np.clongdouble if x.dtype.kind == "c" else np.longdouble) for x in given]
    for ours, theirs, exact in zip(found, scipys, four(LongFloats, n, axis)(*wide), strict=True):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
        most = 2 * rms(theirs - exact) + np.finfo(dtype).eps / 5 * rms(exact)
        assert rms(ours - exact) <= most, (n, batch, dtype, axis)


@in_turn("dtype, batch", ["float32", "float64"], BATCHES)
def test_every_size_is_as_precise_as_in_scipy(dtype: str, batch: tuple[int, ...]) -> None:
    for n in range(1, 131):
        judge(n, batch, dtype)


@in_turn("dtype, batch", ["float32", "float64"], [b for b in BATCHES if np.prod(b) < 8])
def test_sizes_of_small_primes(dtype: str, batch: tuple[int, ...]) -> None:
    for n in [n for n in SMOOTH if n > 130][len(batch) :: 3]:
        judge(n, batch, dtype)


@in_turn("batch, axis", [(3,), (33,), (2, 9), (3, 8), (5, 20)], [0, 1])
def test_every_axis(batch: tuple[int, ...], axis: int) -> None:
    for dtype in ("float32", "float64"):
        for n in (1, 2, 3, 6, 7, 16, 30, 45, 64, 96):
            judge(n, batch, dtype, axis)


def test_views_are_transformed_as_they_lie() -> None:
    """Rows of a transposed array need no copy; flipped, cut and broadcast ones are copied."""
    x = np.random.default_rng(0).normal(size=(12, 20, 6))
    first, *_ = walk(plan_of(lambda x: cnp.fft.rfft(x.transpose(1, 0, 2), axis=1), x).body)
    assert isinstance(first, Transform)
    for view in (
        lambda lib, x: x.transpose(2, 1, 0),
        lambda lib, x: x[::-1, ::2, 1:],
        lambda lib, x: lib.broadcast_to(x[:, :1], (12, 5, 6)),
    ):
        for axis in (0, 1, 2):
            f = cg.function(lambda x, view=view, axis=axis: cnp.fft.rfft(view(cnp, x), axis=axis))
            np.testing.assert_allclose(f(x), np.fft.rfft(view(np, x), axis=axis), atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_parts_that_threads_share_have_the_same_bits(dtype: str) -> None:
    for shape, axis in (((300, 256), 1), ((301, 45), 1), ((60, 500), 0), ((7, 64, 37), 1), ((5, 4096), 1)):
        x = np.random.default_rng(0).normal(size=shape).astype(dtype)
        plan = plan_of(lambda x, axis=axis: cnp.fft.rfft(x, axis=axis), x)
        assert plan.shares and "parts along 0,2" in format_plan(plan)
        f = cg.function(lambda x, axis=axis: (cnp.fft.rfft(x, axis=axis), cnp.fft.fft(x, axis=axis)))
        found = []
        try:
            for threads in THREADS:
                products().set_threads(threads)
                found.append(f(x))
        finally:
            products().set_threads(default_threads())
        for half, whole in found:
            np.testing.assert_array_equal(half, found[0][0])
            np.testing.assert_array_equal(whole, found[0][1])
        np.testing.assert_allclose(found[0][1], np.fft.fft(x, axis=axis), atol=1e-4 if dtype == "float32" else 1e-11)


def test_the_checker_refuses_other_parts() -> None:
    plan = plan_of(lambda x: cnp.fft.rfft(x), np.ones((300, 256)))
    ((step, share),) = plan.shares.items()
    check(plan)
    for wrong in (
        replace(share, axes=(1,)),
        replace(share, has_results=True),
        replace(share, parts=share.parts + 1),
        replace(share, unit=share.unit - 1),
    ):
        with pytest.raises(PlanError):
            check(replace(plan, shares={step: wrong}))


@pytest.mark.parametrize("is_real", [False, True])
def test_sizes_up_to_which_machine_code_transforms(is_real: bool) -> None:
    """The largest sizes of rows, of rows of another number than a multiple of 4, and of columns; and prime factors."""
    name, times = ("rfft", 2) if is_real else ("fft", 1)

    def along(axis: int) -> Callable[[Any], Any]:
        return lambda x: getattr(cnp.fft, name)(x, axis=axis)

    for n, expected in ((MOST_POINTS, True), (MOST_POINTS + 4, False), (64800, True), (65610, False)):
        assert is_native(along(0), np.ones(n * times)) == expected, n
    for n, expected in ((MOST_ALONE - 24, True), (1010, False), (1250, False), (1280, True)):
        assert is_native(along(1), np.ones((2, n * times))) == expected, n
    for n, expected in ((MOST_ACROSS, True), (4050, True), (4320, False)):
        assert is_native(along(0), np.ones((n * times, 2))) == expected, n
    for n in (7, 14, 22, 121):
        plan = plan_of(along(0), np.ones(n * times))
        assert f"outside {name}(" in format_plan(plan)


def test_the_report_says_who_transforms() -> None:
    found = str(cg.function(lambda x: (cnp.fft.rfft(x), cnp.fft.rfft(x[:7]))).explain(np.ones(64)))
    assert "rfft of 64 numbers in [1,64,1]" in found and "sizes without a prime factor above 5" in found


def test_a_loop_with_transforms_calls_no_python() -> None:
    def smoothed(x: Any) -> Any:
        return cg.fori_loop(0, 7, lambda i, x: cnp.fft.irfft(cnp.fft.rfft(x) * 0.5, 30) + x, x)

    x = np.random.default_rng(0).normal(size=30)
    assert is_native(smoothed, x) and is_native(cg.grad(lambda x: cnp.sum(smoothed(x) ** 2)), x)
    np.testing.assert_allclose(cg.function(smoothed)(x), 1.5**7 * x, rtol=1e-12)
    np.testing.assert_allclose(cg.grad(lambda x: cnp.sum(smoothed(x) ** 2))(x), 2 * 1.5**14 * x, rtol=1e-12)


def test_numbers_that_are_not_finite_and_empty_batches() -> None:
    x = np.ones((2, 16))
    x[0, 3] = np.inf
    found = cg.function(lambda x: cnp.fft.rfft(x))(x)
    assert not np.isfinite(found[0]).any() and np.isfinite(found[1]).all()
    assert cg.function(lambda x: cnp.fft.fft(x, axis=1))(np.ones((3, 8, 0))).shape == (3, 8, 0)


def test_a_size_of_zero_that_only_the_call_knows_is_an_error() -> None:
    """A plan for no elements is made, and its run raises; lowering once divided 0 by primes forever."""
    spec = cg.TensorSpec((None, None), "complex128")
    f = cg.function(lambda z: cnp.fft.fft(z, axis=1), signature=[spec])
    for columns in (1, 2):
        np.testing.assert_allclose(f(np.ones((3, columns), complex)), np.fft.fft(np.ones((3, columns))))
    with pytest.raises(cg.errors.ShapeError, match="fft: no elements along the axis"):
        f(np.ones((3, 0), complex))


def filtered(lib: Any, n: int, norm: str) -> Any:
    """A function of real numbers and of a half spectrum that uses every real transform."""

    def f(x: Any, z: Any) -> Any:
        spectrum = lib.fft.rfft(x, n, norm=norm) * z + lib.fft.ihfft(x, n, norm=norm)
        return lib.sum(lib.fft.irfft(spectrum, n, norm=norm) ** 3) + lib.sum(lib.fft.hfft(spectrum * z, n) ** 2)

    return f


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
def test_derivatives_of_real_transforms(n: int, norm: str) -> None:
    """Derivatives of real transforms agree with JAX and with differences, at even and odd sizes: some elements of a
    half spectrum stand for two, some for one."""
    rng = np.random.default_rng(n)
    x, z = rng.normal(size=5), rng.normal(size=n // 2 + 1) + 1j * rng.normal(size=n // 2 + 1)
    ours, theirs = filtered(cnp, n, norm), filtered(jnp, n, norm)
    with jax.enable_x64(True):
        for k in (0, 1):
            np.testing.assert_allclose(cg.grad(ours, k)(x, z), jax.grad(theirs, k)(x, z), rtol=1e-9, atol=1e-12)
    cg.check_grads(lambda x, re, im: ours(x, cnp.make_complex(re, im)), (x, z.real, z.imag), order=2)


def test_real_transforms_of_rows() -> None:
    x = np.random.default_rng(0).normal(size=(3, 4, 6))
    rows = cg.vmap(cg.vmap(lambda r: cnp.fft.irfft(cnp.fft.rfft(r) * 2.0, 6)))(x)
    np.testing.assert_allclose(rows, 2 * x, atol=1e-12)
    turned = cg.function(lambda x: cnp.fft.irfft(cnp.fft.rfft(x, axis=1) * 2.0, 4, axis=1))(x)
    np.testing.assert_allclose(turned, 2 * x, atol=1e-12)


@in_turn("threads, dtype", ["1", "2", "3", "7", "16", "64"], ["float32", "float64"])
def test_sizes_beside_the_work_of_a_thread(threads: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CTRLGRAD_THREADS", threads)
    tolerance = 2e-5 if dtype == "float32" else 1e-11
    f = cg.function(lambda x: (cnp.fft.rfft(x), cnp.fft.irfft(cnp.fft.rfft(x), x.shape[-1]), cnp.fft.fft(x)))
    for count in (1, 2, 16):
        for size in (count * LEAST_ELEMENTS + d for d in (-1, 0, 1)):
            for shape in ((size,), (2, size // 2)):
                x = np.random.default_rng(0).normal(size=shape).astype(dtype)
                half, back, whole = f(x)
                assert half.dtype == whole.dtype == np.result_type(dtype, np.complex64) and back.dtype == dtype
                scale = np.sqrt(size)
                np.testing.assert_allclose(half / scale, np.fft.rfft(x) / scale, atol=tolerance)
                np.testing.assert_allclose(whole / scale, np.fft.fft(x) / scale, atol=tolerance)
                np.testing.assert_allclose(back, x, atol=tolerance)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("columns", [3, 4, 5, 7])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5])
def test_part_of_a_small_real_array(rows: int, columns: int, dtype: str) -> None:
    """Complex numbers with imaginary part 0 in registers, of which a part is transformed.

    LLVM 22 aborted on them for processors with AVX-512, at 3 rows of 4 float32.
    """
    x = np.arange(1.0, 1 + rows * columns, dtype=dtype).reshape(rows, columns)
    found = cg.function(lambda x: cnp.fft.fft(x, n=3), engine="native")(x)
    np.testing.assert_allclose(found, np.fft.fft(x, n=3), rtol=1e-5 if dtype == "float32" else 1e-12, atol=1e-5)
