"""Norms of vectors and matrices. At zero, where a norm has a kink, its derivative is 0."""

from __future__ import annotations

from typing import Any

import numpy as np

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.errors import ShapeError, TypeMismatchError
from ctrlgrad.frontend.apply import apply, cast
from ctrlgrad.frontend.array.arithmetic import add, multiply, power, subtract
from ctrlgrad.frontend.array.decompositions import inexact
from ctrlgrad.frontend.array.dims import (
    at_index,
    axes_in_order,
    axes_of,
    axis_of,
    concatenated,
    dtype_of,
    expanded,
    rank_of,
    shape_of,
)
from ctrlgrad.frontend.array.elementwise import abs as absolute
from ctrlgrad.frontend.array.elementwise import sqrt, square
from ctrlgrad.frontend.array.logic import equal, not_equal, where
from ctrlgrad.frontend.array.manipulation import moveaxis, ravel
from ctrlgrad.frontend.array.promote import same_dtype, shown
from ctrlgrad.frontend.array.reduction import max as largest
from ctrlgrad.frontend.array.reduction import min as smallest
from ctrlgrad.frontend.array.reduction import sum as total
from ctrlgrad.frontend.functions import array_function
from ctrlgrad.frontend.tensor import Tensor


def _root(x: Any) -> Any:
    """The square root, with derivative 0 at 0."""
    zero = equal(x, 0)
    return where(zero, 0.0, sqrt(where(zero, 1.0, x)))


def _squares(x: Any) -> Any:
    if dtype_kind(dtype_of(x)) != "c":
        return square(x)
    return add(square(apply("real", [x])), square(apply("imag", [x])))


def _known_order(operation: str, ord: Any) -> Any:
    if isinstance(ord, Tensor) or not isinstance(ord, int | float | str | np.number):
        raise TypeMismatchError(
            f"{operation}: not a known order", expected="a number, or a name of a norm", got=repr(ord)
        )
    return ord


@array_function()
def vector_norm(x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Any:
    """(sum(abs(x) ** ord)) ** (1 / ord) along axes, or of all elements.

    Args:
        x: any shape; integers become float64.
        axis: an int, several, or None for all elements.
        ord: a known number; inf is the largest modulus, -inf the smallest, 0 the number of elements other than 0.

    >>> print(cnp.linalg.vector_norm([3.0, 4.0]))
    5.0
    """
    x = inexact("vector_norm", x)
    axes, order = axes_of("vector_norm", axis, rank_of(x)), _known_order("vector_norm", ord)
    if isinstance(order, str):
        raise TypeMismatchError("vector_norm: the order is not a number", got=repr(ord))
    if order == 2:
        return _root(total(_squares(x), axes, keepdims=keepdims))
    size = absolute(x)
    if order == np.inf:
        return largest(size, axes, keepdims=keepdims)
    if order == -np.inf:
        return smallest(size, axes, keepdims=keepdims)
    if order == 0:
        return total(cast(not_equal(size, 0), dtype_of(size)), axes, keepdims=keepdims)
    if order == 1:
        return total(size, axes, keepdims=keepdims)
    powers = total(power(size, float(order)), axes, keepdims=keepdims)
    if order < 0:
        return power(powers, 1.0 / float(order))
    zero = equal(powers, 0)
    return where(zero, 0.0, power(where(zero, 1.0, powers), 1.0 / float(order)))


@array_function()
def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Any:
    """A norm of matrices [..., m, n]: [...], or [..., 1, 1] with `keepdims`.

    Args:
        ord: "fro", "nuc" (the sum of singular values), 1 and -1 (largest and smallest column sum of moduli),
            inf and -inf (of rows), 2 and -2 (largest and smallest singular value).

    >>> print(cnp.linalg.matrix_norm([[3.0, 0.0], [0.0, 4.0]]))
    5.0
    """
    x, order = inexact("matrix_norm", x), _known_order("matrix_norm", ord)
    if rank_of(x) < 2:
        raise ShapeError("matrix_norm: needs rank 2 or more", got=shown(x))
    norm = _matrix_norm(x, order)
    return expanded(norm, [rank_of(x) - 2, rank_of(x) - 1]) if keepdims else norm


def _matrix_norm(x: Any, order: Any) -> Any:
    if order == "fro":
        return _root(total(_squares(x), (-2, -1)))
    if order == "nuc":
        return total(apply("singular_values", [x]), -1)
    if order in (1, -1, np.inf, -np.inf):
        sums = total(absolute(x), -2 if order in (1, -1) else -1)
        return largest(sums, -1) if order > 0 else smallest(sums, -1)
    if order in (2, -2):
        values = apply("singular_values", [x])
        return largest(values, -1) if order > 0 else smallest(values, -1)
    raise TypeMismatchError(
        "matrix_norm: an unknown norm", expected="'fro', 'nuc', 1, -1, 2, -2, inf or -inf", got=repr(order)
    )


@array_function()
def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    """NumPy's norm: of a vector along one axis, of matrices along two, of all elements without axis and order.

    >>> print(cnp.linalg.norm([3.0, 4.0]))
    5.0
    """
    x = inexact("norm", x)
    rank = rank_of(x)
    if axis is None and ord is None:
        return vector_norm(x, keepdims=True) if keepdims else vector_norm(ravel(x))
    axes = axes_in_order("norm", list(range(rank)) if axis is None else axis, rank)
    if len(axes) == 1:
        return vector_norm(x, axis=axes[0], keepdims=keepdims, ord=2 if ord is None else ord)
    if len(axes) != 2:
        raise ShapeError("norm: takes one axis or two", got=f"{shown(x)}, axis={axis}")
    value = matrix_norm(moveaxis(x, axes, (-2, -1)), ord="fro" if ord is None else ord)
    return expanded(value, sorted(axes)) if keepdims else value


@array_function()
def cross(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    """The cross product of vectors of three elements along an axis; the others broadcast.

    >>> cnp.linalg.cross([1, 0, 0], [0, 1, 0])
    array([0, 0, 1])
    """
    a, b = same_dtype("cross", (x1, x2))
    for x in (a, b):
        size = None if rank_of(x) == 0 else shape_of(x)[axis_of("cross", axis, rank_of(x))]
        if rank_of(x) == 0 or size not in (3, None):
            raise ShapeError("cross: not three elements along the axis", got=shown(x))
    a, b = moveaxis(a, axis, -1), moveaxis(b, axis, -1)
    parts = []
    for i, j in ((1, 2), (2, 0), (0, 1)):
        ai, aj, bi, bj = (at_index(x, rank_of(x) - 1, k) for x, k in ((a, i), (a, j), (b, i), (b, j)))
        parts.append(expanded(subtract(multiply(ai, bj), multiply(aj, bi)), [max(rank_of(ai), rank_of(bi))]))
    return moveaxis(concatenated(parts, rank_of(parts[0]) - 1), -1, axis)
