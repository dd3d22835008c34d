"""Shared record of the readings of a body and of the regions in it: launches, counters, rows, bounds.

The regions are the body (0), sides of branches and bodies of loops; their numbers are those of their counters. The
host knows a trip count beforehand where it follows from integers that go by steps, or from numbers that are popped
off a stack of the host: the loops of a gradient take their trip counts from such a stack.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ctrlgrad.engines.cuda.prepared.launches import Launches
from ctrlgrad.engines.cuda.prepared.model import CannotPrepare, Transfer
from ctrlgrad.engines.cuda.prepared.operands import Affine, Carried, Shape
from ctrlgrad.engines.cuda.prepared.passes import Clipped, Popped, Region, Regions, Since
from ctrlgrad.engines.cuda.program import Program


@dataclass
class Rates:
    """Amounts that an iteration adds. One reading of the body finds them; the next reading uses them.

    Attributes:
        numbers: amount added to each integer on the host, or to the rows of a local stack, by the counter of iterations
            since the loop began and the carry's position.
        rows: rows that each region adds to a carried stack, by the stack's position and the region's counter.
        lengths: final number of rows of each new local stack.
        endless: carried stacks with a number of pushed rows that depends on the data, or of popped rows that only the
            card knows.
    """

    numbers: dict[tuple[int, int], int] = field(default_factory=dict)
    rows: dict[int, dict[int, int]] = field(default_factory=dict)
    lengths: dict[int, int] = field(default_factory=dict)
    endless: frozenset[int] = frozenset()


class Listing:
    """Shared record of the readings of a body and of the regions in it."""

    def __init__(self, rates: Rates, program: Program, carried: Mapping[Carried, Shape], is_masked: bool) -> None:
        # Rates that the previous reading found, and the shapes of carried arrays.
        self.rates, self.carried = rates, carried
        # True if iterations may run past the loop's end.
        self.is_masked = is_masked
        self.launches = Launches()
        self.programs = [program]
        self.bounds: list[tuple[Affine, int]] = []
        self.transfers: list[Transfer] = []
        self.row_types: dict[int, tuple[Shape, np.dtype]] = {}
        # As in `Rates`; the numbers are those of loops inside.
        self.rows: dict[int, dict[int, int]] = {}
        self.numbers: dict[tuple[int, int], int] = {}
        self.lengths: dict[int, int] = {}
        self.counters = self.stacks = 0
        # The counters by which a number goes that only the card has.
        self.endless: set[int] = set()
        self.regions = Regions()
        self._pushes: dict[int, bool] = {}

    def new_counter(self) -> int:
        self.counters += 1
        return self.counters

    def new_stack(self) -> int:
        self.stacks += 1
        return self.stacks

    def popped(self, position: int, region: int) -> int:
        """The counter in which a number is that a region pops off a stack of the host's."""
        counter = self.new_counter()
        self.endless.add(counter)
        self.regions.numbers[counter] = Popped(position, region)
        return counter

    def settle(self) -> None:
        """All has been read: the host knows a number that is popped where each pass of a region takes the next one."""
        for counter, its in list(self.regions.numbers.items()):
            if isinstance(its, Popped) and self.rows.get(its.position) != {its.region: -1}:
                del self.regions.numbers[counter]

    def clipped(self, number: Affine, region: int) -> int:
        """The counter in which such a number is, or 0 where it is below."""
        counter = self.new_counter()
        self.endless.add(counter)
        self.regions.numbers[counter] = Clipped(number, region)
        return counter

    def is_clipped(self, step: tuple[int, int]) -> bool:
        """Return true if a step is a clipped number: its counter, once."""
        counter, factor = step
        return factor == 1 and isinstance(self.regions.numbers.get(counter), Clipped)

    def repeats(self, counter: int, since: int, outside: int, trips: Affine | None) -> None:
        """A loop goes on so often each time that the region around it is gone through."""
        self.regions.found[counter] = Region(outside, trips)
        self.regions.numbers[since] = Since(counter)

    def added(self, position: int, counter: int, rows: int) -> None:
        """A region adds rows to a stack."""
        if rows:
            self.rows.setdefault(position, {})[counter] = rows

    def slots(self, counter: int) -> dict[int, int]:
        """Rows that a region pushes, or pops (below 0), by the positions of the stacks whose number of rows only the
        card knows."""
        found = {position: self.rates.rows[position].get(counter, 0) for position in sorted(self.rates.endless)}
        return {position: rows for position, rows in found.items() if rows}

    @property
    def may_be_short(self) -> bool:
        """Return true if only the card knows how many rows are popped: a run may have fewer."""
        return any(rows < 0 for position in self.rates.endless for rows in self.rates.rows[position].values())

    def row_type(self, position: int, its: tuple[Shape, np.dtype], pushes: bool) -> None:
        """Have all rows of a stack be alike, and none popped off where some are pushed."""
        if self.row_types.setdefault(position, its) != its:
            raise CannotPrepare("rows of one stack differ in shape")
        if self._pushes.setdefault(position, pushes) != pushes:
            raise CannotPrepare("a stack is pushed on and popped off")
