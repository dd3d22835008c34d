"""Matrices of a structure: diagonals, triangles, Kronecker products, powers."""

from __future__ import annotations

from typing import Any

from ctrlgrad.errors import ShapeError
from ctrlgrad.frontend.array.creation import zeros
from ctrlgrad.frontend.array.dims import (
    dim,
    dims,
    dtype_of,
    expanded,
    iota,
    known_size,
    rank_of,
    reshaped,
    shape_of,
    whole_number,
)
from ctrlgrad.frontend.array.joining import stack
from ctrlgrad.frontend.array.manipulation import ravel
from ctrlgrad.frontend.array.promote import operand
from ctrlgrad.frontend.array.ranges import diagonal, eye
from ctrlgrad.frontend.array.update import at
from ctrlgrad.frontend.functions import array_function
from ctrlgrad.options import default_float


@array_function()
def diag(x: Any, k: int = 0) -> Any:
    """The matrix with x on a diagonal, or the diagonal of a matrix; as `numpy.diag`.

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
    return (reshaped(iota(N), [N, 1]) + k >= reshaped(iota(columns), [1, columns])).astype(
        default_float() if dtype is None else dtype
    )


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


@array_function()
def vander(x: Any, N: int | None = None, increasing: bool = False) -> Any:
    """The powers of a vector as columns, the highest first; as `numpy.vander`.

    >>> cnp.vander([2, 3], 3)
    array([[4, 2, 1],
           [9, 3, 1]])
    """
    x = operand("vander", x)
    count = known_size("vander", shape_of(x)[0]) if N is None else N
    columns = [x**n for n in (range(count) if increasing else reversed(range(count)))]
    return stack(columns, axis=1) if columns else zeros((dim(x, 0), 0), dtype_of(x))


__all__ = [
    "diag",
    "diagflat",
    "identity",
    "kron",
    "tri",
    "vander",
]
