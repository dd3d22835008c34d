"""Arrays of evenly spaced numbers, and the matrices that are made of row and column numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from ctrlgrad.dtypes import as_dtype, dtype_kind, result_type
from ctrlgrad.errors import ShapeError, UserInputError
from ctrlgrad.frontend.apply import apply, cast, concrete, result_dtype
from ctrlgrad.frontend.array.creation import check_device, zeros, zeros_like
from ctrlgrad.frontend.array.elementwise import (
    add,
    ceil,
    divide,
    equal,
    floor_divide,
    greater_equal,
    maximum,
    minimum,
    multiply,
    negative,
    subtract,
    where,
)
from ctrlgrad.frontend.array.indexing import at
from ctrlgrad.frontend.array.manipulation import concatenate, moveaxis, ravel, stack
from ctrlgrad.frontend.array.promote import *
from ctrlgrad.frontend.functions import array_function, publish
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.ir.attributes import DYNAMIC, Item
from ctrlgrad.ops.term import require_sizes
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
            raise ShapeError("arange: the step is zero", hint="give a step above or below zero")
        wanted = result_dtype(*bounds) if dtype is None else as_dtype("arange", dtype)
        return concrete(np.arange(start, stop, step, dtype=wanted))
    if any(rank_of(x) for x in bounds):
        raise ShapeError(
            "arange: the bounds are scalars", got=", ".join(shown(x) for x in bounds), hint="give elements: x[0]"
        )
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
    dtype = None if dtype is None else as_dtype("linspace", dtype)
    number = whole_number("linspace", "num", num)
    require_sizes("linspace", [number])
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
    dtype = default_float() if dtype is None else as_dtype("eye", dtype)
    k = size_argument("eye", "k", k)
    require_sizes("eye", sizes)
    if not any(isinstance(d, Tensor) for d in (*sizes, k)):
        return concrete(np.eye(sizes[0], sizes[1], k=k, dtype=dtype))
    rows, columns = (iota(d) for d in sizes)
    return to_dtype("eye", equal(add(expanded(rows, [1]), k), expanded(columns, [0])), dtype)


def _lower(operation: str, x: Any, k: Any) -> Any:
    """True where the column number is at most k above the row number: booleans in the last two dimensions."""
    check_rank(operation, x, 2)
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
    check_rank("diagonal", x, 2)
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


# Arrays written with square brackets: `r_[a, b]`, `c_[a, b]`, `r_[0:1:5j]`.


class Joined:
    """Arrays in brackets, joined along an axis, as `numpy.r_` and `numpy.c_`; slices are ranges.

    A first item such as "0", "0,2" or "0,2,1" gives the axis, the least rank of the joined arrays, and the position of
    an array's own axes when its rank is raised.
    """

    def __init__(self, axis: int, rank: int, start: int) -> None:
        self._defaults = (axis, rank, start)

    def __getitem__(self, key: Any) -> Any:
        items = list(key) if isinstance(key, tuple) else [key]
        axis, rank, start = self._defaults
        if isinstance(items[0], str):
            axis, rank, start = self._directive(items.pop(0))
        return concatenate([_placed(_item(x), x, rank, start) for x in items], axis)

    def _directive(self, text: str) -> tuple[int, int, int]:
        try:
            numbers = [int(part) for part in text.split(",")]
        except ValueError:
            numbers = []
        if not 1 <= len(numbers) <= 3:
            raise UserInputError(
                "r_ and c_: an unknown first item",
                expected='up to three integers as text, such as "0,2"',
                got=repr(text),
            )
        return (*numbers, *self._defaults[len(numbers) :])  # type: ignore[return-value]


def _item(x: Any) -> Any:
    if not isinstance(x, slice):
        return operand("r_", x)
    start, step = 0 if x.start is None else x.start, 1 if x.step is None else x.step
    if isinstance(step, complex):
        return linspace(start, x.stop, int(abs(step)))
    return arange(start, x.stop, step)


def _placed(x: Any, given: Any, rank: int, start: int) -> Any:
    """x with as many axes as all have, its own from `start` on."""
    own = rank_of(x)
    if own == 0:
        return expanded(x, range(rank))
    missing = rank - own
    if missing <= 0:
        return x
    lifted = expanded(x, range(missing))
    if start < 0:
        start += missing + 1
    return (
        moveaxis(lifted, tuple(range(missing, rank)), tuple(range(start, start + own))) if start != missing else lifted
    )


r_ = Joined(0, 1, -1)
c_ = Joined(-1, 2, 0)


# Matrices of a structure: diagonals, triangles, Kronecker products, powers.


@array_function(of=operand)
def diag(x: Any, k: int = 0) -> Any:
    """The matrix with x on a diagonal, or the diagonal of a matrix; as `numpy.diag`.

    >>> cnp.diag([1, 2])
    array([[1, 0],
           [0, 2]])
    """
    if rank_of(x) == 2:
        return diagonal(x, k)
    if rank_of(x) != 1:
        raise ShapeError(
            "diag: neither a vector nor a matrix",
            expected="an array of rank 1 or 2",
            got=f"rank {rank_of(x)}",
            hint="take the diagonal of an array by ctrlgrad.numpy.diagonal",
        )
    k = whole_number("diag", "k", k)
    size, rows = dim(x, 0) + abs(k), iota(dim(x, 0))
    return at(zeros((size, size), dtype_of(x)))[rows + max(-k, 0), rows + max(k, 0)].set(x)


@array_function()
def diagflat(x: Any, k: int = 0) -> Any:
    """The matrix with the elements of x on a diagonal; as `numpy.diagflat`.

    >>> cnp.diagflat([[1, 2]])
    array([[1, 0],
           [0, 2]])
    """
    return diag(ravel(operand("diagflat", x)), k)


def tri(N: Any, M: Any = None, k: int = 0, dtype: Any = None) -> Any:
    """Ones at and below a diagonal, zeros above it; as `numpy.tri`.

    >>> cnp.tri(2)
    array([[1., 0.],
           [1., 1.]])
    """
    columns, dtype = N if M is None else M, default_float() if dtype is None else dtype
    return to_dtype("tri", reshaped(iota(N), [N, 1]) + k >= reshaped(iota(columns), [1, columns]), dtype)


def identity(n: Any, dtype: Any = None) -> Any:
    """The unit matrix; as `numpy.identity`.

    >>> cnp.identity(2)
    array([[1., 0.],
           [0., 1.]])
    """
    return eye(n, dtype=dtype)


@array_function()
def kron(a: Any, b: Any) -> Any:
    """The Kronecker product; as `numpy.kron`.

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


@array_function(of=operand)
def vander(x: Any, N: int | None = None, increasing: bool = False) -> Any:
    """The powers of a vector as columns, the highest first; as `numpy.vander`.

    >>> cnp.vander([2, 3], 3)
    array([[4, 2, 1],
           [9, 3, 1]])
    """
    count = known_size("vander", shape_of(x)[0]) if N is None else whole_number("vander", "N", N, least=0)
    columns = [x**n for n in (range(count) if increasing else reversed(range(count)))]
    return stack(columns, axis=1) if columns else zeros((dim(x, 0), 0), dtype_of(x))


publish(__name__, "Joined")
