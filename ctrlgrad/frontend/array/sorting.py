"""Sorting, and searching in sorted arrays.

An order is a matter of integers and has no derivative; the sorted values have the derivative of the elements
they are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ctrlgrad.advice import check_choice
from ctrlgrad.dtypes import dtype_kind, result_type
from ctrlgrad.errors import IndexOutOfRangeError, ShapeError, TypeMismatchError, UnknownSizeError
from ctrlgrad.frontend.apply import apply, cast
from ctrlgrad.frontend.array.choosing import filled, first_positions, known_count
from ctrlgrad.frontend.array.elementwise import isnan, maximum, subtract, where
from ctrlgrad.frontend.array.indexing import getitem, take, take_along_axis
from ctrlgrad.frontend.array.keys import positions
from ctrlgrad.frontend.array.manipulation import broadcast_to, moveaxis, ravel
from ctrlgrad.frontend.array.promote import *
from ctrlgrad.frontend.array.reduction import any as some
from ctrlgrad.frontend.array.reduction import min as smallest
from ctrlgrad.frontend.functions import FUNCTIONS, array_function, publish
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.ir.attributes import DYNAMIC
from ctrlgrad.records import record
from ctrlgrad.source import here

# Sets of values: the distinct elements of an array, and the common elements of two.
#
# An array is sorted, and each element that differs from the one before it begins a set. How many there are is known
# only with `size`, as in JAX: sets that are too many are left out, and missing ones are filled in. The values have
# the derivative of the elements that they are.


class UniqueAll(NamedTuple):
    """Result of `unique_all`."""

    values: Any
    indices: Any
    inverse_indices: Any
    counts: Any


class UniqueCounts(NamedTuple):
    """Result of `unique_counts`."""

    values: Any
    counts: Any


class UniqueInverse(NamedTuple):
    """Result of `unique_inverse`."""

    values: Any
    inverse_indices: Any


@record
class _Sorted:
    """Rows in ascending order: the order, the rows in it, and which of them begin a set."""

    order: Any
    rows: Any
    starts: Any


def _sorted_rows(x: Any, equal_nan: bool) -> _Sorted:
    """The rows of x, [n] or [n, m], sorted."""
    columns = [x] if rank_of(x) == 1 else [x[:, k] for k in reversed(range(_columns(x)))]
    order = argsort(x) if rank_of(x) == 1 else lexsort(columns) if columns else iota(dim(x, 0))
    rows = take(x, order, 0)
    count = dim(x, 0)
    before_last = maximum(subtract(count, 1), 0) if isinstance(count, Tensor) else max(count - 1, 0)
    after, before = sliced(rows, 0, 1, None), sliced(rows, 0, 0, before_last)
    differs = after != before
    if equal_nan and dtype_kind(dtype_of(x)) in "fc":
        differs = differs & ~(isnan(after) & isnan(before))
    differs = some(differs, 1) if rank_of(x) == 2 else differs
    # The first row begins a set, where there is one.
    first = sliced(broadcasted(np.True_, [count]), 0, 0, 1)
    return _Sorted(order, rows, concatenated([first, differs], 0))


def _columns(x: Any) -> int:
    columns = shape_of(x)[1]
    if columns is None:
        raise UnknownSizeError(
            "unique: the size of a row is not known until the program runs",
            expected="known sizes of all axes but the one whose rows are compared",
            got=str(shape_of(x)),
            hint="unique(x) without an axis takes arrays of unknown sizes",
        )
    return columns


def _chosen(operation: str, kept: _Sorted, mask: Any, size: int | None, fill_value: Any) -> tuple[Any, Any, Any]:
    """The rows at which a mask holds, their positions among the sorted rows, and which of them there are (None: all).

    Missing rows are `fill_value`, or the first row if that is None.
    """
    if size is None:
        (places,) = positions(mask)
        return take(kept.rows, places, 0), places, None
    places, present = first_positions(mask, known_count(operation, size))
    if shape_of(kept.rows)[0] == 0:
        if fill_value is None and size:
            raise ShapeError(
                f"{operation}: no elements to fill the result with",
                expected="a fill_value, or an element at least",
                got="an empty array",
            )
        rows = broadcasted(np.zeros((), dtype_of(kept.rows)), [size, *dims(kept.rows)[1:]])
    else:
        rows = take(kept.rows, places, 0)
    return rows if fill_value is None else filled(rows, present, 0, fill_value), places, present


def _unique(operation: str, x: Any, *, equal_nan: bool, size: int | None = None, fill_value: Any = None) -> UniqueAll:
    """The sets of the rows of x; the inverse indices are one for each row."""
    kept = _sorted_rows(x, equal_nan)
    values, places, present = _chosen(operation, kept, kept.starts, size, fill_value)
    count = dim(x, 0)
    if shape_of(x)[0] == 0:
        nothing = places * 0
        return UniqueAll(values, nothing, np.zeros(0, np.int64), nothing)
    indices = take(kept.order, places)
    # A set ends where the next one begins; missing sets begin and end behind the last one.
    begins = places if present is None else where(present, places, count)
    ends = concatenated([sliced(begins, 0, 1, None), reshaped(_size(count), [1])], 0)
    if size is not None and size > 0:
        # With a known size the last one may end before the array does.
        rank = apply("cumsum", [cast(kept.starts, np.int64)], {"axis": 0, "reverse": False})
        ends = concatenated([sliced(ends, 0, 0, size - 1), reshaped(searchsorted(rank, size, side="right"), [1])], 0)
        ends = where(present, ends, count)
    counts = subtract(sliced(ends, 0, 0, dim(begins, 0)), begins)
    numbers = subtract(apply("cumsum", [cast(kept.starts, np.int64)], {"axis": 0, "reverse": False}), 1)
    blank = broadcasted(np.int64(0), [count])
    inverse = apply("setitem", [blank, numbers, kept.order], {"key": (DYNAMIC,)})
    return UniqueAll(values, indices, inverse, counts)


def _size(count: Any) -> Any:
    return count if isinstance(count, Tensor) else np.int64(count)


def _all(operation: str, x: Any, size: int | None, fill_value: Any) -> UniqueAll:
    """The sets of all elements of x, as the Array API has them: each nan is distinct."""
    x = operand(operation, x)
    sets = _unique(operation, ravel(x), equal_nan=False, size=size, fill_value=fill_value)
    return sets._replace(inverse_indices=reshaped(sets.inverse_indices, dims(x)))


@array_function(of=operand)
def unique(
    x: Any,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
    *,
    equal_nan: bool = True,
    size: int | None = None,
    fill_value: Any = None,
    sorted: bool = True,
) -> Any:
    """The distinct elements, or the distinct parts along an axis, ascending; as `jax.numpy.unique`.

    Args:
        x: any shape.
        return_index, return_inverse, return_counts: return also the position of the first of each, the number of the
            set of each element, and how many elements each set has.
        axis: compare parts along this axis; None compares elements.
        equal_nan: all nan are one set.
        size: how many sets to return; of a traced x their number is unknown without it.
        fill_value: what stands for missing sets, the smallest one if it is None.
        sorted: accepted for NumPy; the sets are always sorted.

    >>> cnp.unique([2, 1, 2], return_counts=True)
    (array([1, 2]), array([1, 2]))
    >>> cnp.unique([2, 1, 2], size=4, fill_value=0)
    array([1, 2, 0, 0])
    """
    if axis is None:
        rows, place, rest = ravel(x), 0, []
    else:
        place = axis_of("unique", axis, rank_of(x))
        moved = moveaxis(x, place, 0)
        rest = dims(moved)[1:]
        rows = reshaped(moved, [dim(moved, 0), times(rest)]) if rest else moved
    sets = _unique("unique", rows, equal_nan=equal_nan, size=size, fill_value=fill_value)
    values = moveaxis(reshaped(sets.values, [dim(sets.values, 0), *rest]), 0, place) if rest else sets.values
    inverse = reshaped(sets.inverse_indices, dims(x)) if axis is None else sets.inverse_indices
    parts = ((return_index, sets.indices), (return_inverse, inverse), (return_counts, sets.counts))
    asked = [part for wanted, part in parts if wanted]
    return (values, *asked) if asked else values


@array_function()
def unique_values(x: Any, *, size: int | None = None, fill_value: Any = None) -> Any:
    """The distinct elements, ascending: [count]. Each nan counts as distinct. `size` as for `unique`.

    Differentiable: each value is the first of the elements that equal it.

    >>> cnp.unique_values([2, 1, 2])
    array([1, 2])
    """
    return _all("unique_values", x, size, fill_value).values


@array_function()
def unique_counts(x: Any, *, size: int | None = None, fill_value: Any = None) -> UniqueCounts:
    """The distinct elements, ascending, and how often each occurs.

    >>> cnp.unique_counts([2, 1, 2]).counts
    array([1, 2])
    """
    sets = _all("unique_counts", x, size, fill_value)
    return UniqueCounts(sets.values, sets.counts)


@array_function()
def unique_inverse(x: Any, *, size: int | None = None, fill_value: Any = None) -> UniqueInverse:
    """The distinct elements, ascending, and for each element of x the index of its value: of the shape of x.

    >>> cnp.unique_inverse([2, 1, 2]).inverse_indices
    array([1, 0, 1])
    """
    sets = _all("unique_inverse", x, size, fill_value)
    return UniqueInverse(sets.values, sets.inverse_indices)


@array_function()
def unique_all(x: Any, *, size: int | None = None, fill_value: Any = None) -> UniqueAll:
    """The distinct elements, ascending, with the index of the first of each, the inverse indices and the counts.

    >>> cnp.unique_all([2, 1, 2]).indices
    array([1, 0])
    """
    return _all("unique_all", x, size, fill_value)


@array_function()
def isin(element: Any, test_elements: Any, assume_unique: bool = False, invert: bool = False) -> Any:
    """True for each element that occurs in another array; as `numpy.isin`.

    >>> cnp.isin([1, 2, 3], [2, 5])
    array([False,  True, False])
    """
    x, among = same_dtype("isin", [element, test_elements])
    among = sort(ravel(among))
    if shape_of(among)[0] == 0:
        return broadcast_to(np.bool_(invert), tuple(dims(x)))
    place = searchsorted(among, x)
    last = dim(among, 0) - 1
    found = take(among, where(place > last, last, place)) == x
    return ~found if invert else found


@array_function()
def union1d(ar1: Any, ar2: Any, *, size: int | None = None, fill_value: Any = None) -> Any:
    """Union of two arrays, distinct and ascending; as `jax.numpy.union1d`.

    >>> cnp.union1d([3, 1], [1, 2])
    array([1, 2, 3])
    """
    return unique(concatenated(_vectors("union1d", ar1, ar2), 0), size=size, fill_value=fill_value)


def _vectors(operation: str, ar1: Any, ar2: Any) -> list[Any]:
    return [ravel(x) for x in same_dtype(operation, [ar1, ar2])]


@array_function()
def intersect1d(
    ar1: Any,
    ar2: Any,
    assume_unique: bool = False,
    return_indices: bool = False,
    *,
    size: int | None = None,
    fill_value: Any = None,
) -> Any:
    """Intersection of two arrays, distinct and ascending; as `jax.numpy.intersect1d`.

    With `return_indices` also the first position of each in the first array and in the second.

    >>> cnp.intersect1d([3, 1, 2], [1, 3, 3], return_indices=True)
    (array([1, 3]), array([1, 0]), array([0, 1]))
    """
    a, b = _vectors("intersect1d", ar1, ar2)
    kept = _sorted_rows(a, True)
    values, places, present = _chosen("intersect1d", kept, kept.starts & isin(kept.rows, b), size, fill_value)
    if present is not None and fill_value is None and shape_of(a)[0] != 0:
        # The smallest common value fills the missing places.
        values = where(present, values, values[:1]) if size else values
    if not return_indices:
        return values
    order = argsort(b)
    place = searchsorted(take(b, order), values)
    other = take(order, where(place < dim(b, 0), place, 0)) if shape_of(b)[0] != 0 else place
    first = take(kept.order, places)
    if present is None:
        return values, first, other
    return values, where(present, first, dim(a, 0)), where(present, other, dim(b, 0))


@array_function()
def setdiff1d(
    ar1: Any, ar2: Any, assume_unique: bool = False, *, size: int | None = None, fill_value: Any = None
) -> Any:
    """Elements of the first of two arrays that are not in the second, distinct and ascending; as `jax.numpy.setdiff1d`.

    `assume_unique` keeps the order of the first array. Missing values are 0 unless `fill_value` says otherwise.

    >>> cnp.setdiff1d([3, 1, 2], [1])
    array([2, 3])
    """
    a, b = _vectors("setdiff1d", ar1, ar2)
    kept = _Sorted(iota(dim(a, 0)), a, broadcasted(np.True_, [dim(a, 0)])) if assume_unique else _sorted_rows(a, True)
    fill_value = 0 if fill_value is None and size is not None else fill_value
    return _chosen("setdiff1d", kept, kept.starts & ~isin(kept.rows, b), size, fill_value)[0]


@array_function()
def setxor1d(
    ar1: Any, ar2: Any, assume_unique: bool = False, *, size: int | None = None, fill_value: Any = None
) -> Any:
    """Elements of exactly one of two arrays, distinct and ascending; as `jax.numpy.setxor1d`.

    Missing values are the smallest one unless `fill_value` says otherwise.

    >>> cnp.setxor1d([3, 1, 2], [1, 4])
    array([2, 3, 4])
    """
    a, b = _vectors("setxor1d", ar1, ar2)
    kept = _sorted_rows(concatenated([a, b], 0), True)
    mask = kept.starts & (isin(kept.rows, a) != isin(kept.rows, b))
    values, _, present = _chosen("setxor1d", kept, mask, size, 0 if fill_value is None else fill_value)
    if present is None or fill_value is not None or not size:
        return values
    return where(present, values, smallest(where(present, values, values[0])))


def _sortable(operation: str, x: Any, axis: Any) -> tuple[Any, int]:
    x = operand(operation, x)
    if axis is None:
        x, axis = ravel(x), 0
    if rank_of(x) == 0:
        raise ShapeError(
            f"{operation}: a scalar has no axis", got=shown(x), hint="axis=None takes a scalar as one element"
        )
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


@array_function(of=operand)
def sort_complex(x: Any) -> Any:
    """x sorted along its last axis, as complex numbers; as `numpy.sort_complex`.

    >>> cnp.sort_complex([2.0, 1.0])
    array([1.+0.j, 2.+0.j])
    """
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
    check_choice("searchsorted", "side", side, ("left", "right"))
    row, values = same_dtype("searchsorted", (x1, x2))
    if sorter is not None:
        row = getitem(row, sorter)
    return apply("searchsorted", [row, values], {"side": side})


publish(__name__, "UniqueAll", "UniqueCounts", "UniqueInverse", "places_of_largest")
