"""How often regions are gone through in a run, and for how many iterations there are rows, where the host knows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ctrlgrad.engines.cuda.prepared.operands import Affine

# How often an iteration goes through a region: the product of these, none of which is below 0.
Times = Sequence[Affine]
Integers = Mapping[int, int]


def total(times: Times, iterations: int, integers: Integers) -> int:
    """In the first iterations of a run together.

    >>> total([Affine(3), Affine(1, (), ((0, 2),))], 4, {})
    48
    """
    if not any(its.step for its in times):
        return iterations * math.prod(its.value(integers) for its in times)
    return int(_each(times, iterations, integers).sum())


def fitting(regions: Sequence[tuple[int, Times]], there: int, iterations: int, integers: Integers) -> int:
    """For how many iterations, of at most so many, there are rows, of which each region needs some each time.

    >>> fitting([(1, ()), (2, [Affine(3)])], 23, 10, {}), fitting([(1, [Affine(0, (), ((0, 1),))])], 7, 10, {})
    (3, 4)
    """
    if not there:
        return 0
    if not any(its.step for _, times in regions for its in times):
        needed = sum(rows * total(times, 1, integers) for rows, times in regions)
        return min(iterations, there // needed) if needed else iterations
    each = sum(rows * _each(times, iterations, integers) for rows, times in regions)
    return int(np.searchsorted(np.cumsum(each), there, side="right"))


def _each(times: Times, iterations: int, integers: Integers) -> np.ndarray:
    numbers = np.arange(iterations)
    found = np.ones(iterations, np.int64)
    for its in times:
        found *= its.value(integers) + its.step * numbers
    return found


__all__ = ["Integers", "Times", "fitting", "total"]
