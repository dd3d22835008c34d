"""Trip count of a loop in a prepared body, where the host knows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ctrlgrad.engines.cuda.placement import Places
from ctrlgrad.engines.cuda.prepared.operands import ENDLESS, Affine
from ctrlgrad.engines.cuda.prepared.reading import Computed, Reading
from ctrlgrad.engines.cuda.program import Program
from ctrlgrad.ir import TensorType, Value
from ctrlgrad.ir.control import Counting, Loop


class HasTables(Protocol):
    """A body (`ctrlgrad.engines.cuda.prepared.forms.Body`): which of its inputs are stacks that are read and written
    by index."""

    tables: Mapping[int, TensorType]


class Looping(Protocol):
    """Interface of the kernel of a `while` node (`ctrlgrad.engines.cuda.loops.Loop`) that this module needs."""

    parts: Loop
    places: Places
    cond: Program
    counting: tuple[Counting, ...]
    maximum: int | None

    @property
    def body(self) -> HasTables:
        """Of which this is asked."""

    @property
    def iteration(self) -> Program:
        """The body, none of whose iterations are past the end."""


def at_least(reading: Reading, value: object) -> object:
    """The greater one of two integers as the one that goes by steps, in runs in which it is the greater one."""
    if not isinstance(value, Computed) or value.node.op.name != "maximum":
        return value
    a, b = value.operands
    if not isinstance(a, Affine) or not isinstance(b, Affine) or a.is_moving == b.is_moving:
        return value
    greater, other = (a, b) if a.is_moving else (b, a)
    if reading.is_endless(greater):
        return reading.clipped(greater.plus(other, -1)).plus(other)
    reading.bounds.append((greater.plus(other, -1), ENDLESS))
    return greater


def trips_of(reading: Reading, loop: Looping, given: Sequence[Any], captures: int) -> Affine | None:
    """Trip count of a loop, where the host knows it; below 0 means no iteration."""
    found = [_distance(reading, loop, counting, given, captures) for counting in loop.counting]
    if not found or None in found:
        return None
    known = [x for x in found if x is not None]
    if len(known) > 1 and any(x.is_moving for x in known):
        return None
    trips = min(known, key=lambda x: x.constant)
    return trips if trips.is_moving else Affine(max(trips.constant, 0))


def _distance(
    reading: Reading, loop: Looping, counting: Counting, given: Sequence[Any], captures: int
) -> Affine | None:
    """Number of iterations until a counter reaches its bound."""
    bound: Any = counting.bound
    if isinstance(bound, Value):
        bound = at_least(reading, given[next(n for n, c in enumerate(loop.parts.captures) if c.outer is bound)])
    elif isinstance(bound, np.ndarray):
        bound = Affine(int(bound))
    count = at_least(reading, given[captures + loop.parts.carries.index(counting.carry)])
    if not isinstance(bound, Affine) or not isinstance(count, Affine):
        return None
    ahead = bound.plus(count, -1) if counting.step > 0 else count.plus(bound, -1)
    return ahead.plus(Affine(counting.beyond))


def is_at_most(trips: Affine | None, maximum: int) -> bool:
    return trips is not None and not trips.is_moving and trips.constant <= maximum
