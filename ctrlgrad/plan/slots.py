"""Rows where they lie: which arrays are made in the slot of their push, and which rows are read in place.

A row stays where it is as long as nothing touches its stack.
"""

from __future__ import annotations

from ctrlgrad.plan.effects import defines, walk
from ctrlgrad.plan.liveness import Liveness
from ctrlgrad.plan.model import (
    Array,
    Block,
    Factorise,
    FromStack,
    Kernel,
    Plan,
    Pop,
    Product,
    Push,
    ReadRow,
    Stack,
    Step,
    View,
)
from ctrlgrad.plan.overwriting import origins_of, results_of


class Slots:
    """Of a plan over values: which rows need no place of their own."""

    def __init__(self, plan: Plan, live: Liveness) -> None:
        self.plan, self.live = plan, live
        # Arrays that are made in the slot of a push: which push, and the handle of its stack.
        self.numbers: dict[Array, int] = {}
        self.handles: dict[Array, int] = {}
        # Of the stacks that each step uses, for those that were asked about.
        self.used_handles: dict[Step, frozenset[int]] = {}
        self.pushes = {step: number for number, step in enumerate(s for s in walk(plan.body) if isinstance(s, Push))}
        # Steps that read rows where they lie.
        reads = (s for s in walk(plan.body) if isinstance(s, Pop | FromStack))
        self.pops = {step: number for number, step in enumerate(reads)}

    def find(self, block: Block) -> None:
        """Arrays that are made and pushed in one block are made in their slot, if nothing uses that stack meanwhile; so
        is what they are updates of."""
        producers: dict[Array, int] = {}
        for position, step in enumerate(block.steps):
            if isinstance(step, Kernel | Product | Factorise | ReadRow):
                producers.update((a, position) for a in results_of(step))
        for position, step in enumerate(block.steps):
            if not isinstance(step, Push) or isinstance(step.row, tuple):
                continue
            array = step.row.array
            if (
                not step.row.is_whole
                or array not in producers
                or array in self.numbers
                or not (step.stack.holds == "elements" or array.shape == self.plan.rows[step.stack])
            ):
                continue
            handle, end = self.plan.handles[step.stack], position
            for each in (array, *origins_of(block, array, self.live.after)):
                if any(self._touches(between, handle) for between in block.steps[producers[each] : end]):
                    break
                self.numbers[each], self.handles[each], end = self.pushes[step], handle, producers[each]
        for position, step in enumerate(block.steps):
            if isinstance(step, Push) and isinstance(step.row, View):
                array = step.row.array
                if self.numbers.get(array) == self.pushes[step] and not self.is_still(
                    block, position, array, self.handles[array]
                ):
                    for each in [a for a, number in self.numbers.items() if number == self.pushes[step]]:
                        del self.numbers[each], self.handles[each]

    def is_still(self, block: Block, position: int, array: Array, handle: int) -> bool:
        """Whether nothing touches a stack after a step as long as an array is read: then its rows do not move."""
        rest = block.steps[position + 1 :]
        if not rest or array not in self.live.after[block.steps[position]]:
            return True
        is_at_end = array in self.live.after[rest[-1]]
        readers = [k for k, step in enumerate(rest) if array in self.live.reads[step]]
        last = len(rest) if is_at_end else max(readers, default=-1) + 1
        return not any(self._touches(step, handle) for step in rest[:last])

    def is_last(self, block: Block, position: int, step: FromStack) -> bool:
        """Whether nobody needs the stack after this: then its rows may be brought together where they are read."""
        if step.stack in self.live.after[step]:
            return False
        return self.is_still(block, position, step.result, self.plan.handles[step.stack])

    def _touches(self, step: Step, handle: int) -> bool:
        """Whether a step uses the stack of a handle, puts another one there, or makes a row in its slot."""
        used = self.used_handles.get(step)
        if used is None:
            handles = self.plan.handles
            found = (*self.live.reads[step], *defines(step))
            used = self.used_handles[step] = frozenset(handles[v] for v in found if isinstance(v, Stack))
        return handle in used or any(self.handles.get(array) == handle for array in results_of(step))


__all__ = ["Slots"]
