"""Placement of an iteration's temporaries: those that are not alive at the same time share memory.

The launches of an iteration are a straight line, with the sides of a branch one after the other. The live range of
a temporary is from the first launch that names it to the last. An inner loop may read an earlier value in each of
its iterations, so such a value is alive until the loop's end. Of a carried array's two buffers, one is free until
the next value is written, and the other one after its value has been read. The placement follows from live ranges
and sizes alone: any part of a memory may be used again. (A plan's placement instead gives an array the buffer of
another array of its size.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ctrlgrad.engines.cuda.prepared.model import (
    Become,
    Branching,
    Buffer,
    Carried,
    Carry,
    Item,
    Placement,
    ProductLaunch,
    Repeating,
    Shape,
    Source,
    View,
    carried_arrays,
    lists_in,
)

# Where an array may begin: what the driver promises of memory that it allocates. Smaller ones lie closer together, at
# multiples of their size.
ALIGNMENT, LEAST_ALIGNMENT = 256, 16


def items_in_order(items: Sequence[Item]) -> Iterator[Item]:
    """Launches, and branches and loops before those of their lists."""
    for item in items:
        yield item
        for inside in lists_in(item):
            yield from items_in_order(inside)


def views_of(launch: Item) -> Iterator[View]:
    """Views that an item reads and writes; of a branch or loop, the view of the number that controls it."""
    if isinstance(launch, Branching | Repeating):
        yield launch.chosen if isinstance(launch, Branching) else launch.goes_on
        return
    if isinstance(launch, Become):
        yield from (launch.before, launch.after)
        return
    named = (launch.a, launch.b, launch.out) if isinstance(launch, ProductLaunch) else launch.arguments
    yield from (x for x in named if isinstance(x, View))


def placed(
    items: Sequence[Item],
    buffers: Sequence[tuple[Shape, np.dtype]],
    carries: Sequence[Carry],
    memory_of: Callable[[Source], Source],
) -> Placement:
    """Places for the buffers that launches name. Buffer 0 comes first in a memory of its own, and is needed always.

    Args:
        memory_of: the first name of the memory that a buffer is another name of.
    """
    launches = list(items_in_order(items))
    whole = (-1, len(launches))
    spans: dict[Source, tuple[int, int]] = {Buffer(0): whole}
    for position, launch in enumerate(launches):
        for source in {memory_of(view.source) for view in views_of(launch)}:
            first, _ = spans.setdefault(source, (position, position))
            spans[source] = first, position
    for source, (first, last) in spans.items():
        if isinstance(source, Carried):
            # The array before is there from the beginning on, the one after to the end.
            spans[source] = (first, len(launches)) if source.is_next else (-1, last)
    _keep_in_loops(spans, launches)
    # Memory that temporaries may have, how much of it, and who has what of it when.
    memories: list[tuple[Source, int | None, list[_Room]]] = []
    for before, its in carried_arrays(carries):
        if its.is_double:
            nbytes = math.prod(its.shape) * its.dtype.itemsize
            after = replace(before, is_next=True)
            last, first = spans.get(before, (-1, -1))[1], spans.get(after, (whole[1], whole[1]))[0]
            memories.append((before, nbytes, [_Room((-1, last), 0, nbytes)]))
            memories.append((after, nbytes, [_Room((first, whole[1]), 0, nbytes)]))
    memories.append((Buffer(0), None, []))
    found: dict[Source, tuple[Source, int]] = {}
    sizes = {n: math.prod(shape) * dtype.itemsize for n, (shape, dtype) in enumerate(buffers) if Buffer(n) in spans}
    for number in sorted(sizes, key=lambda n: (n != 0, -sizes[n], n)):
        for source, capacity, rooms in memories if number else memories[-1:]:
            room = _room(rooms, spans[Buffer(number)], sizes[number])
            if capacity is None or room.end <= capacity:
                rooms.append(room)
                found[Buffer(number)] = source, room.begin
                break
    memories_of = [memory_of(Buffer(number)) for number in range(len(buffers))]
    places = tuple((x, 0) if isinstance(x, Carried) else found.get(x) for x in memories_of)
    return Placement(places, max(room.end for room in memories[-1][2]))


def _keep_in_loops(spans: dict[Source, tuple[int, int]], items: Sequence[Item]) -> None:
    """Have what is named in a loop inside and outside of it be needed in all of the loop: inner loops first."""
    for begin in reversed(range(len(items))):
        item = items[begin]
        if not isinstance(item, Repeating):
            continue
        end = begin + sum(1 for _ in items_in_order(item.items))
        for source, (first, last) in spans.items():
            if first < begin <= last <= end:
                spans[source] = first, end
            elif begin <= first <= end < last:
                spans[source] = begin, last


def alignment(nbytes: int) -> int:
    """Of which number of bytes the beginning of an array is a multiple.

    >>> alignment(8), alignment(24), alignment(1000)
    (16, 32, 256)
    """
    return min(max(LEAST_ALIGNMENT, 1 << (nbytes - 1).bit_length() if nbytes else 1), ALIGNMENT)


@dataclass(frozen=True)
class _Room:
    """Bytes from `begin` to `end` of a memory, from one launch to another."""

    span: tuple[int, int]
    begin: int
    end: int


def _room(others: Sequence[_Room], span: tuple[int, int], nbytes: int) -> _Room:
    """The lowest room that no other has at the same time."""
    begin = 0
    for other in sorted((room for room in others if _meet(room.span, span)), key=lambda room: room.begin):
        if begin + nbytes <= other.begin:
            break
        begin = max(begin, _rounded(other.end, nbytes))
    return _Room(span, begin, begin + nbytes)


def _rounded(place: int, nbytes: int) -> int:
    """The next place where so many bytes may begin."""
    step = alignment(nbytes)
    return -(-place // step) * step


def _meet(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return a[0] <= b[1] and b[0] <= a[1]
