"""Arrays put together and taken apart, written with the functions that move elements."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ctrlgrad.errors import ShapeError
from ctrlgrad.frontend.array.creation import zeros
from ctrlgrad.frontend.array.dims import (
    axis_of,
    dim,
    dims,
    dtype_of,
    expanded,
    iota,
    rank_of,
    reshaped,
    shape_of,
    sliced,
    times,
    whole_number,
)
from ctrlgrad.frontend.array.indexing import take
from ctrlgrad.frontend.array.joining import concatenate, split, stack
from ctrlgrad.frontend.array.manipulation import broadcast_to, flip, moveaxis, ravel, swapaxes
from ctrlgrad.frontend.array.promote import operand
from ctrlgrad.frontend.array.ranges import diagonal, eye
from ctrlgrad.frontend.array.repeating import tile
from ctrlgrad.frontend.array.update import at
from ctrlgrad.frontend.functions import array_function
from ctrlgrad.source import here


def known_size(operation: str, size: int | None) -> int:
    """A size that a function needs when it is traced."""
    if size is None:
        raise ShapeError(
            f"{operation}: a size is not known until the program runs",
            source=here(),
            expected="sizes that are known when the function is traced",
            got="None",
            hint="pass arrays of known sizes; ctrlgrad.scan and ctrlgrad.fori_loop go over unknown ones",
        )
    return size


@array_function()
def diag(x: Any, k: int = 0) -> Any:
    """The matrix with x on a diagonal, or the diagonal of a matrix; as `numpy.diag`.

    >>> import ctrlgrad.numpy as cnp
    >>> cnp.diag([1, 2])
    array([[1, 0],
           [0, 2]])
    """
    x = operand("diag", x)
    if rank_of(x) == 2:
        return diagonal(x, k)
    if rank_of(x) != 1:
        raise ShapeError(
            "diag: neither a vector nor a matrix",
            source=here(),
            expected="an array of rank 1 or 2",
            got=f"rank {rank_of(x)}",
            hint="take the diagonal of others by ctrlgrad.numpy.diagonal",
        )
    k = whole_number("diag", "k", k)
    size, rows = dim(x, 0) + abs(k), iota(dim(x, 0))
    return at(zeros((size, size), dtype_of(x)))[rows + max(-k, 0), rows + max(k, 0)].set(x)


@array_function()
def diagflat(x: Any, k: int = 0) -> Any:
    """The matrix with the elements of x on a diagonal; as `numpy.diagflat`.

    >>> import ctrlgrad.numpy as cnp
    >>> cnp.diagflat([[1, 2]])
    array([[1, 0],
           [0, 2]])
    """
    return diag(ravel(operand("diagflat", x)), k)


def tri(N: Any, M: Any = None, k: int = 0, dtype: Any = np.float64) -> Any:
    """Ones at and below a diagonal, zeros above it; as `numpy.tri`.

    >>> import ctrlgrad.numpy as cnp
    >>> cnp.tri(2)
    array([[1., 0.],
           [1., 1.]])
    """
    columns = N if M is None else M
    return (reshaped(iota(N), [N, 1]) + k >= reshaped(iota(columns), [1, columns])).astype(dtype)


def identity(n: Any, dtype: Any = np.float64) -> Any:
    """The unit matrix; as `numpy.identity`.

    >>> import ctrlgrad.numpy as cnp
    >>> cnp.identity(2)
    array([[1., 0.],
           [0., 1.]])
    """
    return eye(n, dtype=dtype)


def _at_least(rank: int, xs: Sequence[Any], new_axes: Mapping[int, tuple[int, ...]]) -> Any:
    arrays = [operand(f"atleast_{rank}d", x) for x in xs]
    found = [expanded(x, new_axes[rank_of(x)]) if rank_of(x) in new_axes else x for x in arrays]
    return found[0] if len(found) == 1 else tuple(found)


@array_function()
def atleast_1d(*xs: Any) -> Any:
    """Arrays of rank 1 or more; as `numpy.atleast_1d`.

    >>> import ctrlgrad.numpy as cnp
    >>> cnp.atleast_1d(2.0)
    array([2.])
    """
    return _at_least(1, xs, {0: (0,)})


@array_function()
def atleast_2d(*xs: Any) -> Any:
    """Arrays of rank 2 or more, vectors as rows; as `numpy.atleast_2d`.

    >>> import ctrlgrad.numpy as cnp
    >>> cnp.atleast_2d([1, 2])
    array([[1, 2]])
    """
    return _at_least(2, xs, {0: (0, 1), 1: (0,)})


@array_function()
def atleast_3d(*xs: Any) -> Any:
    """Arrays of rank 3 or more; as `numpy.atleast_3d`.

    >>> import ctrlgrad.numpy as cnp
    >>> cnp.atleast_3d([1, 2]).shape
    (1, 2, 1)
    """
    return _at_least(3, xs, {0: (0, 1, 2), 1: (0, 2), 2: (2,)})


@array_function()
def column_stack(tup: Any) -> Any:
    """Vectors as columns, and matrices, side by side; as `numpy.column_stack`.

    >>> import ctrlgrad.numpy as cnp
    >>> cnp.column_stack([[1, 2], [3, 4]])
    array([[1, 3],
           [2, 4]])
    """
    arrays = [operand("column_stack", x) for x in tup]
    return concatenate([x if rank_of(x) > 1 else reshaped(x, [times(dims(x)), 1]) for x in arrays], axis=1)


@array_function()
def dstack(tup: Any) -> Any:
    """Arrays of rank 3 or more joined along axis 2; as `numpy.dstack`.

    >>> import ctrlgrad.numpy as cnp
    >>> cnp.dstack([[1, 2], [3, 4]]).shape
    (1, 2, 2)
    """
    return concatenate([atleast_3d(x) for x in tup], axis=2)


@array_function()
def hsplit(x: Any, indices_or_sections: Any) -> list[Any]:
    """Parts along axis 1, of a vector along axis 0; as `numpy.hsplit`.

    >>> import ctrlgrad.numpy as cnp
    >>> cnp.hsplit(cnp.arange(4), 2)
    [array([0, 1]), array([2, 3])]
    """
    x = operand("hsplit", x)
    return split(x, indices_or_sections, 0 if rank_of(x) == 1 else 1)


@array_function()
def vsplit(x: Any, indices_or_sections: Any) -> list[Any]:
    """Parts along axis 0; as `numpy.vsplit`.

    >>> import ctrlgrad.numpy as cnp
    >>> [part.shape for part in cnp.vsplit(cnp.ones((4, 1)), 2)]
    [(2, 1), (2, 1)]
    """
    return split(x, indices_or_sections, 0)


@array_function()
def dsplit(x: Any, indices_or_sections: Any) -> list[Any]:
    """Parts along axis 2; as `numpy.dsplit`.

    >>> import ctrlgrad.numpy as cnp
    >>> [part.shape for part in cnp.dsplit(cnp.ones((1, 2, 4)), 2)]
    [(1, 2, 2), (1, 2, 2)]
    """
    return split(x, indices_or_sections, 2)


@array_function()
def block(arrays: Any) -> Any:
    """Nested lists of arrays as blocks of one array; as `numpy.block`.

    >>> import ctrlgrad.numpy as cnp
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
def append(x: Any, values: Any, axis: Any = None) -> Any:
    """x with values behind it along an axis, or both in one dimension; as `numpy.append`.

    >>> import ctrlgrad.numpy as cnp
    >>> cnp.append([1, 2], 3)
    array([1, 2, 3])
    """
    arrays = [operand("append", x), operand("append", values)]
    return concatenate([ravel(a) for a in arrays], 0) if axis is None else concatenate(arrays, axis)


@array_function()
def insert(x: Any, obj: Any, values: Any, axis: Any = None) -> Any:
    """x with values inserted before known positions along an axis; as `numpy.insert`.

    >>> import ctrlgrad.numpy as cnp
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

    >>> import ctrlgrad.numpy as cnp
    >>> cnp.delete([1, 2, 3], 1)
    array([1, 3])
    """
    x = operand("delete", x)
    x, axis = (ravel(x), 0) if axis is None else (x, axis_of("delete", axis, rank_of(x)))
    return take(x, np.delete(np.arange(known_size("delete", shape_of(x)[axis])), obj), axis)


@array_function()
def fliplr(x: Any) -> Any:
    """x with axis 1 turned round; as `numpy.fliplr`.

    >>> import ctrlgrad.numpy as cnp
    >>> cnp.fliplr([[1, 2]])
    array([[2, 1]])
    """
    return flip(x, 1)


@array_function()
def flipud(x: Any) -> Any:
    """x with axis 0 turned round; as `numpy.flipud`.

    >>> import ctrlgrad.numpy as cnp
    >>> cnp.flipud([[1], [2]])
    array([[2],
           [1]])
    """
    return flip(x, 0)


@array_function()
def rot90(x: Any, k: int = 1, axes: tuple[int, int] = (0, 1)) -> Any:
    """x turned by quarters in the plane of two axes; as `numpy.rot90`.

    >>> import ctrlgrad.numpy as cnp
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

    >>> import ctrlgrad.numpy as cnp
    >>> cnp.rollaxis(cnp.ones((2, 3, 4)), 2).shape
    (4, 2, 3)
    """
    x = operand("rollaxis", x)
    axis = axis_of("rollaxis", axis, rank_of(x))
    start = start + rank_of(x) if start < 0 else start
    return moveaxis(x, axis, start - 1 if axis < start else start)


@array_function()
def resize(x: Any, new_shape: Any) -> Any:
    """The elements of x, again and again, in a known shape; as `numpy.resize`.

    >>> import ctrlgrad.numpy as cnp
    >>> cnp.resize([1, 2, 3], (2, 2))
    array([[1, 2],
           [3, 1]])
    """
    x = ravel(operand("resize", x))
    sizes = (new_shape,) if isinstance(new_shape, int) else tuple(new_shape)
    count, wanted = known_size("resize", shape_of(x)[0]), math.prod(sizes)
    return reshaped(sliced(tile(x, -(-wanted // count)), 0, 0, wanted), sizes) if count else zeros(sizes, dtype_of(x))


@array_function()
def kron(a: Any, b: Any) -> Any:
    """The Kronecker product; as `numpy.kron`.

    >>> import ctrlgrad.numpy as cnp
    >>> cnp.kron([1, 10], [1, 2])
    array([ 1,  2, 10, 20])
    """
    a, b = operand("kron", a), operand("kron", b)
    rank = max(rank_of(a), rank_of(b))
    a, b = (expanded(x, range(rank - rank_of(x))) if rank_of(x) < rank else x for x in (a, b))
    if rank == 0:
        return a * b
    product = expanded(a, range(1, 2 * rank, 2)) * expanded(b, range(0, 2 * rank, 2))
    return reshaped(product, [m * n for m, n in zip(dims(a), dims(b), strict=True)])


@array_function()
def vander(x: Any, N: int | None = None, increasing: bool = False) -> Any:
    """The powers of a vector as columns, the highest first; as `numpy.vander`.

    >>> import ctrlgrad.numpy as cnp
    >>> cnp.vander([2, 3], 3)
    array([[4, 2, 1],
           [9, 3, 1]])
    """
    x = operand("vander", x)
    count = known_size("vander", shape_of(x)[0]) if N is None else N
    columns = [x**n for n in (range(count) if increasing else reversed(range(count)))]
    return stack(columns, axis=1) if columns else zeros((dim(x, 0), 0), dtype_of(x))


__all__ = [
    "append",
    "atleast_1d",
    "atleast_2d",
    "atleast_3d",
    "block",
    "column_stack",
    "delete",
    "diag",
    "diagflat",
    "dsplit",
    "dstack",
    "fliplr",
    "flipud",
    "hsplit",
    "identity",
    "insert",
    "kron",
    "resize",
    "rollaxis",
    "rot90",
    "tri",
    "vander",
    "vsplit",
]
