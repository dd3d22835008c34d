"""Work that threads share: kernels, cumulative operations and transforms, cut along an axis into parts.

How a nest is cut follows from its sizes alone, so results have the same bits whatever the number of threads. The axis
is the one that gives most parts: one along which the parts write to different elements, the outermost one of several;
or, where the nest reduces along the outermost axis, that one. Then each part has a result of its own, and these are
combined in their order: a position of an extreme with the extreme that the part found there.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import numpy as np

from ctrlgrad import threads
from ctrlgrad.plan.axes import Axis, axes_of
from ctrlgrad.plan.model import Block, Cumulate, Kernel, Product, Share, Transform, Write
from ctrlgrad.plan.reductions import EXTREMES
from ctrlgrad.plan.sizes import ONE, ZERO, Size, product

# Units of work (see `ctrlgrad.threads`) of a call of an elementary function, and of a byte that is read or written.
CALL, BYTE = 20, 1
# Parts of the innermost axis begin at multiples of this many elements: then only the last one has a tail. The first
# number is for nests of one axis, the second one for several.
ALIGNMENT, NARROW = 256, 64
# Transforms of a part are a multiple of this many: of the lanes of each vector.
LANES = 16
# The most results of parts that are combined, and the bytes of all of a nest, which lie on the stack.
MOST_RESULTS, RESULT_BYTES = 64, 64 << 10
# The results of a part begin at a multiple of so many bytes, a line of the cache or two: threads that add to results in
# memory would wait for each other in every turn. Parts that add to one array have so many lines of it at least: they
# meet at the ends, and short pieces of rows are read slowly.
LINE, LINES = 128, 16


def shares_of(
    block: Block, tiled: Collection[Kernel], is_loop: bool, is_top: bool
) -> dict[Kernel | Cumulate | Transform, Share]:
    """The shares of the steps of a block, which is the body of a loop, outside of all loops, or neither.

    Kernels that run tile by tile stay whole, and inside of loops those whose size only the run knows: to look at it
    costs as much as a short kernel.
    """
    shares: dict[Kernel | Cumulate | Transform, Share] = {}
    are_awake = is_loop and any(
        work_of_product(step) >= threads.WORK_TO_SHARE for step in block.steps if isinstance(step, Product)
    )
    for step in block.steps:
        if isinstance(step, Cumulate):
            cut = share_of_cumulate(step)
        elif isinstance(step, Transform):
            cut = share_of_transform(step)
        elif isinstance(step, Kernel) and step not in tiled:
            cut = share_of(step, threads.parts_of(work_of(step), are_awake))
            if is_top and not product(step.space).is_known:
                cut = share_at_run_time(step)
        else:
            continue
        if cut is not None:
            shares[step] = cut
    return shares


def work_of(kernel: Kernel) -> int:
    """Units of work of a nest; 0 where its size is not known."""
    points = product(kernel.space)
    return points.factor * work_of_a_point(kernel) if points.is_known else 0


def work_of_a_point(kernel: Kernel) -> int:
    """Units of work of a nest at each point: its instructions, or the bytes that it moves."""
    each = sum(CALL if i.op == "call" else 1 for i in kernel.expression.instructions) + len(kernel.writes)
    views = [*(o.view for o in kernel.operands), *(w.view for w in kernel.writes)]
    return max(each, sum(BYTE * v.dtype.itemsize for v in views if v.strides and ZERO not in v.strides))


def work_of_product(step: Product) -> int:
    """Units of work of one of a batch of products; 0 where its size is not known."""
    work = product((*step.a.shape[-2:], step.b.shape[-1]))
    return work.factor if work.is_known else 0


def share_of(kernel: Kernel, parts: int) -> Share | None:
    """The cut that gives most parts, at most so many; None where parts would meet."""
    found = []
    for cut, size, step in _cuts(kernel, parts) if parts > 1 else ():
        unit = math.ceil(max(size.factor / cut.parts, cut.unit) / step) * step
        found.append(replace(cut, unit=unit, parts=math.ceil(size.factor / unit)))
    best = max(found, key=lambda share: (share.parts, not share.has_results), default=None)
    return best if best is not None and best.parts > 1 else None


def share_at_run_time(kernel: Kernel) -> Share | None:
    """The outermost cut that may give several parts of a kernel whose size only the run knows; positions of extremes
    are not combined then."""
    for cut, size, _ in _cuts(kernel, threads.MOST_PARTS):
        is_short = size.is_known and size.factor <= cut.unit
        if cut.parts > 1 and not is_short and not (cut.has_results and any(w.how in EXTREMES for w in kernel.writes)):
            return replace(cut, at_run_time=True)
    return None


def _cuts(kernel: Kernel, parts: int) -> Iterator[tuple[Share, Size, int]]:
    """Ways to cut a kernel into at most so many parts of at least `unit` positions, the outermost axis first; with the
    size along each, and the number of which the positions of a part are a multiple."""
    axes = axes_of(kernel, [o.view for o in kernel.operands] + [w.view for w in kernel.writes])
    apart = set(shared_axes(kernel))
    for depth, axis in enumerate(axes):
        most, has_results = parts, not apart.issuperset(axis.of)
        if has_results:
            reduced = [write for write in kernel.writes if all(write.view.strides[a] == ZERO for a in axis.of)]
            is_whole = all(_has_parts(w, axes) for w in reduced) and not any(w.scattered for w in kernel.writes)
            if depth or not reduced or not is_whole or not all(w.view.array.count.is_known for w in reduced):
                continue
            nbytes = sum(map(_result_bytes, reduced))
            most = min(parts, MOST_RESULTS, RESULT_BYTES // max(nbytes, 1))
        step = 1 if depth < len(axes) - 1 else ALIGNMENT if len(axes) == 1 else NARROW
        least = math.ceil(_least_unit(kernel, axes, depth) / step) * step
        yield Share(axis.of, least, max(most, 1), has_results), axis.size, step


def _least_unit(kernel: Kernel, axes: Sequence[Axis], depth: int) -> int:
    """Least number of positions of a part along an axis, for nests that come back to its results again and again."""
    least = 1
    for k, write in enumerate(kernel.writes, len(kernel.operands)):
        stride = axes[depth].strides[k]
        comes_back = write.how != "store" and any(axis.strides[k] == ZERO for axis in axes[:depth])
        if comes_back and not write.scattered and stride.is_known:
            least = max(least, math.ceil(LINES * LINE / max(abs(stride.factor) * write.view.dtype.itemsize, 1)))
    return least


def _result_bytes(write: Write) -> int:
    """Bytes on the stack for the results of a part; positions of extremes lie beside the extremes."""
    dtype = write.view.dtype
    nbytes = pitch(write.view.array.count.factor, dtype) * dtype.itemsize
    return 2 * nbytes if write.how in EXTREMES else nbytes


def pitch(count: int, dtype: np.dtype) -> int:
    """Number of elements from the results of a part to those of the next one, for so many results."""
    return math.ceil(count * dtype.itemsize / LINE) * LINE // dtype.itemsize


def work_of_cumulate(step: Cumulate) -> int:
    """Units of work of a cumulative operation: it may read its elements twice."""
    count = product(step.view.shape)
    return count.factor * 3 * BYTE * step.view.dtype.itemsize if count.is_known else 0


def share_of_cumulate(step: Cumulate) -> Share | None:
    """The cut that gives most parts; along positions only where parts of rows or columns are fewer."""
    parts, found = threads.parts_of(work_of_cumulate(step)), []
    if parts == 1:
        return None
    rows, positions, columns = (size.factor for size in step.view.shape)
    most = min(parts, MOST_RESULTS, RESULT_BYTES // (rows * columns * step.total.itemsize))
    for axis, size, limit, unit in ((0, rows, parts, 1), (2, columns, parts, NARROW), (1, positions, most, ALIGNMENT)):
        if limit > 0:
            of_a_part = math.ceil(math.ceil(size / limit) / unit) * unit
            found.append(Share((axis,), of_a_part, math.ceil(size / of_a_part), axis == 1))
    best = max(found, key=lambda share: share.parts)
    return best if best.parts > 1 else None


def work_of_transform(step: Transform) -> int:
    """Units of work of transforms: each pass reads and writes their numbers."""
    rows, _, columns = step.view.shape
    count = rows * columns
    return count.factor * step.n * step.n.bit_length() * 2 * step.result.dtype.itemsize if count.is_known else 0


def share_of_transform(step: Transform) -> Share | None:
    """Parts of whole vectors of transforms, where there are enough of these."""
    parts, rows, columns = threads.parts_of(work_of_transform(step)), step.view.shape[0], step.view.shape[2]
    if parts == 1:
        return None
    count = rows.factor * columns.factor
    unit = math.ceil(count / parts)
    unit = math.ceil(unit / LANES) * LANES if unit > LANES else unit
    cut = Share((0, 2), unit, math.ceil(count / unit))
    return cut if cut.parts > 1 else None


def _has_parts(write: Write, axes: Sequence[Axis]) -> bool:
    """Return true if a reduction's results of several parts become one: by its own operation, or, of positions in a
    single row, with the extremes that the parts found there."""
    is_own = write.how != "store" and not write.scattered and write.base is None
    return is_own and (write.how not in EXTREMES or len(axes) == 1)


def shared_axes(kernel: Kernel) -> tuple[int, ...]:
    """The axes along which no two points of a kernel write the same element.

    Placement lets a kernel write over what it reads only where each element is read by the point that writes it, so
    parts along these axes need nothing of each other. A reduction is not shared along what it reduces. Elements that
    are scattered may meet along the axes that their indices depend on, where the last one is meant to stay; along the
    other axes they differ by their places in the rows that the indices choose.
    """
    indices = [output for write in kernel.writes for output in write.indices]
    return tuple(
        axis
        for axis, size in enumerate(kernel.space)
        if size != ONE
        and all(write.view.strides[axis] != ZERO for write in kernel.writes)
        and not (indices and _varies(kernel, axis, indices))
    )


def _varies(kernel: Kernel, axis: int, outputs: Sequence[int]) -> bool:
    """Return true if one of some outputs of a kernel's expression depends on the position along an axis."""
    found: list[bool] = []
    for instruction in kernel.expression.instructions:
        varies = any(found[a] for a in instruction.args)
        if instruction.op == "load":
            varies |= kernel.operands[instruction.value[0]].view.strides[axis] != ZERO
        elif instruction.op == "index":
            varies |= instruction.value == axis
        found.append(varies)
    return any(found[kernel.expression.outputs[output]] for output in outputs)
