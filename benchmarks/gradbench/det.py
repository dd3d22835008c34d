"""The determinant by expansion by minors, and its gradient: as many loops in each other as the matrix has rows.

A minor has the rows from one on, and the columns of a linked list: `after[c]` is the column after c, and `after[n]` the
first one. A loop over a minor's columns takes each out of the list for the minor of the next row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import ctrlgrad as cg
from benchmarks.gradbench.evaluation import Evaluation, Module


def determinant(a: Any, columns: Any) -> Any:
    """`columns`: the list of all columns."""
    n = a.shape[0]

    def minor(row: int, after: Any) -> Any:
        if row == n - 1:
            return a[row, after[n]]

        def add(_: Any, carry: Any) -> Any:
            total, sign, before, column = carry
            inner = minor(row + 1, after.at[before].set(after[column]))
            return total + sign * a[row, column] * inner, -sign, column, after[column]

        return cg.fori_loop(0, n - row, add, (0.0, 1.0, n, after[n]))[0]

    return minor(0, columns)


def prepare(given: Mapping[str, Any]) -> tuple[Any, ...]:
    n = given["ell"]
    return np.array(given["A"], np.float64).reshape(n, n), np.append(np.arange(1, n + 1), 0)


def as_flat_list(gradient: Any) -> Any:
    return gradient.reshape(-1).tolist()


MODULE = Module(
    {
        "primal": Evaluation(cg.function(determinant), prepare, float),
        "gradient": Evaluation(cg.function(cg.grad(determinant)), prepare, as_flat_list),
    },
    example={"A": [0.3, 0.1, 0.7, 0.5, 0.2, 0.9, 0.4, 0.8, 0.6], "ell": 3},
)
