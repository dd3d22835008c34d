"""A NumPy array some of whose sizes a loop is to take as unknown: what `unknown_dims` gives outside a trace."""

from __future__ import annotations

from typing import Any

import numpy as np


class Unsized(np.ndarray):
    """An array as it is, with the axes whose sizes count as unknown. What is computed from it is a plain array."""

    axes: tuple[int, ...] = ()

    @staticmethod
    def of(x: Any, axes: tuple[int, ...]) -> Unsized:
        array = np.asarray(x).view(Unsized)
        array.axes = axes
        return array

    @property
    def known(self) -> tuple[int | None, ...]:
        """The shape, None for a size that counts as unknown."""
        return tuple(None if axis in self.axes else d for axis, d in enumerate(self.shape))

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        plain = np.asarray(array)
        return plain[()] if return_scalar else plain

    def __getitem__(self, key: Any) -> Any:
        return np.asarray(self)[key]
