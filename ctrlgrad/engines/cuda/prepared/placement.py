"""Placement of an iteration's values: which names are one memory, and which temporaries share bytes.

First, values that become others (`Become`): an update in place, a result of a side, a carry. `Sharing` lets both names
have one memory if no later read wants the earlier value, else the value is copied. Then bytes (`placed`). The launches
of an iteration are a straight line, with the sides of a branch one after the other. The live range of a temporary is
from the first launch that names it to the last. An inner loop may read an earlier value in each of its iterations, so
such a value is alive until the loop's end. Sizes are numbers here, so any part of the memory may be used again. (A
plan's placement, of sizes that are registers, gives an array the buffer of another array of its size.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ctrlgrad.engines.cuda.kernel import KernelLaunch
from ctrlgrad.engines.cuda.prepared.model import (
    Become,
    Branching,
    Buffer,
    Carried,
    Carry,
    Item,
    Placement,
    Repeating,
    Shape,
    Source,
    View,
    carried_arrays,
    items_in_order,
    lists_in,
)

# Where an array may begin: what the driver promises of memory that it allocates. Smaller ones lie closer together, at
# multiples of their size.
ALIGNMENT, LEAST_ALIGNMENT = 256, 16
# Shape and dtype of each buffer; names of one memory.
Buffers = Sequence[tuple[Shape, np.dtype]]
Names = frozenset[Source]


def accesses(launch: Item) -> tuple[list[View], list[View]]:
    """Views that an item reads, and those that it writes; of a branch or loop, the view of the number that controls it.

    A value that becomes another one is copied, unless both share memory.
    """
    match launch:
        case Branching():
            return [launch.chosen], []
        case Repeating():
            return [launch.goes_on], []
        case Become():
            return [launch.before], [launch.after]
    read, written = ([x for x in part if isinstance(x, View)] for part in (launch.reads, launch.writes))
    return read, written


class _Conflict(Exception):
    """A value would be overwritten before its last read."""


class Sharing:
    """Names of one memory: of a value that becomes another one, where nothing reads it after the other is written.

    Each pair of names is decided in the order of the list. To decide, the list is gone through with the names of the
    joined memory that have a value now: a launch that writes one of them ends the values of all others, sides of a
    branch agree on those that all of them leave, and a loop on those that are left when it begins and after each pass.
    A read of a name without value is a conflict, and the two stay apart. (`Liveness` and `may_overwrite` of a plan say
    the same of its steps.)
    """

    def __init__(self, items: Sequence[Item], buffers: Buffers, carries: Sequence[Carry]) -> None:
        self.items = items
        self._names: dict[Source, Names] = {}
        self._sizes: dict[Source, int] = {
            Buffer(n): math.prod(shape) * dtype.itemsize for n, (shape, dtype) in enumerate(buffers)
        }
        for name, its in carried_arrays(carries):
            self._sizes[name] = math.prod(its.shape) * its.dtype.itemsize
        # Accesses of each item, and the names in it and its lists.
        self._accesses: dict[int, tuple[list[View], list[View]]] = {}
        self._within: dict[int, Names] = {}
        self._look(items)
        for item in items_in_order(items):
            if isinstance(item, Become) and self._is_whole(item):
                self._decide(item)

    def memory_of(self, source: Source) -> Source:
        """The first name of a source's memory: of a carried array, if one is there."""
        names = self._names.get(source, (source,))
        return min(names, key=lambda name: (isinstance(name, Buffer), getattr(name, "number", 0)))

    def _all(self, source: Source) -> Names:
        return self._names.get(source) or frozenset((source,))

    def resolved(self, items: Sequence[Item]) -> list[Item]:
        """The items, with copies where names are apart."""
        found: list[Item] = []
        for item in items:
            match item:
                case Become(before, after, copy):
                    is_shared = after.source in self._all(before.source) and self._is_whole(item)
                    found += (Become(before, after),) if is_shared else copy
                case Branching(chosen, sides):
                    found.append(Branching(chosen, tuple(tuple(self.resolved(side)) for side in sides)))
                case Repeating():
                    found.append(replace(item, items=tuple(self.resolved(item.items))))
                case _:
                    found.append(item)
        return found

    def _look(self, items: Sequence[Item]) -> Names:
        names: set[Source] = set()
        for item in items:
            self._accesses[id(item)] = both = accesses(item)
            mine = {view.source for views in both for view in views}.union(*map(self._look, lists_in(item)))
            self._within[id(item)] = frozenset(mine)
            names |= mine
        return frozenset(names)

    def _is_whole(self, item: Become) -> bool:
        """Return true if a value is all of its memory, and would be all of the other one's."""
        view = item.before
        size = self._sizes.get(view.source)
        is_all = view.is_contiguous and not view.is_moving and not view.offset
        return is_all and size == view.size * view.dtype.itemsize == self._sizes.get(item.after.source)

    def _decide(self, item: Become) -> None:
        names = self._all(item.before.source) | self._all(item.after.source)
        carried = [name for name in names if isinstance(name, Carried)]
        if Buffer(0) in names or len(carried) > 1:
            return
        try:
            end = self._gone_through(self.items, frozenset(carried), names)
        except _Conflict:
            return
        if end.issuperset(carried):
            self._names |= dict.fromkeys(names, names)

    def _gone_through(self, items: Sequence[Item], has: Names, names: Names) -> Names:
        """The names of a memory that have a value behind the items, of those that have one before."""
        for item in items:
            if self._within[id(item)].isdisjoint(names):
                continue
            read, written = ([v for v in views if v.source in names] for views in self._accesses[id(item)])
            if any(view.source not in has for view in read):
                raise _Conflict
            match item:
                case Branching():
                    has = self._after_sides(item, has, names)
                case Repeating():
                    has = self._after_passes(item, has, names)
                case Become() if read and written:
                    if not self._is_whole(item):
                        raise _Conflict
                    has |= {item.after.source}
                case _ if written:
                    if any(not _is_in_place(item, view, target) for view in read for target in written):
                        raise _Conflict
                    has = frozenset(view.source for view in written)
                    if len(has) > 1:
                        raise _Conflict
        return has

    def _after_sides(self, item: Branching, has: Names, names: Names) -> Names:
        return frozenset.intersection(*(self._gone_through(side, has, names) for side in item.sides))

    def _after_passes(self, item: Repeating, has: Names, names: Names) -> Names:
        while (left := has & self._gone_through(item.items, has, names)) != has:
            has = left
        return has


def _is_in_place(launch: Item, view: View, target: View) -> bool:
    """Return true if a launch may read one value where it writes another: the same one, or element by element."""
    if view.source == target.source:
        return True
    if not isinstance(launch, KernelLaunch) or not launch.spec.is_elementwise or view.is_moving or target.is_moving:
        return False
    seen, written = ([(n, step) for n, step in zip(x.shape, x.strides, strict=True) if n != 1] for x in (view, target))
    return seen == written and view.offset == target.offset


def placed(items: Sequence[Item], buffers: Buffers, memory_of: Callable[[Source], Source]) -> Placement:
    """Places for the buffers that launches name. Buffer 0 comes first, and is needed always.

    Args:
        memory_of: the first name of the memory that a buffer is another name of.
    """
    launches = list(items_in_order(items))
    spans: dict[Source, tuple[int, int]] = {Buffer(0): (-1, len(launches))}
    for position, launch in enumerate(launches):
        for source in {memory_of(view.source) for views in accesses(launch) for view in views}:
            first, _ = spans.setdefault(source, (position, position))
            spans[source] = first, position
    _keep_in_loops(spans, launches)
    rooms: dict[Source, _Room] = {}
    sizes = {n: math.prod(shape) * dtype.itemsize for n, (shape, dtype) in enumerate(buffers) if Buffer(n) in spans}
    for number in sorted(sizes, key=lambda n: (n != 0, -sizes[n], n)):
        rooms[Buffer(number)] = _room(list(rooms.values()), spans[Buffer(number)], sizes[number])
    found: dict[Source, tuple[Source, int]] = {name: (Buffer(0), room.begin) for name, room in rooms.items()}
    memories = [memory_of(Buffer(number)) for number in range(len(buffers))]
    places = tuple((x, 0) if isinstance(x, Carried) else found.get(x) for x in memories)
    return Placement(places, max(room.end for room in rooms.values()))


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
