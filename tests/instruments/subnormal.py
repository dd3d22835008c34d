"""Results that would differ on a card that flushes subnormal numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

import ctrlgrad as cg

X = np.array([1e-40, 0.0, -3e-39, 1.0, 1e-45], np.float32)


def computed(x: Any, w: Any) -> tuple[Any, ...]:
    """By kernels, and where the library has functions."""
    (places,) = np.nonzero(x)
    return (
        x + x,
        x > 0.0,
        np.log(np.abs(x)),
        x * 2.0**60,
        np.sum(x),
        np.cumsum(x),
        np.max(x[:1]),
        places,
        np.searchsorted(np.sort(x), x),
        x.at[np.array([0, 0, 2])].add(x[:3]),
        x.at[1:4].add(x[:3]),
        cg.fori_loop(0, 3, lambda i, c: c * w, x),
    )


def gradients(x: Any, w: Any) -> Any:
    """Of a function whose slope changes at zero, and of one that reads what it has written twice."""

    def read(x: Any) -> Any:
        array = cg.TensorArray("float32", size=2, element_shape=(5,)).write(0, x)
        return np.sum(array.read(0) * X) + np.sum(array.read(0) * X * w)

    return cg.grad(lambda x: np.sum(np.where(x > 0.0, 3.0 * x, x * w)))(x), cg.grad(read)(x)


__all__ = ["X", "computed", "gradients"]
