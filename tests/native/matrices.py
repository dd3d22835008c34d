"""Operands of products and solves."""

from __future__ import annotations

import numpy as np

FLOATS = ["float32", "float64"]


def dense(rng: np.random.Generator, m: int, n: int, dtype: str) -> np.ndarray:
    values = rng.standard_normal((m, n)) * 4
    if np.dtype(dtype).kind == "c":
        values = values + 1j * rng.standard_normal((m, n))
    return values.astype(dtype)
