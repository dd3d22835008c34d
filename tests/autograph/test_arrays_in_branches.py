"""A `TensorArray` without an element yet, which some paths push on and some leave unchanged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp

X = np.array([0.5, -0.25])


def rows_before_a_break(x: Any, n: Any) -> Any:
    rows = cg.TensorArray("float64", rewritable=True)
    while True:
        x = x * 2.0
        if rows.size() >= n:
            break
        rows = rows.push(x)
    return rows.stack()


def rows_that_fit(x: Any, n: Any) -> Any:
    rows = cg.TensorArray("float64", rewritable=True)
    for i in range(n):
        if i % 2 == 0:
            rows = rows.push(x * i)
    return rows.stack()


def rows_of_either_path(x: Any, n: Any) -> Any:
    rows = cg.TensorArray("float64", rewritable=True)
    if n > 2:
        rows = rows.push(x).push(x * x)
    elif n > 1:
        rows = rows.push(x * 3.0)
    return rows.stack()


EXPECTED: dict[Callable[..., Any], Callable[[Any, int], list[Any]]] = {
    rows_before_a_break: lambda x, n: [x * 2.0 ** (k + 1) for k in range(n)],
    rows_that_fit: lambda x, n: [x * i for i in range(0, n, 2)],
    rows_of_either_path: lambda x, n: [x, x * x] if n > 2 else [x * 3.0] if n > 1 else [],
}


@pytest.mark.parametrize("fn", EXPECTED, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_paths_that_push_and_paths_that_do_not(fn: Callable[..., Any], n: int) -> None:
    rows = EXPECTED[fn](X, n)
    found = cg.function(fn, autograph=True)(X, n)
    np.testing.assert_array_equal(found, np.stack(rows) if rows else np.zeros((0, 2)))
    loss = lambda x, n: cnp.sum(cnp.sin(cg.function(fn, autograph=True)(x, n)))
    cg.check_grads(loss, (X, n), order=2)
