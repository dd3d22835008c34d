"""What a compiled loop is lent of its stacks for a chunk, and what is taken back.

A loop that pushes gets fresh memory for the chunk; one that pops works on its stack's last block, in place; one that
reads, or does anything else, gets all rows in one array.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ctrlgrad.engines.native.program import StackUse
from ctrlgrad.engines.reference.run import Counters
from ctrlgrad.stacks.blocks import BlockStack
from ctrlgrad.stacks.storage import Blocks, Storage

Table = np.ndarray

# Rows that a stack has at first that is made inside an iteration.
LOCAL_ROWS = 64


@dataclass
class LentStack:
    """A stack during a run.

    `block` is the array that the loop works on, with `start` rows in it at first; `place` has the places of the table
    that tell the loop; `row_bytes` are those of one row.
    """

    use: StackUse
    stack: BlockStack
    row_bytes: int
    label: str
    # Rows that a fresh block is to have at most, if one iteration can do with them.
    most_rows: int
    place: dict[str, int] = field(default_factory=dict)
    storage: Storage | None = None
    block: np.ndarray | None = None
    start: int = 0
    # Rows of a fresh block, where loops inside push.
    room: int = 0

    def lend(self, table: Table, iterations: int, blocks: Blocks) -> None:
        """Give the function an array of the stack's rows, for so many iterations at most."""
        use, stack = self.use, self.stack
        if use.mode == "push":
            room = max(use.pushes * iterations, self.room, 1) + use.extra
            if use.inside:
                room = self.room = max(self.room, room, min(4 * iterations, self.most_rows))
            source = stack.pushing or blocks
            self.storage, self.start = source.block((room, *stack.shape), use.dtype, self.label), 0
            self.block = self.storage.open()
        elif use.mode in ("pop", "read"):
            # By whole blocks: a loop that pops as another pushed takes exactly what that pushed in a chunk.
            last = stack.last(1 if use.mode == "pop" else len(stack))
            self.storage, self.block, self.start = last.storage, last.open(), last.count
        elif use.is_local:
            self._lend_local(table)
        else:
            self.start = len(stack)
            self.room = max(self.room, self.start + use.pushes * iterations + (4 * iterations if use.inside else 0))
            self.storage = stack.whole(max(self.room, 1))
            self.block = self.storage.open()
            if use.marks:
                self._lend_marks(table)
        assert self.block is not None
        table[self.place["rows"]] = self.block.ctypes.data
        table[self.place["length"]] = self.start
        table[self.place["capacity"]] = len(self.block)

    def _lend_local(self, table: Table) -> None:
        """Rows that each iteration fills anew."""
        self.room = max(self.room, LOCAL_ROWS)
        self.storage, self.start = self.stack.whole(self.room), 0
        self.block = self.storage.open()
        self.stack.replace(self.storage, len(self.block))
        if self.use.marks:
            self.stack.written = np.zeros(len(self.block), np.uint8)
            table[self.place["written"]] = self.stack.written.ctypes.data

    def _lend_marks(self, table: Table) -> None:
        assert self.block is not None
        marks = np.zeros(len(self.block), np.uint8)
        given = self.stack.written
        marks[: self.start] = 1 if given is None else given[: self.start]
        self.stack.written = marks
        table[self.place["written"]] = marks.ctypes.data

    def take_back(self, table: Table, counters: Counters) -> None:
        """Take the rows back as the function left them."""
        count = int(table[self.place["length"]])
        storage, self.storage, self.block = self.storage, None, None
        assert storage is not None
        storage.close()
        if self.use.mode == "push":
            storage.shrink(count)
            self.stack.append(storage, count)
        elif self.use.mode == "pop":
            counters.pops += self.start - count
            self.stack.drop(self.start - count)
        elif self.use.is_local:
            return
        elif self.use.mode == "whole":
            self.stack.replace(storage, count)
            if not self.use.marks:
                self.stack.written = None
        if count > self.start:
            counters.pushes += count - self.start
            counters.pushed_bytes += (count - self.start) * self.row_bytes

    def abandon(self) -> None:
        """The chunk failed or runs again: what was lent is given up, without regard to what it holds."""
        if self.storage is None:
            return
        self.storage.close()
        if self.use.mode == "push" or (self.use.mode == "whole" and not self.stack.blocks):
            self.storage.free()
        self.storage = self.block = None


__all__ = ["LentStack"]
