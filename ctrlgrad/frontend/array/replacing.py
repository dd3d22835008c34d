"""Elements replaced: what changes an array in NumPy returns the new one here.

As in JAX `inplace` is there for programs that say `inplace=False`; the array itself never changes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ctrlgrad.errors import ShapeError, TracingError, UserInputError
from ctrlgrad.frontend.apply import apply, cast
from ctrlgrad.frontend.array.arithmetic import minimum, remainder
from ctrlgrad.frontend.array.dims import (
    axis_of,
    broadcasted,
    concatenated,
    dim,
    dims,
    dtype_of,
    iota,
    known_size,
    laid_along,
    rank_of,
    reshaped,
    shape_of,
    sliced,
)
from ctrlgrad.frontend.array.indexing import take
from ctrlgrad.frontend.array.logic import where
from ctrlgrad.frontend.array.manipulation import ravel
from ctrlgrad.frontend.array.promote import operand, truth
from ctrlgrad.frontend.array.update import at
from ctrlgrad.frontend.functions import array_function
from ctrlgrad.source import here


def _refuse_in_place(operation: str, inplace: bool) -> None:
    if inplace:
        raise TracingError(
            f"{operation}: arrays do not change in place",
            expected="inplace=False",
            got="inplace=True",
            hint=f"x = ctrlgrad.numpy.{operation}(x, ..., inplace=False)",
        )


def _again(operation: str, values: Any, count: Any) -> Any:
    """The values, again and again, to this number."""
    values = ravel(operand(operation, values))
    size = shape_of(values)[0]
    if size == 1:
        return broadcasted(values, [count])
    return take(values, remainder(iota(count), dim(values, 0)))


@array_function()
def put_along_axis(arr: Any, indices: Any, values: Any, axis: Any, *, inplace: bool = False) -> Any:
    """arr with values at indices along an axis; as `jax.numpy.put_along_axis`, which returns the new array.

    >>> cnp.put_along_axis(cnp.zeros((1, 2)), cnp.asarray([[1]]), 5.0, axis=1)
    array([[0., 5.]])
    """
    _refuse_in_place("put_along_axis", inplace)
    arr, indices = operand("put_along_axis", arr), operand("put_along_axis", indices)
    if axis is None:
        return reshaped(at(ravel(arr))[indices].set(values), dims(arr))
    axis, rank = axis_of("put_along_axis", axis, rank_of(arr)), rank_of(arr)
    key = [laid_along(a, iota(dim(arr, a)), rank) for a in range(rank)]
    key[axis] = indices
    return at(arr)[tuple(key)].set(values)


@array_function()
def put(arr: Any, ind: Any, v: Any, mode: str | None = None, *, inplace: bool = False) -> Any:
    """arr with values at positions of the flattened array, as `jax.numpy.put`; values are used again and again.

    Args:
        arr: any shape.
        ind: integers of any shape; negative ones count from the end.
        v: values of the array's dtype.
        mode: what becomes of positions outside: None leaves them out, "clip" takes the nearest, "wrap" counts on
            from the first again.

    >>> cnp.put([0, 0, 0], [2, 0], [5, 6])
    array([6, 0, 5])
    """
    _refuse_in_place("put", inplace)
    arr, ind = operand("put", arr), ravel(operand("put", ind))
    if mode not in (None, "clip", "wrap"):
        raise UserInputError("put: the mode is not known", source=here(), expected="None, clip, wrap", got=repr(mode))
    if 0 in shape_of(arr) or shape_of(ind)[0] == 0 or np.size(v) == 0:
        return arr
    flat, values = ravel(arr), cast(_again("put", v, dim(ind, 0)), dtype_of(arr))
    size = dim(flat, 0)
    if mode == "wrap":
        ind = remainder(ind, size)
    elif mode == "clip":
        ind = where(ind < 0, 0, minimum(ind, size - 1))
    # What is left out goes to an element behind the last.
    inside = (ind >= -size) & (ind < size)
    ind = where(inside, where(ind < 0, ind + size, ind), size)
    longer = concatenated([flat, sliced(flat, 0, 0, 1)], 0)
    return reshaped(sliced(at(longer)[ind].set(values), 0, 0, size), dims(arr))


@array_function()
def place(arr: Any, mask: Any, vals: Any, *, inplace: bool = False) -> Any:
    """arr with values, again and again, where a mask holds; as `jax.numpy.place`.

    >>> cnp.place([1, 2, 3], [True, False, True], [7, 8])
    array([7, 2, 8])
    """
    _refuse_in_place("place", inplace)
    arr, flat = operand("place", arr), ravel(truth("place", mask))
    number = apply("cumsum", [cast(flat, np.int64)], {"axis": 0, "reverse": False}) - 1
    values = ravel(operand("place", vals))
    if shape_of(values)[0] == 0:
        raise ShapeError("place: no values", expected="one value or more", got="an empty array")
    chosen = take(values, remainder(number, dim(values, 0)))
    return reshaped(where(flat, cast(chosen, dtype_of(arr)), ravel(arr)), dims(arr))


@array_function()
def fill_diagonal(arr: Any, val: Any, wrap: bool = False, *, inplace: bool = False) -> Any:
    """arr with values on its main diagonal, as `jax.numpy.fill_diagonal`; values are used again and again.

    Args:
        arr: a matrix, or a higher rank with axes of one size.
        val: one value, or several.
        wrap: of a matrix with more rows than columns: begin again below each square.

    >>> cnp.fill_diagonal(cnp.zeros((2, 2)), 5.0)
    array([[5., 0.],
           [0., 5.]])
    """
    _refuse_in_place("fill_diagonal", inplace)
    arr = operand("fill_diagonal", arr)
    sizes = [known_size("fill_diagonal", d) for d in shape_of(arr)]
    if len(sizes) < 2 or (len(sizes) > 2 and len(set(sizes)) > 1):
        raise ShapeError(
            "fill_diagonal: the array has no diagonal",
            expected="a matrix, or a higher rank with axes of one size",
            got=str(tuple(sizes)),
        )
    step = 1 + sum(int(np.prod(sizes[k:])) for k in range(1, len(sizes)))
    end = None if wrap or len(sizes) > 2 else sizes[1] * sizes[1]
    places = np.arange(int(np.prod(sizes)))[:end:step]
    return put(arr, places, val)


__all__ = [
    "fill_diagonal",
    "place",
    "put",
    "put_along_axis",
]
