"""Rows where they lie: which arrays are made in the slot of their push, and which rows are read in place.

A row stays where it is as long as nothing touches its stack.
"""

from __future__ import annotations

from bisect import bisect_left

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
        # Where the steps of a block use the stack of a handle, and where they make rows in its slots.
        self.used: dict[Block, dict[int, list[int]]] = {}
        self.made: dict[tuple[Block, int], list[int]] = {}
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
        makers = {array: block.steps[position] for array, position in producers.items()}
        # The arrays in the slot of each push.
        found: dict[Push, list[Array]] = {}
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
            for each in (array, *origins_of(array, makers, self.live.after)):
                if self._is_touched(block, producers[each], end, handle):
                    break
                if each in self.numbers:
                    self.made[block, self.handles[each]].remove(producers[each])
                self.numbers[each], self.handles[each], end = self.pushes[step], handle, producers[each]
                self.made.setdefault((block, handle), []).append(producers[each])
                found.setdefault(step, []).append(each)
        for position, step in enumerate(block.steps):
            if isinstance(step, Push) and isinstance(step.row, View):
                array, number = step.row.array, self.pushes[step]
                if self.numbers.get(array) == number and not self.is_still(block, position, array, self.handles[array]):
                    for each in [a for a in found[step] if self.numbers.get(a) == number]:
                        self.made[block, self.handles[each]].remove(producers[each])
                        del self.numbers[each], self.handles[each]

    def is_still(self, block: Block, position: int, array: Array, handle: int) -> bool:
        """Whether nothing touches a stack after a step as long as an array is read: then its rows do not move."""
        after = self.live.after[block.steps[position]]
        if position + 1 == len(block.steps) or array not in after:
            return True
        last = after.last_read(array)
        return not self._is_touched(block, position + 1, len(block.steps) if last is None else last + 1, handle)

    def is_last(self, block: Block, position: int, step: FromStack) -> bool:
        """Whether nobody needs the stack after this: then its rows may be brought together where they are read."""
        if step.stack in self.live.after[step]:
            return False
        return self.is_still(block, position, step.result, self.plan.handles[step.stack])

    def _is_touched(self, block: Block, start: int, end: int, handle: int) -> bool:
        """Return true if a block uses the stack of a handle, puts another one there, or makes a row in its slot."""
        used = self.used.get(block)
        if used is None:
            used = self.used[block] = {}
            for position, step in enumerate(block.steps):
                found = (*self.live.reads[step], *defines(step))
                for each in {self.plan.handles[v] for v in found if isinstance(v, Stack)}:
                    used.setdefault(each, []).append(position)
        positions = used.get(handle, [])
        first = bisect_left(positions, start)
        if first < len(positions) and positions[first] < end:
            return True
        return any(start <= position < end for position in self.made.get((block, handle), ()))
