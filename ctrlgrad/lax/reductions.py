"""Reductions, scans along an axis, sorts and products by the names of `jax.lax`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad.errors import UserInputError
from ctrlgrad.frontend.array.promote import size_argument, whole_number
from ctrlgrad.frontend.array.sorting import places_of_largest
from ctrlgrad.frontend.functions import described, publish
from ctrlgrad.frontend.loops import associative_scan
from ctrlgrad.lax.indexing import slice_in_dim


def _position(name: str, what: str, example: str) -> Callable[..., Any]:
    def function(operand: Any, axis: int, index_dtype: Any = np.int64) -> Any:
        return getattr(cnp, name)(operand, axis).astype(index_dtype)

    return described(function, name, f"The place of the {what} element along an axis.", example)


argmax = _position("argmax", "largest", "int(argmax(np.array([1.0, 3.0]), 0)) -> 1")
argmin = _position("argmin", "smallest", "int(argmin(np.array([1.0, 3.0]), 0)) -> 0")


def _reduction(name: str, fn: Callable[..., Any], summary: str, example: str) -> Callable[..., Any]:
    def function(operand: Any, axes: Any) -> Any:
        # Sums and products do not widen.
        settings = {"dtype": cnp.asarray(operand).dtype} if fn in (cnp.sum, cnp.prod) else {}
        return fn(operand, tuple(axes), **settings)

    return described(function, name, summary, example)


reduce_sum = _reduction("reduce_sum", cnp.sum, "The sum along axes.", "float(reduce_sum(np.ones(3), (0,))) -> 3.0")
reduce_prod = _reduction(
    "reduce_prod", cnp.prod, "The product along axes.", "float(reduce_prod(np.ones(3), (0,))) -> 1.0"
)
reduce_max = _reduction(
    "reduce_max", cnp.max, "The largest element along axes.", "float(reduce_max(np.ones(3), (0,))) -> 1.0"
)
reduce_min = _reduction(
    "reduce_min", cnp.min, "The smallest element along axes.", "float(reduce_min(np.ones(3), (0,))) -> 1.0"
)
_EXAMPLE = "bool(reduce_and(np.array([True, False]), (0,))) -> False"
reduce_and = _reduction("reduce_and", cnp.all, "True if all elements along axes are true.", _EXAMPLE)
_EXAMPLE = "bool(reduce_or(np.array([True, False]), (0,))) -> True"
reduce_or = _reduction("reduce_or", cnp.any, "True if any element along axes is true.", _EXAMPLE)


def _running(name: str, fn: Callable[..., Any], what: str, example: str) -> Callable[..., Any]:
    def function(operand: Any, axis: int = 0, reverse: bool = False) -> Any:
        x = cnp.asarray(operand)
        if fn not in (cnp.cumsum, cnp.cumprod):
            return associative_scan(fn, x, reverse=reverse, axis=axis)
        found = fn(cnp.flip(x, axis) if reverse else x, axis, dtype=x.dtype)
        return cnp.flip(found, axis) if reverse else found

    return described(function, name, f"{what} up to each element along an axis.", example)


cumsum = _running("cumsum", cnp.cumsum, "Sums", "cumsum(np.ones(3), reverse=True) -> array([3., 2., 1.])")
cumprod = _running("cumprod", cnp.cumprod, "Products", "cumprod(np.array([1.0, 2.0, 3.0])) -> array([1., 2., 6.])")
cummax = _running("cummax", cnp.maximum, "The largest", "cummax(np.array([1.0, 3.0, 2.0])) -> array([1., 3., 3.])")
cummin = _running("cummin", cnp.minimum, "The smallest", "cummin(np.array([1.0, 3.0, 0.0])) -> array([1., 1., 0.])")
_EXAMPLE = "float(cumlogsumexp(np.zeros(2))[0]) -> 0.0"
cumlogsumexp = _running("cumlogsumexp", cnp.logaddexp, "The logarithm of the sum of exponentials", _EXAMPLE)


def sort(operand: Any, dimension: int = -1, is_stable: bool = True, num_keys: int = 1) -> Any:
    """Sorted along an axis; of a tuple all are put into the order of the first.

    >>> sort(np.array([2, 1]))
    array([1, 2])
    """
    if not isinstance(operand, tuple | list):
        return cnp.sort(operand, axis=dimension)
    if whole_number("lax.sort", "num_keys", num_keys, least=1) > len(operand):
        raise UserInputError("lax.sort: more keys than operands", expected=f"1 to {len(operand)}", got=repr(num_keys))
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
    order = places_of_largest("lax.top_k", x, whole_number("lax.top_k", "k", k), axis)
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


# Shapes, joins and padding by the names of `jax.lax`.


def reshape(operand: Any, new_sizes: Any, dimensions: Any = None, *, out_sharding: Any = None) -> Any:
    """The elements in another shape, of the axes in the order `dimensions` where that is given.

    >>> reshape(np.arange(4), (2, 2))[1]
    array([2, 3])
    """
    return cnp.reshape(operand if dimensions is None else cnp.transpose(operand, dimensions), new_sizes)


def transpose(operand: Any, permutation: Any) -> Any:
    """The axes in another order.

    >>> transpose(np.ones((2, 3)), (1, 0)).shape
    (3, 2)
    """
    return cnp.transpose(operand, tuple(permutation))


def squeeze(array: Any, dimensions: Any) -> Any:
    """Without some axes of size 1.

    >>> squeeze(np.ones((1, 2)), (0,)).shape
    (2,)
    """
    return cnp.squeeze(array, tuple(dimensions))


def expand_dims(array: Any, dimensions: Any) -> Any:
    """With new axes of size 1.

    >>> expand_dims(np.ones(2), (0,)).shape
    (1, 2)
    """
    return cnp.expand_dims(array, tuple(dimensions))


def collapse(operand: Any, start_dimension: int, stop_dimension: int | None = None) -> Any:
    """Neighbouring axes as one.

    >>> collapse(np.ones((2, 3, 4)), 0, 2).shape
    (6, 4)
    """
    shape = cnp.asarray(operand).shape
    axes = range(len(shape))[start_dimension:stop_dimension]
    size: Any = 1
    for axis in axes:
        size = size * shape[axis]
    return cnp.reshape(operand, (*shape[: axes.start], size, *shape[axes.stop :]))


def broadcast(operand: Any, sizes: Sequence[int], *, out_sharding: Any = None) -> Any:
    """With new axes in front, along which the operand is repeated.

    >>> broadcast(np.ones(2), (3,)).shape
    (3, 2)
    """
    return cnp.broadcast_to(operand, (*sizes, *cnp.asarray(operand).shape))


def broadcast_in_dim(operand: Any, shape: Any, broadcast_dimensions: Sequence[int], *, out_sharding: Any = None) -> Any:
    """In another shape, in which the operand's axes are those at `broadcast_dimensions`.

    >>> broadcast_in_dim(np.arange(2), (2, 3), (0,))[1]
    array([1, 1, 1])
    """
    operand = cnp.asarray(operand)
    sizes = dict(zip(broadcast_dimensions, operand.shape, strict=True))
    return cnp.broadcast_to(cnp.reshape(operand, [sizes.get(axis, 1) for axis in range(len(shape))]), shape)


def broadcast_to_rank(x: Any, rank: int) -> Any:
    """With as many new axes of size 1 in front as a rank takes.

    >>> broadcast_to_rank(np.ones(2), 3).shape
    (1, 1, 2)
    """
    x = cnp.asarray(x)
    return cnp.expand_dims(x, tuple(range(rank - x.ndim))) if rank > x.ndim else x


def iota(dtype: Any, size: int) -> Any:
    """0, 1, 2, ...

    >>> iota(np.float32, 3)
    array([0., 1., 2.], dtype=float32)
    """
    return cnp.astype(cnp.arange(size_argument("lax.iota", "the size", size, least=0)), dtype)


def broadcasted_iota(dtype: Any, shape: Sequence[int], dimension: int) -> Any:
    """In an array of this shape, the position along an axis.

    >>> broadcasted_iota(np.int32, (2, 2), 1)
    array([[0, 1],
           [0, 1]], dtype=int32)
    """
    return broadcast_in_dim(iota(dtype, shape[dimension]), tuple(shape), (dimension,))


def concatenate(operands: Sequence[Any], dimension: int) -> Any:
    """Arrays joined along an axis.

    >>> concatenate([np.ones(1), np.zeros(1)], 0)
    array([1., 0.])
    """
    return cnp.concatenate(operands, dimension)


def split(operand: Any, sizes: Sequence[int], axis: int = 0) -> list[Any]:
    """Parts of these sizes along an axis.

    >>> [len(x) for x in split(np.arange(5), (2, 3))]
    [2, 3]
    """
    return cnp.split(operand, [int(n) for n in np.cumsum(sizes)[:-1]], axis)


def pad(operand: Any, padding_value: Any, padding_config: Sequence[tuple[int, int, int]]) -> Any:
    """With a value before, after and between the elements along each axis; a negative number takes elements away.

    >>> pad(np.ones(2), 0.0, [(1, -1, 1)])
    array([0., 1., 0.])
    """
    x = cnp.asarray(operand)
    value = cnp.asarray(padding_value).astype(x.dtype)
    for axis, (low, high, interior) in enumerate(padding_config):
        size = x.shape[axis]
        if interior and size > 1:
            places = np.arange(size) * (interior + 1)
            shape = [(size - 1) * (interior + 1) + 1 if a == axis else n for a, n in enumerate(x.shape)]
            key = (*[np.s_[:]] * axis, places)
            x = cnp.at(cnp.broadcast_to(value, shape))[key].set(x)
        # The removed elements may be ones that were added.
        around = [(max(low, 0), max(high, 0)) if a == axis else (0, 0) for a in range(x.ndim)]
        x = cnp.pad(x, around, constant_values=value) if around[axis] != (0, 0) else x
        size = x.shape[axis]
        x = slice_in_dim(x, max(-low, 0), size + min(high, 0), axis=axis) if low < 0 or high < 0 else x
    return x


publish(__name__)
