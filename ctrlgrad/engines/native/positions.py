"""Position of a running plan: the iterations of its loops, for callbacks and errors."""

from __future__ import annotations

from collections.abc import Iterator

from ctrlgrad.engines.native.stacks import Frame
from ctrlgrad.engines.reference import Run
from ctrlgrad.engines.reference.control_kernels import note
from ctrlgrad.errors import MaximumIterationsError
from ctrlgrad.plan.effects import blocks_of
from ctrlgrad.plan.model import Block, Guard, Kernel, Loop, Plan, ReadRow, Step, WriteRow

Loops = tuple[Loop, ...]


class Positions:
    """The loops around each step and each place that may fail, the outermost first."""

    def __init__(self, plan: Plan) -> None:
        self.steps: dict[Step, Loops] = {}
        self.sites: dict[int, Loops] = {}
        for step, loops in _surrounded(plan.body, ()):
            self.steps[step] = loops
            if isinstance(step, Guard | ReadRow | WriteRow):
                self.sites[step.site] = loops
            elif isinstance(step, Kernel):
                self.sites.update((check.site, loops) for check in step.checks)


def _surrounded(block: Block, loops: Loops) -> Iterator[tuple[Step, Loops]]:
    for step in block.steps:
        yield step, loops
        inside = (*loops, step) if isinstance(step, Loop) else loops
        for each in blocks_of(step):
            yield from _surrounded(each, inside)


def iterations(frame: Frame, loops: Loops) -> list[int]:
    """The number of the current iteration of each loop, as compiled code has told it."""
    return [int(frame.words[frame.layout.iterations + loop.number]) for loop in loops]


def noted(error: BaseException, frame: Frame, loops: Loops) -> None:
    """Add to an error in which iterations it happened, the innermost first."""
    run = Run(iterations=iterations(frame, loops))
    for loop in reversed(loops):
        if not isinstance(error, MaximumIterationsError) or error.source is not loop.node.source:
            note(error, loop.node, run.iterations[-1], run)
        run.iterations.pop()
