"""Free ranges of a slab or a file: first fit, and neighbours that are free grow together."""

from __future__ import annotations

from bisect import bisect_left, insort

from ctrlgrad.memory.sizes import rounded_up
from ctrlgrad.records import record


@record(order=True)
class Range:
    """`nbytes` bytes from `offset` on."""

    offset: int
    nbytes: int

    @property
    def end(self) -> int:
        return self.offset + self.nbytes


class FreeList:
    """Free ranges, sorted; no two of them touch. Ranges are cut in multiples of `granule` bytes.

    >>> free = FreeList(granule=64)
    >>> free.add(Range(0, 256))
    >>> first, second = free.take(100), free.take(64)
    >>> first, second, free.take(128)
    (Range(offset=0, nbytes=128), Range(offset=128, nbytes=64), None)
    >>> free.add(first); free.add(second)
    >>> free.ranges
    [Range(offset=0, nbytes=256)]
    """

    def __init__(self, granule: int = 4096) -> None:
        self.granule = granule
        self.ranges: list[Range] = []

    @property
    def nbytes(self) -> int:
        """Free bytes in all."""
        return sum(r.nbytes for r in self.ranges)

    def rounded(self, nbytes: int) -> int:
        """The length of the range that `take` cuts for so many bytes."""
        return rounded_up(nbytes, self.granule)

    def take(self, nbytes: int) -> Range | None:
        """The first place where the bytes fit, or None."""
        wanted = self.rounded(nbytes)
        for position, found in enumerate(self.ranges):
            if found.nbytes >= wanted:
                if found.nbytes == wanted:
                    del self.ranges[position]
                else:
                    self.ranges[position] = Range(found.offset + wanted, found.nbytes - wanted)
                return Range(found.offset, wanted)
        return None

    def add(self, given: Range) -> None:
        """Make a range free, and join it with the neighbours that it touches."""
        position = bisect_left(self.ranges, given)
        offset, end = given.offset, given.end
        if position < len(self.ranges) and self.ranges[position].offset == end:
            end = self.ranges.pop(position).end
        if position and self.ranges[position - 1].end == offset:
            offset = self.ranges.pop(position - 1).offset
        insort(self.ranges, Range(offset, end - offset))


__all__ = ["FreeList", "Range"]
