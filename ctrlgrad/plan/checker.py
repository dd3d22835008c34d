"""The judge of plans: it replays a placed plan without data, and proves that every read finds the value that it wants.

It shares no code with placement. Every buffer, argument, constant, slot and popped row holds the name of the value in
it, with the iteration of every loop around; every read says which it wants. Loops run 0, 1, 2 and 3 times, branches
take every path, blocks of stacks are of any length, and chunks end before any iteration.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from ctrlgrad.plan.checking.memory import Content, Token
from ctrlgrad.plan.checking.replay import Replay
from ctrlgrad.plan.model import Branch, Loop, NewStack, Outside, Plan, ReadRow, Stack, ToStack, WriteRow

# After so many steps of one run loops take no further iterations.
MOST_STEPS = 20_000


@dataclass(frozen=True)
class Schedule:
    """The path of a run: iterations by how deep a loop is, and the branch; what is None is drawn."""

    counts: tuple[int, ...] | None = None
    choice: int | None = None
    seed: int = 0


SCHEDULES = (
    *(Schedule((k,), k % 2, seed=k) for k in (0, 1, 2, 3)),
    Schedule((1, 2, 3), 1, seed=4),
    Schedule((3, 2, 1), 0, seed=5),
    Schedule((2,), 2, seed=6),
    Schedule((2,), None, seed=7),
    *(Schedule(None, None, seed) for seed in (8, 9, 10)),
)


def check(plan: Plan, schedules: Sequence[Schedule] = SCHEDULES) -> None:
    """Raise `PlanError` if a read of a placed plan could find another value than it wants."""
    for schedule in schedules:
        _Checker(plan, schedule).run()


class _Checker(Replay):
    def __init__(self, plan: Plan, schedule: Schedule) -> None:
        super().__init__(plan)
        self.schedule = schedule
        self.random = random.Random(schedule.seed)
        self.counts: list[int] = []

    def entered(self, step: Loop) -> None:
        counts, depth = self.schedule.counts, len(self.iterations)
        count = self.random.randint(0, 3) if counts is None else counts[min(depth, len(counts) - 1)]
        self.counts.append(count if self.steps < MOST_STEPS else min(count, 1))

    def goes_on(self, step: Loop, iteration: int) -> bool:
        if iteration < self.counts[-1] and (step.maximum is None or iteration < step.maximum):
            return True
        self.counts.pop()
        return False

    def chosen(self, step: Branch) -> int:
        last = len(step.blocks) - 1
        return self.random.randint(0, last) if self.schedule.choice is None else min(self.schedule.choice, last)

    def capacity(self) -> int:
        return self.random.randint(1, 3)

    def chunk_ends(self) -> bool:
        return self.random.random() < 0.3

    def row_index(self, step: ReadRow | WriteRow, length: int) -> int | None:
        most = length if isinstance(step, WriteRow) and step.grow else length - 1
        return self.random.randint(0, most) if most >= 0 else None

    def new_rows(self, step: NewStack | ToStack | Outside, result: Stack) -> int:
        return 0 if isinstance(step, NewStack) and step.size is None else self.random.randint(0, 3)

    def given_rows(self, number: int, argument: Stack) -> Sequence[Content]:
        return [Token(f"row {k} of {argument}") for k in range(self.random.randint(0, 4))]
