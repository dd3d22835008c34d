"""Order statistics, averages and counts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ctrlgrad.advice import check_choice
from ctrlgrad.dtypes import dtype_kind, finfo
from ctrlgrad.errors import ShapeError
from ctrlgrad.frontend.apply import cast
from ctrlgrad.frontend.array.creation import zeros
from ctrlgrad.frontend.array.elementwise import ceil, floor, isnan, sqrt, where
from ctrlgrad.frontend.array.elementwise import where as choose
from ctrlgrad.frontend.array.indexing import at, take_along_axis
from ctrlgrad.frontend.array.linalg import matmul
from ctrlgrad.frontend.array.manipulation import broadcast_to, concatenate, expand_dims, moveaxis, ravel, squeeze, stack
from ctrlgrad.frontend.array.promote import *
from ctrlgrad.frontend.array.ranges import linspace
from ctrlgrad.frontend.array.reduction import all as every
from ctrlgrad.frontend.array.reduction import argmax, argmin, cumprod, cumsum, mean, prod, var
from ctrlgrad.frontend.array.reduction import max as largest
from ctrlgrad.frontend.array.reduction import min as smallest
from ctrlgrad.frontend.array.reduction import sum as total
from ctrlgrad.frontend.array.sorting import searchsorted, sort
from ctrlgrad.frontend.functions import array_function, described, publish
from ctrlgrad.options import default_float

# Reductions over the elements that are not nan, and nan as another number.


def _without_nan(name: str, fn: Callable[..., Any]) -> Callable[..., Any]:
    summary = f"As `{name.removeprefix('nan')}`, of the elements that are not nan; as `numpy.{name}`."
    return array_function()(described(fn, name, summary, f"float(cnp.{name}([cnp.nan, 1.0])) -> 1.0"))


def _has_nan(x: Any) -> bool:
    return dtype_kind(dtype_of(x)) in "fc"


def _replaced(x: Any, neutral: Any) -> Any:
    """x with a value in the place of nan."""
    return choose(isnan(x), np.asarray(neutral, dtype_of(x)), x) if _has_nan(x) else x


def _sum(name: str, reduction: Callable[..., Any], neutral: Any) -> Callable[..., Any]:
    def function(
        x: Any, axis: Any = None, dtype: Any = None, *, keepdims: bool = False, initial: Any = None, where: Any = None
    ) -> Any:
        x = operand(name, x) if dtype is None else cast(operand(name, x), dtype)
        return reduction(_replaced(x, neutral), axis, keepdims=keepdims, initial=initial, where=where)

    return _without_nan(name, function)


def _extreme(name: str, reduction: Callable[..., Any], neutral: float) -> Callable[..., Any]:
    def function(x: Any, axis: Any = None, *, keepdims: bool = False, initial: Any = None, where: Any = None) -> Any:
        x = operand(name, x)
        found = reduction(_replaced(x, neutral), axis, keepdims=keepdims, initial=initial, where=where)
        if initial is not None or not _has_nan(x):
            return found
        return choose(every(isnan(x), axis, keepdims=keepdims), np.asarray(np.nan, dtype_of(x)), found)

    return _without_nan(name, function)


def _position(name: str, reduction: Callable[..., Any], neutral: float) -> Callable[..., Any]:
    def function(x: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
        return reduction(_replaced(operand(name, x), neutral), axis, keepdims=keepdims)

    return _without_nan(name, function)


nansum, nanprod = _sum("nansum", total, 0), _sum("nanprod", prod, 1)
nanmax, nanmin = _extreme("nanmax", largest, -np.inf), _extreme("nanmin", smallest, np.inf)
nanargmax, nanargmin = _position("nanargmax", argmax, -np.inf), _position("nanargmin", argmin, np.inf)


@array_function()
def nanmean(x: Any, axis: Any = None, dtype: Any = None, *, keepdims: bool = False, where: Any = None) -> Any:
    """As `mean`, of the elements that are not nan; as `numpy.nanmean`.

    >>> float(cnp.nanmean([cnp.nan, 1.0, 3.0]))
    2.0
    """
    x = floats("nanmean", x if dtype is None else cast(operand("nanmean", x), dtype))
    count = total(~isnan(x), axis, keepdims=keepdims, where=where)
    return nansum(x, axis, keepdims=keepdims, where=where) / count.astype(np.zeros((), dtype_of(x)).real.dtype)


@array_function()
def nanvar(
    x: Any, axis: Any = None, dtype: Any = None, ddof: Any = 0, *, keepdims: bool = False, where: Any = None
) -> Any:
    """As `var`, of the elements that are not nan; as `numpy.nanvar`.

    >>> float(cnp.nanvar([cnp.nan, 1.0, 3.0]))
    1.0
    """
    x = floats("nanvar", x if dtype is None else cast(operand("nanvar", x), dtype))
    absent = isnan(x)
    present = ~absent if where is None else ~absent & truth("nanvar", where)
    # No nan may be squared: its derivative would be nan.
    safe = choose(absent, np.zeros((), dtype_of(x)), x)
    found = var(safe, axis, ddof=ddof, keepdims=keepdims, where=present)
    return choose(total(present, axis, keepdims=keepdims) > ddof, found, np.asarray(np.nan, dtype_of(found)))


@array_function()
def nanstd(
    x: Any, axis: Any = None, dtype: Any = None, ddof: Any = 0, *, keepdims: bool = False, where: Any = None
) -> Any:
    """As `std`, of the elements that are not nan; as `numpy.nanstd`.

    >>> float(cnp.nanstd([cnp.nan, 1.0, 3.0]))
    1.0
    """
    return sqrt(nanvar(x, axis, dtype, ddof, keepdims=keepdims, where=where))


@array_function(of=operand)
def nan_to_num(x: Any, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Any:
    """x with numbers in place of nan and infinities; as `numpy.nan_to_num`.

    >>> cnp.nan_to_num([cnp.nan, 1.0])
    array([0., 1.])
    """
    if dtype_kind(dtype_of(x)) != "f":
        return x
    limits = finfo(dtype_of(x))
    x = choose(isnan(x), np.asarray(nan, dtype_of(x)), x)
    x = choose(x == np.inf, np.asarray(limits.max if posinf is None else posinf, dtype_of(x)), x)
    return choose(x == -np.inf, np.asarray(limits.min if neginf is None else neginf, dtype_of(x)), x)


def _running(name: str, fn: Callable[..., Any], neutral: int, example: str) -> Callable[..., Any]:
    def function(x: Any, axis: Any = None, dtype: Any = None) -> Any:
        return fn(_replaced(operand(name, x), neutral), axis, dtype)

    summary = f"As `{name.removeprefix('nan')}`, nan counting as {neutral}; as `numpy.{name}`."
    return array_function()(described(function, name, summary, example))


nancumsum = _running("nancumsum", cumsum, 0, "cnp.nancumsum([1.0, cnp.nan, 2.0]) -> array([1., 1., 3.])")
nancumprod = _running("nancumprod", cumprod, 1, "cnp.nancumprod([2.0, cnp.nan, 3.0]) -> array([2., 2., 6.])")


# Numbers counted: by value, and in bins.


@array_function(of=operand)
def bincount(x: Any, weights: Any = None, minlength: int = 0, *, length: int | None = None) -> Any:
    """Count each number from 0 on in x, or sum its weights; as `numpy.bincount`.

    A traced x needs `length`, the number of counts, as in JAX; larger numbers are left out.

    >>> cnp.bincount([0, 2, 2], length=3)
    array([1, 0, 2])
    """
    if length is None:
        if not isinstance(x, np.ndarray):
            known_size("bincount (give length=)", None)
        length = max(minlength, int(x.max(initial=-1)) + 1)
    values = np.int64(1) if weights is None else operand("bincount", weights)
    inside = (x >= 0) & (x < length)
    values = where(inside, values, values * 0)
    dtype = np.int64 if weights is None else double_dtype(dtype_of(values))
    return at(zeros(length, dtype))[where(inside, x, 0)].add(values) if length else zeros(0, dtype)


@array_function()
def digitize(x: Any, bins: Any, right: bool = False) -> Any:
    """The number of the bin that each element lies in; as `numpy.digitize`. Edges that fall are known ones.

    >>> cnp.digitize([0.5, 1.5], [0.0, 1.0, 2.0])
    array([1, 2])
    """
    bins = operand("digitize", bins)
    if isinstance(bins, np.ndarray) and bins.size > 1 and bins[0] > bins[-1]:
        return bins.size - searchsorted(bins[::-1], x, side="right" if right else "left")
    return searchsorted(bins, x, side="left" if right else "right")


def _is_number(bins: Any) -> bool:
    """Return true for a number of bins, false for their edges."""
    return isinstance(bins, int | float) or getattr(bins, "ndim", None) == 0


@array_function()
def histogram_bin_edges(x: Any, bins: Any = 10, range: Any = None, weights: Any = None) -> Any:
    """The edges of the bins of `histogram`; as `numpy.histogram_bin_edges`, for a number of bins or their edges.

    >>> cnp.histogram_bin_edges([0.0, 1.0], 2)
    array([0. , 0.5, 1. ])
    """
    if not _is_number(bins):
        return operand("histogram_bin_edges", bins)
    bins = whole_number("histogram_bin_edges", "the number of bins", bins, least=1)
    x = floats("histogram_bin_edges", ravel(operand("histogram_bin_edges", x)))
    low, high = (smallest(x), largest(x)) if range is None else map(default_float().type, range)
    same = low == high
    return linspace(where(same, low - 0.5, low), where(same, high + 0.5, high), bins + 1)


@array_function()
def histogram(x: Any, bins: Any = 10, range: Any = None, weights: Any = None, density: bool = False) -> tuple[Any, Any]:
    """The number of elements in each bin, or the sum of their weights, and the edges; as `numpy.histogram`.

    >>> cnp.histogram([0.1, 0.6, 0.7], 2, (0.0, 1.0))[0]
    array([1, 2])
    """
    x = ravel(operand("histogram", x))
    edges = histogram_bin_edges(x, bins, range)
    count = known_size("histogram", shape_of(edges)[0]) - 1
    number = searchsorted(edges, x, side="right") - 1
    number = where(x == edges[-1], count - 1, number)
    found = bincount(number, None if weights is None else ravel(operand("histogram", weights)), length=count)
    if density:
        found = cast(found, double_dtype(dtype_of(found)))
        found = found / (edges[1:] - edges[:-1]) / total(found)
    return found, edges


@array_function()
def histogramdd(
    sample: Any, bins: Any = 10, range: Any = None, weights: Any = None, density: bool = False
) -> tuple[Any, list[Any]]:
    """The number of points in each cell of a grid, or the sum of their weights, and the edges; as `numpy.histogramdd`.

    Args:
        sample: [n, d], or a sequence of d vectors.
        bins: the number of bins of each axis, or its edges; one number for all axes, or a sequence of d.
        range: (low, high) for each axis; None takes the smallest and the largest element.
        weights: [n].
        density: divide by the whole and by the volume of each cell.

    >>> cnp.histogramdd([[0.1, 0.6], [0.7, 0.9]], 2, [(0.0, 1.0), (0.0, 1.0)])[0]
    array([[0., 1.],
           [0., 1.]])
    """
    if isinstance(sample, list | tuple) and np.ndim(sample[0]) == 1 and not isinstance(sample[0], list):
        sample = stack(sample, axis=1)
    sample = operand("histogramdd", sample)
    sample = expand_dims(sample, 1) if rank_of(sample) == 1 else sample
    rank = known_size("histogramdd", shape_of(sample)[1])
    each = [bins] * rank if _is_number(bins) else list(bins)
    if len(each) != rank:
        raise ShapeError("histogramdd: not as many bins as dimensions", expected=f"{rank}", got=f"{len(each)}")
    ranges = [None] * rank if range is None else list(range)
    edges, sizes, cell, inside = [], [], 0, np.True_
    for axis, (bins_of_axis, low_high) in enumerate(zip(each, ranges, strict=True)):
        column = sample[:, axis]
        found = histogram_bin_edges(column, bins_of_axis, low_high)
        count = known_size("histogramdd", shape_of(found)[0]) - 1
        number = searchsorted(found, column, side="right") - 1
        number = where(column == found[-1], count - 1, number)
        inside = inside & (number >= 0) & (number < count)
        cell = cell * count + number
        edges.append(found)
        sizes.append(count)
    counted = bincount(
        where(inside, cell, -1), None if weights is None else operand("histogramdd", weights), length=math.prod(sizes)
    )
    counts = reshaped(cast(counted, double_dtype(dtype_of(counted))), sizes)
    if density:
        counts = counts / total(counts)
        for axis, found in enumerate(edges):
            widths = found[1:] - found[:-1]
            counts = counts / reshaped(widths, [size if a == axis else 1 for a, size in enumerate(sizes)])
    return counts, edges


@array_function()
def histogram2d(
    x: Any, y: Any, bins: Any = 10, range: Any = None, weights: Any = None, density: bool = False
) -> tuple[Any, Any, Any]:
    """As `histogramdd` of two vectors: the counts, and the edges of each; as `numpy.histogram2d`.

    >>> cnp.histogram2d([0.1, 0.7], [0.6, 0.9], 2, [(0.0, 1.0), (0.0, 1.0)])[0]
    array([[0., 1.],
           [0., 1.]])
    """
    # One vector of edges is for both.
    if not _is_number(bins) and len(bins) not in (1, 2):
        bins = [bins, bins]
    points = stack([operand("histogram2d", x), operand("histogram2d", y)], axis=1)
    counts, edges = histogramdd(points, bins, range, weights, density)
    return counts, edges[0], edges[1]


@array_function()
def ptp(x: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
    """The largest element less the smallest; as `numpy.ptp`.

    >>> float(cnp.ptp([1.0, 4.0]))
    3.0
    """
    return largest(x, axis, keepdims=keepdims) - smallest(x, axis, keepdims=keepdims)


@array_function(of=floats)
def average(x: Any, axis: Any = None, weights: Any = None, returned: bool = False, *, keepdims: bool = False) -> Any:
    """The mean with weights; as `numpy.average`. With `returned` also the sum of the weights.

    >>> float(cnp.average([1.0, 2.0], weights=[3.0, 1.0]))
    1.25
    """
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
    check_choice("quantile", "method", method, methods)
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


def _quantiles(name: str, scale: int, summary: str, example: str) -> Callable[..., Any]:
    def function(x: Any, q: Any, axis: Any = None, *, method: str = "linear", keepdims: bool = False) -> Any:
        q = q if scale == 1 else operand(name, q) / scale
        return _quantile(name, x, q, axis, method, keepdims, ignore_nan=name.startswith("nan"))

    return array_function()(described(function, name, summary, example))


def _median(name: str, summary: str, example: str) -> Callable[..., Any]:
    def function(x: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
        return _quantile(name, x, 0.5, axis, "midpoint", keepdims, ignore_nan=name.startswith("nan"))

    return array_function()(described(function, name, summary, example))


_BELOW = "The value that the part q of the elements lies below; as `numpy.quantile`. Differentiable in x and q."
_MIDDLE = "The middle element, or the mean of the two in the middle; as `numpy.median`."
_OTHERS = "As `{}`, of the elements that are not nan."
quantile = _quantiles("quantile", 1, _BELOW, "float(cnp.quantile([1.0, 2.0, 3.0], 0.5)) -> 2.0")
percentile = _quantiles(
    "percentile", 100, "As `quantile`, of q / 100.", "float(cnp.percentile([1.0, 2.0, 3.0], 50)) -> 2.0"
)
median = _median("median", _MIDDLE, "float(cnp.median([3.0, 1.0, 2.0])) -> 2.0")
nanquantile = _quantiles(
    "nanquantile", 1, _OTHERS.format("quantile"), "float(cnp.nanquantile([cnp.nan, 1.0, 3.0], 0.5)) -> 2.0"
)
nanpercentile = _quantiles(
    "nanpercentile", 100, _OTHERS.format("percentile"), "float(cnp.nanpercentile([cnp.nan, 1.0, 3.0], 50)) -> 2.0"
)
nanmedian = _median("nanmedian", _OTHERS.format("median"), "float(cnp.nanmedian([cnp.nan, 1.0, 3.0])) -> 2.0")


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


publish(__name__)
