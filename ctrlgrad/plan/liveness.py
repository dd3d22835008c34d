"""Which arrays and stacks are still needed after each step of a plan."""

from __future__ import annotations

from collections.abc import Iterable

from ctrlgrad.plan.effects import deep_reads, defines
from ctrlgrad.plan.model import Array, Block, Branch, Loop, Plan, Stack, Step

Live = frozenset[Array | Stack]


def kept(values: Iterable[object]) -> Live:
    """The arrays and stacks among values."""
    return frozenset(v for v in values if isinstance(v, Array | Stack))


class Liveness:
    """For each step of a plan, what is needed after it: in its block, around it and, in a loop, in later iterations.

    `after[step]` holds the values that a later step may read; `reads[step]` what it reads, with the blocks inside it.
    """

    def __init__(self, plan: Plan) -> None:
        self.after: dict[Step, Live] = {}
        self.reads: dict[Step, Live] = {}
        self._block(plan.body, kept(plan.results))

    def _block(self, block: Block, at_end: Live) -> None:
        live = set(at_end)
        for step in reversed(block.steps):
            self.after[step] = after = frozenset(live)
            self.reads[step] = read = deep_reads(step)
            if isinstance(step, Loop):
                self._loop(step, after)
            elif isinstance(step, Branch):
                for inner, values in zip(step.blocks, step.outputs, strict=True):
                    self._block(inner, after | kept(values))
            live.difference_update(defines(step))
            live |= read

    def _loop(self, step: Loop, after: Live) -> None:
        captured = set(self.reads[step] - kept(c.init for c in step.carries))
        for each in (step.condition, step.body):
            for inner in each.steps:
                captured |= deep_reads(inner)
        inside = kept(c.inside for c in step.carries)
        defined = {v for b in (step.condition, step.body) for s in b.steps for v in defines(s)}
        # What comes from outside is needed by the next iteration too.
        last = kept(c.next for c in step.carries)
        outside = frozenset(captured | last).difference(defined, inside)
        self._block(step.body, after | outside | last)
        self._block(step.condition, after | outside | inside)
