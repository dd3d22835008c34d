"""Functions that repeat elements and arrays."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.errors import ShapeError, TypeMismatchError
from ctrlgrad.frontend.apply import apply, cast
from ctrlgrad.frontend.array.creation import zeros
from ctrlgrad.frontend.array.dims import (
    along,
    axis_of,
    broadcasted,
    dim,
    dims,
    dtype_of,
    expanded,
    iota,
    known_size,
    rank_of,
    reshaped,
    shape_of,
    size_argument,
    sizes_argument,
    sliced,
    times,
    whole_number,
)
from ctrlgrad.frontend.array.indexing import take
from ctrlgrad.frontend.array.joining import concatenate
from ctrlgrad.frontend.array.manipulation import broadcast_to, moveaxis, ravel
from ctrlgrad.frontend.array.promote import operand, same_dtype, shown
from ctrlgrad.frontend.functions import FUNCTIONS, array_function
from ctrlgrad.frontend.tensor import Tensor


@array_function()
def meshgrid(*arrays: Any, indexing: str = "xy", sparse: bool = False, copy: bool = True) -> list[Any]:
    """Every combination of the elements of vectors, an array for each vector.

    Args:
        arrays: vectors, or scalars, which promote to one dtype.
        indexing: "ij" gives the shape of the vectors' sizes in order, "xy" that with the first two swapped.
        sparse: leave the axes that an array does not lie along at size 1.
        copy: accepted for NumPy; arrays of a graph have no identity.

    >>> cnp.meshgrid([1, 2], [3, 4])[0]
    array([[1, 2],
           [1, 2]])
    """
    if indexing not in ("xy", "ij"):
        raise TypeMismatchError("meshgrid: an unknown indexing", expected="'xy' or 'ij'", got=indexing)
    vectors = [expanded(x, [0]) if rank_of(x) == 0 else x for x in same_dtype("meshgrid", arrays)] if arrays else []
    if any(rank_of(x) != 1 for x in vectors):
        raise ShapeError("meshgrid: takes vectors", got=", ".join(map(shown, vectors)))
    places = list(range(len(vectors)))
    if indexing == "xy" and len(places) > 1:
        places[:2] = [1, 0]
    sizes: list[Any] = [None] * len(vectors)
    for x, place in zip(vectors, places, strict=True):
        sizes[place] = dim(x, 0)
    grids = [
        expanded(x, [a for a in range(len(places)) if a != place]) for x, place in zip(vectors, places, strict=True)
    ]
    return grids if sparse else [broadcasted(grid, sizes) for grid in grids]


@array_function()
def tile(x: Any, reps: Any) -> Any:
    """x repeated as a whole, `reps` times along each axis (aligned at the right).

    >>> cnp.tile([1, 2], 2)
    array([1, 2, 1, 2])
    """
    x = operand("tile", x)
    counts = sizes_argument("tile", reps)
    rank = max(len(counts), rank_of(x))
    counts = [1] * (rank - len(counts)) + counts
    x = expanded(x, range(rank - rank_of(x)))
    sizes = dims(x)
    # Each repeated axis gets a new axis before it, which is broadcast and then merged with it.
    new: list[int] = []
    wide: list[Any] = []
    merged: list[Any] = []
    for size_before, count in zip(sizes, counts, strict=True):
        if isinstance(count, Tensor) or count != 1:
            new.append(len(wide))
            wide.append(count)
        wide.append(size_before)
        merged.append(size_before if not isinstance(count, Tensor) and count == 1 else _scaled(size_before, count))
    return reshaped(broadcasted(expanded(x, new), wide), merged)


def _scaled(size: Any, count: Any) -> Any:
    if isinstance(size, Tensor) or isinstance(count, Tensor):
        return times([size, count])
    return size * count


@array_function()
def repeat(x: Any, repeats: Any, axis: Any = None, *, total_repeat_length: int | None = None) -> Any:
    """Each element repeated, in place, along an axis (or all elements, flattened).

    Args:
        x: any shape.
        repeats: an int, a traced integer scalar, or integers, one for each element of the axis or one for all, known
            or traced.
        axis: None flattens.
        total_repeat_length: the size of the result, as in JAX: what is too much is left out, and the last element
            stands for what is missing. Without it traced repeats make a dimension of unknown size.

    >>> cnp.repeat([1, 2], 2)
    array([1, 1, 2, 2])
    """
    x = ravel(x) if axis is None else operand("repeat", x)
    at = 0 if axis is None else axis_of("repeat", axis, rank_of(x))
    if total_repeat_length is not None:
        repeats = broadcasted(_integer_counts(repeats), [dim(x, at)])
        return _repeat_by_counts(x, repeats, at, whole_number("repeat", "total_repeat_length", total_repeat_length))
    if isinstance(repeats, Tensor) and repeats.ndim == 1:
        return _repeat_by_counts(x, repeats, at)
    if not isinstance(repeats, Tensor) and np.ndim(repeats) == 1 and np.size(repeats) != 1:
        counts = np.asarray(repeats)
        return _repeat_by_counts(x, counts, at) if shape_of(x)[at] is None else _repeat_each(x, counts, at)
    if not isinstance(repeats, Tensor) and np.ndim(repeats) == 1:
        repeats = np.asarray(repeats)[0]
    count = size_argument("repeat", "the number of repeats", repeats)
    if not isinstance(count, Tensor) and count < 0:
        raise ShapeError("repeat: a negative number of repeats", got=str(count))
    sizes = dims(x)
    wide = [*sizes[: at + 1], count, *sizes[at + 1 :]]
    return reshaped(
        broadcasted(expanded(x, [at + 1]), wide), [*sizes[:at], _scaled(sizes[at], count), *sizes[at + 1 :]]
    )


def _integer_counts(repeats: Any) -> Any:
    counts = operand("repeat", repeats)
    if dtype_kind(dtype_of(counts)) not in "iu":
        raise ShapeError("repeat: the counts are no integers", expected="integers", got=shown(counts))
    return cast(counts, np.int64)


def _repeat_by_counts(x: Any, counts: Any, axis: int, length: int | None = None) -> Any:
    """As `_repeat_each` for traced counts, or an unknown size, or a result of a known one.

    The k-th result is the first element whose running count exceeds k.
    """
    known, given = shape_of(x)[axis], shape_of(counts)[0]
    if dtype_kind(dtype_of(counts)) not in "iu" or (None not in (known, given) and given not in (1, known)):
        raise ShapeError("repeat: one integer for each element", expected=f"i64[{known}]", got=shown(counts))
    # One count is for all elements; this fails at run time where there are not as many counts as elements.
    counts = broadcasted(cast(counts, np.int64), [dim(x, axis)])
    ends = apply("cumsum", [counts], {"axis": 0, "reverse": False})
    total = apply("sum", [counts], {"axes": (0,), "keepdims": False})
    positions = apply("searchsorted", [ends, iota(total if length is None else length)], {"side": "right"})
    if length is not None:
        positions = FUNCTIONS["minimum"](positions, dim(x, axis) - 1)
    return apply("getitem", [x, positions], {"key": along(axis, rank_of(x))})


def _repeat_each(x: Any, repeats: np.ndarray, axis: int) -> Any:
    known = shape_of(x)[axis]
    if known != len(repeats) or dtype_kind(repeats.dtype) not in "iu" or (repeats < 0).any():
        raise ShapeError(
            "repeat: one count of zero or more for each element",
            expected=f"{'a known size' if known is None else known} counts",
            got=f"{len(repeats)} of {repeats.dtype}",
        )
    from_where = np.repeat(np.arange(known), repeats)
    return apply("getitem", [x, from_where], {"key": along(axis, rank_of(x))})


# Elements put into an array and taken out of it along an axis.


@array_function()
def append(x: Any, values: Any, axis: Any = None) -> Any:
    """x with values behind it along an axis, or both in one dimension; as `numpy.append`.

    >>> cnp.append([1, 2], 3)
    array([1, 2, 3])
    """
    arrays = [operand("append", x), operand("append", values)]
    return concatenate([ravel(a) for a in arrays], 0) if axis is None else concatenate(arrays, axis)


@array_function()
def insert(x: Any, obj: Any, values: Any, axis: Any = None) -> Any:
    """x with values inserted before known positions along an axis; as `numpy.insert`.

    >>> cnp.insert([1, 3], 1, 2)
    array([1, 2, 3])
    """
    x, values = operand("insert", x), operand("insert", values)
    x, axis = (ravel(x), 0) if axis is None else (x, axis_of("insert", axis, rank_of(x)))
    size = known_size("insert", shape_of(x)[axis])
    # NumPy puts the numbers of the new elements between those of the old ones.
    single = np.ndim(obj) == 0 and not isinstance(obj, slice)
    if single and rank_of(values) == rank_of(x):
        values = moveaxis(values, 0, axis)
    count = dim(values, axis) if single and rank_of(values) == rank_of(x) else np.size(np.arange(size)[obj])
    new = size + np.arange(count) if single else size + np.arange(np.size(np.arange(size + 1)[obj]))
    order = np.insert(np.arange(size), obj, new)
    if single and rank_of(values) == rank_of(x) - 1:
        values = expanded(values, (axis,))
    sizes = [len(new) if a == axis else d for a, d in enumerate(dims(x))]
    return take(concatenate([x, broadcast_to(values, tuple(sizes)).astype(dtype_of(x))], axis), order, axis)


@array_function()
def delete(x: Any, obj: Any, axis: Any = None) -> Any:
    """x without what stands at known positions along an axis; as `numpy.delete`.

    >>> cnp.delete([1, 2, 3], 1)
    array([1, 3])
    """
    x = operand("delete", x)
    x, axis = (ravel(x), 0) if axis is None else (x, axis_of("delete", axis, rank_of(x)))
    return take(x, np.delete(np.arange(known_size("delete", shape_of(x)[axis])), obj), axis)


@array_function()
def resize(x: Any, new_shape: Any) -> Any:
    """The elements of x, again and again, in a known shape; as `numpy.resize`.

    >>> cnp.resize([1, 2, 3], (2, 2))
    array([[1, 2],
           [3, 1]])
    """
    x = ravel(operand("resize", x))
    sizes = (new_shape,) if isinstance(new_shape, int) else tuple(new_shape)
    count, wanted = known_size("resize", shape_of(x)[0]), math.prod(sizes)
    return reshaped(sliced(tile(x, -(-wanted // count)), 0, 0, wanted), sizes) if count else zeros(sizes, dtype_of(x))


__all__ = ["append", "delete", "insert", "meshgrid", "repeat", "resize", "tile"]
