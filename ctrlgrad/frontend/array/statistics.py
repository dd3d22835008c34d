"""Order statistics, averages and counts."""

from __future__ import annotations

from typing import Any

import numpy as np

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.errors import UserInputError
from ctrlgrad.frontend.apply import cast
from ctrlgrad.frontend.array.dims import (
    axes_of,
    dim,
    dims,
    dtype_of,
    rank_of,
    reshaped,
    shape_of,
    times,
)
from ctrlgrad.frontend.array.elementwise import ceil, floor, isnan, sqrt
from ctrlgrad.frontend.array.indexing import take_along_axis
from ctrlgrad.frontend.array.joining import concatenate
from ctrlgrad.frontend.array.linalg import matmul
from ctrlgrad.frontend.array.logic import where
from ctrlgrad.frontend.array.manipulation import broadcast_to, expand_dims, moveaxis, squeeze
from ctrlgrad.frontend.array.promote import floats, operand
from ctrlgrad.frontend.array.reduction import all as every
from ctrlgrad.frontend.array.reduction import max as largest
from ctrlgrad.frontend.array.reduction import mean
from ctrlgrad.frontend.array.reduction import min as smallest
from ctrlgrad.frontend.array.reduction import sum as total
from ctrlgrad.frontend.array.sorting import sort
from ctrlgrad.frontend.functions import array_function
from ctrlgrad.source import here


@array_function()
def ptp(x: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
    """The largest element less the smallest; as `numpy.ptp`.

    >>> float(cnp.ptp([1.0, 4.0]))
    3.0
    """
    return largest(x, axis, keepdims=keepdims) - smallest(x, axis, keepdims=keepdims)


@array_function()
def average(x: Any, axis: Any = None, weights: Any = None, returned: bool = False, *, keepdims: bool = False) -> Any:
    """The mean with weights; as `numpy.average`. With `returned` also the sum of the weights.

    >>> float(cnp.average([1.0, 2.0], weights=[3.0, 1.0]))
    1.25
    """
    x = floats("average", x)
    axes = axes_of("average", axis, rank_of(x))
    if weights is None:
        found = mean(x, axis, keepdims=keepdims)
        scale = broadcast_to(cast(times([dim(x, a) for a in axes]), dtype_of(found)), tuple(dims(found)))
    else:
        weights = operand("average", weights)
        if rank_of(weights) == 1 and rank_of(x) > 1 and len(axes) == 1:
            weights = reshaped(weights, [dim(x, a) if a == axes[0] else 1 for a in range(rank_of(x))])
        weights = broadcast_to(weights, tuple(dims(x)))
        scale = total(weights, axis, keepdims=keepdims)
        found = total(x * weights, axis, keepdims=keepdims) / scale
    return (found, scale) if returned else found


def _places(method: str, position: Any) -> tuple[Any, Any, Any]:
    """The element below and above a position among sorted ones, and how much of the upper one counts."""
    low, high = floor(position), ceil(position)
    part = position - low
    methods = {
        "linear": lambda: part,
        "lower": lambda: part * 0,
        "higher": lambda: where(part > 0, 1.0, 0.0),
        "nearest": lambda: where((part > 0.5) | ((part == 0.5) & (low % 2 == 1)), 1.0, 0.0),
        "midpoint": lambda: where(part > 0, 0.5, 0.0),
    }
    if method not in methods:
        raise UserInputError(
            "quantile: the method is not known", source=here(), expected=", ".join(methods), got=repr(method)
        )
    return low, high, methods[method]()


def _sorted_last(operation: str, x: Any, axis: Any) -> tuple[Any, tuple[int, ...]]:
    """x sorted along one last axis that the given axes are joined in, and those axes."""
    x = floats(operation, x)
    axes = axes_of(operation, axis, rank_of(x))
    rest = [a for a in range(rank_of(x)) if a not in axes]
    moved = moveaxis(x, tuple(axes), tuple(range(len(rest), rank_of(x)))) if axes else expand_dims(x, -1)
    return sort(reshaped(moved, [*dims(moved)[: len(rest)], times(dims(moved)[len(rest) :])])), axes


def _kept(found: Any, axes: tuple[int, ...], leading: int, keepdims: bool) -> Any:
    return expand_dims(found, tuple(a + leading for a in axes)) if keepdims and axes else found


def _quantile(operation: str, x: Any, q: Any, axis: Any, method: str, keepdims: bool, ignore_nan: bool) -> Any:
    ordered, axes = _sorted_last(operation, x, axis)
    q = cast(operand(operation, q), dtype_of(ordered) if dtype_of(ordered).itemsize > 4 else np.float64)
    rank = rank_of(q)
    q = reshaped(q, [*dims(q), *[1] * (rank_of(ordered) - 1)])
    absent = isnan(ordered)
    # nan is sorted to the end.
    count = total(~absent, -1) if ignore_nan else dim(ordered, -1)
    low, high, part = _places(method, q * (cast(count, q.dtype) - 1))
    sizes = (*dims(q)[:rank], *dims(ordered)[:-1])
    rows = broadcast_to(ordered, (*dims(q)[:rank], *dims(ordered)))

    def pick(position: Any) -> Any:
        place = broadcast_to(where(position < 0, 0, position).astype(np.int64), sizes)
        return squeeze(take_along_axis(rows, expand_dims(place, -1), -1), -1)

    below, above = pick(low), pick(high)
    part = cast(part, dtype_of(ordered))
    found = where(part > 0, below + (above - below) * part, below)
    wrong = broadcast_to(every(absent, -1) if ignore_nan else absent[..., -1], sizes)
    return _kept(where(wrong, np.nan, found).astype(dtype_of(ordered)), axes, rank, keepdims)


@array_function()
def quantile(x: Any, q: Any, axis: Any = None, *, method: str = "linear", keepdims: bool = False) -> Any:
    """The value that the part q of the elements lies below; as `numpy.quantile`. Differentiable in x and q.

    >>> float(cnp.quantile([1.0, 2.0, 3.0], 0.5))
    2.0
    """
    return _quantile("quantile", x, q, axis, method, keepdims, ignore_nan=False)


@array_function()
def percentile(x: Any, q: Any, axis: Any = None, *, method: str = "linear", keepdims: bool = False) -> Any:
    """As `quantile`, of q / 100.

    >>> float(cnp.percentile([1.0, 2.0, 3.0], 50))
    2.0
    """
    return _quantile("percentile", x, operand("percentile", q) / 100, axis, method, keepdims, ignore_nan=False)


@array_function()
def median(x: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
    """The middle element, or the mean of the two in the middle; as `numpy.median`.

    >>> float(cnp.median([3.0, 1.0, 2.0]))
    2.0
    """
    return _quantile("median", x, 0.5, axis, "midpoint", keepdims, ignore_nan=False)


@array_function()
def nanquantile(x: Any, q: Any, axis: Any = None, *, method: str = "linear", keepdims: bool = False) -> Any:
    """As `quantile`, of the elements that are not nan.

    >>> float(cnp.nanquantile([cnp.nan, 1.0, 3.0], 0.5))
    2.0
    """
    return _quantile("nanquantile", x, q, axis, method, keepdims, ignore_nan=True)


@array_function()
def nanpercentile(x: Any, q: Any, axis: Any = None, *, method: str = "linear", keepdims: bool = False) -> Any:
    """As `percentile`, of the elements that are not nan.

    >>> float(cnp.nanpercentile([cnp.nan, 1.0, 3.0], 50))
    2.0
    """
    return _quantile("nanpercentile", x, operand("nanpercentile", q) / 100, axis, method, keepdims, ignore_nan=True)


@array_function()
def nanmedian(x: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
    """As `median`, of the elements that are not nan.

    >>> float(cnp.nanmedian([cnp.nan, 1.0, 3.0]))
    2.0
    """
    return _quantile("nanmedian", x, 0.5, axis, "midpoint", keepdims, ignore_nan=True)


@array_function()
def cov(
    m: Any,
    y: Any = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: int | None = None,
    fweights: Any = None,
    aweights: Any = None,
) -> Any:
    """The covariance matrix of variables, a row each; as `numpy.cov`.

    Of one variable it is a number, as NumPy's. Of a number of variables that is unknown when the function is traced it
    is a matrix, [1, 1] where that is 1: a rank cannot depend on a size.

    >>> cnp.cov([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]])
    array([[ 1., -1.],
           [-1.,  1.]])
    """
    x = floats("cov", m)
    x = expand_dims(x, 0) if rank_of(x) < 2 else x if rowvar or rank_of(x) < 2 else x.T
    if y is not None:
        other = floats("cov", y)
        other = expand_dims(other, 0) if rank_of(other) < 2 else other if rowvar else other.T
        x = concatenate([x, other], 0)
    count = cast(dim(x, 1), dtype_of(x))
    less = (0 if bias else 1) if ddof is None else ddof
    weights = None
    for given in (fweights, aweights):
        if given is not None:
            given = cast(operand("cov", given), dtype_of(x))
            weights = given if weights is None else weights * given
    if weights is None:
        centred = x - mean(x, 1, keepdims=True)
        scaled, factor = centred, count - less
    else:
        sum_of_weights = total(weights)
        centred = x - expand_dims(total(x * weights, 1) / sum_of_weights, 1)
        scaled = centred * weights
        by = 1.0 if aweights is None else total(weights * cast(operand("cov", aweights), dtype_of(x))) / sum_of_weights
        factor = sum_of_weights - less * by
    found = matmul(scaled, centred.T.conj() if dtype_kind(dtype_of(x)) == "c" else centred.T) / factor
    return found[0, 0] if shape_of(found) == (1, 1) else found


@array_function()
def corrcoef(x: Any, y: Any = None, rowvar: bool = True) -> Any:
    """The matrix of correlations of variables, a row each; as `numpy.corrcoef`.

    >>> cnp.corrcoef([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]).round(6)
    array([[ 1., -1.],
           [-1.,  1.]])
    """
    c = cov(x, y, rowvar)
    if rank_of(c) == 0:
        return c / c
    scale = sqrt(c.diagonal())
    return c / expand_dims(scale, 1) / expand_dims(scale, 0)


__all__ = [
    "average",
    "corrcoef",
    "cov",
    "median",
    "nanmedian",
    "nanpercentile",
    "nanquantile",
    "percentile",
    "ptp",
    "quantile",
]
