"""Reductions, scans along an axis, sorts and products by the names of `jax.lax`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad.frontend.array.sorting import places_of_largest
from ctrlgrad.frontend.associative_scan import associative_scan


def argmax(operand: Any, axis: int, index_dtype: Any = np.int64) -> Any:
    """The place of the largest element along an axis.

    >>> int(argmax(np.array([1.0, 3.0]), 0))
    1
    """
    return cnp.argmax(operand, axis).astype(index_dtype)


def argmin(operand: Any, axis: int, index_dtype: Any = np.int64) -> Any:
    """The place of the smallest element along an axis.

    >>> int(argmin(np.array([1.0, 3.0]), 0))
    0
    """
    return cnp.argmin(operand, axis).astype(index_dtype)


def reduce_sum(operand: Any, axes: Any) -> Any:
    """The sum along axes.

    >>> float(reduce_sum(np.ones(3), (0,)))
    3.0
    """
    return cnp.sum(operand, tuple(axes), dtype=cnp.asarray(operand).dtype)


def reduce_prod(operand: Any, axes: Any) -> Any:
    """The product along axes.

    >>> float(reduce_prod(np.ones(3), (0,)))
    1.0
    """
    return cnp.prod(operand, tuple(axes), dtype=cnp.asarray(operand).dtype)


def reduce_max(operand: Any, axes: Any) -> Any:
    """The largest element along axes.

    >>> float(reduce_max(np.ones(3), (0,)))
    1.0
    """
    return cnp.max(operand, tuple(axes))


def reduce_min(operand: Any, axes: Any) -> Any:
    """The smallest element along axes.

    >>> float(reduce_min(np.ones(3), (0,)))
    1.0
    """
    return cnp.min(operand, tuple(axes))


def reduce_and(operand: Any, axes: Any) -> Any:
    """Whether all are true along axes.

    >>> bool(reduce_and(np.array([True, False]), (0,)))
    False
    """
    return cnp.all(operand, tuple(axes))


def reduce_or(operand: Any, axes: Any) -> Any:
    """Whether one is true along axes.

    >>> bool(reduce_or(np.array([True, False]), (0,)))
    True
    """
    return cnp.any(operand, tuple(axes))


def _cumulative(fn: Callable[[Any, Any], Any], operand: Any, axis: int, reverse: bool) -> Any:
    return associative_scan(fn, cnp.asarray(operand), reverse=reverse, axis=axis)


def _running(fn: Callable[..., Any], operand: Any, axis: int, reverse: bool) -> Any:
    """One of NumPy's running reductions, in the dtype of its operand, from either end."""
    x = cnp.asarray(operand)
    found = fn(cnp.flip(x, axis) if reverse else x, axis, dtype=x.dtype)
    return cnp.flip(found, axis) if reverse else found


def cumsum(operand: Any, axis: int = 0, reverse: bool = False) -> Any:
    """Sums up to each element along an axis.

    >>> cumsum(np.ones(3), reverse=True)
    array([3., 2., 1.])
    """
    return _running(cnp.cumsum, operand, axis, reverse)


def cumprod(operand: Any, axis: int = 0, reverse: bool = False) -> Any:
    """Products up to each element along an axis.

    >>> cumprod(np.array([1.0, 2.0, 3.0]))
    array([1., 2., 6.])
    """
    return _running(cnp.cumprod, operand, axis, reverse)


def cummax(operand: Any, axis: int = 0, reverse: bool = False) -> Any:
    """The largest up to each element along an axis.

    >>> cummax(np.array([1.0, 3.0, 2.0]))
    array([1., 3., 3.])
    """
    return _cumulative(cnp.maximum, operand, axis, reverse)


def cummin(operand: Any, axis: int = 0, reverse: bool = False) -> Any:
    """The smallest up to each element along an axis.

    >>> cummin(np.array([1.0, 3.0, 0.0]))
    array([1., 1., 0.])
    """
    return _cumulative(cnp.minimum, operand, axis, reverse)


def cumlogsumexp(operand: Any, axis: int = 0, reverse: bool = False) -> Any:
    """The logarithm of the sum of exponentials up to each element along an axis.

    >>> float(cumlogsumexp(np.zeros(2))[0])
    0.0
    """
    return _cumulative(cnp.logaddexp, operand, axis, reverse)


def sort(operand: Any, dimension: int = -1, is_stable: bool = True, num_keys: int = 1) -> Any:
    """Sorted along an axis; of a tuple all are put into the order of the first.

    >>> sort(np.array([2, 1]))
    array([1, 2])
    """
    if not isinstance(operand, tuple | list):
        return cnp.sort(operand, axis=dimension)
    order = cnp.argsort(operand[num_keys - 1], axis=dimension)
    for key in reversed(operand[: num_keys - 1]):
        order = cnp.take_along_axis(
            order, cnp.argsort(cnp.take_along_axis(key, order, dimension), axis=dimension), dimension
        )
    return tuple(cnp.take_along_axis(x, order, dimension) for x in operand)


def sort_key_val(keys: Any, values: Any, dimension: int = -1, is_stable: bool = True) -> tuple[Any, Any]:
    """Keys sorted along an axis, and values in the same order.

    >>> sort_key_val(np.array([2, 1]), np.array([5, 6]))
    (array([1, 2]), array([6, 5]))
    """
    first, second = sort((keys, values), dimension)
    return first, second


def top_k(operand: Any, k: int, *, axis: int = -1) -> tuple[Any, Any]:
    """The k largest elements along an axis and their places.

    >>> top_k(np.array([1.0, 3.0, 2.0]), 2)
    (array([3., 2.]), array([1, 2], dtype=int32))
    """
    x = cnp.asarray(operand)
    order = places_of_largest("lax.top_k", x, int(k), axis)
    return cnp.take_along_axis(x, order, axis), order.astype(np.int32)


def dot(lhs: Any, rhs: Any, **settings: Any) -> Any:
    """The product of vectors and matrices.

    >>> float(dot(np.ones(2), np.ones(2)))
    2.0
    """
    return cnp.dot(lhs, rhs)


def batch_matmul(lhs: Any, rhs: Any, precision: Any = None) -> Any:
    """Products of stacked matrices.

    >>> batch_matmul(np.ones((2, 1, 3)), np.ones((2, 3, 1))).shape
    (2, 1, 1)
    """
    return cnp.matmul(lhs, rhs)


def dot_general(lhs: Any, rhs: Any, dimension_numbers: Any, **settings: Any) -> Any:
    """The product with sums over pairs of axes and pairs of axes in common; as `jax.lax.dot_general`.

    >>> dot_general(np.ones((2, 3)), np.ones((4, 3)), (((1,), (1,)), ((), ()))).shape
    (2, 4)
    """
    (left, right), (left_batch, right_batch) = dimension_numbers
    lhs, rhs = cnp.asarray(lhs), cnp.asarray(rhs)
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    a: dict[int, str] = {}
    b: dict[int, str] = {}
    for i, j in [*zip(left_batch, right_batch, strict=True), *zip(left, right, strict=True)]:
        a[i] = b[j] = next(letters)
    a.update({i: next(letters) for i in range(lhs.ndim) if i not in a})
    b.update({j: next(letters) for j in range(rhs.ndim) if j not in b})
    free = [a[i] for i in range(lhs.ndim) if i not in (*left, *left_batch)]
    free += [b[j] for j in range(rhs.ndim) if j not in (*right, *right_batch)]
    result = "".join([*(a[i] for i in left_batch), *free])
    terms = ["".join(labels[i] for i in range(len(labels))) for labels in (a, b)]
    return cnp.einsum(f"{terms[0]},{terms[1]}->{result}", lhs, rhs)


__all__ = [
    "argmax",
    "argmin",
    "batch_matmul",
    "cumlogsumexp",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "dot",
    "dot_general",
    "reduce_and",
    "reduce_max",
    "reduce_min",
    "reduce_or",
    "reduce_prod",
    "reduce_sum",
    "sort",
    "sort_key_val",
    "top_k",
]
