"""Arrays of evenly spaced numbers, and the matrices that are made of row and column numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from ctrlgrad.dtypes import dtype_kind, result_type
from ctrlgrad.errors import ShapeError
from ctrlgrad.frontend.apply import apply, cast, result_dtype
from ctrlgrad.frontend.array.arithmetic import add, divide, floor_divide, maximum, minimum, multiply, subtract
from ctrlgrad.frontend.array.array_api import check_device
from ctrlgrad.frontend.array.creation import zeros_like
from ctrlgrad.frontend.array.dims import (
    axis_of,
    dim,
    dtype_of,
    expanded,
    iota,
    rank_of,
    shape_of,
    size_argument,
    whole_number,
)
from ctrlgrad.frontend.array.elementwise import ceil, negative
from ctrlgrad.frontend.array.logic import equal, greater_equal, where
from ctrlgrad.frontend.array.manipulation import moveaxis
from ctrlgrad.frontend.array.promote import operand, operands, shown, to_dtype
from ctrlgrad.frontend.concrete import concrete
from ctrlgrad.frontend.functions import array_function
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.ir.attributes import DYNAMIC, Item
from ctrlgrad.options import default_float


@array_function()
def arange(start: Any, stop: Any = None, step: Any = 1, dtype: Any = None, *, device: Any = None) -> Any:
    """The numbers from `start` (0 where only one bound is given) to below `stop`, `step` apart.

    The bounds and the step may be traced scalars; the length is then unknown.

    >>> cnp.arange(1, 4)
    array([1, 2, 3])
    """
    check_device("arange", device)
    if stop is None:
        start, stop = 0, start
    bounds = operands("arange", (start, stop, step))
    if not any(isinstance(x, Tensor) for x in bounds):
        if step == 0:
            raise ShapeError("arange: the step is zero")
        return concrete(np.arange(start, stop, step, dtype=result_dtype(*bounds) if dtype is None else dtype))
    if any(rank_of(x) for x in bounds):
        raise ShapeError("arange: the bounds are scalars", got=", ".join(shown(x) for x in bounds))
    exact = result_dtype(*bounds)
    span = subtract(stop, start)
    # Rounded up; for integers by flooring the negated quotient.
    count = negative(floor_divide(negative(span), step)) if dtype_kind(exact) in "iu" else ceil(divide(span, step))
    positions = iota(maximum(cast(count, np.int64), 0))
    plain = all(not isinstance(x, Tensor) and x == known for x, known in ((start, 0), (step, 1)))
    numbers = positions if plain else add(multiply(cast(positions, exact), step), start)
    return to_dtype("arange", numbers, exact if dtype is None else dtype)


@array_function()
def linspace(
    start: Any,
    stop: Any,
    num: Any = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: Any = None,
    axis: int = 0,
    *,
    device: Any = None,
) -> Any:
    """`num` evenly spaced numbers from `start` to `stop`, which is the last one unless `endpoint` is False.

    Args:
        start, stop: numbers or arrays, which broadcast together; may be traced.
        num: an int.
        retstep: return also the distance of the numbers.
        axis: where the new dimension stands in the result.

    >>> cnp.linspace(0.0, 1.0, 3)
    array([0. , 0.5, 1. ])
    """
    check_device("linspace", device)
    number = whole_number("linspace", "num", num)
    if number < 0:
        raise ShapeError("linspace: a negative number of points", got=str(number))
    start, stop = (operand("linspace", x) for x in (start, stop))
    if not isinstance(start, Tensor) and not isinstance(stop, Tensor):
        found = np.linspace(start, stop, number, endpoint, retstep=True, dtype=dtype, axis=axis)
        return (concrete(found[0]), found[1]) if retstep else concrete(found[0])
    exact = result_type(dtype_of(start), dtype_of(stop), 0.0)
    weight = (np.arange(number) / max(number - 1 if endpoint else number, 1)).astype(exact)
    rank = max(rank_of(start), rank_of(stop))
    weight = weight.reshape(-1, *[1] * rank)
    # Both ends are met exactly.
    numbers = add(multiply(start, 1 - weight), multiply(stop, weight))
    result = moveaxis(numbers, 0, axis_of("linspace", axis, rank + 1))
    result = to_dtype("linspace", result, exact if dtype is None else dtype)
    parts = number - 1 if endpoint else number
    return (result, divide(subtract(stop, start), parts if parts > 0 else np.nan)) if retstep else result


@array_function()
def eye(N: Any, M: Any = None, k: Any = 0, dtype: Any = None, *, device: Any = None) -> Any:
    """A matrix of N rows and M (default N) columns, one on the k-th diagonal and zero elsewhere.

    Sizes and k may be traced integer scalars.

    >>> cnp.eye(2)
    array([[1., 0.],
           [0., 1.]])
    """
    sizes = [size_argument("eye", "a size", d) for d in (N, N if M is None else M)]
    check_device("eye", device)
    dtype = default_float() if dtype is None else dtype
    k = size_argument("eye", "k", k)
    if any(not isinstance(d, Tensor) and d < 0 for d in sizes):
        raise ShapeError("eye: a negative size", got=str(tuple(sizes)))
    if not any(isinstance(d, Tensor) for d in (*sizes, k)):
        return concrete(np.eye(sizes[0], sizes[1], k=k, dtype=dtype))
    rows, columns = (iota(d) for d in sizes)
    return to_dtype("eye", equal(add(expanded(rows, [1]), k), expanded(columns, [0])), dtype)


def _lower(operation: str, x: Any, k: Any) -> Any:
    """Where the column number is at most k above the row number, as booleans in the last two dimensions."""
    if rank_of(x) < 2:
        raise ShapeError(f"{operation}: needs rank 2 or more", got=shown(x))
    rows, columns = shape_of(x)[-2:]
    if rows is not None and columns is not None and not isinstance(k, Tensor):
        return np.tri(rows, columns, k, dtype=bool)
    return greater_equal(add(expanded(iota(dim(x, -2)), [1]), k), expanded(iota(dim(x, -1)), [0]))


@array_function()
def tril(x: Any, k: Any = 0) -> Any:
    """The lower triangle of the last two dimensions up to the k-th diagonal, and zeros above it.

    >>> cnp.tril([[1, 2], [3, 4]])
    array([[1, 0],
           [3, 4]])
    """
    x, k = operand("tril", x), size_argument("tril", "k", k)
    return where(_lower("tril", x, k), x, _zero(x))


@array_function()
def triu(x: Any, k: Any = 0) -> Any:
    """The upper triangle of the last two dimensions from the k-th diagonal on, and zeros below it.

    >>> cnp.triu([[1, 2], [3, 4]])
    array([[1, 2],
           [0, 4]])
    """
    x, k = operand("triu", x), size_argument("triu", "k", k)
    return where(_lower("triu", x, subtract(k, 1) if isinstance(k, Tensor) else k - 1), _zero(x), x)


def _zero(x: Any) -> Any:
    return zeros_like(x, shape=())


@array_function()
def diagonal(x: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """The elements whose number on `axis2` is `offset` above that on `axis1`, in a new last dimension.

    >>> cnp.diagonal([[1, 2], [3, 4]])
    array([1, 4])
    """
    x, offset = operand("diagonal", x), whole_number("diagonal", "offset", offset)
    if rank_of(x) < 2:
        raise ShapeError("diagonal: needs rank 2 or more", got=shown(x))
    x = moveaxis(x, (axis1, axis2), (-2, -1))
    down, right = max(-offset, 0), max(offset, 0)
    rows, columns = dim(x, -2), dim(x, -1)
    if isinstance(rows, int) and isinstance(columns, int):
        places: Any = np.arange(max(min(rows - down, columns - right), 0))
    else:
        shorter = minimum(subtract(rows, down), subtract(columns, right))
        places = iota(maximum(shorter, 0))
    key: list[Item] = [*[slice(None)] * (rank_of(x) - 2), DYNAMIC, DYNAMIC]
    row_numbers = add(places, down) if down else places
    column_numbers = add(places, right) if right else places
    return apply("getitem", [x, row_numbers, column_numbers], {"key": tuple(key)})


__all__ = [
    "arange",
    "diagonal",
    "eye",
    "linspace",
    "tril",
    "triu",
]
