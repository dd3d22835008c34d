"""Ordered set of integers: a change or a question costs the logarithm of their number in comparisons."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator


class OrderedNumbers:
    """Set of integers in rising order. It may change during an iteration.

    >>> numbers = OrderedNumbers()
    >>> for n in (7, 3, 5):
    ...     numbers.put(n, True)
    >>> list(numbers.rising()), list(numbers.falling_from(6)), numbers.last_before(5), numbers.first_from(6)
    ([3, 5, 7], [5, 3], 3, 7)
    """

    def __init__(self) -> None:
        self._sorted: list[int] = []
        self._known: set[int] = set()

    def __len__(self) -> int:
        return len(self._sorted)

    def __contains__(self, number: int) -> bool:
        return number in self._known

    def __iter__(self) -> Iterator[int]:
        return iter(self._sorted)

    def put(self, number: int, is_in: bool) -> None:
        """Add a number, or remove it."""
        if is_in == (number in self._known):
            return
        if is_in:
            self._known.add(number)
            insort(self._sorted, number)
        else:
            self._known.remove(number)
            del self._sorted[bisect_left(self._sorted, number)]

    def last_before(self, number: int) -> int | None:
        """The largest number below a given one; None without one."""
        place = bisect_left(self._sorted, number)
        return self._sorted[place - 1] if place else None

    def first_from(self, number: int) -> int | None:
        """The smallest number that is not below a given one; None without one."""
        place = bisect_left(self._sorted, number)
        return self._sorted[place] if place < len(self._sorted) else None

    def rising(self) -> Iterator[int]:
        place = 0
        while place < len(self._sorted):
            number = self._sorted[place]
            yield number
            place = bisect_right(self._sorted, number)

    def falling_from(self, number: int) -> Iterator[int]:
        place = bisect_right(self._sorted, number)
        while place:
            number = self._sorted[place - 1]
            yield number
            place = bisect_left(self._sorted, number)
