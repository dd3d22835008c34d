"""Numbers counted: by value, and in bins."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ctrlgrad.errors import ShapeError
from ctrlgrad.frontend.apply import cast
from ctrlgrad.frontend.array.creation import zeros
from ctrlgrad.frontend.array.dims import (
    dtype_of,
    known_size,
    rank_of,
    reshaped,
    shape_of,
)
from ctrlgrad.frontend.array.joining import stack
from ctrlgrad.frontend.array.logic import where
from ctrlgrad.frontend.array.manipulation import expand_dims, ravel
from ctrlgrad.frontend.array.promote import double_dtype, floats, operand
from ctrlgrad.frontend.array.ranges import linspace
from ctrlgrad.frontend.array.reduction import max as largest
from ctrlgrad.frontend.array.reduction import min as smallest
from ctrlgrad.frontend.array.reduction import sum as total
from ctrlgrad.frontend.array.sorting import searchsorted
from ctrlgrad.frontend.array.update import at
from ctrlgrad.frontend.functions import array_function
from ctrlgrad.options import default_float


@array_function()
def bincount(x: Any, weights: Any = None, minlength: int = 0, *, length: int | None = None) -> Any:
    """How often each number from 0 on stands in x, or the sum of its weights; as `numpy.bincount`.

    Of a traced x `length`, as in JAX, says for how many numbers; larger ones are left out.

    >>> cnp.bincount([0, 2, 2], length=3)
    array([1, 0, 2])
    """
    x = operand("bincount", x)
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


@array_function()
def histogram_bin_edges(x: Any, bins: Any = 10, range: Any = None, weights: Any = None) -> Any:
    """The edges of the bins of `histogram`; as `numpy.histogram_bin_edges`, for a number of bins or their edges.

    >>> cnp.histogram_bin_edges([0.0, 1.0], 2)
    array([0. , 0.5, 1. ])
    """
    if not isinstance(bins, int):
        return operand("histogram_bin_edges", bins)
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
    each = [bins] * rank if isinstance(bins, int) else list(bins)
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
    if not isinstance(bins, int) and len(bins) not in (1, 2):
        bins = [bins, bins]
    points = stack([operand("histogram2d", x), operand("histogram2d", y)], axis=1)
    counts, edges = histogramdd(points, bins, range, weights, density)
    return counts, edges[0], edges[1]


__all__ = [
    "bincount",
    "digitize",
    "histogram",
    "histogram2d",
    "histogram_bin_edges",
    "histogramdd",
]
