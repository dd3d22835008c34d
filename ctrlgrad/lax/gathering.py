"""Reads of windows at starts that may be traced: `jax.lax.gather`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.lax import promises
from ctrlgrad.lax.numbers import GatherDimensionNumbers
from ctrlgrad.lax.windows import find_windows, turned


def _fill(dtype: Any, value: Any) -> Any:
    """JAX's value of what lies outside: NaN, the least signed or the largest unsigned integer, or true."""
    if value is not None:
        return cnp.asarray(value).astype(dtype)
    if dtype_kind(dtype) in "fc":
        return dtype.type(np.nan)
    if dtype_kind(dtype) == "b":
        return np.True_
    return dtype.type(np.iinfo(dtype).min if dtype_kind(dtype) == "i" else np.iinfo(dtype).max)


def gather(
    operand: Any,
    start_indices: Any,
    dimension_numbers: GatherDimensionNumbers,
    slice_sizes: Sequence[int],
    *,
    unique_indices: bool = False,
    indices_are_sorted: bool = False,
    mode: Any = None,
    fill_value: Any = None,
) -> Any:
    """Slices of `slice_sizes` at starts that may be traced; as `jax.lax.gather`.

    Args:
        operand: the array.
        start_indices: integers [..., n], a start per row of the last axis.
        dimension_numbers: a `GatherDimensionNumbers`, or JAX's.
        slice_sizes: along each axis of the operand.
        mode: for slices that do not lie inside: a `GatherScatterMode` or its name, "fill" if not given.
        fill_value: what "fill" gives; NaN, the least signed or the largest unsigned integer, or true if not given.

    >>> rows = GatherDimensionNumbers(offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,))
    >>> gather(np.arange(6).reshape(3, 2), np.array([[2], [0]]), rows, (1, 2))
    array([[4, 5],
           [0, 1]])
    """
    x, starts, numbers = cnp.asarray(operand), cnp.asarray(start_indices), dimension_numbers
    common = list(zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True))
    dropped, components = numbers.collapsed_slice_dims, numbers.start_index_map
    windows = find_windows("gather", x.shape, starts, slice_sizes, components, common, dropped, mode)
    rank = len(windows.batch)
    part, order = x[windows.at(windows.starts)], windows.order(rank)
    alone = [i for i, axis in enumerate(order) if axis in dropped]
    part = cnp.squeeze(part, tuple(alone)) if alone else part
    order = [axis for axis in order if axis not in dropped]
    if not windows.starts and rank:
        part = cnp.broadcast_to(part, (*windows.batch, *part.shape))
        order = [*(f"b{i}" for i in range(rank)), *order]
    offsets = set(numbers.offset_dims)
    of_windows, of_starts = iter(windows.kept), iter(range(rank))
    wanted = [next(of_windows) if a in offsets else f"b{next(of_starts)}" for a in range(len(order))]
    part = turned(part, [order.index(axis) for axis in wanted])
    if windows.inside is None:
        return part
    inside = cnp.reshape(windows.inside, _spread(windows.batch, [a not in offsets for a in range(len(order))]))
    if windows.promised:
        return promises.read(part, inside) if dtype_kind(x.dtype) in "fc" else part
    return cnp.where(inside, part, _fill(x.dtype, fill_value))


def _spread(sizes: Sequence[Any], takes: Sequence[bool]) -> list[Any]:
    """The sizes at the axes that take one, else 1."""
    rest = iter(sizes)
    return [next(rest) if take else 1 for take in takes]


__all__ = ["gather"]
