"""Windows of arrays: reductions and convolutions, with the signatures of `jax.lax`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad import tree
from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.errors import ShapeError, UnknownSizeError, UserInputError
from ctrlgrad.frontend.array.promote import whole_number
from ctrlgrad.frontend.functions import publish
from ctrlgrad.lax.elements import ConvDimensionNumbers
from ctrlgrad.lax.indexing import slice_in_dim
from ctrlgrad.lax.reductions import pad
from ctrlgrad.transforms.grad import jvp, vjp


def _steps(operation: str, what: str, values: Sequence[Any]) -> tuple[int, ...]:
    """Strides or dilations: 1 or more."""
    return tuple(whole_number(operation, what, n, least=1) for n in values)


# Number of windows along an axis, whose size may be unknown until run time.


def _not_negative(size: Any) -> Any:
    """A size, or 0 where it would be less."""
    return max(size, 0) if isinstance(size, int) else cnp.maximum(size, 0)


def window_count(size: Any, window: int, stride: int) -> Any:
    """Number of windows of `window` elements, `stride` apart, within `size` elements.

    >>> window_count(5, 3, 1), window_count(2, 3, 1)
    (3, 0)
    """
    return _not_negative((size - window) // stride + 1)


def reach(count: Any, stride: int) -> Any:
    """Number of elements from the first one of the first window to the first one of the last.

    >>> reach(3, 2), reach(0, 2)
    (5, 0)
    """
    return _not_negative((count - 1) * stride + 1)


# Reductions of windows and of whole axes by a function of two values, by the names of `jax.lax`.
#
# Windows are reduced axis by axis, the last one first: a short window by its slices, a long one by windows of half
# its size, so that it takes a number of steps that grows with the logarithm. That wants a function that is
# associative and commutative, as XLA does.


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
            [slice_in_dim(x, 0, rest, 1, axis) for x in part], [slice_in_dim(x, shift, None, 1, axis) for x in part]
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
    strides, spread, apart = (
        _steps("lax.reduce_window", what, v or ones)
        for what, v in (("a stride", window_strides), ("a dilation", base_dilation), ("a dilation", window_dilation))
    )
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
    """True if an odd number of elements along axes is true; for integers, bit by bit.

    >>> bool(reduce_xor(np.array([True, True, True]), (0,)))
    True
    """
    return reduce(operand, cnp.asarray(operand).dtype.type(0), cnp.bitwise_xor, axes)


def _chosen(select: Any, dtype: Any) -> tuple[Any, Any]:
    """Return the reduction that stands for a choice by `ge` or `le`, and its initial value."""
    least, largest = (-np.inf, np.inf) if dtype_kind(dtype) == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    name = getattr(select, "name", getattr(select, "__name__", str(select)))
    if name in ("ge", "greater_equal"):
        return cnp.maximum, least
    if name in ("le", "less_equal"):
        return cnp.minimum, largest
    raise UserInputError("lax: windows choose by `ge` or `le`", expected="lax.ge or lax.le", got=repr(select))


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


# Convolutions by the names of `jax.lax`: the windows of the input as the rows of a matrix, times the kernels.


# Up to so many positions of a window, each is a slice; of more, the windows are read by arrays of indices.
_SLICES = 32


def padtype_to_pads(
    in_shape: Sequence[int], window_shape: Sequence[int], window_strides: Sequence[int], padding: Any
) -> list[tuple[int, int]]:
    """Padding before and after each axis for "SAME", "SAME_LOWER" or "VALID".

    >>> padtype_to_pads((5,), (2,), (1,), "SAME")
    [(0, 1)]
    """
    name = str(getattr(padding, "name", padding)).upper()
    if name == "VALID":
        return [(0, 0)] * len(in_shape)
    if name not in ("SAME", "SAME_LOWER"):
        raise UserInputError(
            "lax: no such padding",
            expected="'SAME', 'SAME_LOWER', 'VALID' or a pair of numbers per axis",
            got=repr(padding),
        )
    pads = []
    for n, k, stride in zip(in_shape, window_shape, window_strides, strict=True):
        if stride == 1:
            total = k - 1
        elif isinstance(n, int):
            total = max((-(-n // stride) - 1) * stride + k - n, 0)
        else:
            raise UnknownSizeError(
                f"lax: how much {name!r} pads depends on a size that only a run knows",
                expected=f"known sizes, where windows are {stride} apart",
                got="an axis whose size is not known",
                hint="give a pair of numbers per axis, or 'VALID'",
            )
        before = total // 2 if name == "SAME" else total - total // 2
        pads.append((before, total - before))
    return pads


def conv_dimension_numbers(
    lhs_shape: Sequence[int], rhs_shape: Sequence[int], dimension_numbers: Any = None
) -> ConvDimensionNumbers:
    """The axes that strings like ("NHWC", "HWIO", "NHWC") name; of None those of ("NCHW", "OIHW", "NCHW").

    >>> conv_dimension_numbers((1, 5, 2), (3, 2, 4), ("NWC", "WIO", "NWC")).rhs_spec
    (2, 1, 0)
    """
    if hasattr(dimension_numbers, "lhs_spec"):
        return ConvDimensionNumbers(*(tuple(spec) for spec in dimension_numbers))
    rank = len(lhs_shape)
    if dimension_numbers is None:
        return ConvDimensionNumbers(*[tuple(range(rank))] * 3)
    found = []
    lhs, rhs, out = dimension_numbers
    for spec, (first, second) in ((lhs, "NC"), (rhs, "OI"), (out, "NC")):
        spatial = [c for c in rhs if c not in "OI"]
        if len(spec) != rank or {*spec} != {first, second, *spatial}:
            raise ShapeError(
                "lax.conv_dimension_numbers: the letters do not name the axes",
                expected=f"{rank} letters: {first}, {second} and those of the window's axes",
                got=str(dimension_numbers),
                hint="such as ('NHWC', 'HWIO', 'NHWC') for images",
            )
        found.append(tuple(spec.index(c) for c in (first, second, *spatial)))
    return ConvDimensionNumbers(*found)


def conv_general_dilated(
    lhs: Any,
    rhs: Any,
    window_strides: Sequence[int],
    padding: Any,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    precision: Any = None,
    preferred_element_type: Any = None,
    *,
    out_sharding: Any = None,
) -> Any:
    """A convolution of any number of axes with strides, padding and dilation; as `jax.lax.conv_general_dilated`.

    Args:
        lhs: the input, by default [batch, features, *sizes].
        rhs: the kernels, by default [features out, features in, *window].
        window_strides: along each axis of the window.
        padding: "SAME", "SAME_LOWER", "VALID", or what to add before and after each axis; may be negative.
        lhs_dilation, rhs_dilation: the distance of neighbours in the input and in the kernels, 1 if not given.
        dimension_numbers: which axes are which: strings like ("NHWC", "HWIO", "NHWC"), or a `ConvDimensionNumbers`.
        feature_group_count: groups of features that do not meet.
        batch_group_count: groups of the batch, each with kernels of its own.

    >>> conv_general_dilated(np.ones((1, 1, 4)), np.ones((1, 1, 3)), (1,), "VALID")
    array([[[3., 3.]]])
    """
    lhs, rhs = cnp.asarray(lhs), cnp.asarray(rhs)
    numbers = conv_dimension_numbers(lhs.shape, rhs.shape, dimension_numbers)
    x, w = cnp.transpose(lhs, numbers.lhs_spec), cnp.transpose(rhs, numbers.rhs_spec)
    axes = x.ndim - 2
    ones = (1,) * axes
    window_strides, spread, apart = (
        _steps("lax.conv_general_dilated", what, v or ones)
        for what, v in (("a stride", window_strides), ("a dilation", lhs_dilation), ("a dilation", rhs_dilation))
    )
    groups = feature_group_count * batch_group_count
    if x.shape[1] != w.shape[1] * feature_group_count or w.shape[0] % groups or x.shape[0] % batch_group_count:
        raise ShapeError(
            "lax.conv_general_dilated: the features do not fit",
            expected="features in: those of a kernel times the groups; features out: a multiple of the groups",
            got=f"input {tuple(lhs.shape)}, kernels {tuple(rhs.shape)}, {groups} groups",
            hint="check dimension_numbers: without them features are axis 1, those of kernels axes 0 and 1",
        )
    window = tuple((k - 1) * d + 1 for k, d in zip(w.shape[2:], apart, strict=True))
    if isinstance(padding, str) or hasattr(padding, "name"):
        sizes = [(n - 1) * d + 1 for n, d in zip(x.shape[2:], spread, strict=True)]
        padding = padtype_to_pads(sizes, window, window_strides, padding)
    config = [(0, 0, 0), (0, 0, 0), *((low, high, d - 1) for (low, high), d in zip(padding, spread, strict=True))]
    x = pad(x, x.dtype.type(0), config)
    counts = [window_count(n, k, s) for n, k, s in zip(x.shape[2:], window, window_strides, strict=True)]
    # [group, batch, features, *sizes] and [group, features out, features, *window].
    n, features, per_group = x.shape[0], x.shape[1], w.shape[0] // groups
    if batch_group_count > 1:
        x = cnp.reshape(x, (groups, n // groups, features, *x.shape[2:]))
    else:
        x = cnp.reshape(x, (n, groups, features // groups, *x.shape[2:]))
        x = cnp.moveaxis(x, 1, 0)
    rows = _windows(x, counts, w.shape[2:], window_strides, apart)
    depth = w.shape[1] * math.prod(w.shape[2:])
    behind = (*range(2, 2 + axes), 1)
    kernels = cnp.reshape(cnp.transpose(w, (0, *behind)), (groups, per_group, depth))
    matrix = cnp.reshape(rows, (groups, x.shape[1] * math.prod(counts), depth))
    if groups == 1:
        found = cnp.matmul(matrix[0], cnp.matrix_transpose(kernels[0]))
    else:
        found = cnp.matmul(matrix, cnp.matrix_transpose(kernels))
    found = cnp.reshape(found, (groups, x.shape[1], *counts, per_group))
    found = cnp.transpose(found, (1, 0, 2 + axes, *range(2, 2 + axes)))
    found = cnp.reshape(found, (x.shape[1], groups * per_group, *counts))
    back = [0] * (axes + 2)
    for place, axis in enumerate(numbers.out_spec):
        back[axis] = place
    found = cnp.transpose(found, back)
    return found if preferred_element_type is None else found.astype(preferred_element_type)


def _windows(x: Any, counts: Sequence[int], window: Sequence[int], strides: Sequence[int], apart: Sequence[int]) -> Any:
    """Windows of x[group, batch, features, *sizes]: [group, batch, *counts, *window, features]."""
    x = cnp.moveaxis(x, 2, -1)
    axes = len(counts)
    if math.prod(window) <= _SLICES:
        parts = []
        for at in product(*map(range, window)):
            starts = [k * d for k, d in zip(at, apart, strict=True)]
            cuts = [np.s_[a : a + reach(n, s) : s] for a, n, s in zip(starts, counts, strides, strict=True)]
            parts.append(x[(np.s_[:], np.s_[:], *cuts)])
        return parts[0] if len(parts) == 1 else cnp.stack(parts, axis=2 + axes)
    for i in range(axes):
        places = cnp.arange(counts[i])[:, None] * strides[i] + np.arange(window[i]) * apart[i]
        # The windows' axes lie behind those of the counts, in their order.
        x = cnp.moveaxis(cnp.take(x, places, axis=2 + i), 3 + i, 2 + axes + i)
    return x


def conv(lhs: Any, rhs: Any, window_strides: Sequence[int], padding: Any, **settings: Any) -> Any:
    """As `conv_general_dilated`, of [batch, features, *sizes] with [features out, features in, *window].

    >>> conv(np.ones((1, 1, 4)), np.ones((1, 1, 2)), (2,), "VALID")
    array([[[2., 2.]]])
    """
    return conv_general_dilated(lhs, rhs, window_strides, padding, **settings)


def conv_with_general_padding(
    lhs: Any,
    rhs: Any,
    window_strides: Sequence[int],
    padding: Any,
    lhs_dilation: Sequence[int] | None,
    rhs_dilation: Sequence[int] | None,
    **settings: Any,
) -> Any:
    """As `conv`, with dilation.

    >>> x, kernel = np.ones((1, 1, 4)), np.ones((1, 1, 2))
    >>> conv_with_general_padding(x, kernel, (1,), [(0, 0)], None, (2,))
    array([[[2., 2.]]])
    """
    return conv_general_dilated(lhs, rhs, window_strides, padding, lhs_dilation, rhs_dilation, **settings)


def conv_transpose(
    lhs: Any,
    rhs: Any,
    strides: Sequence[int],
    padding: Any,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    transpose_kernel: bool = False,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Any:
    """A convolution with strides in the result: each input adds a kernel to it; as `jax.lax.conv_transpose`.

    >>> conv_transpose(np.ones((1, 2, 1)), np.ones((2, 1, 1)), (2,), "VALID")[0, :, 0]
    array([1., 1., 1., 1.])
    """
    lhs, rhs = cnp.asarray(lhs), cnp.asarray(rhs)
    axes = lhs.ndim - 2
    if dimension_numbers is None:
        letters = "DHW"[3 - axes :] if axes <= 3 else "".join(map(str, range(axes)))
        dimension_numbers = (f"N{letters}C", f"{letters}IO", f"N{letters}C")
    numbers = conv_dimension_numbers(lhs.shape, rhs.shape, dimension_numbers)
    apart = rhs_dilation or (1,) * axes
    sizes = [(rhs.shape[a] - 1) * d + 1 for a, d in zip(numbers.rhs_spec[2:], apart, strict=True)]
    if isinstance(padding, str):
        if padding.upper() not in ("SAME", "VALID"):
            raise UserInputError(
                "lax.conv_transpose: no such padding",
                expected="'SAME', 'VALID' or a pair of numbers per axis",
                got=repr(padding),
            )
        pads = []
        for k, s in zip(sizes, strides, strict=True):
            same = padding.upper() == "SAME"
            total = k + s - 2 if same else k + s - 2 + max(k - s, 0)
            before = (k - 1 if s > k - 1 else -(-total // 2)) if same else k - 1
            pads.append((before, total - before))
        padding = pads
    if transpose_kernel:
        rhs = cnp.flip(rhs, numbers.rhs_spec[2:])
        rhs = cnp.swapaxes(rhs, numbers.rhs_spec[0], numbers.rhs_spec[1])
    return conv_general_dilated(
        lhs, rhs, (1,) * axes, padding, strides, rhs_dilation, numbers, preferred_element_type=preferred_element_type
    )


publish(__name__, "reach", "window_count")
