"""The inverse error function with as many digits as a dtype has: Halley's method on series of the error function."""

from __future__ import annotations

import numpy as np

from ctrlgrad.ops.elementwise import FACTS


def erfinv(x: np.ndarray) -> np.ndarray:
    """Of an array of float64 or longdouble, as exact as that; where it starts from does not matter."""
    a = np.abs(x)
    found = np.where(a == 1, x.dtype.type(np.inf), x.dtype.type(np.nan))
    inside = a < 1
    found[inside] = _root(a[inside])
    return np.copysign(found, x)


def _root(a: np.ndarray) -> np.ndarray:
    y = FACTS["erfinv"].numpy(a.astype(np.float64)).astype(a.dtype)
    # Of a longdouble next to 1, which is 1 in float64.
    y = np.where(np.isinf(y), 6, y)
    slope = 2 / np.sqrt(np.arctan(a.dtype.type(1)) * 4)
    for _ in range(2):
        step = np.where(y < 2, _erf(y, slope) - a, (1 - a) - _erfc(y, slope)) / (slope * np.exp(-y * y))
        y = y - step / (1 + y * step)
    return y


def _erf(y: np.ndarray, slope: np.ndarray) -> np.ndarray:
    """exp(-y^2) times a series of positive terms, for y < 2."""
    y = np.minimum(y, 2)
    term = total = y
    for n in range(1, 60):
        term = term * (2 * y * y) / (2 * n + 1)
        total = total + term
    return total * slope * np.exp(-y * y)


def _erfc(y: np.ndarray, slope: np.ndarray) -> np.ndarray:
    """Laplace's continued fraction, for y >= 2."""
    y = np.maximum(y, 2)
    rest = np.zeros_like(y)
    for k in range(150, 0, -1):
        rest = y.dtype.type(k) / 2 / (y + rest)
    return slope / 2 * np.exp(-y * y) / (y + rest)
