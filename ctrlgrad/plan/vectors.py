"""Vector forms of kernels (`Plan.vectors`): lanes, sums in registers, and short rows that are taken several at a time.

In: a kernel, and the bytes of a vector register. Out: `Vectors`, which a backend prints.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Literal

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.plan.axes import (
    Axis,
    addresses_stand_still,
    axes_of,
    has_calls,
    has_parts,
    is_by_lane,
    lanes_along,
    lanes_of,
    uniform_outputs,
    views_of,
)
from ctrlgrad.plan.model import FlatRows, Kernel, RowsAcross, ShortRows, Vectors
from ctrlgrad.plan.reductions import EXTREMES
from ctrlgrad.plan.sizes import ONE, ZERO, product

# A nest of at most so many points, and of so many instructions for all of them, is written without loops: then LLVM
# sees which element is meant, and keeps small arrays in registers.
MOST_POINTS, MOST_INSTRUCTIONS = 16, 256

# The most weight of a kernel in one function, in instructions; the weight of a read or a write with its address.
# LLVM's time grows with the square of a function's text.
MOST_IN_ONE, MEMORY_WEIGHT = 1000, 4

# Of at most so few points each has registers of its own: elements of small arrays come and go one by one more often
# than not.
MOST_SINGLE = 8
# Vectors in a turn of a reduction.
UNROLL = 4
# A kernel of at most so many instructions takes as many vectors a turn for at least so many elements.
MOST_OF_A_TURN, MANY = 16, 512

# Rows end to end: vectors that a row has at most, and instructions of all vectors that are written together.
FLAT_VECTORS, FLAT_INSTRUCTIONS = 4, 256
# Rows side by side: vectors of rows that are taken together.
TOGETHER = 4
# Rows that are taken together where nothing else says how many; at most, instructions for an element and of all rows
# together, and vectors of a row.
ROWS, MOST_OF_AN_ELEMENT, MOST_TOGETHER, MOST_VECTORS = 4, 16, 96, 8


def is_small(kernel: Kernel) -> bool:
    """Return true for a nest without loops.

    A space without points may have a long axis all the same: so each axis is short too.
    """
    points = product(kernel.space)
    work = points.factor * len(kernel.expression.instructions)
    is_short = points.is_known and all(size.factor <= MOST_POINTS for size in (points, *kernel.space))
    return is_short and work <= MOST_INSTRUCTIONS


def is_long(kernel: Kernel) -> bool:
    """Return true for a kernel whose text would be too long for one function."""
    views = len(kernel.operands) + len(kernel.writes)
    return len(kernel.expression.instructions) + MEMORY_WEIGHT * views > MOST_IN_ONE


def vectors_of(kernel: Kernel, nbytes: int, is_tiled: bool) -> Vectors:
    """Vector form of a kernel, for registers of `nbytes` bytes."""
    views = views_of(kernel)
    axes, lanes = axes_of(kernel, views), lanes_of(kernel, views, nbytes)
    registers, in_memory = _sums(kernel, axes)
    style: Literal["points", "sections", "loops"] = "loops"
    style = "sections" if is_long(kernel) else "points" if is_small(kernel) else style
    if not axes or (style == "points" and product(kernel.space).factor <= MOST_SINGLE):
        return Vectors(nbytes, style, lanes, 1, 1, False, registers, in_memory)
    inner, uniform = axes[-1], uniform_outputs(kernel)
    width, is_apart = lanes_along(kernel, inner, uniform, registers, lanes), is_by_lane(kernel, inner, uniform)
    # The processor has masks for elements of four bytes or eight. Writing a few elements one by one is faster in short
    # kernels.
    can_mask = nbytes > 16 and all(view.dtype.itemsize >= 4 for view in views)
    is_short = len(kernel.expression.instructions) <= MOST_OF_A_TURN and not has_calls(kernel)
    masks = can_mask and not is_apart and (not is_short or len(registers) == len(kernel.writes))
    if is_tiled:
        is_unrolled = is_short
    elif registers:
        is_unrolled = not inner.size.is_known or inner.size.factor >= 2 * UNROLL * width
    else:
        is_unrolled = is_short and inner.size.is_known and inner.size.factor >= MANY
    unroll = UNROLL if is_unrolled and style != "sections" else 1
    rows: list[FlatRows | RowsAcross | ShortRows | None] = []
    if len(axes) > 1 and style != "points":
        rows = [flat_rows(kernel, axes[-2], inner, lanes)]
        # Only a kernel that does nothing but reduce rows, each to a result, takes rows in another way.
        only_reduces = all(registers.get(k) == len(axes) - 1 for k in range(len(kernel.writes)))
        if rows == [None] and only_reduces and not in_memory:
            of_a_row = 1 if is_apart else width
            rows += [rows_across(kernel, axes, of_a_row, lanes, uniform)]
            rows += [short_rows(kernel, axes[-2], inner, of_a_row, nbytes, can_mask)]
    return Vectors(nbytes, style, lanes, width, unroll, masks, registers, in_memory, tuple(filter(None, rows)))


def _sums(kernel: Kernel, axes: Sequence[Axis]) -> tuple[dict[int, int], frozenset[int]]:
    """The reductions that stay in registers, by the depth of the nest from which on their places stand still, and those
    that add to memory, once they have left registers if they were there."""
    registers: dict[int, int] = {}
    in_memory = set()
    for k, write in enumerate(kernel.writes):
        if write.how == "store" or write.scattered:
            continue
        varies = [axis.strides[len(kernel.operands) + k] != ZERO for axis in axes]
        depth = max((number for number, moves in enumerate(varies, 1) if moves), default=0)
        if write.base is None and depth < len(axes):
            registers[k] = depth
        if k not in registers or not all(varies[:depth]):
            in_memory.add(k)
    return registers, frozenset(in_memory)


def flat_rows(kernel: Kernel, outer: Axis, inner: Axis, width: int) -> FlatRows | None:
    """Form in which rows are taken end to end; None where that is impossible or no better than row by row.

    All that is written must lie end to end. So must what is read, unless it is the same along one of the axes.
    """
    if width == 1 or not inner.size.is_known or inner.size == ZERO or kernel.checks or has_parts(kernel):
        return None
    columns = inner.size.factor
    form = FlatRows(width // math.gcd(width, columns), columns, width)
    if columns > FLAT_VECTORS * width or (outer.size.is_known and outer.size.factor < 2 * form.rows):
        return None
    if form.vectors * len(kernel.expression.instructions) > FLAT_INSTRUCTIONS:
        return None
    if outer.index is not None or inner.index is not None or any(o.gathered for o in kernel.operands):
        return None
    if any(w.how != "store" or w.scattered for w in kernel.writes):
        return None
    strides = list(zip(outer.strides, inner.strides, strict=True))
    if form.rows == 1 and (ZERO, ONE) not in strides and all(stride in (ZERO, ONE) for stride in inner.strides):
        return None
    lies_flat = [pair == (inner.size, ONE) for pair in strides]
    count = len(kernel.operands)
    reads = zip(lies_flat[:count], strides[:count], strict=True)
    return form if all(lies_flat[count:]) and all(flat or ZERO in pair for flat, pair in reads) else None


def rows_across(
    kernel: Kernel, axes: Sequence[Axis], row_width: int, width: int, uniform: Collection[int]
) -> RowsAcross | None:
    """Form in which the rows of the last two axes are taken side by side. None where that is impossible, or where
    vectors along a row (of `row_width` elements) are as good."""
    outer, inner = axes[-2:]
    reads, rows = kernel.operands, outer.size.factor if outer.size.is_known else None
    if (
        has_parts(kernel)
        or kernel.checks
        or width == 1
        or inner.size == ZERO
        or not addresses_stand_still(kernel, outer, uniform)
    ):
        return None
    if any(outer.strides[len(reads) + k] != ONE for k in range(len(kernel.writes))) or (rows or width) < width:
        return None
    by_columns = any(operand.columns is not None for operand in reads)
    if any(s not in (ZERO, ONE) and o.columns is None for o, s in zip(reads, outer.strides, strict=False)):
        return None
    if not by_columns and (row_width > 1 or ONE not in outer.strides[: len(reads)]):
        return None
    together = max(TOGETHER // len(kernel.writes), 1)
    return RowsAcross(width, 1 if rows is not None and rows < together * width else together, by_columns)


def short_rows(
    kernel: Kernel, outer: Axis, inner: Axis, width: int, vector_bytes: int, has_masks: bool
) -> ShortRows | None:
    """Form in which short rows are reduced together; None where rows are long or have many instructions."""
    instructions = kernel.expression.instructions
    if kernel.checks or outer.index is not None or len(instructions) > MOST_OF_AN_ELEMENT or inner.size == ZERO:
        return None
    if any(i.op == "call" for i in instructions):
        return None
    if width > 1 and inner.size.is_known and inner.size.factor >= MOST_VECTORS * width:
        return None
    # Half of the registers are for sums.
    sums = 16 if vector_bytes == 64 else 8
    most = min(sums // len(kernel.writes), MOST_TOGETHER // max(len(instructions), 1), max(width, ROWS))
    if outer.size.is_known:
        most = min(most, outer.size.factor)
    rows = 1 << max(most, 1).bit_length() - 1
    has_numbers = all(dtype_kind(w.view.dtype) != "b" and w.how not in EXTREMES for w in kernel.writes)
    is_led = width > 1 and has_numbers and (inner.size.is_known or has_masks)
    return ShortRows(rows, width, MOST_VECTORS if is_led else MOST_VECTORS // 2, is_led)
