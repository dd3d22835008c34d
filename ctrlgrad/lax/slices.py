"""Slices whose starts may be traced, by the names of `jax.lax`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp


def slice(operand: Any, start_indices: Any, limit_indices: Any, strides: Any = None) -> Any:
    """A part, from known starts to known limits.

    >>> slice(np.arange(6), (1,), (5,), (2,))
    array([1, 3])
    """
    steps = strides or [1] * len(start_indices)
    return cnp.asarray(operand)[
        tuple(np.s_[a:b:c] for a, b, c in zip(start_indices, limit_indices, steps, strict=True))
    ]


def slice_in_dim(operand: Any, start_index: Any, limit_index: Any, stride: int = 1, axis: int = 0) -> Any:
    """A part along one axis.

    >>> slice_in_dim(np.arange(4), 1, 3)
    array([1, 2])
    """
    x = cnp.asarray(operand)
    return x[(*[np.s_[:]] * (axis % x.ndim), np.s_[start_index:limit_index:stride])]


def index_in_dim(operand: Any, index: int, axis: int = 0, keepdims: bool = True) -> Any:
    """What stands at a place along an axis.

    >>> index_in_dim(np.arange(4), 2)
    array([2])
    """
    return dynamic_index_in_dim(operand, index, axis, keepdims)


def _start(index: Any, size: Any, width: Any) -> Any:
    """A start counted from the front, moved so that the slice lies inside."""
    index = cnp.asarray(index).astype(np.int64)
    return cnp.clip(cnp.where(index < 0, index + size, index), 0, size - width)


def dynamic_slice(operand: Any, start_indices: Any, slice_sizes: Sequence[int]) -> Any:
    """A part of known sizes from starts that may be traced, moved so that it lies inside; as `jax.lax.dynamic_slice`.

    >>> dynamic_slice(np.arange(5), (4,), (3,))
    array([2, 3, 4])
    """
    x = cnp.asarray(operand)
    for axis, (start, width) in enumerate(zip(start_indices, slice_sizes, strict=True)):
        if not isinstance(x.shape[axis], int) or x.shape[axis] != width:
            x = cnp.take(x, _start(start, x.shape[axis], width) + np.arange(width), axis=axis)
    return x


def dynamic_slice_in_dim(operand: Any, start_index: Any, slice_size: int, axis: int = 0) -> Any:
    """As `dynamic_slice`, along one axis.

    >>> dynamic_slice_in_dim(np.arange(5), 1, 2)
    array([1, 2])
    """
    x = cnp.asarray(operand)
    return cnp.take(x, _start(start_index, x.shape[axis], slice_size) + np.arange(slice_size), axis=axis)


def dynamic_index_in_dim(operand: Any, index: Any, axis: int = 0, keepdims: bool = True) -> Any:
    """What stands at a place, which may be traced, along an axis.

    >>> int(dynamic_index_in_dim(np.arange(5), 1, keepdims=False))
    1
    """
    x = cnp.asarray(operand)
    found = cnp.take(x, _start(index, x.shape[axis], 1), axis=axis)
    return cnp.expand_dims(found, axis) if keepdims else found


def dynamic_update_slice(operand: Any, update: Any, start_indices: Any) -> Any:
    """The operand with a part replaced, moved so that it lies inside; as `jax.lax.dynamic_update_slice`.

    >>> dynamic_update_slice(np.arange(5), np.array([8, 9]), (4,))
    array([0, 1, 2, 8, 9])
    """
    x, update = cnp.asarray(operand), cnp.asarray(update)
    key = [
        _start(start, n, width) + cnp.reshape(cnp.arange(width), [width if b == a else 1 for b in range(x.ndim)])
        for a, (start, n, width) in enumerate(zip(start_indices, x.shape, update.shape, strict=True))
    ]
    return cnp.at(x)[tuple(key)].set(update) if key else update


def dynamic_update_slice_in_dim(operand: Any, update: Any, start_index: Any, axis: int) -> Any:
    """As `dynamic_update_slice`, along one axis.

    >>> dynamic_update_slice_in_dim(np.arange(3), np.array([9]), 1, 0)
    array([0, 9, 2])
    """
    x, update = cnp.asarray(operand), cnp.asarray(update)
    places = _start(start_index, x.shape[axis], update.shape[axis]) + cnp.arange(update.shape[axis])
    return cnp.at(x)[(*[np.s_[:]] * (axis % x.ndim), places)].set(update)


def dynamic_update_index_in_dim(operand: Any, update: Any, index: Any, axis: int) -> Any:
    """The operand with what stands at a place along an axis replaced.

    >>> dynamic_update_index_in_dim(np.arange(3), 9, 1, 0)
    array([0, 9, 2])
    """
    x, update = cnp.asarray(operand), cnp.asarray(update)
    update = cnp.expand_dims(update, axis) if update.ndim < x.ndim else update
    return dynamic_update_slice_in_dim(x, update, index, axis)


__all__ = [
    "dynamic_index_in_dim",
    "dynamic_slice",
    "dynamic_slice_in_dim",
    "dynamic_update_index_in_dim",
    "dynamic_update_slice",
    "dynamic_update_slice_in_dim",
    "index_in_dim",
    "slice",
    "slice_in_dim",
]
