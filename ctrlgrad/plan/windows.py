"""Temporaries of kernels that run tile by tile, of which only a part is ever kept.

An array that a group of kernels writes, and that no other step reads, is live from where one kernel writes it to where
the last one, which stays furthest behind, has read it. Memory for a tile and for what reaches from one tile into the
next is enough (array contraction: V. Sarkar and G. Gao, "Optimization of array accesses by collective loop
transformations", 1991). It stays in the nearest memory, where an array of full length would leave it and come again.

A window holds the elements from some before a tile's first point to some past its last one, at the front of the
array's own memory. For the first tile these are the elements' usual places. Before the next tile begins, the elements
that both tiles need move to the front.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from ctrlgrad.plan.effects import blocks_of, reads, walk, yields
from ctrlgrad.plan.model import Array, Block, Loop, Plan, Step
from ctrlgrad.plan.places import Place
from ctrlgrad.plan.sizes import Size
from ctrlgrad.plan.tiling import Tiles, accesses_of
from ctrlgrad.records import record

# The bytes that may move on from tile to tile: few beside a tile's.
MOST_MOVED = 512


@record
class Shift:
    """Access of a kernel to an array: its element's offset from the kernel's point, and the kernel's lag, in points."""

    offset: tuple[Size, ...]
    lag: tuple[Size, ...]


@record
class Window:
    """All shifts of a group's kernels in the array of a place, the bytes of an element, and elements that there are."""

    shifts: tuple[Shift, ...]
    item_bytes: int
    count: Size


def times_read(plan: Plan) -> Counter[Array]:
    """Number of places of a plan that need each array."""
    found = _reads(walk(plan.body))
    found.update(result for result in plan.results if isinstance(result, Array))
    for step in walk(plan.body):
        found.update(value for value in yields(step) if isinstance(value, Array))
        if isinstance(step, Loop):
            found.update(carry.init for carry in step.carries if isinstance(carry.init, Array))
    for block in _blocks(plan):
        found.update(move.array for move in block.moves)
    return found


def windows_of(tiles: Tiles, plan: Plan, needed: Counter[Array]) -> dict[Place, Window]:
    """The places of which a group needs no more than a window. `needed` is how often the plan needs each array."""
    own = _reads(tiles.kernels)
    written = {write.view.array for kernel in tiles.kernels for write in kernel.writes}
    found: dict[Place, Window] = {}
    for place, shifts in _shifts(tiles, plan.places).items():
        if place.kind != "buffer" or plan.buffers[place.number].result is not None:
            continue
        buffer = plan.buffers[place.number]
        arrays = [array for array in written | set(own) if plan.places[array] == place]
        has_its_elements = all(array.dtype.itemsize == buffer.dtype.itemsize for array in arrays)
        if has_its_elements and all(array in written and own[array] == needed[array] for array in arrays):
            found[place] = Window(tuple(shifts), buffer.dtype.itemsize, buffer.count)
    return found


def _shifts(tiles: Tiles, places: Mapping[Array, Place]) -> dict[Place, dict[Shift, None]]:
    """The shifts in each place of which no kernel may touch any element."""
    found: dict[Place, dict[Shift, None]] = {}
    anywhere: set[Place] = set()
    for kernel, lag in zip(tiles.kernels, tiles.lags, strict=True):
        for access in accesses_of(kernel, places):
            if access.offset is None:
                anywhere.add(access.place)
                continue
            offset = tuple(Size(factor, names) for names, factor in access.offset)
            found.setdefault(access.place, {})[Shift(offset, lag)] = None
    return {place: shifts for place, shifts in found.items() if place not in anywhere}


def _reads(steps: Iterable[Step]) -> Counter[Array]:
    return Counter(array for step in steps for array in set(reads(step)) if isinstance(array, Array))


def _blocks(plan: Plan) -> Iterable[Block]:
    yield plan.body
    for step in walk(plan.body):
        yield from blocks_of(step)
