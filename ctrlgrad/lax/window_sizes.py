"""How many windows lie along an axis, whose size may be a number that only a run knows."""

from __future__ import annotations

from typing import Any

import ctrlgrad.numpy as cnp


def _not_negative(size: Any) -> Any:
    """A size, or 0 where it would be less."""
    return max(size, 0) if isinstance(size, int) else cnp.maximum(size, 0)


def window_count(size: Any, window: int, stride: int) -> Any:
    """How many windows of so many elements, `stride` apart, lie within so many.

    >>> window_count(5, 3, 1), window_count(2, 3, 1)
    (3, 0)
    """
    return _not_negative((size - window) // stride + 1)


def reach(count: Any, stride: int) -> Any:
    """How many elements there are from the first one of the first window to the first one of the last.

    >>> reach(3, 2), reach(0, 2)
    (5, 0)
    """
    return _not_negative((count - 1) * stride + 1)


__all__ = ["reach", "window_count"]
