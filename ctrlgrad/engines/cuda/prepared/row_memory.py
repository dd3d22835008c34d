"""Memory of a carried stack's rows while a run of iterations pushes them, or pops them off.

They lie in the stack's last block, and a run ends before the block is full, or empty. Where only the card knows how
many rows an iteration has, the block may be too short for them. They lie in memory of the run's own then, and are
pushed on the stack after the run. So blocks are full, however iterations run. Numbers of the host are sent to the
card before a run that pops them, and read after a run that pushes them.

Where the data decides how many rows are pushed, the memory that an iteration needs is unknown; as a rule it is the
most that any iteration has needed so far. Where an iteration needs more, the run is repeated from its beginning,
with as much memory as it turned out to need. Where only the card knows how many rows are popped, the block on top
may have fewer. The rows, with those of the blocks below, lie in memory of the run's own then, and a run that would
have popped more is repeated with twice as many. Below the last row there may be meaningless rows, which keep a pass
that reads wrong rows within this memory.
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
    """Place of the next row to push, or of the end of the next row to pop, and the number of rows that fit.

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
        """Make the carry the only owner of its stack, and return the stack."""
        holder = [carry[self.position]]
        carry[self.position] = None
        stack = carry[self.position] = own_stack(holder)
        return stack

    # Before a run.

    def there(self, carry: Values, is_needed: bool = True) -> int:
        """Number of contiguous rows that a run may push or pop. If one is needed at once, a block may be added."""
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
        """Number of scalars that may be pushed or popped, where only the card knows how many are. Off an empty stack
        it is an iteration's number: such an iteration pops none."""
        if self.its.pushes:
            return max(OWN_NUMBERS, 2 * self.most)
        return min(len(stack), OWN_NUMBERS) if stack else self.most

    def _is_aside(self, stack: DeviceStack) -> bool:
        """Return true if an iteration's rows lie in memory of the run's own. That holds for rows that it may push
        beyond the open block, and for an empty stack, off which no iteration pops."""
        if self.its.is_known:
            return False
        return stack.open_rows(self.its.shape) < self.most if self.its.pushes else not len(stack)

    @property
    def _rows_aside(self) -> int:
        return self._plenty if self.its.is_endless else self.most

    @property
    def _plenty(self) -> int:
        """Capacity when the number of rows per iteration is unknown; rows of arrays without elements have no bytes."""
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
        """Memory of the rows on top: in the block, or aside."""
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
    """Number of rows pushed on each stack that had too little memory for them."""
    moved = {position: its.moved(counts) for position, its in form.endless.items()}
    return {n: count for n, count in moved.items() if count > form.endless[n].usable(rows[n].capacity)}
