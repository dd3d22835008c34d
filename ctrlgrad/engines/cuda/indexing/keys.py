"""Keys in which there are indices from the card: which element is where, but for what the indices add."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Chosen:
    """Elements of an array that indices choose: an array of the library, or a view.

    `whole` is what a key names that has all of an axis in place of each index; along `axes` the indices choose, which
    broadcast to `index_shape`. In what is named their axes stand from `first` on, before those of the rest behind it.
    """

    whole: Any
    axes: tuple[int, ...]
    first: int
    indices: tuple[Any, ...]

    @property
    def index_shape(self) -> Shape:
        return np.broadcast_shapes(*(tuple(x.shape) for x in self.indices))

    def _rest(self, of_axes: Sequence[int]) -> Shape:
        return tuple(x for axis, x in enumerate(of_axes) if axis not in self.axes)

    @property
    def rest_shape(self) -> Shape:
        return self._rest(self.whole.shape)

    @property
    def rest_strides(self) -> Shape:
        return self._rest(self.whole.strides)

    @property
    def shape(self) -> Shape:
        """Of what is named."""
        rest = self.rest_shape
        return (*rest[: self.first], *self.index_shape, *rest[self.first :])

    @property
    def has_elements(self) -> bool:
        """Return true if the key names at least one element, whatever the indices are."""
        return 0 not in self.shape and 0 not in (self.whole.shape[axis] for axis in self.axes)

    # Strides of what is named: of the elements that indices of zero choose, of an index, and of a value by its axes.

    @property
    def part_strides(self) -> Shape:
        rest = self.rest_strides
        return (*rest[: self.first], *(0 for _ in self.index_shape), *rest[self.first :])

    def spread(self, strides: Sequence[int]) -> Shape:
        before, behind = self.first, len(self.rest_shape) - self.first
        return (*(0 for _ in range(before)), *strides, *(0 for _ in range(behind)))

    def rows_of(self, strides: Sequence[int]) -> Shape:
        return tuple(strides[self.first : self.first + len(self.index_shape)])

    def columns_of(self, strides: Sequence[int]) -> Shape:
        return (*strides[: self.first], *strides[self.first + len(self.index_shape) :])


def chosen(
    rank: int, key: Sequence[Any], is_index: Callable[[Any], bool], whole_of: Callable[[tuple[Any, ...]], Any]
) -> Chosen:
    """Resolve a key of numbers, slices, Nones and at least one index, for an array of this rank.

    Args:
        whole_of: what a key without indices names.
    """
    key = (*key, *(slice(None),) * (rank - sum(item is not None for item in key)))
    whole = whole_of(tuple(slice(None) if is_index(item) else item for item in key))
    kept = [item for item in key if item is None or isinstance(item, slice) or is_index(item)]
    axes = tuple(axis for axis, item in enumerate(kept) if is_index(item))
    # As in NumPy, numbers count as index arrays, and the axes of index arrays that are adjacent stay in their place.
    advanced = [n for n, item in enumerate(key) if item is not None and not isinstance(item, slice)]
    first = advanced[0] if advanced[-1] - advanced[0] + 1 == len(advanced) else 0
    return Chosen(whole, axes, first, tuple(item for item in key if is_index(item)))
