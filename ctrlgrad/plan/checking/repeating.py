"""Chunks of loops run again: from its entry state alone a chunk must give the same rows, and end in the same state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ctrlgrad.plan.checking.data import Data
from ctrlgrad.plan.chunks import LoopPlan, chunked_loop, loop_plan
from ctrlgrad.plan.model import Array, Loop, Plan, Register, Stack, Value
from ctrlgrad.plan.placement import place

# Results of a plan that is placed, for arguments.
Execute = Callable[[Plan, Sequence[Any]], list[Any]]
# Products in parts round in other ways.
ROUNDING = 1e-3


@dataclass
class _Running:
    """One run of a loop that can be repeated."""

    again: LoopPlan
    placed: Plan
    captured: list[Any]
    # Where the chunk began: the iteration, and what was carried; of stacks, how many rows they had.
    begun: int = 0
    carried: list[Any] = field(default_factory=list)


class Repeating:
    """Runs the chunks of the loops of a run again, as they end."""

    def __init__(self, data: Data, execute: Execute) -> None:
        self.data, self.execute = data, execute
        self.chunks = 0
        self._running: dict[int, _Running] = {}
        self._plans: dict[Loop, tuple[LoopPlan, Plan] | None] = {}

    def at_head(self, loop: Loop, iteration: int) -> None:
        """A chunk begins before an iteration, and the one before it is over."""
        if loop not in self._plans:
            can_repeat = chunked_loop(self.data.plan, loop).can_repeat
            found = loop_plan(self.data.plan, loop) if can_repeat else None
            self._plans[loop] = None if found is None else (found, place(found.plan))
        known = self._plans[loop]
        if known is None:
            return
        if iteration == 0:
            self._running[loop.number] = _Running(*known, [self.value(v) for v in known[0].captured])
        running = self._running[loop.number]
        if iteration > running.begun:
            self.repeat(loop, running, iteration - running.begun)
        running.begun = iteration
        running.carried = [
            len(self.data.stack(c.inside)) if isinstance(c.inside, Stack) else self.value(c.inside)
            for c in loop.carries
        ]

    def value(self, value: Value) -> Any:
        """A value as it is now."""
        data = self.data
        if isinstance(value, Register):
            return data.values[value.name]
        if isinstance(value, Array):
            return data.elements(data.read(value), value).reshape(data.shape(value.shape)).copy()
        return [data.row_of(value, cell) for cell in data.stack(value).cells()]

    def repeat(self, loop: Loop, running: _Running, iterations: int) -> None:
        """Run a chunk again, with stacks that hold nothing at first."""
        starts = [[] if isinstance(c.inside, Stack) else x for c, x in zip(loop.carries, running.carried, strict=True)]
        results = self.execute(running.placed, [np.int64(iterations), *running.captured, *starts])
        self.chunks += 1
        for carry, before, found in zip(loop.carries, running.carried, results, strict=True):
            now = self.value(carry.inside)
            expected = now[before:] if isinstance(carry.inside, Stack) else now
            if not _same(found, expected):
                self.data.fail(f"{carry.inside} is another one when a chunk of loop {loop.number} is run again")


def _same(found: Any, expected: Any) -> bool:
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(_same, found, expected))
    if found is None or expected is None:
        return found is expected
    if np.shape(found) != np.shape(expected):
        return False
    return bool(np.allclose(found, expected, rtol=ROUNDING, atol=ROUNDING, equal_nan=True))
