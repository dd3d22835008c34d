"""Values on their way: how a step hands a value, or its deadness, to the steps that take it.

A step has a slot for each operand, and a count of what it still waits for; both live in the iteration that it will
fire in, so a token needs no tag of its own. A value stands in its takers' slots and nowhere else: when a step has
emptied its slots and its kernel finds the only reference to an array, it may overwrite it, in flight or not.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ctrlgrad.errors import ExecutionError

if TYPE_CHECKING:
    from ctrlgrad.dataflow.running import Iteration
    from ctrlgrad.dataflow.steps import Step

Entry = tuple["Iteration", "Step"]
# The count of a Merge that has fired: what comes later is dead, and brings it no nearer to zero.
FIRED = -(1 << 30)


class OldestFirst:
    """What is ready, the oldest iteration first, where a deque has it in the order in which it came.

    A device that others wait for must not work far ahead while they wait for something old.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, ...], int, Entry]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._heap)

    def append(self, entry: Entry) -> None:
        self._count += 1
        heapq.heappush(self._heap, (entry[0].tag, self._count, entry))

    def appendleft(self, entry: Entry) -> None:
        """In front of everything."""
        self._count += 1
        heapq.heappush(self._heap, ((), -self._count, entry))

    def extend(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self.append(entry)

    def popleft(self) -> Entry:
        return heapq.heappop(self._heap)[2]


Ready = deque[Entry] | OldestFirst


@dataclass(frozen=True, slots=True)
class Dead:
    """Why a value is dead: which Switch, in which iteration, chose another side."""

    switch: Step
    tag: tuple[int, ...]
    chosen: int


@dataclass(frozen=True, slots=True)
class Targets:
    """The takers of one value: operands with their slots, controls, and operands of Merges with their slots."""

    data: tuple[tuple[int, Step], ...] = ()
    controls: tuple[Step, ...] = ()
    merges: tuple[tuple[int, Step], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.data or self.controls or self.merges)


def give(iteration: Iteration, targets: Targets, value: Any, ready: Ready) -> None:
    """Hand a value to its takers in an iteration; those that wait for nothing more become ready."""
    slots, pending = iteration.slots, iteration.pending
    for slot, step in targets.data:
        slots[slot] = value
        index = step.index
        left = pending[index] - 1
        pending[index] = left
        if not left:
            ready.append((iteration, step))
    for step in targets.controls:
        index = step.index
        left = pending[index] - 1
        pending[index] = left
        if not left:
            ready.append((iteration, step))
    for slot, step in targets.merges:
        index = step.index
        if pending[index] < 0:
            raise _two_alive(iteration, step)
        slots[slot] = value
        pending[index] = FIRED
        ready.append((iteration, step))


def give_dead(iteration: Iteration, targets: Targets, dead: Dead, ready: Ready) -> None:
    """Tell the takers that the value is dead. They come first: nothing is computed, and references go."""
    pending = iteration.pending
    waiting = [step for _, step in targets.data]
    for slot, _ in targets.data:
        iteration.slots[slot] = dead
    waiting += targets.controls
    for step in waiting:
        iteration.dead[step.index] = dead
    # A Merge is dead when all of its operands are.
    waiting += [step for _, step in targets.merges]
    for step in waiting:
        index = step.index
        left = pending[index] - 1
        pending[index] = left
        if not left:
            iteration.dead[index] = dead
            ready.appendleft((iteration, step))


def _two_alive(iteration: Iteration, step: Step) -> ExecutionError:
    return ExecutionError(
        f"{step.name}: two of its operands are alive",
        source=step.source,
        expected="one operand that is alive in each iteration",
        got=f"another one at {iteration.describe()}",
        hint="a Merge takes the sides of one Switch, or what was computed from them",
    )


__all__ = ["FIRED", "Dead", "OldestFirst", "Ready", "Targets", "give", "give_dead"]
