"""Reductions of windows and of whole axes by a function of two values, by the names of `jax.lax`.

Windows are reduced axis by axis, the last one first: a short window by its slices, a long one by windows of half its
size, so that it takes a number of steps that grows with the logarithm. That wants a function that is associative and
commutative, as XLA does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad import tree
from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.errors import UserInputError
from ctrlgrad.lax.convolutions import padtype_to_pads
from ctrlgrad.lax.shapes import pad
from ctrlgrad.lax.slices import slice_in_dim
from ctrlgrad.lax.window_sizes import reach, window_count
from ctrlgrad.source import here
from ctrlgrad.transforms.grad import vjp
from ctrlgrad.transforms.jvp import jvp

# Windows up to this long are reduced slice by slice.
_SHORT = 8
Combine = Callable[[list[Any], list[Any]], list[Any]]


def _first_largest(x: Any, y: Any) -> Any:
    """The larger one, the first of equal ones: so is the derivative of a maximum over a window. NaN stays."""
    return cnp.where((x >= y) | (x != x), x, y)


def _first_smallest(x: Any, y: Any) -> Any:
    return cnp.where((x <= y) | (x != x), x, y)


_KNOWN = (
    (np.maximum, _first_largest),
    (cnp.maximum, _first_largest),
    (np.minimum, _first_smallest),
    (cnp.minimum, _first_smallest),
)


def _along(xs: list[Any], axis: int, window: int, stride: int, apart: int, combine: Combine) -> list[Any]:
    """The windows along one axis, reduced."""
    size = xs[0].shape[axis]
    count = window_count(size, (window - 1) * apart + 1, stride)

    def every(values: list[Any], start: int) -> list[Any]:
        return [slice_in_dim(x, start, start + reach(count, stride), stride, axis) for x in values]

    if window <= _SHORT:
        found = every(xs, 0)
        for k in range(1, window):
            found = combine(found, every(xs, k * apart))
        return found
    found, part, length, covered = [], xs, 1, 0
    while True:
        if window & length:
            piece = every(part, covered * apart)
            found, covered = combine(found, piece) if found else piece, covered + length
        if 2 * length > window:
            return found
        shift = length * apart
        rest = part[0].shape[axis] - shift
        part = combine(
            [slice_in_dim(x, 0, rest, 1, axis) for x in part],
            [slice_in_dim(x, shift, None, 1, axis) for x in part],
        )
        length *= 2


def _on_lists(computation: Callable[..., Any], treedef: Any) -> Combine:
    function = next((better for known, better in _KNOWN if known is computation), computation)

    def combine(a: list[Any], b: list[Any]) -> list[Any]:
        return list(tree.flatten(function(tree.unflatten(treedef, a), tree.unflatten(treedef, b)))[0])

    return combine


def reduce_window(
    operand: Any,
    init_value: Any,
    computation: Callable[..., Any],
    window_dimensions: Sequence[int],
    window_strides: Sequence[int] | None = None,
    padding: Any = "VALID",
    base_dilation: Sequence[int] | None = None,
    window_dilation: Sequence[int] | None = None,
) -> Any:
    """Each window reduced by a function of two values; as `jax.lax.reduce_window`.

    Args:
        operand: an array, or a pytree of arrays of one shape.
        init_value: what a reduction begins with, and what pads: of the same structure.
        computation: associative and commutative, of elementwise operations, such as `lax.add` or `lax.max`.
        window_dimensions, window_strides, base_dilation, window_dilation: along each axis; 1 where not given.
        padding: "SAME", "SAME_LOWER", "VALID" or what to add before and after each axis.

    >>> from ctrlgrad import lax
    >>> reduce_window(np.arange(5.0), -np.inf, lax.max, (2,), (2,))
    array([1., 3.])
    """
    leaves, treedef = tree.flatten(operand)
    xs = [cnp.asarray(x) for x in leaves]
    starts = [cnp.asarray(v).astype(x.dtype) for v, x in zip(tree.flatten(init_value)[0], xs, strict=True)]
    rank = xs[0].ndim
    ones = (1,) * rank
    strides, spread, apart = (tuple(v or ones) for v in (window_strides, base_dilation, window_dilation))
    if isinstance(padding, str) or hasattr(padding, "name"):
        sizes = [(n - 1) * d + 1 for n, d in zip(xs[0].shape, spread, strict=True)]
        reach = [(k - 1) * d + 1 for k, d in zip(window_dimensions, apart, strict=True)]
        padding = padtype_to_pads(sizes, reach, strides, padding)
    config = [(low, high, d - 1) for (low, high), d in zip(padding, spread, strict=True)]
    combine = _on_lists(computation, treedef)
    xs = [pad(x, v, config) for x, v in zip(xs, starts, strict=True)]
    for axis in reversed(range(rank)):
        if (window_dimensions[axis], strides[axis]) != (1, 1):
            xs = _along(xs, axis, window_dimensions[axis], strides[axis], apart[axis], combine)
    return tree.unflatten(treedef, combine(xs, [cnp.broadcast_to(v, x.shape) for v, x in zip(starts, xs, strict=True)]))


def reduce(
    operands: Any, init_values: Any, computation: Callable[..., Any], dimensions: Sequence[int], **settings: Any
) -> Any:
    """Axes reduced by a function of two values, beginning with `init_values`; as `jax.lax.reduce`.

    >>> from ctrlgrad import lax
    >>> float(reduce(np.arange(5.0), 1.0, lax.add, (0,)))
    11.0
    """
    leaves, treedef = tree.flatten(operands)
    xs = [cnp.asarray(x) for x in leaves]
    starts = [cnp.asarray(v).astype(x.dtype) for v, x in zip(tree.flatten(init_values)[0], xs, strict=True)]
    combine = _on_lists(computation, treedef)
    dimensions = tuple(d % xs[0].ndim for d in dimensions)
    if any(xs[0].shape[d] == 0 for d in dimensions):
        shape = [n for axis, n in enumerate(xs[0].shape) if axis not in dimensions]
        return tree.unflatten(treedef, [cnp.broadcast_to(v, shape) for v in starts])
    for axis in sorted(dimensions, reverse=True):
        xs = [cnp.squeeze(x, axis) for x in _along(xs, axis, xs[0].shape[axis], 1, 1, combine)]
    return tree.unflatten(treedef, combine(xs, [cnp.broadcast_to(v, x.shape) for v, x in zip(starts, xs, strict=True)]))


def reduce_xor(operand: Any, axes: Sequence[int]) -> Any:
    """Whether an odd number is true along axes; of integers for each bit.

    >>> bool(reduce_xor(np.array([True, True, True]), (0,)))
    True
    """
    return reduce(operand, cnp.asarray(operand).dtype.type(0), cnp.bitwise_xor, axes)


def _chosen(select: Any, dtype: Any) -> tuple[Any, Any]:
    """What a choice by `ge` or `le` reduces windows with, and where it begins."""
    least, largest = (-np.inf, np.inf) if dtype_kind(dtype) == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    name = getattr(select, "name", getattr(select, "__name__", str(select)))
    if name in ("ge", "greater_equal"):
        return cnp.maximum, least
    if name in ("le", "less_equal"):
        return cnp.minimum, largest
    raise UserInputError(
        "lax: windows choose by `ge` or `le`", source=here(), expected="lax.ge or lax.le", got=repr(select)
    )


def select_and_scatter_add(
    source: Any,
    operand: Any,
    select: Any,
    window_dimensions: Sequence[int],
    window_strides: Sequence[int] | None = None,
    padding: Any = "VALID",
) -> Any:
    """Numbers added where each window of the operand has its first largest (`lax.ge`) or smallest element (`lax.le`).

    That is the transpose of the derivative of `reduce_window` with `max` or `min`.

    >>> from ctrlgrad import lax
    >>> select_and_scatter_add(np.array([5.0]), np.array([1.0, 3.0, 2.0]), lax.ge, (3,))
    array([0., 5., 0.])
    """
    x = cnp.asarray(operand)
    computation, start = _chosen(select, x.dtype)
    f = lambda x: reduce_window(x, start, computation, window_dimensions, window_strides, padding)
    return vjp(f, x)[1](cnp.asarray(source))[0]


def select_and_gather_add(
    tangents: Any,
    operand: Any,
    select: Any,
    window_dimensions: Sequence[int],
    window_strides: Sequence[int] | None = None,
    padding: Any = "VALID",
    base_dilation: Sequence[int] | None = None,
    window_dilation: Sequence[int] | None = None,
) -> Any:
    """The tangent of each window's first largest (`lax.ge`) or smallest (`lax.le`) element.

    >>> from ctrlgrad import lax
    >>> select_and_gather_add(np.arange(3.0), np.array([1.0, 3.0, 2.0]), lax.ge, (2,))
    array([1., 1.])
    """
    x = cnp.asarray(operand)
    computation, start = _chosen(select, x.dtype)
    settings = (window_dimensions, window_strides, padding, base_dilation, window_dilation)
    f = lambda x: reduce_window(x, start, computation, *settings)
    return jvp(f, (x,), (cnp.asarray(tangents),))[1]


__all__ = ["reduce", "reduce_window", "reduce_xor", "select_and_gather_add", "select_and_scatter_add"]
