"""Where the rows of a carried stack lie while a run of iterations pushes them, or pops them off.

They lie in the stack's last block, where a run ends before the block is full, or empty. Rows of which only the card
knows how many there are lie in memory of the run's own where the block may be too short for those of an iteration: they
are pushed on the stack behind the run. So blocks are full, however iterations run. Numbers of the host's are sent to
the card in front of a run that pops them, and read behind one that pushes them.

Of a stack on which as many rows are pushed as the data says nobody knows how much memory an iteration needs: as much as
any before it, as a rule. Where it turns out to be more, the run is made again from its beginning, with as much memory
as it has turned out to need.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ctrlgrad.engines.cuda.context import Context
from ctrlgrad.engines.cuda.prepared.model import CarriedRows
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
        most: how many an iteration is expected to push, where the data says that.
    """

    address: int
    capacity: int
    most: int = 0


class StackRows:
    """One carried stack of a loop that runs, by its position in the carry."""

    def __init__(self, context: Context, position: int, its: CarriedRows) -> None:
        self.context, self.its, self.position = context, its, position
        # The most rows that an iteration has pushed, as far as anybody has counted.
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
        return max(2 * self.most, OWN_BYTES // self.its.row_bytes) if self.its.is_endless else self.most

    def lent(self, carry: Values, needed: int) -> RowMemory:
        """Memory for the rows of a run: so many, where the host knows that.

        Raises `MemoryBudgetError`.
        """
        its, stack = self.its, carry[self.position]
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
        """Memory for the rows of a run that has pushed so many. Raises `MemoryBudgetError`."""
        return self._empty(rows + self.most + self.its.at_least)

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
        elif aside is not None and rows < 0:
            raise ExecutionError("stack: popped more values than were pushed")
        elif aside is not None:
            self.context.counts.calls += stack.extend(aside[:rows])
        elif rows > 0:
            stack.commit(rows)
        elif rows:
            stack.take(-rows)

    def _moved_on_host(self, stack: list[Any], rows: int, aside: Any) -> None:
        if rows > 0:
            stack.extend(self.context.on_host(aside[:rows])[0])
        elif -rows > len(stack):
            raise ExecutionError("stack: popped more values than were pushed")
        elif rows:
            del stack[rows:]


__all__ = ["RowMemory", "StackRows"]
