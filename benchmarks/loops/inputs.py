"""The numbers that the loops start from."""

from __future__ import annotations

from typing import Any

import numpy as np

Arguments = tuple[Any, ...]


def map_inputs(width: int | None, seed: int = 0) -> Arguments:
    """(s, a, b): scalars, or float64 `[width]`."""
    rng = np.random.default_rng(seed)
    low_high = ((0.4, 0.6), (0.9, 1.2), (0.05, 0.15))
    return tuple(np.asarray(rng.uniform(low, high, () if width is None else (width,))) for low, high in low_high)


def branch_inputs() -> Arguments:
    """(v, a, r)."""
    return np.asarray(0.2), np.asarray(1.5), np.asarray(0.7)


def nested_inputs() -> Arguments:
    """(y, a)."""
    return np.asarray(0.3), np.asarray(1.2)


def read(result: Any) -> dict[str, np.ndarray]:
    """`(loss, gradients)` under shared names."""
    loss, gradients = result
    return {"loss": np.asarray(loss)} | {f"gradient {i}": np.asarray(g) for i, g in enumerate(gradients)}
