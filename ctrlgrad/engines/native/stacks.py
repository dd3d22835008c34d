"""The stacks of a running plan: compiled code sees one block of each, in a few words of the frame.

The block that it sees is open: pushes fill it, pops empty it, reads and writes of single rows find all rows in it. Then
the words say how many rows of it are in use. A stack that has not been touched yet shows no block, only how many rows
lie below.

A stack that begins anew does so in memory that it had (`RunningStack.begin`): within a run compiled code finds its
block, or the largest that was emptied; between two runs there is room for what the last one pushed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ctrlgrad.engines.native import frame
from ctrlgrad.engines.native.memory import address_of, array_at
from ctrlgrad.errors import ExecutionError
from ctrlgrad.memory.session import current
from ctrlgrad.passes import CHUNK_BYTES
from ctrlgrad.runtime.chunks import chunk_bytes
from ctrlgrad.runtime.stack import (
    Block,
    BlockStack,
    ClaimedRows,
    Resident,
    Storage,
    empty,
    from_rows,
    supply,
    unwritten_rows,
)

# Rows of the first block of a stack; each further one has twice as many, up to the bytes of a chunk.
FIRST_ROWS, LEAST_ROWS = 256, 16
# The most bytes that a stack keeps between two runs: beyond, asking for a block costs little beside filling it.
MOST_KEPT = 1 << 20
# Under a budget, the share of a chunk's bytes that a block of a stack inside it has at most.
SHARE = 4

# Gives memory for a block: (handle, shape, dtype).
Source = Callable[[int, tuple[int, ...], np.dtype], Storage]


class RunningStack:
    """One handle: a stack and its words."""

    def __init__(self, handle: int, words: np.ndarray, dtype: np.dtype, is_ragged: bool) -> None:
        self.handle, self.words, self.dtype, self.is_ragged = handle, words, dtype, is_ragged
        # Python's memory views are quick to read and write.
        self.integers = words.data
        self.stack: Any = None
        # The block that compiled code sees.
        self.open: Block | None = None
        # Allocator of new blocks, None for memory outside any budget; and the number of rows of its last block.
        self.source: Source | None = None
        self.last_rows = 0
        # The most rows that there has been room for since the stack was cleared.
        self.most_rows = 0
        # The most rows that had to lie in one block, to be read as one array: the next ones get one from the beginning.
        self.joined_rows = 0
        self.is_indexed = False
        # Memory of a block that was emptied, for the next one.
        self.spare: np.ndarray | None = None

    def clear(self) -> None:
        """Forget everything: drop the references to what was pushed."""
        self.spare = None
        if self.open is not None:
            self.open.storage.close()
        self.stack, self.open, self.source, self.is_indexed = None, None, None, False
        self.most_rows = 0
        self.words[:] = 0

    def begin(self, shape: Sequence[int], capacity: int = 0) -> None:
        """An empty stack, in memory that it had; with room for so many rows, if any are asked for."""
        self.begin_empty(shape)
        spare = self.spare
        if spare is not None and (spare.shape[1:] != tuple(shape) or len(spare) < self.joined_rows):
            spare = self.spare = None
        if spare is not None:
            capacity = max(capacity, len(spare))
        if capacity:
            self.lend(self.memory, tuple(shape), capacity)

    def begin_empty(self, shape: Sequence[int]) -> None:
        """An empty stack without room: compiled code asks for it before the first row."""
        self.keep(self.open)
        spare, most_rows = self.spare, self.most_rows
        self.clear()
        self.hold(BlockStack(self.dtype, tuple(shape), supply=supply()))
        self.spare, self.most_rows = spare, most_rows
        self.words[frame.WRITABLE] = 1

    def rest(self) -> None:
        """Forget what was pushed, as `clear`. Keep an empty block for the next run if the stack alone owns one."""
        if self.may_begin_unwritten():
            # Compiled code wipes it.
            self.words[frame.IDLE] = 0
            return
        if self.open is None or self.source is not None or self.is_indexed or self.stack.written is not None:
            self.clear()
            return
        rows = min(max(self.most_rows, self.joined_rows), MOST_KEPT // max(self.row_bytes(self.stack.shape), 1))
        if len(self.stack.blocks) == 1 and self.is_own(self.open) and self.words[frame.CAPACITY] >= rows:
            # The one block is such a block.
            self.open.count = 0
            self.words[frame.COUNT] = self.words[frame.IDLE] = 0
            return
        self.begin(self.stack.shape, rows if rows >= max(LEAST_ROWS, self.joined_rows) else 0)

    def may_begin_unwritten(self) -> bool:
        """Return true if the next run may have as many unwritten rows in this block, which is small."""
        if self.open is None or self.source is not None or self.stack.written is None:
            return False
        is_alone = len(self.stack.blocks) == 1 and self.is_own(self.open) and bool(self.words[frame.WRITABLE])
        return is_alone and self.words[frame.CAPACITY] * self.row_bytes(self.stack.shape) <= MOST_KEPT

    # Between compiled code and the rest.

    def hold(self, stack: Any, shape: tuple[int, ...] | None = None, most_bytes: int | None = None) -> None:
        """Take a stack over: a block stack, or a list of rows of a shape, in blocks of at most so many bytes."""
        if isinstance(stack, list) and not self.is_ragged:
            if shape is None:
                shape = next((np.shape(row) for row in stack if row is not None), ())
            most_rows = None if most_bytes is None else max(1, most_bytes // max(self.row_bytes(shape), 1))
            stack = from_rows(self.dtype, shape, stack, supply(), most_rows)
        if self.open is not None:
            self.open.storage.close()
        self.stack, self.open = stack, None
        self.hide()
        if isinstance(stack, BlockStack) and stack.written is not None:
            self.gather()

    def settle(self) -> Any:
        """The stack as it is now; compiled code sees no block any more."""
        self.close()
        self.hide()
        return self.stack

    def close(self) -> None:
        """Note how many rows the open block has, and close it."""
        block, self.open = self.open, None
        if block is None:
            return
        block.count = self.integers[frame.COUNT]
        block.most = max(block.most, block.count)
        storage = block.storage
        storage.close()
        if isinstance(storage, ClaimedRows):
            self.stack.blocks.pop()
            below = self.stack.blocks[-1]
            below.count += block.count
            below.most = max(below.most, below.count)
            storage.memory.release(below.count)
        elif not block.count:
            last = self.stack.blocks.pop()
            assert last is block
            self.keep(block)
            storage.free()
        elif isinstance(storage, Resident) and self.integers[frame.CAPACITY]:
            storage.release(block.count)

    def keep(self, block: Block | None) -> None:
        """Keep the memory of a block that compiled code could write to, where no session counts memory."""
        if block is None or not self.is_own(block):
            return
        assert isinstance(block.storage, Resident)
        array = block.storage.array
        if current() is None and (self.spare is None or len(array) > len(self.spare)):
            self.spare = array

    def is_own(self, open_block: Block) -> bool:
        """Return true if this stack alone owns all of the open block's memory."""
        # A closed block has no capacity, and `ClaimedRows` share their memory with rows of another stack.
        return bool(self.integers[frame.CAPACITY]) and type(open_block.storage) is Resident

    def memory(self, handle: int, shape: tuple[int, ...], dtype: np.dtype) -> Storage:
        """Memory for a block: what an emptied one had, where it is enough."""
        spare, self.spare = self.spare, None
        if spare is not None and spare.shape[1:] == shape[1:] and len(spare) >= shape[0]:
            return Resident(spare)
        return _resident(handle, shape, dtype)

    def hide(self) -> None:
        self.words[:] = 0
        if self.stack is not None:
            self.integers[frame.BELOW] = len(self.stack)

    def show(self, block: Block, is_writable: bool) -> None:
        """Let compiled code see the last block."""
        array = block.storage.open()
        self.open = block
        stack = self.stack
        words = self.integers
        words[frame.BASE] = address_of(array)
        words[frame.COUNT] = block.count
        # A closed block takes no more rows, those that were popped from it neither: another stack may hold it too.
        words[frame.CAPACITY] = len(array) if is_writable else 0
        words[frame.BELOW] = len(stack) - block.count
        words[frame.WRITABLE] = is_writable
        words[frame.MARKS] = 0 if stack.written is None else address_of(stack.written)

    def row_bytes(self, shape: Sequence[int]) -> int:
        return math.prod(shape) * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        if not isinstance(self.stack, BlockStack):
            return 0
        count = self.integers[frame.COUNT] + self.integers[frame.BELOW]
        return count * self.row_bytes(self.stack.shape)

    # Requests of compiled code.

    def new(self, size: int, shape: Sequence[int]) -> None:
        """An empty stack, or one of rows that were never written."""
        if size == frame.SHAPE_UNKNOWN and not self.is_ragged:
            self.begin_empty((0,) * len(shape))
            return
        if not (self.is_ragged or size):
            self.begin(shape)
            return
        self.clear()
        size = max(size, 0)
        self.hold([None] * size if self.is_ragged else unwritten_rows(self.dtype, tuple(shape), size, supply()))

    def new_rows(self, count: int, shape: tuple[int, ...]) -> None:
        """Rows that compiled code is about to fill."""
        if not count:
            self.begin_empty(shape)
            return
        self.clear()
        self.stack = BlockStack(self.dtype, shape, supply=supply())
        block = Block(supply().array((count, *shape), self.dtype, "rows"), count)
        self.stack.add(block)
        self.show(block, True)

    def join(self) -> None:
        """All rows in one block, to be read."""
        stack = self.settle()
        count = len(stack)
        self.joined_rows = max(self.joined_rows, count)
        if count:
            self.show(stack.last(count), False)

    def copy_rows(self, address: int) -> None:
        """Copy all rows to memory."""
        stack = self.settle()
        rows = array_at(address, (len(stack), *stack.shape), None, self.dtype)
        place = 0
        for block in stack.blocks:
            rows[place : place + block.count] = block.open()
            block.close()
            place += block.count

    def grow(self, shape: tuple[int, ...], rows: int) -> None:
        """Room for so many rows more, in one piece."""
        count = self.integers[frame.COUNT] + self.integers[frame.BELOW]
        if self.stack.written is not None or (count and self.is_indexed):
            self.gather(2 * count + LEAST_ROWS)
            return
        # There is room for several times as many. A block that was closed has none for no rows either.
        rows = max(rows, 1)
        piece = max(self.row_bytes(shape) * rows, 1)
        if current() is None:
            if self.open is None and self.extend(shape, rows):
                return
            capacity = max(LEAST_ROWS, min(2 * self.last_capacity() // rows or FIRST_ROWS, CHUNK_BYTES // piece)) * rows
            if not count:
                capacity = max(capacity, self.joined_rows)
        else:
            # Memory counts: several stacks have to find room.
            capacity = 2 * self.last_rows // rows or LEAST_ROWS
            capacity = max(1, min(capacity, chunk_bytes() // SHARE // piece)) * rows
        self.lend(self.source or self.memory, shape, capacity)

    def lend(self, source: Source, shape: tuple[int, ...], capacity: int) -> None:
        """A fresh block on top, with room for so many rows."""
        below = self.open
        stack = self.settle()
        if below is not None and below.count:
            below.storage.settle()
        if not stack.blocks and stack.shape != shape:
            # An empty stack takes the shape of its first row.
            stack = self.stack = BlockStack(self.dtype, shape, supply=supply())
        self.last_rows = capacity
        block = Block(source(self.handle, (capacity, *shape), self.dtype), 0)
        stack.add(block)
        self.show(block, True)
        self.most_rows = max(self.most_rows, self.integers[frame.BELOW] + capacity)

    def put_below(self, storages: Sequence[Storage], rows: int) -> None:
        """Closed blocks of so many rows each come under the open one."""
        top = self.stack.blocks.pop()
        for storage in storages:
            self.stack.add(Block(storage, rows))
        self.stack.add(top)
        self.words[frame.BELOW] = top.below

    def last_capacity(self) -> int:
        """For how many rows the last block had room, or how many it had in use where it is closed."""
        if self.open is None:
            return self.stack.blocks[-1].most if self.stack.blocks else 0
        storage = self.open.storage
        return len(storage.memory.array if isinstance(storage, ClaimedRows) else storage.open())

    def extend(self, shape: tuple[int, ...], rows: int) -> bool:
        """Claim unwritten rows behind the last block, if there are as many; else each run would leave a block, however
        few its rows."""
        last = self.stack.blocks[-1] if self.stack.blocks else None
        if last is None or not isinstance(last.storage, Resident) or self.stack.shape != shape:
            return False
        if len(last.storage.array) - last.count < rows or not last.storage.claim(last.count):
            return False
        block = Block(ClaimedRows(last.storage, last.count), 0)
        self.stack.add(block)
        self.show(block, True)
        return True

    def close_block(self) -> None:
        """The open block takes no more rows: it is cut to those that it has."""
        block = self.open
        self.settle()
        if block is not None and block.count:
            block.storage.shrink(block.count)
        self.last_rows = 0

    def back(self, rows: int) -> None:
        """The block below one that has been emptied, off the end of which so many rows are to be taken."""
        stack = self.settle()
        if not stack or stack.blocks[-1].count < rows:
            raise ExecutionError("stack: popped more values than were pushed")
        self.show(stack.blocks[-1], False)

    def gather(self, capacity: int = 0) -> None:
        """All rows in one block, which may be written to, with room for so many."""
        stack = self.settle()
        self.is_indexed = True
        count = len(stack)
        if not count and stack.written is None:
            self.words[frame.WRITABLE] = 1
            if not capacity:
                return
        storage = stack.whole(max(capacity, count))
        block = Block(storage, count)
        stack.blocks = [block]
        array = storage.open()
        if stack.written is not None and len(stack.written) < len(array):
            marks = np.zeros(len(array), np.uint8)
            marks[: len(stack.written)] = stack.written
            stack.written = marks
        self.show(block, True)


def _resident(handle: int, shape: tuple[int, ...], dtype: np.dtype) -> Storage:
    return Resident(empty(shape, dtype, "rows of a stack"))


def copied(stack: Any) -> Any:
    """Another stack of the same rows."""
    return stack.copy() if isinstance(stack, BlockStack) else list(stack)
