"""Live ranges: arrays and stacks that are still read after each step of a plan.

A block has the last reader of each value that it reads or gives. Sets of all live values, one for each step, would take
memory and time with the square of a long program.
"""

from __future__ import annotations

from collections.abc import Iterable

from ctrlgrad.plan.effects import deep_reads, defines
from ctrlgrad.plan.model import Array, Block, Branch, Loop, Plan, Stack, Step

Live = frozenset[Array | Stack]


def kept(values: Iterable[object]) -> Live:
    """The arrays and stacks among values."""
    return frozenset(v for v in values if isinstance(v, Array | Stack))


class _Ends:
    """Live ranges of the values of a block: first and last position; `at_end` are live after the block as well."""

    def __init__(self, at_end: Live, around: After | None) -> None:
        self.at_end, self.around = at_end, around
        self.defined: dict[object, int] = {}
        self.last_read: dict[object, int] = {}


class After:
    """The values that are needed after a step: in its block, around it and, in a loop, in later iterations."""

    __slots__ = ("ends", "position")

    def __init__(self, ends: _Ends, position: int) -> None:
        self.ends, self.position = ends, position

    def __contains__(self, value: object) -> bool:
        ends, position = self.ends, self.position
        while True:
            if ends.defined.get(value, -1) > position:
                return False
            if ends.last_read.get(value, -1) > position or value in ends.at_end:
                return True
            around = ends.around
            if around is None:
                return False
            ends, position = around.ends, around.position

    def isdisjoint(self, values: Iterable[object]) -> bool:
        return not any(value in self for value in values)

    def last_read(self, value: object) -> int | None:
        """The position in the step's block of the last step that reads a value, or -1; None: needed after the block."""
        ends = self.ends
        if value in ends.at_end or (ends.around is not None and value in ends.around):
            return None
        return ends.last_read.get(value, -1)


class Liveness:
    """For each step of a plan, what is needed after it.

    `after[step]` has the values that a later step may read; `reads[step]` what it reads, with the blocks inside it.
    """

    def __init__(self, plan: Plan) -> None:
        self.after: dict[Step, After] = {}
        self.reads: dict[Step, Live] = {}
        self._block(plan.body, kept(plan.results), None)

    def _block(self, block: Block, at_end: Live, around: After | None) -> None:
        ends = _Ends(at_end, around)
        for position, step in enumerate(block.steps):
            self.after[step] = after = After(ends, position)
            self.reads[step] = read = deep_reads(step)
            ends.last_read.update(dict.fromkeys(read, position))
            ends.defined.update(dict.fromkeys(defines(step), position))
            if isinstance(step, Loop):
                self._loop(step, after)
            elif isinstance(step, Branch):
                for inner, values in zip(step.blocks, step.outputs, strict=True):
                    self._block(inner, kept(values), after)

    def _loop(self, step: Loop, after: After) -> None:
        captured = set(self.reads[step] - kept(c.init for c in step.carries))
        for each in (step.condition, step.body):
            for inner in each.steps:
                captured |= deep_reads(inner)
        inside = kept(c.inside for c in step.carries)
        defined = {v for b in (step.condition, step.body) for s in b.steps for v in defines(s)}
        # Values from outside the loop are live in the next iteration too.
        last = kept(c.next for c in step.carries)
        outside = frozenset(captured | last).difference(defined, inside)
        self._block(step.body, outside | last, after)
        self._block(step.condition, outside | inside, after)
