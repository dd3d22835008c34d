"""The positions of the elements other than zero: as many as there are, or, with `size`, a number that is known.

With a known size every shape is known too, so that such a search may stand in a `vmap` or in a loop of fixed shapes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ctrlgrad.errors import ShapeError
from ctrlgrad.frontend.apply import apply, cast
from ctrlgrad.frontend.array.arithmetic import floor_divide, minimum, remainder
from ctrlgrad.frontend.array.dims import (
    broadcasted,
    dim,
    dtype_of,
    iota,
    rank_of,
    reshaped,
    shape_of,
    sliced,
    whole_number,
)
from ctrlgrad.frontend.array.indexing import positions, take
from ctrlgrad.frontend.array.joining import stack
from ctrlgrad.frontend.array.logic import where
from ctrlgrad.frontend.array.manipulation import ravel
from ctrlgrad.frontend.array.promote import operand, truth
from ctrlgrad.frontend.array.update import at
from ctrlgrad.frontend.functions import array_function


def first_positions(mask: Any, size: int) -> tuple[Any, Any]:
    """The first `size` positions at which a vector of booleans holds, and which of them there are; the rest is 0."""
    count = apply("cumsum", [cast(mask, np.int64)], {"axis": 0, "reverse": False})
    # What is false, and what is one too many, goes to a place behind the end.
    slots = where(mask, minimum(count - 1, size), size)
    found = at(broadcasted(np.int64(0), [size + 1]))[slots].set(iota(dim(mask, 0)))
    present = np.arange(size) < apply("sum", [cast(mask, np.int64)], {"axes": (0,), "keepdims": False})
    return where(present, sliced(found, 0, 0, size), 0), present


def known_count(operation: str, size: Any) -> int:
    """The `size` of a result."""
    count = whole_number(operation, "size", size)
    if count < 0:
        raise ShapeError(f"{operation}: a negative size", expected="0 or more", got=str(count))
    return count


@array_function()
def nonzero(x: Any, *, size: int | None = None, fill_value: Any = None) -> tuple[Any, ...]:
    """The positions of the elements other than zero, in C order: int64 [count] for each axis.

    Of a traced x the count is unknown, unless `size` gives it, as in JAX: then positions that are too many are left
    out, and those that are missing are `fill_value`, 0 if it is not given (one number, or one for each axis). A
    scalar is a ShapeError. Positions have no derivative.

    >>> cnp.nonzero([0, 3, 0, 4])
    (array([1, 3]),)
    >>> cnp.nonzero([0, 3, 0, 4], size=3, fill_value=-1)
    (array([ 1,  3, -1]),)
    """
    x = operand("nonzero", x)
    if size is None or rank_of(x) == 0:
        return positions(x)
    found, present = first_positions(ravel(truth("nonzero", x)), known_count("nonzero", size))
    fills = fill_value if isinstance(fill_value, tuple) else (fill_value or 0,) * rank_of(x)
    coordinates: list[Any] = []
    for axis in reversed(range(rank_of(x))):
        # An empty array has no position, but sizes to divide by.
        length = dim(x, axis) if shape_of(x)[axis] != 0 else 1
        coordinates.insert(0, remainder(found, length))
        found = floor_divide(found, length)
    return tuple(where(present, c, fill) for c, fill in zip(coordinates, fills, strict=True))


@array_function()
def argwhere(x: Any, *, size: int | None = None, fill_value: Any = None) -> Any:
    """The positions of the elements other than zero, a row each; as `jax.numpy.argwhere`. See `nonzero`.

    >>> cnp.argwhere([0, 3, 5])
    array([[1],
           [2]])
    """
    return stack(nonzero(x, size=size, fill_value=fill_value), axis=1)


@array_function()
def flatnonzero(x: Any, *, size: int | None = None, fill_value: Any = None) -> Any:
    """The positions of the elements other than zero in the flattened array; as `jax.numpy.flatnonzero`.

    >>> cnp.flatnonzero([[0, 3], [5, 0]])
    array([1, 2])
    """
    return nonzero(ravel(operand("flatnonzero", x)), size=size, fill_value=fill_value)[0]


@array_function()
def extract(condition: Any, x: Any, *, size: int | None = None, fill_value: Any = 0) -> Any:
    """The elements where a condition holds, in one dimension; as `jax.numpy.extract`.

    >>> cnp.extract([True, False, True], [1, 2, 3])
    array([1, 3])
    """
    condition, x = operand("extract", condition), operand("extract", x)
    return compress(ravel(condition), ravel(x), size=size, fill_value=fill_value)


@array_function()
def compress(condition: Any, x: Any, axis: Any = None, *, size: int | None = None, fill_value: Any = 0) -> Any:
    """What stands along an axis where a condition holds; as `jax.numpy.compress`.

    With `size` its number is known: what is missing is `fill_value`.

    >>> cnp.compress([True, False, True], [1, 2, 3])
    array([1, 3])
    """
    x = operand("compress", x)
    x, axis = (ravel(x), 0) if axis is None else (x, axis)
    if size is None:
        return take(x, flatnonzero(condition), axis)
    found, present = first_positions(truth("compress", condition), known_count("compress", size))
    return filled(take(x, found, axis), present, axis, fill_value)


def filled(x: Any, present: Any, axis: int, fill_value: Any) -> Any:
    """x, with a value in place of what is not present along an axis."""
    place = axis % rank_of(x)
    present = reshaped(present, [dim(present, 0) if a == place else 1 for a in range(rank_of(x))])
    return where(present, x, cast(operand("fill_value", fill_value), dtype_of(x)))


__all__ = [
    "argwhere",
    "compress",
    "extract",
    "flatnonzero",
    "nonzero",
]
