"""Interpolation, integrals, differences, convolutions, and ranges by ratio."""

from __future__ import annotations

from typing import Any

import numpy as np

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.errors import UserInputError
from ctrlgrad.frontend.apply import cast
from ctrlgrad.frontend.array.accumulation import cumsum
from ctrlgrad.frontend.array.arithmetic import power
from ctrlgrad.frontend.array.dims import (
    axis_of,
    dim,
    dtype_of,
    known_size,
    rank_of,
    reshaped,
    shape_of,
    sliced,
)
from ctrlgrad.frontend.array.elementwise import abs as absolute
from ctrlgrad.frontend.array.elementwise import log
from ctrlgrad.frontend.array.indexing import take
from ctrlgrad.frontend.array.joining import concatenate
from ctrlgrad.frontend.array.logic import where
from ctrlgrad.frontend.array.manipulation import flip, moveaxis, ravel
from ctrlgrad.frontend.array.padding import pad
from ctrlgrad.frontend.array.promote import floats, operand, same_dtype
from ctrlgrad.frontend.array.reduction import sum as total
from ctrlgrad.frontend.array.sorting import searchsorted
from ctrlgrad.frontend.functions import array_function
from ctrlgrad.frontend.loops import fori_loop
from ctrlgrad.source import here

# Terms of a convolution that are written out one by one.
_TERMS = 16


@array_function()
def interp(x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None) -> Any:
    """Values between points by straight lines; as `numpy.interp`. Differentiable in all three.

    >>> float(cnp.interp(1.5, [1.0, 2.0], [10.0, 20.0]))
    15.0
    """
    x, xp, fp = floats("interp", x), floats("interp", xp), floats("interp", fp)
    if period is not None:
        order = (xp % period).argsort()
        x, xp, fp = x % period, take(xp % period, order), take(fp, order)
        xp = concatenate([xp[-1:] - period, xp, xp[:1] + period], 0)
        fp = concatenate([fp[-1:], fp, fp[:1]], 0)
    last = dim(xp, 0) - 1
    place = searchsorted(xp, x, side="right")
    place = where(place < 1, 1, where(place > last, last, place))
    low, high = take(xp, place - 1), take(xp, place)
    f_low, f_high = take(fp, place - 1), take(fp, place)
    width = high - low
    found = where(width == 0, f_low, f_low + (x - low) * (f_high - f_low) / where(width == 0, 1.0, width))
    if period is None:
        found = where(x < xp[0], fp[0] if left is None else left, found)
        found = where(x > xp[-1], fp[-1] if right is None else right, found)
    return found


@array_function("trapz")
def trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Any:
    """The integral by the trapezoidal rule; as `numpy.trapezoid`.

    >>> float(cnp.trapezoid(cnp.asarray([1.0, 2.0, 3.0])))
    4.0
    """
    y = floats("trapezoid", y)
    axis = axis_of("trapezoid", axis, rank_of(y))
    y = moveaxis(y, axis, -1)
    width = dx
    if x is not None:
        x = floats("trapezoid", x)
        x = moveaxis(x, axis, -1) if rank_of(x) > 1 else x
        width = x[..., 1:] - x[..., :-1]
    return total(width * (y[..., 1:] + y[..., :-1]), -1) * 0.5


@array_function()
def ediff1d(x: Any, to_end: Any = None, to_begin: Any = None) -> Any:
    """The differences of neighbours in the flattened array; as `numpy.ediff1d`.

    >>> cnp.ediff1d([1, 4, 9])
    array([3, 5])
    """
    x = ravel(operand("ediff1d", x))
    parts = [to_begin, x[1:] - x[:-1], to_end]
    return concatenate([ravel(operand("ediff1d", p)).astype(dtype_of(x)) for p in parts if p is not None], 0)


@array_function()
def gradient(f: Any, *varargs: Any, axis: Any = None, edge_order: int = 1) -> Any:
    """Slopes by central differences, one-sided at the ends; as `numpy.gradient` with edge_order 1.

    >>> cnp.gradient(cnp.asarray([1.0, 4.0, 9.0]))
    array([3., 4., 5.])
    """
    if edge_order != 1:
        raise UserInputError("gradient: edge_order 1 alone", source=here(), expected="1", got=repr(edge_order))
    f = floats("gradient", f)
    axes = range(rank_of(f)) if axis is None else [axis] if isinstance(axis, int) else axis
    axes = [axis_of("gradient", a, rank_of(f)) for a in axes]
    spacings = list(varargs) * len(axes) if len(varargs) == 1 else list(varargs) or [1.0] * len(axes)
    found = [_slopes(f, a, h) for a, h in zip(axes, spacings, strict=True)]
    return found[0] if len(found) == 1 else tuple(found)


def _slopes(f: Any, axis: int, spacing: Any) -> Any:
    f = moveaxis(f, axis, -1)
    h = operand("gradient", spacing)
    if rank_of(h) == 0:
        inner = (f[..., 2:] - f[..., :-2]) / (2.0 * h)
        first, last = h, h
    else:
        step = h[1:] - h[:-1]
        before, after = step[:-1], step[1:]
        inner = f[..., 2:] * before / after - f[..., :-2] * after / before
        inner = (inner + f[..., 1:-1] * (after / before - before / after)) / (before + after)
        first, last = step[0], step[-1]
    ends = (f[..., 1:2] - f[..., :1]) / first, (f[..., -1:] - f[..., -2:-1]) / last
    return moveaxis(concatenate([ends[0], inner, ends[1]], -1), -1, axis)


@array_function()
def convolve(a: Any, v: Any, mode: str = "full") -> Any:
    """The convolution of two vectors, the shorter of known size; as `numpy.convolve`.

    >>> cnp.convolve([1.0, 2.0, 3.0], [1.0, 1.0])
    array([1., 3., 5., 3.])
    """
    a, v = same_dtype("convolve", [a, v])
    sizes = [shape_of(x)[0] for x in (a, v)]
    if sizes[0] is not None and (sizes[1] is None or sizes[0] < sizes[1]):
        a, v = v, a
    size = known_size("convolve", shape_of(v)[0])
    count = dim(a, 0)
    padded = pad(a, size - 1)
    full = _sliding(padded, flip(v), count + size - 1, size)
    if mode == "full":
        return full
    if mode == "same":
        return sliced(full, 0, (size - 1) // 2, (size - 1) // 2 + count)
    if mode == "valid":
        return sliced(full, 0, size - 1, count)
    raise UserInputError("convolve: no such mode", source=here(), expected="full, same or valid", got=repr(mode))


def _sliding(x: Any, weights: Any, count: Any, size: int) -> Any:
    """Sum of `size` neighbours times weights, at `count` places.

    A loop adds `_TERMS` of them at a time, so that the graph does not grow with `size`.
    """

    def added(found: Any, first: Any, number: int) -> Any:
        for k in range(number):
            part = x[first + k : first + k + count] * weights[first + k]
            found = part if found is None else found + part
        return found

    if size <= 2 * _TERMS or not isinstance(count, int):
        return added(None, 0, size)
    rounds = (size - 1) // _TERMS
    alone = size - rounds * _TERMS
    return fori_loop(0, rounds, lambda i, found: added(found, alone + i * _TERMS, _TERMS), added(None, 0, alone))


@array_function()
def correlate(a: Any, v: Any, mode: str = "valid") -> Any:
    """The correlation of two vectors; as `numpy.correlate`.

    >>> cnp.correlate([1.0, 2.0, 3.0], [1.0, 1.0])
    array([3., 5.])
    """
    a, v = same_dtype("correlate", [a, v])
    v = v.conj() if dtype_kind(dtype_of(v)) == "c" else v
    sizes = shape_of(a)[0], shape_of(v)[0]
    found = convolve(a, flip(v), mode)
    if mode == "same" and None not in sizes and sizes[0] < sizes[1]:  # type: ignore[operator]
        # NumPy centres what the longer one is moved over.
        return flip(convolve(flip(a), v, mode))
    return found


@array_function()
def unwrap(p: Any, discont: Any = None, axis: int = -1, period: Any = 2 * np.pi) -> Any:
    """Angles without jumps of more than half a period; as `numpy.unwrap`.

    >>> cnp.unwrap(cnp.asarray([0.0, 6.0])).round(3)
    array([ 0.   , -0.283])
    """
    p = floats("unwrap", p)
    axis = axis_of("unwrap", axis, rank_of(p))
    p = moveaxis(p, axis, -1)
    step = p[..., 1:] - p[..., :-1]
    half = period / 2
    wrapped = (step + half) % period - half
    wrapped = where((wrapped == -half) & (step > 0), half, wrapped)
    change = where(absolute(step) < (half if discont is None else discont), 0.0, wrapped - step)
    return moveaxis(concatenate([p[..., :1], p[..., 1:] + cumsum(change, -1)], -1), -1, axis)


def geomspace(start: Any, stop: Any, num: int = 50, endpoint: bool = True, dtype: Any = None, axis: int = 0) -> Any:
    """Numbers at equal ratios between two positive ones; as `numpy.geomspace`.

    >>> cnp.geomspace(1.0, 4.0, 3).round(6)
    array([1., 2., 4.])
    """
    from_, to = floats("geomspace", start), floats("geomspace", stop)
    return logspace(log(from_) / np.log(10.0), log(to) / np.log(10.0), num, endpoint, dtype=dtype, axis=axis)


def logspace(
    start: Any, stop: Any, num: int = 50, endpoint: bool = True, base: Any = 10.0, dtype: Any = None, axis: int = 0
) -> Any:
    """Powers of a base at equal steps of the exponent; as `numpy.logspace`.

    >>> cnp.logspace(0.0, 2.0, 3).round(6)
    array([  1.,  10., 100.])
    """
    start, stop = floats("logspace", start), floats("logspace", stop)
    steps = np.arange(num) / max(num - 1 if endpoint else num, 1)
    steps = reshaped(steps, [num, *[1] * max(rank_of(start), rank_of(stop))])
    found = power(base, start + (stop - start) * steps)
    found = found if dtype is None else cast(found, dtype)
    return moveaxis(found, 0, axis) if axis else found


__all__ = [
    "convolve",
    "correlate",
    "ediff1d",
    "geomspace",
    "gradient",
    "interp",
    "logspace",
    "trapezoid",
    "unwrap",
]
