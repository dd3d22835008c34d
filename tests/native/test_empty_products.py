"""Products with an axis of size zero are zeros, and read and write nothing out of bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
from ctrlgrad.engines.native.engine import run
from ctrlgrad.execution import run_on

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
        for x, y in zip(run(graph, args), run_on("reference", graph, args), strict=True):
            np.testing.assert_array_equal(x, y)
