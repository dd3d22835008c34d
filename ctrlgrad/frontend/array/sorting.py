"""Sorting, searching in sorted arrays, and sets of values.

An order is a matter of integers and has no derivative; the sorted values have the derivative of the elements
they are. Sets of a traced array have an unknown size.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ctrlgrad.errors import ShapeError, TypeMismatchError
from ctrlgrad.frontend.apply import apply, cast
from ctrlgrad.frontend.array.arithmetic import maximum, subtract
from ctrlgrad.frontend.array.dims import (
    axis_of,
    broadcasted,
    concatenated,
    dim,
    dims,
    dtype_of,
    rank_of,
    reshaped,
    sliced,
)
from ctrlgrad.frontend.array.indexing import getitem, nonzero, take_along_axis
from ctrlgrad.frontend.array.manipulation import ravel
from ctrlgrad.frontend.array.promote import operand, same_dtype, shown
from ctrlgrad.frontend.functions import array_function
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.ir.attributes import DYNAMIC
from ctrlgrad.source import here


def _sortable(operation: str, x: Any, axis: Any) -> tuple[Any, int]:
    x = operand(operation, x)
    if dtype_of(x).kind == "c":
        raise TypeMismatchError(
            f"{operation}: complex numbers have no order", source=here(), got=shown(x), hint="sort abs(x) or real(x)"
        )
    if axis is None:
        x, axis = ravel(x), 0
    if rank_of(x) == 0:
        raise ShapeError(f"{operation}: a scalar has no axis", source=here(), got=shown(x))
    return x, axis_of(operation, axis, rank_of(x))


def _order(x: Any, axis: int, descending: bool) -> Any:
    return apply("argsort", [x], {"axis": axis, "descending": bool(descending)})


@array_function()
def argsort(x: Any, axis: Any = -1, kind: Any = None, *, descending: bool = False, stable: bool = True) -> Any:
    """The indices that sort x along an axis: int64. Equal elements keep their order, nan counts as the largest.

    Args:
        x: real, rank 1 or more.
        axis: an int, or None for all elements in one dimension.
        descending: from the largest to the smallest.
        kind, stable: accepted for NumPy and the Array API; the order is always the stable one.

    >>> import ctrlgrad.numpy as cnp
    >>> cnp.argsort([2.0, 3.0, 1.0])
    array([2, 0, 1])
    """
    x, place = _sortable("argsort", x, axis)
    return _order(x, place, descending)


@array_function()
def sort(x: Any, axis: Any = -1, kind: Any = None, *, descending: bool = False, stable: bool = True) -> Any:
    """x sorted along an axis; arguments as for `argsort`. Differentiable: each value is one of the elements.

    >>> import ctrlgrad.numpy as cnp
    >>> cnp.sort([2.0, 3.0, 1.0])
    array([1., 2., 3.])
    """
    x, place = _sortable("sort", x, axis)
    return take_along_axis(x, _order(x, place, descending), place)


@array_function()
def searchsorted(x1: Any, x2: Any, /, side: str = "left", sorter: Any = None) -> Any:
    """For each value of x2, the index at which it keeps x1 sorted: int64, of the shape of x2.

    Args:
        x1: [n], sorted ascending, or sorted by `sorter`.
        x2: any shape, real.
        side: "left" goes before equal elements, "right" behind them.
        sorter: [n] indices that sort x1.

    >>> import ctrlgrad.numpy as cnp
    >>> cnp.searchsorted([1, 3, 5], [3, 4])
    array([1, 2])
    """
    if side not in ("left", "right"):
        raise TypeMismatchError(
            "searchsorted: an unknown side", source=here(), expected="'left' or 'right'", got=repr(side)
        )
    row, values = same_dtype("searchsorted", (x1, x2))
    if sorter is not None:
        row = getitem(row, sorter)
    return apply("searchsorted", [row, values], {"side": side})


class UniqueAll(NamedTuple):
    """What `unique_all` returns."""

    values: Any
    indices: Any
    inverse_indices: Any
    counts: Any


class UniqueCounts(NamedTuple):
    """What `unique_counts` returns."""

    values: Any
    counts: Any


class UniqueInverse(NamedTuple):
    """What `unique_inverse` returns."""

    values: Any
    inverse_indices: Any


def _unique(operation: str, x: Any) -> tuple[UniqueAll, Any]:
    """The sets of all elements of x, and its shape."""
    given = operand(operation, x)
    flat, _ = _sortable(operation, given, None)
    order = _order(flat, 0, False)
    ordered = apply("getitem", [flat, order], {"key": (DYNAMIC,)})
    count = dim(flat, 0)
    before_last = maximum(subtract(count, 1), 0) if isinstance(count, Tensor) else max(count - 1, 0)
    differs = apply("not_equal", [sliced(ordered, 0, 1, None), sliced(ordered, 0, 0, before_last)])
    # The first element starts a set, where there is one.
    first = sliced(broadcasted(np.True_, [count]), 0, 0, 1)
    starts = concatenated([first, differs], 0)
    (positions,) = nonzero(starts)
    values = apply("getitem", [ordered, positions], {"key": (DYNAMIC,)})
    indices = apply("getitem", [order, positions], {"key": (DYNAMIC,)})
    ends = concatenated([sliced(positions, 0, 1, None), reshaped(_size(count), [1])], 0)
    counts = subtract(sliced(ends, 0, 0, dim(positions, 0)), positions)
    numbers = subtract(apply("cumsum", [cast(starts, np.int64)], {"axis": 0, "reverse": False}), 1)
    blank = broadcasted(np.int64(0), [count])
    inverse = apply("setitem", [blank, numbers, order], {"key": (DYNAMIC,)})
    return UniqueAll(values, indices, inverse, counts), given


def _size(count: Any) -> Any:
    return count if isinstance(count, Tensor) else np.int64(count)


@array_function()
def unique_values(x: Any) -> Any:
    """The distinct elements, ascending: [count]. Each nan counts as distinct.

    Differentiable: each value is the first of the elements that equal it.

    >>> import ctrlgrad.numpy as cnp
    >>> cnp.unique_values([2, 1, 2])
    array([1, 2])
    """
    return _unique("unique_values", x)[0].values


@array_function()
def unique_counts(x: Any) -> UniqueCounts:
    """The distinct elements, ascending, and how often each occurs.

    >>> import ctrlgrad.numpy as cnp
    >>> cnp.unique_counts([2, 1, 2]).counts
    array([1, 2])
    """
    sets, _ = _unique("unique_counts", x)
    return UniqueCounts(sets.values, sets.counts)


@array_function()
def unique_inverse(x: Any) -> UniqueInverse:
    """The distinct elements, ascending, and for each element of x the index of its value: of the shape of x.

    >>> import ctrlgrad.numpy as cnp
    >>> cnp.unique_inverse([2, 1, 2]).inverse_indices
    array([1, 0, 1])
    """
    sets, given = _unique("unique_inverse", x)
    return UniqueInverse(sets.values, reshaped(sets.inverse_indices, dims(given)))


@array_function()
def unique_all(x: Any) -> UniqueAll:
    """The distinct elements, ascending, with the index of the first of each, the inverse indices and the counts.

    >>> import ctrlgrad.numpy as cnp
    >>> cnp.unique_all([2, 1, 2]).indices
    array([1, 0])
    """
    sets, given = _unique("unique_all", x)
    return sets._replace(inverse_indices=reshaped(sets.inverse_indices, dims(given)))


__all__ = [
    "argsort",
    "searchsorted",
    "sort",
    "unique_all",
    "unique_counts",
    "unique_inverse",
    "unique_values",
]
