"""Check of decisions about execution: kernels tile by tile meet shared elements in the same order as one by one, lanes
of vectors meet nowhere, and what lies on the machine's stack is small."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping
from typing import NoReturn

from ctrlgrad.plan.axes import axes_of, views_of
from ctrlgrad.plan.effects import binds, defines, names_of, walk
from ctrlgrad.plan.model import Array, FlatRows, Loop, Plan, RowsAcross, Tiles
from ctrlgrad.plan.places import Place
from ctrlgrad.plan.sizes import ONE, ZERO, Size, Sizes
from ctrlgrad.records import record


def check_tiles(
    tiles: Tiles, places: Mapping[Array, Place], fail: Callable[[str], NoReturn], loop: Loop | None = None
) -> None:
    """Check the tiles of a group of kernels, or of a loop.

    Sizes are drawn. Tiles of one point are the hardest: a point of a kernel then runs at its number and the lag.
    """
    for kernel in tiles.kernels:
        if any(o.gathered for o in kernel.operands) or any(w.scattered or w.how != "store" for w in kernel.writes):
            fail("a kernel that runs tile by tile gathers, scatters or reduces")
    inside = [loop, *walk(loop.condition), *walk(loop.body)] if loop is not None else []
    own = {value.name for step in inside for value in (*defines(step), *binds(step))}
    accesses = list(_accesses(tiles, places))
    names = sorted(names_of(size for access in accesses for size in (*access.offset, *access.lag)))
    draw = random.Random(0)
    for sizes in ({name: draw.choice((0, 1, 2, 5, 1000)) for name in names} for _ in range(8)):

        def number(terms: Sizes, sizes: dict[str, int] = sizes) -> int:
            return sum(size.factor * math.prod(sizes[name] for name in size.names) for size in terms)

        for a, b in itertools.combinations_with_replacement(accesses, 2):
            if a.place != b.place or not (a.writes or b.writes) or (loop is None and a.kernel == b.kernel):
                continue
            apart = number(b.offset) - number(a.offset)
            is_late = number(b.lag) - number(a.lag) >= apart if loop is None else apart == 0
            moves = a.moves and b.moves and own.isdisjoint(names_of((*a.offset, *b.offset)))
            if not (is_late and moves and a.nbytes == b.nbytes):
                fail(f"tile by tile, kernel {b.kernel} of a group meets elements in {a.place} too early")


@record
class _Access:
    """Access of a kernel: its point i meets element i + offset, if the access `moves`."""

    kernel: int
    place: Place
    offset: Sizes
    lag: Sizes
    nbytes: int
    moves: bool
    writes: bool


def _accesses(tiles: Tiles, places: Mapping[Array, Place]) -> Iterator[_Access]:
    for k, (kernel, lag) in enumerate(zip(tiles.kernels, tiles.lags, strict=True)):
        axes = [axis for axis, size in enumerate(kernel.space) if size != ONE]
        views = [*((o.view, False) for o in kernel.operands), *((w.view, True) for w in kernel.writes)]
        for view, writes in views:
            moves = all(view.strides[axis] == ONE for axis in axes)
            yield _Access(k, places[view.array], view.offset, lag, view.dtype.itemsize, moves, writes)


def check_vectors(plan: Plan, fail: Callable[[str], NoReturn]) -> None:
    """Check the vector forms of kernels: no two lanes write one element, and each sum has a place."""
    for kernel, found in plan.vectors.items():
        axes, count = axes_of(kernel, views_of(kernel)), len(kernel.operands)
        strides = [[axis.strides[count + k] for axis in axes] for k in range(len(kernel.writes))]
        if any(n & (n - 1) for n in (found.lanes, found.width)) or not 1 <= found.width <= found.lanes:
            fail(f"a vector of {found.width} elements of {found.lanes}")
        if found.masks and (found.nbytes == 16 or any(view.dtype.itemsize < 4 for view in views_of(kernel))):
            fail("a masked vector of elements for which the processor has no masks")
        for k, write in enumerate(kernel.writes):
            depth = found.registers.get(k, len(axes))
            is_sum = write.how != "store" and not write.scattered
            is_held = k in found.registers
            if is_held and (not is_sum or write.base is not None or any(map(_moves, strides[k][depth:]))):
                fail(f"{write.view.array} is in registers along an axis where its place moves, or has a value before")
            if is_sum and k not in found.in_memory and not (is_held and all(map(_moves, strides[k][:depth]))):
                fail(f"{write.view.array} is reduced neither in registers nor in memory")
            if found.width > 1 and not (_moves(strides[k][-1]) or is_held or write.scattered):
                fail(f"lanes of a vector meet in {write.view.array}")
        for form in found.rows:
            outer, inner = axes[-2:]
            lies = list(zip(outer.strides, inner.strides, strict=True))[: count + len(kernel.writes)]
            if not isinstance(form, FlatRows):
                if any(_moves(along) for _, along in lies[count:]) or kernel.checks:
                    fail("rows that are reduced together are not reduced")
                if isinstance(form, RowsAcross) and any(across != ONE for across, _ in lies[count:]):
                    fail("rows side by side have results that do not lie side by side")
            elif (
                (form.columns, form.rows * form.columns) != (inner.size.factor, form.vectors * form.width)
                or any(pair != (inner.size, ONE) for pair in lies[count:])
                or any(pair != (inner.size, ONE) and all(map(_moves, pair)) for pair in lies[:count])
            ):
                fail("rows end to end do not lie end to end")


def _moves(size: Size) -> bool:
    """Return true for a stride along which a place moves."""
    return size != ZERO


# The most bytes of a function's buffers on the machine's stack, of which a thread may have 64 KiB in all.
MOST_LOCAL = 16 << 10


def check_local(plan: Plan, fail: Callable[[str], NoReturn]) -> None:
    """Check that buffers on the machine's stack are small, of known sizes, and no results."""
    for local in (plan.local, *(piece.local for piece in plan.pieces.values())):
        buffers = [plan.buffers[number] for number in local]
        for buffer in buffers:
            if buffer.result is not None or not (buffer.is_known_at_entry and buffer.count.is_known):
                fail(f"{buffer} is on the machine's stack, but outlives the function or has a size of its own")
        if (nbytes := sum(buffer.count.factor * buffer.dtype.itemsize for buffer in buffers)) > MOST_LOCAL:
            fail(f"a function has {nbytes} bytes on the machine's stack")
