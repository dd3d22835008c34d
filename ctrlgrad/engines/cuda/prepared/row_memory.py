"""Where the rows of a carried stack lie while a run of iterations pushes them, or pops them off.

They lie in the stack's last block, where a run ends before the block is full, or empty. Rows of which only the card
knows how many there are lie in memory of the run's own where the block may be too short for those of an iteration: they
are pushed on the stack behind the run. So blocks are full, however iterations run. Numbers of the host's are sent to
the card in front of a run that pops them, and read behind one that pushes them.

Of a stack on which as many rows are pushed as the data says nobody knows how much memory an iteration needs: as much as
any before it, as a rule. Where it turns out to be more, the run is made again from its beginning, with as much memory
as it has turned out to need. So it is where as many rows are popped as only the card knows, and the block on top may
have fewer: then they lie in memory of the run's own, with those of the blocks below, and a run that would have popped
more is made again with twice as many. Below the last row there may be some that mean nothing, which keep a pass that is
given others than it should be within this memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ctrlgrad.engines.cuda.context import Context
from ctrlgrad.engines.cuda.prepared.model import CarriedRows, PreparedBody
from ctrlgrad.engines.cuda.program import Values
from ctrlgrad.engines.cuda.stacks import DeviceStack, Stack, own_stack
from ctrlgrad.errors import ExecutionError

# Numbers of a stack of the host's that a run has on the card at most, and where only the card knows how many it needs;
# and bytes of a run's own memory, where few rows are expected.
MOST_NUMBERS, OWN_NUMBERS, OWN_BYTES = 1 << 16, 1 << 12, 1 << 12


@dataclass(frozen=True)
class RowMemory:
    """Where the next row is pushed, or behind the next one that is popped, and how many rows there may be.

    Attributes:
        most: how many an iteration is expected to push, where the data says that, or to pop, where only the card knows.
        is_whole: whether the stack has no other rows, so nothing can be popped but these.
    """

    address: int
    capacity: int
    most: int = 0
    is_whole: bool = False


class StackRows:
    """One carried stack of a loop that runs, by its position in the carry."""

    def __init__(self, context: Context, position: int, its: CarriedRows) -> None:
        self.context, self.its, self.position = context, its, position
        # The most rows that an iteration has pushed, or popped, as far as anybody has counted.
        self.most = max(its.at_least, 1)
        # Where rows lie that are not in the stack, while a run lasts.
        self._aside: Any = None

    def _own(self, carry: Values) -> Stack:
        """The stack, which nobody else has from now on."""
        holder = [carry[self.position]]
        carry[self.position] = None
        stack = carry[self.position] = own_stack(holder)
        return stack

    # Before a run.

    def there(self, carry: Values, is_needed: bool = True) -> int:
        """How many rows a run may push next to each other, or pop off. Another block may be asked for if one is needed
        at once."""
        its, stack = self.its, self._own(carry)
        if not isinstance(stack, DeviceStack):
            if its.is_known:
                return MOST_NUMBERS if its.pushes else min(len(stack), MOST_NUMBERS)
            return self._numbers(stack)
        if self._pops_endless:
            return its.at_least if not len(stack) or stack.top_rows(its.shape) else 0
        if its.is_known:
            if its.pushes:
                return stack.free_rows(its.shape) if is_needed else stack.open_rows(its.shape)
            return stack.top_rows(its.shape)
        if self._is_aside(stack):
            return self._rows_aside
        return stack.open_rows(its.shape) if its.pushes else stack.top_rows(its.shape)

    def _numbers(self, stack: list[Any]) -> int:
        """How many numbers may be pushed or popped, where only the card knows how many are: off a stack without any
        those of an iteration, which does not."""
        if self.its.pushes:
            return max(OWN_NUMBERS, 2 * self.most)
        return min(len(stack), OWN_NUMBERS) if stack else self.most

    def _is_aside(self, stack: DeviceStack) -> bool:
        """Whether an iteration's rows lie elsewhere: those that it may push, in a stack that has no memory for them as
        long as nothing is pushed, and those that no iteration pops, of a stack without rows."""
        if self.its.is_known:
            return False
        return stack.open_rows(self.its.shape) < self.most if self.its.pushes else not len(stack)

    @property
    def _rows_aside(self) -> int:
        return self._plenty if self.its.is_endless else self.most

    @property
    def _plenty(self) -> int:
        """Rows for whoever takes nobody knows how many; those of arrays without elements have no bytes."""
        return max(2 * self.most, OWN_BYTES // max(self.its.row_bytes, 1))

    def lent(self, carry: Values, needed: int) -> RowMemory:
        """Memory for the rows of a run: so many, where the host knows that.

        Raises `MemoryError`.
        """
        its, stack, self._aside = self.its, carry[self.position], None
        if self._pops_endless:
            return self._taken(stack)
        if isinstance(stack, DeviceStack):
            if self._is_aside(stack):
                return self._empty(self._rows_aside)
            if its.is_known and not needed:
                return RowMemory(0, 0)
            array, count = stack.top()
            capacity = stack.open_rows(its.shape) if its.pushes else count
            return self._memory(array, count, capacity)
        if its.pushes:
            return self._empty(max(needed, 1) if its.is_known else self._numbers(stack))
        count = needed if its.is_known else self._numbers(stack)
        numbers = np.array(stack[max(len(stack) - count, 0) :] or [0] * max(count, 1), its.dtype)
        self._aside = self.context.on_device(numbers)
        return self._memory(self._aside, count, count)

    def more(self, rows: int) -> RowMemory:
        """Memory for the rows of a run that has pushed so many. Raises `MemoryError`."""
        return self._empty(rows + self.most + self.its.at_least)

    # Popped as often as only the card knows.

    @property
    def _pops_endless(self) -> bool:
        return self.its.is_endless and not self.its.pushes

    def _taken(self, stack: Stack) -> RowMemory:
        """Where the rows on top lie: in the block, or aside."""
        its = self.its
        if not isinstance(stack, DeviceStack):
            return self.taken_aside(stack, max(OWN_NUMBERS, 2 * self.most))
        count = stack.top_rows(its.shape)
        is_whole = count == len(stack) and its.least == its.at_least <= count
        if not is_whole and its.usable(count) < self.most:
            return self.taken_aside(stack, self._plenty)
        return replace(self._memory(stack.top()[0], count, count), is_whole=is_whole)

    def taken_aside(self, stack: Stack, wanted: int) -> RowMemory:
        """So many rows as they come off the stack, if there are. Raises `MemoryError`."""
        its, context = self.its, self.context
        assert its.dtype is not None
        there = stack.alike(its.shape) if isinstance(stack, DeviceStack) else len(stack)
        count = min(there, wanted)
        # No pass reads these that has all of its rows.
        below = its.at_least - min(count, its.least)
        if isinstance(stack, DeviceStack):
            self._aside = context.library.empty((below + count, *its.shape), its.dtype)
            context.counts.calls += stack.copy_top(self._aside[below:])
        else:
            self._aside = context.on_device(np.array([0] * below + stack[len(stack) - count :], its.dtype))
        return replace(self._memory(self._aside, below + count, below + count), is_whole=count == there)

    def _empty(self, rows: int) -> RowMemory:
        assert self.its.dtype is not None
        self._aside = self.context.library.empty((rows, *self.its.shape), self.its.dtype)
        return self._memory(self._aside, 0 if self.its.pushes else rows, rows)

    def _memory(self, array: Any, count: int, capacity: int) -> RowMemory:
        address = self.context.library.address(array) + count * self.its.row_bytes
        return RowMemory(address, capacity, self.most)

    # Behind it.

    def moved(self, carry: Values, rows: int) -> None:
        """Rows were pushed, or popped (below 0)."""
        stack, aside = carry[self.position], self._aside
        self._aside = None
        if not isinstance(stack, DeviceStack):
            self._moved_on_host(stack, rows, aside)
        elif rows < 0:
            stack.take_off(-rows)
        elif aside is not None:
            self.context.counts.calls += stack.extend(aside[:rows])
        elif rows:
            stack.commit(rows)

    def _moved_on_host(self, stack: list[Any], rows: int, aside: Any) -> None:
        if rows > 0:
            stack.extend(self.context.on_host(aside[:rows])[0])
        elif -rows > len(stack):
            raise ExecutionError("stack: popped more values than were pushed")
        elif rows:
            del stack[rows:]


def pushed_too_many(form: PreparedBody, rows: Mapping[int, RowMemory], counts: Mapping[int, int]) -> dict[int, int]:
    """How many rows were pushed on stacks of which some had no memory."""
    moved = {position: its.moved(counts) for position, its in form.endless.items()}
    return {n: count for n, count in moved.items() if count > form.endless[n].usable(rows[n].capacity)}
