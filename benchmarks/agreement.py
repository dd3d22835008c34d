"""Comparison of the results of a case's systems, before anything is timed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from benchmarks.process import Failure


def load(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an `.npz` file."""
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


def difference(results: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> tuple[float, str]:
    """The largest difference relative to the largest entry of the expected array, and the array's name.

    Arrays that are missing, differ in shape, or hold a NaN or Inf differ by infinity.
    """
    worst = (0.0, "")
    for name in sorted(set(results) | set(expected)):
        if name not in results or name not in expected or results[name].shape != expected[name].shape:
            return float("inf"), name
        size = float(np.max(np.abs(expected[name]), initial=0.0))
        with np.errstate(invalid="ignore"):
            gap = float(np.max(np.abs(results[name] - expected[name]), initial=0.0))
        relative = gap / size if size else (0.0 if gap == 0 else float("inf"))
        worst = max(worst, (float("inf") if np.isnan(relative) else relative, name))
    return worst


def require_agreement(
    results: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray], whose: str, tolerance: float
) -> float:
    """The difference, or a `Failure` that names the array where it is too large."""
    found, name = difference(results, expected)
    if not found <= tolerance:
        text = f"{name!r} differs from {whose}'s by {found:.1e} of its largest entry; {tolerance:.0e} is allowed"
        raise Failure("disagrees", text)
    return found
