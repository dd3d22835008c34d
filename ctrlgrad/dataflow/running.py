"""What lives while a graph runs: iterations, and the frames that they belong to.

A `FrameRun` is one execution of a loop on a device, in one iteration of the loop around it. Its iterations form a list
from the oldest that is not done to the newest. Invariants:

- every step of a frame fires exactly once in every iteration, dead or alive; `left` counts those that have not, the
  inner frames that are not released, and in iteration 0 the Enters that have not come; an iteration is done at 0;
- iteration n + 1 begins when a value arrives in it and fewer than `window` iterations are open: n + 1 - floor < window,
  where iterations below `floor` are done here (and, on the device that owns the loop, on all participants). Values that
  come too early wait in `waiting`;
- an iteration whose predicate is not true is the last; a frame is released when that one and all before it are done.
"""

from __future__ import annotations

from typing import Any

from ctrlgrad.dataflow.plan import FramePlan
from ctrlgrad.dataflow.tokens import Dead, Targets
from ctrlgrad.engines.reference.control_kernels import in_iteration


class Iteration:
    """One iteration of a frame: the slots of its steps, and what each of them still waits for."""

    __slots__ = ("children", "dead", "frame", "is_last", "left", "next", "number", "pending", "slots", "tag")

    def __init__(self, frame: FrameRun, number: int) -> None:
        self.frame = frame
        self.number = number
        self.tag: tuple[int, ...] = (*frame.tag, number)
        self.slots: list[Any] = frame.slots.copy()
        self.pending: list[int] = frame.pending.copy()
        self.left: int = frame.plan.expected
        self.dead: dict[int, Dead] = {}
        self.next: Iteration | None = None
        self.is_last = False
        self.children: dict[int, FrameRun] = {}

    def describe(self) -> str:
        """Where this is, for an error: `iteration 3 of while_1, iteration 0 of while_2`, or the root."""
        parts: list[str] = []
        iteration: Iteration = self
        while iteration.frame.parent is not None:
            parts.insert(0, f"iteration {iteration.number} of {iteration.frame.plan.name}")
            iteration = iteration.frame.parent
        return ", ".join(parts) or "the root"

    def numbers(self) -> list[int]:
        """The iteration of each loop around, the outermost first; a reversed loop counts down."""
        found: list[int] = []
        iteration: Iteration = self
        while iteration.frame.parent is not None:
            count = iteration.frame.counts_from
            found.insert(0, iteration.number if count is None else count - 1 - iteration.number)
            iteration = iteration.frame.parent
        return found

    def loops(self) -> list[str]:
        """For each loop around, the innermost first, which iteration of it this is: the notes of an error."""
        notes = []
        iteration: Iteration = self
        numbers = self.numbers()
        while iteration.frame.parent is not None:
            frame = iteration.frame
            number, loop = numbers.pop(), frame.plan.loop
            notes.append(in_iteration(loop, number) if loop else f"in iteration {number} of the {frame.plan.name}")
            assert frame.parent is not None
            iteration = frame.parent
        return notes


class FrameRun:
    """One execution of a loop; see the module's invariants."""

    __slots__ = (
        "counts_from",
        "floor",
        "newest",
        "oldest",
        "parent",
        "pending",
        "plan",
        "reported",
        "reports",
        "slots",
        "tag",
        "total",
        "waiting",
    )

    def __init__(self, plan: FramePlan, parent: Iteration | None) -> None:
        self.plan = plan
        self.parent = parent
        self.tag: tuple[int, ...] = () if parent is None else parent.tag
        # What a new iteration starts with; constants are put in as they come.
        self.slots = plan.slots
        self.pending = plan.pending
        # How many iterations are done on this device, from the first.
        self.floor = 0
        # How many each participant has reported, and how many there are in all, once that is known.
        self.reported: dict[int, int] = dict.fromkeys(plan.reported, 0)
        self.total: int | None = None
        # Reports that have come. Messages may overtake each other, so a frame waits for every one of them.
        self.reports = 0
        # Where the iterations of a reversed loop count down from.
        self.counts_from: int | None = None
        # Values that wait for the next iteration to begin.
        self.waiting: list[tuple[Targets, Any]] = []
        self.oldest = self.newest = Iteration(self, 0)
        self.oldest.left += plan.enters

    @property
    def has_room(self) -> bool:
        """Whether another iteration may begin."""
        floor = self.floor
        for done in self.reported.values():
            floor = min(floor, done)
        return self.newest.number + 1 - floor < self.plan.window

    @property
    def reports_in_all(self) -> int:
        """How many reports come, once it is known how many iterations there are."""
        assert self.total is not None
        return len(self.reported) * -(-self.total // self.plan.report_every)

    def begin_next(self) -> Iteration:
        """The iteration after the newest."""
        following = Iteration(self, self.newest.number + 1)
        self.newest.next = following
        self.newest = following
        return following


__all__ = ["FrameRun", "Iteration"]
