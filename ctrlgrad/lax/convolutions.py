"""Convolutions by the names of `jax.lax`: the windows of the input as the rows of a matrix, times the kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad.errors import ShapeError, UserInputError
from ctrlgrad.lax.numbers import ConvDimensionNumbers
from ctrlgrad.lax.shapes import pad
from ctrlgrad.lax.window_sizes import reach, window_count
from ctrlgrad.source import here

# Up to so many positions of a window, each is a slice; of more, the windows are read by arrays of indices.
_SLICES = 32


def padtype_to_pads(
    in_shape: Sequence[int], window_shape: Sequence[int], window_strides: Sequence[int], padding: Any
) -> list[tuple[int, int]]:
    """How much "SAME", "SAME_LOWER" or "VALID" pads before and after each axis.

    >>> padtype_to_pads((5,), (2,), (1,), "SAME")
    [(0, 1)]
    """
    name = str(getattr(padding, "name", padding)).upper()
    if name == "VALID":
        return [(0, 0)] * len(in_shape)
    if name not in ("SAME", "SAME_LOWER"):
        raise UserInputError(
            "lax: no such padding",
            source=here(),
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
            raise ShapeError(
                f"lax: how much {name!r} pads depends on a size that only a run knows",
                source=here(),
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
                source=here(),
                expected=f"{rank} letters: {first}, {second} and those of the window's axes",
                got=str(dimension_numbers),
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
    spread, apart = tuple(lhs_dilation or ones), tuple(rhs_dilation or ones)
    groups = feature_group_count * batch_group_count
    if x.shape[1] != w.shape[1] * feature_group_count or w.shape[0] % groups or x.shape[0] % batch_group_count:
        raise ShapeError(
            "lax.conv_general_dilated: the features do not fit",
            source=here(),
            expected="features in: those of a kernel times the groups; features out: a multiple of the groups",
            got=f"input {tuple(lhs.shape)}, kernels {tuple(rhs.shape)}, {groups} groups",
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
    """Of [group, batch, features, *sizes] the windows, [group, batch, *counts, *window, features]."""
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

    >>> conv_with_general_padding(np.ones((1, 1, 4)), np.ones((1, 1, 2)), (1,), [(0, 0)], None, (2,))
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
                source=here(),
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


__all__ = [
    "conv",
    "conv_dimension_numbers",
    "conv_general_dilated",
    "conv_transpose",
    "conv_with_general_padding",
    "padtype_to_pads",
]
