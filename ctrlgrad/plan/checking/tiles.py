"""Check that kernels which run tile by tile meet the elements that they share in the same order as one by one."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping
from typing import NoReturn

from ctrlgrad.plan.effects import binds, defines, names_of, walk
from ctrlgrad.plan.model import Array, Loop, Tiles
from ctrlgrad.plan.places import Place
from ctrlgrad.plan.sizes import ONE, Sizes
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
