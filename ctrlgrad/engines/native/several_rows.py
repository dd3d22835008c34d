"""Short rows of a kernel taken several at a time: end to end, side by side, or a few together.

Where there are too few rows for it, or they turn out to be long, they are left for the nest to take one by one.
"""

from __future__ import annotations

from collections.abc import Sequence

from ctrlgrad.engines.native import flat_rows, rows_across, short_rows
from ctrlgrad.engines.native.axes import Axis
from ctrlgrad.engines.native.nest import Nest


def take_several(nest: Nest, axes: Sequence[Axis], offsets: list[str], start: str, end: str) -> str:
    """Write what the rows from start to end do, as far as they are taken several at a time; where these end."""
    kernel, (outer, inner) = nest.kernel, axes[-2:]
    flat = flat_rows.flat_rows(kernel, outer, inner, nest.whole_width)
    if flat is not None:
        return flat_rows.take_end_to_end(nest, flat, axes, offsets, start, end)
    # Go on only if the kernel does nothing but reduce rows, each to a result.
    if nest.in_memory or any(nest.still.get(k) != len(axes) - 1 for k in range(len(kernel.writes))):
        return start
    width = nest.width_side_by_side(inner)
    across = rows_across.rows_across(kernel, axes, width, nest.whole_width, nest.uniform)
    if across is not None:
        does = rows_across.are_across(nest, across, start, end)
        stop = end if does == "true" else nest.w.op(f"select i1 {does}, i64 {end}, i64 {start}")
        rows_across.reduce_across(nest, across, axes, offsets, start, stop)
        start = stop
    short = short_rows.short_rows(kernel, outer, inner, width, nest.vector_bytes, nest.can_mask)
    if short is not None:
        start = short_rows.reduce_rows(nest, short, axes, offsets, start, end)
    return start
