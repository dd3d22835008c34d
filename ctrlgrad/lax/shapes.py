"""Shapes, joins and padding by the names of `jax.lax`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad.lax.slices import slice_in_dim


def reshape(operand: Any, new_sizes: Any, dimensions: Any = None, *, out_sharding: Any = None) -> Any:
    """The elements in another shape, of the axes in the order `dimensions` where that is given.

    >>> reshape(np.arange(4), (2, 2))[1]
    array([2, 3])
    """
    return cnp.reshape(operand if dimensions is None else cnp.transpose(operand, dimensions), new_sizes)


def transpose(operand: Any, permutation: Any) -> Any:
    """The axes in another order.

    >>> transpose(np.ones((2, 3)), (1, 0)).shape
    (3, 2)
    """
    return cnp.transpose(operand, tuple(permutation))


def squeeze(array: Any, dimensions: Any) -> Any:
    """Without some axes of size 1.

    >>> squeeze(np.ones((1, 2)), (0,)).shape
    (2,)
    """
    return cnp.squeeze(array, tuple(dimensions))


def expand_dims(array: Any, dimensions: Any) -> Any:
    """With new axes of size 1.

    >>> expand_dims(np.ones(2), (0,)).shape
    (1, 2)
    """
    return cnp.expand_dims(array, tuple(dimensions))


def collapse(operand: Any, start_dimension: int, stop_dimension: int | None = None) -> Any:
    """Neighbouring axes as one.

    >>> collapse(np.ones((2, 3, 4)), 0, 2).shape
    (6, 4)
    """
    shape = cnp.asarray(operand).shape
    axes = range(len(shape))[start_dimension:stop_dimension]
    size: Any = 1
    for axis in axes:
        size = size * shape[axis]
    return cnp.reshape(operand, (*shape[: axes.start], size, *shape[axes.stop :]))


def broadcast(operand: Any, sizes: Sequence[int], *, out_sharding: Any = None) -> Any:
    """With new axes in front, along which the operand is repeated.

    >>> broadcast(np.ones(2), (3,)).shape
    (3, 2)
    """
    return cnp.broadcast_to(operand, (*sizes, *cnp.asarray(operand).shape))


def broadcast_in_dim(operand: Any, shape: Any, broadcast_dimensions: Sequence[int], *, out_sharding: Any = None) -> Any:
    """In another shape, in which the operand's axes are those at `broadcast_dimensions`.

    >>> broadcast_in_dim(np.arange(2), (2, 3), (0,))[1]
    array([1, 1, 1])
    """
    operand = cnp.asarray(operand)
    sizes = dict(zip(broadcast_dimensions, operand.shape, strict=True))
    return cnp.broadcast_to(cnp.reshape(operand, [sizes.get(axis, 1) for axis in range(len(shape))]), shape)


def broadcast_to_rank(x: Any, rank: int) -> Any:
    """With as many new axes of size 1 in front as a rank takes.

    >>> broadcast_to_rank(np.ones(2), 3).shape
    (1, 1, 2)
    """
    x = cnp.asarray(x)
    return cnp.expand_dims(x, tuple(range(rank - x.ndim))) if rank > x.ndim else x


def iota(dtype: Any, size: int) -> Any:
    """0, 1, 2, ...

    >>> iota(np.float32, 3)
    array([0., 1., 2.], dtype=float32)
    """
    return cnp.arange(size).astype(dtype)


def broadcasted_iota(dtype: Any, shape: Sequence[int], dimension: int) -> Any:
    """In an array of this shape, the position along an axis.

    >>> broadcasted_iota(np.int32, (2, 2), 1)
    array([[0, 1],
           [0, 1]], dtype=int32)
    """
    return broadcast_in_dim(iota(dtype, shape[dimension]), tuple(shape), (dimension,))


def concatenate(operands: Sequence[Any], dimension: int) -> Any:
    """Arrays joined along an axis.

    >>> concatenate([np.ones(1), np.zeros(1)], 0)
    array([1., 0.])
    """
    return cnp.concatenate(operands, dimension)


def split(operand: Any, sizes: Sequence[int], axis: int = 0) -> list[Any]:
    """Parts of these sizes along an axis.

    >>> [len(x) for x in split(np.arange(5), (2, 3))]
    [2, 3]
    """
    return cnp.split(operand, [int(n) for n in np.cumsum(sizes)[:-1]], axis)


def pad(operand: Any, padding_value: Any, padding_config: Sequence[tuple[int, int, int]]) -> Any:
    """With a value before, after and between the elements along each axis; a negative number takes elements away.

    >>> pad(np.ones(2), 0.0, [(1, -1, 1)])
    array([0., 1., 0.])
    """
    x = cnp.asarray(operand)
    value = cnp.asarray(padding_value).astype(x.dtype)
    for axis, (low, high, interior) in enumerate(padding_config):
        size = x.shape[axis]
        if interior and size > 1:
            places = np.arange(size) * (interior + 1)
            shape = [(size - 1) * (interior + 1) + 1 if a == axis else n for a, n in enumerate(x.shape)]
            key = (*[np.s_[:]] * axis, places)
            x = cnp.at(cnp.broadcast_to(value, shape))[key].set(x)
        # What is taken away may be what was added.
        around = [(max(low, 0), max(high, 0)) if a == axis else (0, 0) for a in range(x.ndim)]
        x = cnp.pad(x, around, constant_values=value) if around[axis] != (0, 0) else x
        size = x.shape[axis]
        x = slice_in_dim(x, max(-low, 0), size + min(high, 0), axis=axis) if low < 0 or high < 0 else x
    return x


__all__ = [
    "broadcast",
    "broadcast_in_dim",
    "broadcast_to_rank",
    "broadcasted_iota",
    "collapse",
    "concatenate",
    "expand_dims",
    "iota",
    "pad",
    "reshape",
    "split",
    "squeeze",
    "transpose",
]
