"""Arrays put together and taken apart, and turned round, written with the functions that move elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ctrlgrad.frontend.array.dims import (
    axis_of,
    dims,
    expanded,
    rank_of,
    reshaped,
    times,
    whole_number,
)
from ctrlgrad.frontend.array.joining import concatenate, split
from ctrlgrad.frontend.array.manipulation import flip, moveaxis, swapaxes
from ctrlgrad.frontend.array.promote import operand
from ctrlgrad.frontend.functions import array_function


def _at_least(rank: int, xs: Sequence[Any], new_axes: Mapping[int, tuple[int, ...]]) -> Any:
    arrays = [operand(f"atleast_{rank}d", x) for x in xs]
    found = [expanded(x, new_axes[rank_of(x)]) if rank_of(x) in new_axes else x for x in arrays]
    return found[0] if len(found) == 1 else tuple(found)


@array_function()
def atleast_1d(*xs: Any) -> Any:
    """Arrays of rank 1 or more; as `numpy.atleast_1d`.

    >>> cnp.atleast_1d(2.0)
    array([2.])
    """
    return _at_least(1, xs, {0: (0,)})


@array_function()
def atleast_2d(*xs: Any) -> Any:
    """Arrays of rank 2 or more, vectors as rows; as `numpy.atleast_2d`.

    >>> cnp.atleast_2d([1, 2])
    array([[1, 2]])
    """
    return _at_least(2, xs, {0: (0, 1), 1: (0,)})


@array_function()
def atleast_3d(*xs: Any) -> Any:
    """Arrays of rank 3 or more; as `numpy.atleast_3d`.

    >>> cnp.atleast_3d([1, 2]).shape
    (1, 2, 1)
    """
    return _at_least(3, xs, {0: (0, 1, 2), 1: (0, 2), 2: (2,)})


@array_function()
def column_stack(tup: Any) -> Any:
    """Vectors as columns, and matrices, side by side; as `numpy.column_stack`.

    >>> cnp.column_stack([[1, 2], [3, 4]])
    array([[1, 3],
           [2, 4]])
    """
    arrays = [operand("column_stack", x) for x in tup]
    return concatenate([x if rank_of(x) > 1 else reshaped(x, [times(dims(x)), 1]) for x in arrays], axis=1)


@array_function()
def dstack(tup: Any) -> Any:
    """Arrays of rank 3 or more joined along axis 2; as `numpy.dstack`.

    >>> cnp.dstack([[1, 2], [3, 4]]).shape
    (1, 2, 2)
    """
    return concatenate([atleast_3d(x) for x in tup], axis=2)


@array_function()
def hsplit(x: Any, indices_or_sections: Any) -> list[Any]:
    """Parts along axis 1, of a vector along axis 0; as `numpy.hsplit`.

    >>> cnp.hsplit(cnp.arange(4), 2)
    [array([0, 1]), array([2, 3])]
    """
    x = operand("hsplit", x)
    return split(x, indices_or_sections, 0 if rank_of(x) == 1 else 1)


@array_function()
def vsplit(x: Any, indices_or_sections: Any) -> list[Any]:
    """Parts along axis 0; as `numpy.vsplit`.

    >>> [part.shape for part in cnp.vsplit(cnp.ones((4, 1)), 2)]
    [(2, 1), (2, 1)]
    """
    return split(x, indices_or_sections, 0)


@array_function()
def dsplit(x: Any, indices_or_sections: Any) -> list[Any]:
    """Parts along axis 2; as `numpy.dsplit`.

    >>> [part.shape for part in cnp.dsplit(cnp.ones((1, 2, 4)), 2)]
    [(1, 2, 2), (1, 2, 2)]
    """
    return split(x, indices_or_sections, 2)


@array_function()
def block(arrays: Any) -> Any:
    """Nested lists of arrays as blocks of one array; as `numpy.block`.

    >>> cnp.block([[cnp.ones((1, 1)), cnp.zeros((1, 1))]])
    array([[1., 0.]])
    """
    depth = _depth(arrays)
    rank = max([depth, *(rank_of(operand("block", x)) for x in _flat(arrays))])
    return _block(arrays, depth, rank)


def _depth(x: Any) -> int:
    return 1 + max(map(_depth, x)) if isinstance(x, list) and x else 0


def _flat(x: Any) -> list[Any]:
    return [leaf for item in x for leaf in _flat(item)] if isinstance(x, list) else [x]


def _block(x: Any, depth: int, rank: int) -> Any:
    if isinstance(x, list):
        return concatenate([_block(item, depth - 1, rank) for item in x], axis=-depth)
    x = operand("block", x)
    return expanded(x, range(rank - rank_of(x))) if rank_of(x) < rank else x


@array_function()
def fliplr(x: Any) -> Any:
    """x with axis 1 turned round; as `numpy.fliplr`.

    >>> cnp.fliplr([[1, 2]])
    array([[2, 1]])
    """
    return flip(x, 1)


@array_function()
def flipud(x: Any) -> Any:
    """x with axis 0 turned round; as `numpy.flipud`.

    >>> cnp.flipud([[1], [2]])
    array([[2],
           [1]])
    """
    return flip(x, 0)


@array_function()
def rot90(x: Any, k: int = 1, axes: tuple[int, int] = (0, 1)) -> Any:
    """x turned by quarters in the plane of two axes; as `numpy.rot90`.

    >>> cnp.rot90([[1, 2], [3, 4]])
    array([[2, 4],
           [1, 3]])
    """
    x = operand("rot90", x)
    first, second = (axis_of("rot90", a, rank_of(x)) for a in axes)
    turns = whole_number("rot90", "k", k) % 4
    if turns == 2:
        return flip(x, (first, second))
    if turns == 1:
        return swapaxes(flip(x, second), first, second)
    return flip(swapaxes(x, first, second), second) if turns else x


@array_function()
def rollaxis(x: Any, axis: int, start: int = 0) -> Any:
    """x with an axis moved before another; as `numpy.rollaxis`.

    >>> cnp.rollaxis(cnp.ones((2, 3, 4)), 2).shape
    (4, 2, 3)
    """
    x = operand("rollaxis", x)
    axis = axis_of("rollaxis", axis, rank_of(x))
    start = start + rank_of(x) if start < 0 else start
    return moveaxis(x, axis, start - 1 if axis < start else start)


__all__ = [
    "atleast_1d",
    "atleast_2d",
    "atleast_3d",
    "block",
    "column_stack",
    "dsplit",
    "dstack",
    "fliplr",
    "flipud",
    "hsplit",
    "rollaxis",
    "rot90",
    "vsplit",
]
