"""Sorting, and searching in sorted arrays.

An order is a matter of integers and has no derivative; the sorted values have the derivative of the elements
they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ctrlgrad.dtypes import dtype_kind, result_type
from ctrlgrad.errors import IndexOutOfRangeError, ShapeError, TypeMismatchError
from ctrlgrad.frontend.apply import apply, cast
from ctrlgrad.frontend.array.dims import (
    axis_of,
    dtype_of,
    rank_of,
    shape_of,
    whole_number,
)
from ctrlgrad.frontend.array.indexing import getitem, take_along_axis
from ctrlgrad.frontend.array.manipulation import ravel
from ctrlgrad.frontend.array.promote import operand, same_dtype, shown
from ctrlgrad.frontend.functions import FUNCTIONS, array_function
from ctrlgrad.source import here


def _sortable(operation: str, x: Any, axis: Any) -> tuple[Any, int]:
    x = operand(operation, x)
    if axis is None:
        x, axis = ravel(x), 0
    if rank_of(x) == 0:
        raise ShapeError(f"{operation}: a scalar has no axis", got=shown(x))
    return x, axis_of(operation, axis, rank_of(x))


def _order(x: Any, axis: int, descending: bool = False) -> Any:
    """The stable order along an axis; of complex numbers by their real parts, then by their imaginary parts."""
    if dtype_kind(dtype_of(x)) != "c":
        return apply("argsort", [x], {"axis": axis, "descending": bool(descending)})
    real, imag = FUNCTIONS["real"](x), FUNCTIONS["imag"](x)
    by_imag = _order(imag, axis, descending)
    return take_along_axis(by_imag, _order(take_along_axis(real, by_imag, axis), axis, descending), axis)


def places_of_largest(operation: str, x: Any, count: int, axis: int = -1) -> Any:
    """The first `count` of the stable order along an axis from the largest down, without sorting all."""
    x, place = _sortable(operation, x, axis)
    return apply("top_k", [x], {"axis": place, "count": count})


@array_function()
def argsort(x: Any, axis: Any = -1, kind: Any = None, *, descending: bool = False, stable: bool = True) -> Any:
    """The indices that sort x along an axis: int64. Equal elements keep their order, nan counts as the largest.

    Args:
        x: rank 1 or more; complex numbers are ordered by their real parts, then by their imaginary parts.
        axis: an int, or None for all elements in one dimension.
        descending: from the largest to the smallest.
        kind, stable: accepted for NumPy and the Array API; the order is always the stable one.

    >>> cnp.argsort([2.0, 3.0, 1.0])
    array([2, 0, 1])
    """
    x, place = _sortable("argsort", x, axis)
    return _order(x, place, descending)


@array_function()
def sort(x: Any, axis: Any = -1, kind: Any = None, *, descending: bool = False, stable: bool = True) -> Any:
    """x sorted along an axis; arguments as for `argsort`. Differentiable: each value is one of the elements.

    >>> cnp.sort([2.0, 3.0, 1.0])
    array([1., 2., 3.])
    """
    x, place = _sortable("sort", x, axis)
    return take_along_axis(x, _order(x, place, descending), place)


@array_function()
def sort_complex(x: Any) -> Any:
    """x sorted along its last axis, as complex numbers; as `numpy.sort_complex`.

    >>> cnp.sort_complex([2.0, 1.0])
    array([1.+0.j, 2.+0.j])
    """
    x = operand("sort_complex", x)
    return sort(cast(x, result_type(dtype_of(x), np.complex64)))


@array_function()
def lexsort(keys: Any, axis: Any = -1) -> Any:
    """The indices that sort by several keys, the last one first; as `numpy.lexsort`.

    Args:
        keys: a sequence of arrays of one shape, or an array whose rows they are.
        axis: the axis of each key to sort along.

    >>> cnp.lexsort([[2, 1, 3], [0, 1, 0]])
    array([0, 2, 1])
    """
    rows = list(keys)
    if not rows:
        raise TypeMismatchError("lexsort: no keys", expected="one key or more", got="none")
    order: Any = None
    for key in rows:
        x, place = _sortable("lexsort", key, axis)
        found = _order(x if order is None else take_along_axis(x, order, place), place)
        order = found if order is None else take_along_axis(order, found, place)
    return order


@array_function()
def partition(x: Any, kth: int, axis: Any = -1) -> Any:
    """x with its `kth` smallest element along an axis in its place, smaller ones before it; here all are sorted.

    >>> print(cnp.partition([3, 1, 2], 1)[1])
    2
    """
    return sort(x, _partitioned("partition", x, kth, axis))


@array_function()
def argpartition(x: Any, kth: int, axis: Any = -1) -> Any:
    """The indices that partition x; see `partition`.

    >>> cnp.argpartition([3, 1, 2], 1)
    array([1, 2, 0])
    """
    return argsort(x, _partitioned("argpartition", x, kth, axis))


def _partitioned(operation: str, x: Any, kth: Any, axis: Any) -> Any:
    """The axis, where it has an element of this number."""
    rows, place = _sortable(operation, x, axis)
    size = shape_of(rows)[place]
    for k in np.atleast_1d(kth).tolist():
        number = whole_number(operation, "kth", k)
        if size is not None and not -size <= number < size:
            raise IndexOutOfRangeError(
                f"{operation}: kth is out of range", source=here(), expected=f"-{size} <= kth < {size}", got=str(number)
            )
    return axis


@array_function()
def searchsorted(x1: Any, x2: Any, /, side: str = "left", sorter: Any = None) -> Any:
    """For each value of x2, the index at which it keeps x1 sorted: int64, of the shape of x2.

    Args:
        x1: [n], sorted ascending, or sorted by `sorter`.
        x2: any shape, real.
        side: "left" goes before equal elements, "right" behind them.
        sorter: [n] indices that sort x1.

    >>> cnp.searchsorted([1, 3, 5], [3, 4])
    array([1, 2])
    """
    if side not in ("left", "right"):
        raise TypeMismatchError("searchsorted: an unknown side", expected="'left' or 'right'", got=repr(side))
    row, values = same_dtype("searchsorted", (x1, x2))
    if sorter is not None:
        row = getitem(row, sorter)
    return apply("searchsorted", [row, values], {"side": side})


__all__ = [
    "argpartition",
    "argsort",
    "lexsort",
    "partition",
    "searchsorted",
    "sort",
    "sort_complex",
]
