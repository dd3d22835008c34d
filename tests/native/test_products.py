"""The BLAS that compiled code calls: NumPy's where its wheel brings one, else SciPy's; both by eight-byte integers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba")

from native.piece_agreement import by_reference, graph_of, piece_of

import ctrlgrad as cg
from ctrlgrad.engines import products, run_on
from ctrlgrad.engines.native import compiler
from ctrlgrad.engines.native.checked import checked
from ctrlgrad.engines.native.piece_run import Plan
from ctrlgrad.engines.reference import Run


@pytest.fixture(params=["NumPy", "SciPy"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(compiler, "_BLAS", {})
    if request.param == "SciPy":
        monkeypatch.setattr(compiler, "address_in_numpy", lambda name: None)
    elif compiler.address_in_numpy("sgemm") is None:
        pytest.skip("NumPy was built with another BLAS")
    yield request.param


def drawn(dtype: str, *shape: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    found = rng.normal(size=shape) + (1j * rng.normal(size=shape) if dtype.startswith("c") else 0)
    return found.astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_products_in_compiled_code(dtype: str, library: str, part_plans: list[Plan]) -> None:
    def fn(a: Any, b: Any, v: Any, total: Any) -> Any:
        return a @ b, b.T @ a.T, (a @ v) * 2, (v @ b) * 2, total + a @ b, a[1:, :3] @ b[2:5]

    args = [drawn(dtype, 6, 5), drawn(dtype, 5, 7), drawn(dtype, 5), drawn(dtype, 6, 7)]
    graph = graph_of(fn, *args)
    for found, expected in zip(piece_of(graph)(list(args), Run()), by_reference(graph, args), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5 if dtype in ("float32", "complex64") else 1e-13)
    assert part_plans


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_large_products_outside_of_compiled_code(dtype: str, library: str) -> None:
    a, b = drawn(dtype, 80, 70), drawn(dtype, 70, 90)
    assert products.LARGE <= 80 * 70 * 90
    for x, y in ((a, b), (a.T.copy().T, b), (a, b.T.copy().T)):
        np.testing.assert_allclose(products.matmul(x, y), x @ y, rtol=1e-3, atol=1e-3)


def test_products_of_numpys_library_are_those_of_the_reference_engine(part_plans: list[Plan]) -> None:
    if compiler.address_in_numpy("dgemm") is None:
        pytest.skip("NumPy was built with another BLAS")
    args = [drawn("float64", 64, 50), drawn("float64", 50, 33)]
    graph = graph_of(lambda a, b: a @ b, *args)
    np.testing.assert_array_equal(piece_of(graph)(list(args), Run())[0], by_reference(graph, args)[0])


SIZES = [(0, 3, 2), (2, 0, 3), (2, 3, 0), (0, 0, 0), (1, 0, 1), (1, 0, 3), (3, 0, 1), (0, 1, 1)]


@pytest.mark.parametrize("dtype", ["float64", "complex64", "int64"])
@pytest.mark.parametrize("batch", [(), (2,), (0,), (2, 0)], ids=str)
def test_products_with_an_axis_of_size_zero(dtype: str, batch: tuple[int, ...]) -> None:
    for m, k, n in SIZES:

        def fn(a: Any, b: Any) -> Any:
            def body(i: Any, carry: Any) -> Any:
                _, total = carry
                return a @ b + total, total + a @ b * 2

            start = np.ones((*batch, m, n), dtype)  # noqa: B023
            return cg.fori_loop(0, 2, body, (start, start))

        args = [np.ones((*batch, m, k), dtype), np.ones((*batch, k, n), dtype)]
        graph = cg.function(fn).graph(*args)
        with checked():
            found = run_on("native", graph, args)
        for x, y in zip(found, run_on("reference", graph, args), strict=True):
            np.testing.assert_array_equal(x, y)
