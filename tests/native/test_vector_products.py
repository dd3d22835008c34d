"""Products of a matrix and a vector in programs: the routine that is called, and the result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from native.matrices import FLOATS, dense

import ctrlgrad as cg
from ctrlgrad.engines import optimised_graph
from ctrlgrad.engines.native import engine

# Programs of a (m by n), x (n), y (m) and z (2 n), each with the routines called when all sizes are known.
ROWS, COLUMNS = {"cg_times_rows"}, {"cg_times_columns"}
PROGRAMS: dict[str, tuple[Callable[..., Any], set[str]]] = {
    "rows": (lambda a, x, y, z: a @ x, ROWS),
    "columns": (lambda a, x, y, z: a.T @ y, COLUMNS),
    "from the left": (lambda a, x, y, z: y @ a, COLUMNS),
    "from the left, transposed": (lambda a, x, y, z: x @ a.T, ROWS),
    "added": (lambda a, x, y, z: y * y + a @ x, ROWS),
    # No kernel takes vectors with gaps; the routine notices the stride at run time.
    "gaps": (lambda a, x, y, z: a @ z[::2], {"cg_gemv"}),
}


def called(fn: Callable[..., Any], *args: Any, **options: Any) -> set[str]:
    graph = optimised_graph(cg.function(fn, **options).graph(*args))
    names = engine.text_of(engine.plan_of(graph, engine.shapes_of(graph, args)))[1]
    return {name.rpartition("_")[0] for name in names}


def arguments(m: int, n: int, dtype: str) -> list[np.ndarray]:
    rng = np.random.default_rng([m, n])
    return [dense(rng, m, n, dtype), *(dense(rng, 1, size, dtype)[0] for size in (n, m, 2 * n))]


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_small_products_of_known_sizes_call_their_kernel(name: str, dtype: str) -> None:
    fn, expected = PROGRAMS[name]
    for m, n in ((37, 29), (64, 64), (5, 200)):
        args = arguments(m, n, dtype)
        assert called(fn, *args) == expected
        found = cg.function(fn, engine="native")(*args)
        tolerance = 1e-12 if dtype == "float64" else 1e-4
        np.testing.assert_allclose(found, fn(*args), rtol=tolerance, atol=100 * tolerance)


@pytest.mark.parametrize("name", ["rows", "columns", "gaps"])
@pytest.mark.parametrize("m, n", [(1, 7), (9, 1), (1, 1), (0, 3), (3, 0), (2100, 520)])
def test_products_of_other_sizes(name: str, m: int, n: int) -> None:
    """One row or column, none, and enough work for several threads."""
    fn, args = PROGRAMS[name][0], arguments(m, n, "float64")
    np.testing.assert_allclose(cg.function(fn, engine="native")(*args), fn(*args), rtol=1e-10, atol=1e-10)
    if m == 2100:
        assert "cg_gemv" in called(fn, *args)


def test_products_of_unknown_sizes_have_the_kernels_that_they_may_need() -> None:
    a, x, *_ = arguments(37, 29, "float64")
    signature = (cg.TensorSpec((None, None), np.float64), cg.TensorSpec((None,), np.float64))
    names = called(lambda a, x: a @ x, a, x, signature=signature)
    assert {"cg_gemv", "cg_times_rows"} <= names
    found = cg.function(lambda a, x: a @ x, engine="native", signature=signature)
    for m, n in ((37, 29), (1, 1), (0, 4), (4, 0), (2100, 520)):
        a, x, *_ = arguments(m, n, "float64")
        np.testing.assert_allclose(found(a, x), a @ x, rtol=1e-10, atol=1e-10)
