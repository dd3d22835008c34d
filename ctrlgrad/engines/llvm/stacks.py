"""The stacks of a running plan: what compiled code sees of them is the last block, in a few words of the frame."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ctrlgrad.engines.account import empty, supply
from ctrlgrad.engines.llvm import frame
from ctrlgrad.errors import ExecutionError
from ctrlgrad.passes import CHUNK_BYTES
from ctrlgrad.stacks.blocks import Block, BlockStack, from_rows
from ctrlgrad.stacks.storage import Resident

# Rows of the first block of a stack; each further one has twice as many, up to the bytes of a chunk.
FIRST_ROWS = 256


class RunningStack:
    """One handle: a stack and its words. While compiled code runs, the words say how many rows the last block has."""

    def __init__(self, words: np.ndarray, dtype: np.dtype, is_ragged: bool) -> None:
        self.words, self.dtype, self.is_ragged = words, dtype, is_ragged
        self.stack: Any = None
        self.array: np.ndarray | None = None
        self.clear()

    def clear(self) -> None:
        self.stack, self.array = None, None
        self.words[:] = 0

    # Between compiled code and the rest.

    def hold(self, stack: Any, shape: tuple[int, ...] | None = None) -> None:
        """Take a stack over: a block stack, or a list of rows."""
        if isinstance(stack, list) and not self.is_ragged:
            if shape is None:
                shape = next((np.shape(row) for row in stack if row is not None), ())
            stack = from_rows(self.dtype, shape, stack, supply())
        self.stack = stack
        self.show()

    def show(self) -> None:
        """Let compiled code see the last block."""
        self.words[:] = 0
        self.array = None
        if not isinstance(self.stack, BlockStack):
            return
        stack = self.stack
        if stack.written is not None:
            self._gather(len(stack))
            self.words[frame.MARKS] = stack.written.ctypes.data
        if not stack.blocks:
            self.words[frame.WRITABLE] = 1
            return
        last = stack.blocks[-1]
        array = self.array = last.storage.open()
        own = not stack.shared and isinstance(last.storage, Resident)
        self.words[frame.BASE] = array.ctypes.data
        self.words[frame.COUNT] = last.count
        self.words[frame.CAPACITY] = len(array) if own and stack.written is None else last.count
        self.words[frame.BELOW] = len(stack) - last.count
        self.words[frame.WRITABLE] = own

    def settle(self) -> Any:
        """The stack as it is now."""
        stack = self.stack
        if isinstance(stack, BlockStack) and stack.blocks:
            last = stack.blocks[-1]
            count = int(self.words[frame.COUNT])
            last.count = count
            last.most = max(last.most, count)
            if not count:
                stack.blocks.pop()
                last.storage.free()
        return stack

    # What compiled code asks for.

    def new(self, size: int, shape: Sequence[int]) -> None:
        """An empty stack, or one of rows that were never written."""
        if self.is_ragged:
            self.hold([None] * size)
        elif size:
            self.hold(from_rows(self.dtype, tuple(shape), [None] * size, supply()))
        else:
            self.hold(BlockStack(self.dtype, tuple(shape), supply=supply()))

    def grow(self, shape: Sequence[int]) -> None:
        """Room for another row."""
        stack = self.settle()
        if not stack.blocks and stack.shape != tuple(shape):
            stack = BlockStack(self.dtype, tuple(shape), supply=supply())
        self.stack = stack
        row = max(math.prod(shape) * self.dtype.itemsize, 1)
        if stack.written is not None or (stack.blocks and stack.shared is False and self._is_indexed):
            self._gather(2 * len(stack) + 16)
            return
        before = len(stack.blocks[-1].storage.open()) if stack.blocks else FIRST_ROWS // 2
        rows = max(16, min(2 * before, CHUNK_BYTES // row))
        stack.blocks.append(Block(Resident(empty((rows, *shape), self.dtype, "rows of a stack")), 0))
        self.show()

    _is_indexed = False

    def gather(self) -> None:
        """All rows in one block."""
        self.settle()
        self._is_indexed = True
        self._gather(len(self.stack))
        self.show()

    def own(self) -> None:
        """A last block that may be written to."""
        self.settle()
        self._gather(len(self.stack))
        self.show()

    def _gather(self, room: int) -> None:
        stack = self.stack
        count = len(stack)
        storage = stack.whole(room)
        stack.replace(storage, count)
        if stack.written is not None and len(stack.written) < len(storage.open()):
            more = np.zeros(len(storage.open()), np.uint8)
            more[: len(stack.written)] = stack.written
            stack.written = more

    def back(self) -> None:
        """The rows below an emptied block."""
        stack = self.settle()
        if not stack:
            raise ExecutionError("stack: popped more values than were pushed")
        self.show()


def copied(stack: Any) -> Any:
    """Another stack of the same rows."""
    return stack.copy() if isinstance(stack, BlockStack) else list(stack)
