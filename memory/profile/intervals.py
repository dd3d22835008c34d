"""Times from a start to an end: how much of one set lies in another, and what is on top where they overlap."""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_left
from collections.abc import Iterable, Sequence

from ctrlgrad.records import record


@record(order=True)
class Interval:
    """From `start` to `end`, in seconds; `key` says whose it is."""

    start: float
    end: float
    key: int = 0

    @property
    def length(self) -> float:
        return self.end - self.start


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same times as few intervals that neither overlap nor touch, sorted.

    >>> union([Interval(3, 4), Interval(0, 2), Interval(1, 3), Interval(6, 7)])
    [Interval(start=0, end=4, key=0), Interval(start=6, end=7, key=0)]
    """
    joined: list[Interval] = []
    for interval in sorted(intervals):
        if joined and interval.start <= joined[-1].end:
            joined[-1] = Interval(joined[-1].start, max(joined[-1].end, interval.end))
        else:
            joined.append(Interval(interval.start, interval.end))
    return joined


def covered(interval: Interval, by: Sequence[Interval]) -> float:
    """Length of an interval's part that lies in a `union` of intervals.

    >>> covered(Interval(1, 5), [Interval(0, 2), Interval(4, 9)])
    2.0
    """
    total = 0.0
    for other in by[max(bisect_left(by, interval.start, key=lambda i: i.start) - 1, 0) :]:
        if other.start >= interval.end:
            break
        total += max(min(interval.end, other.end) - max(interval.start, other.start), 0)
    return total


def on_top(intervals: Sequence[Interval]) -> list[Interval]:
    """Intervals that do not overlap: at each time, the one that began last, of those the last in the sequence.

    An interval comes out in several parts, all with its key, where other intervals lie on it.

    >>> on_top([Interval(0, 10, key=1), Interval(2, 3, key=2)])
    [Interval(start=0, end=2, key=1), Interval(start=2, end=3, key=2), Interval(start=3, end=10, key=1)]
    """
    order = sorted(range(len(intervals)), key=lambda position: (intervals[position].start, position))
    bounds = sorted({t for i in intervals for t in (i.start, i.end)})
    parts: list[Interval] = []
    # Intervals that have begun, the last first.
    begun: list[tuple[int, Interval]] = []
    waiting = 0
    for start, end in itertools.pairwise(bounds):
        while waiting < len(order) and intervals[order[waiting]].start <= start:
            heapq.heappush(begun, (-waiting, intervals[order[waiting]]))
            waiting += 1
        while begun and begun[0][1].end <= start:
            heapq.heappop(begun)
        if not begun:
            continue
        key = begun[0][1].key
        if parts and parts[-1].key == key and parts[-1].end == start:
            parts[-1] = Interval(parts[-1].start, end, key)
        else:
            parts.append(Interval(start, end, key))
    return parts


__all__ = ["Interval", "covered", "on_top", "union"]
