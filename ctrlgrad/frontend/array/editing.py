"""Elements put into an array and taken out of it along an axis."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ctrlgrad.frontend.array.creation import zeros
from ctrlgrad.frontend.array.dims import (
    axis_of,
    dim,
    dims,
    dtype_of,
    expanded,
    known_size,
    rank_of,
    reshaped,
    shape_of,
    sliced,
)
from ctrlgrad.frontend.array.indexing import take
from ctrlgrad.frontend.array.joining import concatenate
from ctrlgrad.frontend.array.manipulation import broadcast_to, moveaxis, ravel
from ctrlgrad.frontend.array.promote import operand
from ctrlgrad.frontend.array.repeating import tile
from ctrlgrad.frontend.functions import array_function


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


__all__ = [
    "append",
    "delete",
    "insert",
    "resize",
]
