"""Number of passes of regions in a run, and number of iterations for which there are rows, where the host knows them.

A region is gone through in passes, which are numbered through all iterations of a run. Each pass of a loop's body is
within one pass of the region around the loop, so a number that the region has is repeated for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from ctrlgrad.engines.cuda.prepared.operands import Affine

# More passes of one region are not numbered one by one.
MOST_PASSES = 1 << 22

Integers = Mapping[int, int]
# Of a stack of the host's, by its position, the numbers that are popped off first: at least so many, 0 where there are
# no more.
Numbers = Callable[[int, int], np.ndarray]


@dataclass(frozen=True)
class Since:
    """The iterations since a loop began: by the counter of its body."""

    region: int


@dataclass(frozen=True)
class Popped:
    """Number that each pass of a region pops off a stack of the host, by the stack's position."""

    position: int
    region: int


@dataclass(frozen=True)
class Clipped:
    """A number in each pass of a region, 0 where it is below."""

    number: Affine
    region: int


@dataclass(frozen=True)
class Region:
    """The body of a loop inside, or a side of a branch: the region around it, and how often it is gone through there;
    never below 0. A side is gone through once at most: `is_side`."""

    outside: int
    trips: Affine | None
    is_side: bool = False


@dataclass
class Regions:
    """The loops inside, by the counters of their bodies, and what other counters count."""

    found: dict[int, Region] = field(default_factory=dict)
    numbers: dict[int, Since | Popped | Clipped] = field(default_factory=dict)

    def is_known(self, region: int) -> bool:
        """Return true if the host knows the number of passes of a region in each iteration."""
        if not region:
            return True
        its = self.found.get(region)
        if its is None or its.trips is None or its.is_side or not self.is_known(its.outside):
            return False
        return all(self._is_counted(counter) for counter, _ in its.trips.steps)

    def is_bounded(self, region: int) -> bool:
        """Return true if the host knows an upper bound of a region's passes in the first iterations of a run.

        Numbers are popped in order. So the first iterations pop no more numbers, and no different ones, than if
        every side of a branch were run each time.
        """
        if self.is_known(region):
            return True
        its = self.found.get(region)
        if its is None or its.trips is None or not self.is_bounded(its.outside):
            return False
        return its.trips.constant >= 0 and not its.trips.terms and all(map(self._is_popped, its.trips.steps))

    def _is_popped(self, step: tuple[int, int]) -> bool:
        """Return true if a step is a sum of popped numbers that grows with them."""
        counter, factor = step
        match self.numbers.get(counter):
            case Popped(_, region):
                return factor > 0 and self.is_bounded(region)
            case Clipped(number, region):
                is_popped = not number.terms and all(map(self._is_popped, number.steps))
                return factor > 0 and is_popped and self.is_bounded(region)
        return False

    def _is_counted(self, counter: int) -> bool:
        match self.numbers.get(counter):
            case Since(region) | Popped(_, region):
                return self.is_known(region)
            case Clipped(number, region):
                return self.is_known(region) and all(self._is_counted(its) for its, _ in number.steps)
        return not counter

    @property
    def known(self) -> list[int]:
        """Regions with a number of passes that the host knows, outer regions first."""
        return [0, *filter(self.is_known, sorted(self.found))]

    @property
    def bounded(self) -> list[int]:
        """Regions with a number of passes that the host can bound, outer regions first."""
        return [0, *filter(self.is_bounded, sorted(self.found))]


class TooManyPasses(Exception):
    """More than are numbered."""


class Passes:
    """Passes of the regions in the first iterations of a run."""

    def __init__(self, regions: Regions, iterations: int, integers: Integers, numbers: Numbers) -> None:
        self.regions, self.iterations, self.integers, self.numbers = regions, iterations, integers, numbers
        self._around: dict[int, np.ndarray] = {0: np.arange(iterations)}

    def each(self, region: int) -> np.ndarray:
        """Number of passes of a region in each iteration, where the host knows it; else numbers whose sum bounds the
        passes in all of these iterations.

        >>> regions = Regions({1: Region(0, Affine(1, (), ((0, 1),))), 2: Region(1, Affine(0, (), ((3, 1),)))})
        >>> regions.numbers[3] = Since(1)
        >>> passes = Passes(regions, 4, {}, lambda position, count: np.zeros(count))
        >>> passes.each(1).tolist(), passes.each(2).tolist()
        ([1, 2, 3, 4], [0, 1, 3, 6])
        """
        if not region:
            return np.ones(self.iterations, np.int64)
        outside, trips = self.regions.found[region].outside, self._trips(region)
        found: np.ndarray = np.bincount(self._iteration(outside), trips, self.iterations)
        return found.astype(np.int64)

    def total(self, region: int) -> int:
        """In all iterations together."""
        return int(self.each(region).sum())

    def _trips(self, region: int) -> np.ndarray:
        """Trip counts of a loop, one for each pass of the region around it."""
        its = self.regions.found[region]
        assert its.trips is not None
        found: np.ndarray = np.maximum(self._values(its.trips, its.outside), 0)
        return found

    def _values(self, number: Affine, region: int) -> np.ndarray:
        """An integer in each pass of a region."""
        found: np.ndarray = np.full(len(self._outer(region)), number.value(self.integers))
        for counter, step in number.steps:
            found += step * self._counted(counter, region)
        return found

    def _counted(self, counter: int, region: int) -> np.ndarray:
        """Value of a counter in each pass of a region."""
        if not counter:
            return self._iteration(region)
        match self.regions.numbers[counter]:
            case Since(loop):
                around = self._outer(loop)
                firsts = np.searchsorted(around, around, side="left")
                return self._inside(np.arange(len(around)) - firsts, loop, region)
            case Popped(position, popping):
                count = len(self._outer(popping))
                return self._inside(self.numbers(position, count)[:count], popping, region)
            case Clipped(number, clipping):
                return self._inside(np.maximum(self._values(number, clipping), 0), clipping, region)

    def _inside(self, values: np.ndarray, outer: int, region: int) -> np.ndarray:
        """Repeat values of an outer region's passes for each pass of a region inside it."""
        if region == outer:
            return values
        around = self._inside(values, outer, self.regions.found[region].outside)
        found: np.ndarray = around[self._outer(region)]
        return found

    def _iteration(self, region: int) -> np.ndarray:
        """The iteration of each pass."""
        return self._inside(np.arange(self.iterations), 0, region)

    def _outer(self, region: int) -> np.ndarray:
        """The pass of the region around it that each pass of a region is within; of the body's, their numbers."""
        if region not in self._around:
            trips = self._trips(region)
            if trips.sum(dtype=np.float64) > MOST_PASSES:
                raise TooManyPasses
            self._around[region] = np.repeat(np.arange(len(trips)), trips)
        return self._around[region]


def fitting(needed: np.ndarray, there: int) -> int:
    """For how many iterations there are rows, of which each needs some.

    >>> fitting(np.array([7, 7, 7, 7]), 23), fitting(np.array([0, 1, 2, 3]), 5)
    (3, 3)
    """
    return int(np.searchsorted(np.cumsum(needed), there, side="right"))
