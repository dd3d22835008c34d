"""Functions that repeat elements and arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.errors import ShapeError, TypeMismatchError
from ctrlgrad.frontend.apply import apply, cast
from ctrlgrad.frontend.array.dims import (
    along,
    axis_of,
    broadcasted,
    dim,
    dims,
    dtype_of,
    expanded,
    iota,
    rank_of,
    reshaped,
    shape_of,
    size_argument,
    sizes_argument,
    times,
    whole_number,
)
from ctrlgrad.frontend.array.manipulation import ravel
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


__all__ = [
    "meshgrid",
    "repeat",
    "tile",
]
