"""Products of vectors and matrices, all on the one op `matmul`."""

from __future__ import annotations

from typing import Any

import numpy as np

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.errors import ShapeError, TypeMismatchError
from ctrlgrad.frontend.apply import apply, cast
from ctrlgrad.frontend.array.arithmetic import conjugate, multiply
from ctrlgrad.frontend.array.dims import (
    axes_in_order,
    dim,
    dims,
    dtype_of,
    ensured,
    expanded,
    rank_of,
    reshaped,
    shape_of,
    squeezed,
    times,
    whole_number,
)
from ctrlgrad.frontend.array.einsum import Labelled, contracted
from ctrlgrad.frontend.array.manipulation import moveaxis, ravel
from ctrlgrad.frontend.array.promote import operand, same_dtype, shown
from ctrlgrad.frontend.array.reduction import sum as total
from ctrlgrad.frontend.functions import array_function
from ctrlgrad.ops.linalg import TURN


def _require_match(operation: str, a: Any, b: Any, axis: int, other: int) -> Any:
    """b, whose axis is as long as one of a: where that is unknown, an error of the run where it is not."""
    one, two = shape_of(a)[axis], shape_of(b)[other]
    problem = f"{operation}: the sizes to sum over differ"
    if one is None or two is None:
        return ensured(b, {other % rank_of(b): dim(a, axis)}, problem, TURN)
    if one != two:
        raise ShapeError(problem, expected=f"{one} on both sides", got=f"{shown(a)} and {shown(b)}", hint=TURN)
    return b


def _pair(operation: str, x1: Any, x2: Any) -> tuple[Any, Any, bool]:
    """Both operands in the dtype to multiply in, and whether they were booleans (numbers meanwhile)."""
    a, b = same_dtype(operation, (x1, x2))
    boolean = dtype_kind(dtype_of(a)) == "b"
    return (cast(a, np.int64), cast(b, np.int64), True) if boolean else (a, b, False)


@array_function()
def matmul(x1: Any, x2: Any) -> Any:
    """The matrix product; leading dimensions broadcast, a vector counts as a row (left) or a column (right).

    Args:
        x1: [..., m, k] or [k].
        x2: [..., k, n] or [k].

    Raises:
        ShapeError: a scalar, or sizes that differ.

    >>> cnp.matmul([[1, 2], [3, 4]], [1, 1])
    array([3, 7])
    """
    a, b, boolean = _pair("matmul", x1, x2)
    if rank_of(a) == 0 or rank_of(b) == 0:
        raise ShapeError("matmul: an operand is a scalar", got=f"{shown(a)} and {shown(b)}", hint="use multiply")
    if shape_of(a)[-1] is not None and shape_of(b)[-2:][0] is not None:
        _require_match("matmul", a, b, -1, max(-2, -rank_of(b)))
    drop = ([-2] if rank_of(a) == 1 else []) + ([-1] if rank_of(b) == 1 else [])
    a = expanded(a, [0]) if rank_of(a) == 1 else a
    b = expanded(b, [1]) if rank_of(b) == 1 else b
    if rank_of(a) > 2 and rank_of(b) == 2:
        # One large product instead of many small ones.
        *lead, size = dims(a)
        product = apply("matmul", [reshaped(a, [times(lead), size]), b])
        result = reshaped(product, [*lead, dim(b, 1)])
    else:
        result = apply("matmul", [a, b])
    result = squeezed(result, [axis % rank_of(result) for axis in drop])
    return cast(result, np.bool_) if boolean else result


@array_function()
def dot(x1: Any, x2: Any) -> Any:
    """NumPy's dot: the sum over the last axis of x1 and the last but one of x2; with a scalar, the product.

    >>> print(cnp.dot([1, 2], [3, 4]))
    11
    """
    a, b = operand("dot", x1), operand("dot", x2)
    if rank_of(a) == 0 or rank_of(b) == 0:
        return multiply(a, b)
    if rank_of(b) <= 2:
        return matmul(a, b)
    return tensordot(a, b, (rank_of(a) - 1, rank_of(b) - 2))


@array_function()
def vdot(x1: Any, x2: Any) -> Any:
    """The dot product of all elements in one dimension. Complex elements of x1 are conjugated.

    >>> print(cnp.vdot([[1, 2]], [[3, 4]]))
    11
    """
    return matmul(conjugate(ravel(x1)), ravel(x2))


@array_function()
def inner(x1: Any, x2: Any) -> Any:
    """The sum of products over the last axes of both; with a scalar, the product.

    >>> print(cnp.inner([1, 2], [3, 4]))
    11
    """
    a, b = operand("inner", x1), operand("inner", x2)
    if rank_of(a) == 0 or rank_of(b) == 0:
        return multiply(a, b)
    return tensordot(a, b, (rank_of(a) - 1, rank_of(b) - 1))


@array_function()
def outer(x1: Any, x2: Any) -> Any:
    """Every element of x1 times every element of x2: [m, n], both taken as vectors.

    >>> cnp.outer([1, 2], [3, 4])
    array([[3, 4],
           [6, 8]])
    """
    return multiply(expanded(ravel(x1), [1]), expanded(ravel(x2), [0]))


@array_function()
def vecdot(x1: Any, x2: Any, *, axis: int = -1) -> Any:
    """The dot product along one axis; the other axes broadcast. Complex elements of x1 are conjugated.

    >>> cnp.vecdot([[1, 2], [3, 4]], [1, 1])
    array([3, 7])
    """
    a, b, boolean = _pair("vecdot", conjugate(x1), x2)
    if rank_of(a) == 0 or rank_of(b) == 0:
        raise ShapeError("vecdot: an operand is a scalar", got=f"{shown(a)} and {shown(b)}")
    a, b = moveaxis(a, axis, -1), moveaxis(b, axis, -1)
    b = _require_match("vecdot", a, b, -1, -1)
    result = cast(total(multiply(a, b), -1), dtype_of(a))
    return cast(result, np.bool_) if boolean else result


@array_function()
def tensordot(x1: Any, x2: Any, axes: Any = 2) -> Any:
    """The sum of products over pairs of axes.

    Args:
        x1, x2: any shapes.
        axes: how many last axes of x1 meet the first of x2, or a pair: axes of x1, axes of x2.

    >>> cnp.tensordot([[1, 2], [3, 4]], [[1, 0], [0, 1]], 1)
    array([[1, 2],
           [3, 4]])
    """
    a, b, boolean = _pair("tensordot", x1, x2)
    ranks = rank_of(a), rank_of(b)
    if not isinstance(axes, list | tuple):
        count = whole_number("tensordot", "axes", axes)
        if not 0 <= count <= min(ranks):
            raise ShapeError("tensordot: not so many axes", expected=f"at most {min(ranks)}", got=str(axes))
        axes = range(ranks[0] - count, ranks[0]), range(count)
    if len(axes) != 2:
        raise TypeMismatchError("tensordot: axes is a number or a pair", got=str(axes))
    one, other = (
        axes_in_order("tensordot", list(given) if isinstance(given, range) else given, rank)
        for given, rank in zip(axes, ranks, strict=True)
    )
    if len(one) != len(other):
        raise ShapeError("tensordot: as many axes of each", got=str(axes))
    for i, j in zip(one, other, strict=True):
        b = _require_match("tensordot", a, b, i, j)
    left = [("a", axis) for axis in range(ranks[0])]
    right = [("a", one[other.index(axis)]) if axis in other else ("b", axis) for axis in range(ranks[1])]
    keep = [label for label in left if label[1] not in one] + [label for label in right if label[0] == "b"]
    result = contracted(Labelled(a, tuple(left)), Labelled(b, tuple(right)), frozenset(keep)).ordered(tuple(keep))
    return cast(result, np.bool_) if boolean else result


@array_function()
def matvec(x1: Any, x2: Any) -> Any:
    """The products of matrices [..., m, n] and vectors [..., n]: [..., m]; as `numpy.matvec`.

    >>> cnp.matvec([[1, 2], [3, 4]], [1, 1])
    array([3, 7])
    """
    x2 = operand("matvec", x2)
    found = matmul(x1, expanded(x2, (rank_of(x2),)))
    return squeezed(found, (rank_of(found) - 1,))


@array_function()
def vecmat(x1: Any, x2: Any) -> Any:
    """The products of the conjugates of vectors [..., n] and matrices [..., n, m]: [..., m]; as `numpy.vecmat`.

    >>> cnp.vecmat([1, 1], [[1, 2], [3, 4]])
    array([4, 6])
    """
    x1 = operand("vecmat", x1)
    x1 = conjugate(x1)
    found = matmul(expanded(x1, (rank_of(x1) - 1,)), x2)
    return squeezed(found, (rank_of(found) - 2,))


__all__ = [
    "dot",
    "inner",
    "matmul",
    "matvec",
    "outer",
    "tensordot",
    "vdot",
    "vecdot",
    "vecmat",
]
