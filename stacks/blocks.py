"""Block stacks: what a stack is while a compiled loop works on it.

A stack is a list of blocks; a block is one contiguous array `[capacity, *element]` of which the first `count` rows
are in use. A compiled loop appends a block per chunk that it runs, and takes rows from the last block; the rows are
written and read in place.

Invariants: no block but the last may be empty; the array of a block that another stack also holds is never
written to (`BlockStack.copy` marks both stacks as sharing); rows at and above `count` mean nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(slots=True)
class Block:
    """One contiguous array of rows, `count` of them in use."""

    array: np.ndarray
    count: int

    @property
    def rows(self) -> np.ndarray:
        """The rows in use, as a view."""
        return self.array[: self.count]


@dataclass(slots=True)
class BlockStack:
    """A run-time stack as blocks; all elements have one shape."""

    dtype: np.dtype
    shape: tuple[int, ...]
    blocks: list[Block] = field(default_factory=list)
    # Whether another stack may hold some of these arrays: then none of them is written to.
    shared: bool = False
    # Which slots were written, where a loop asks; None: all of them. A slot that was not holds zeros.
    written: np.ndarray | None = None

    def __len__(self) -> int:
        return sum(block.count for block in self.blocks)

    def __iter__(self) -> Iterator[np.ndarray]:
        for block in self.blocks:
            yield from block.rows

    @property
    def nbytes(self) -> int:
        """Bytes of the rows in use."""
        return sum(block.rows.nbytes for block in self.blocks)

    def copy(self) -> BlockStack:
        """Another stack of the same rows; the rows themselves are shared from now on."""
        self.shared = True
        blocks = [Block(block.array, block.count) for block in self.blocks]
        return BlockStack(self.dtype, self.shape, blocks, True, self.written)

    def append(self, array: np.ndarray, count: int) -> None:
        """Seal a block that was filled with `count` rows."""
        if count:
            self.blocks.append(Block(array, count))

    def drop(self, count: int) -> None:
        """Take `count` rows off the end."""
        while count:
            last = self.blocks[-1]
            taken = min(count, last.count)
            last.count -= taken
            count -= taken
            if not last.count:
                self.blocks.pop()

    def top(self, count: int) -> np.ndarray:
        """The last rows, `count` or more of them where there are as many, as one contiguous array.

        Rows that lie in several blocks are brought together; those blocks become one.
        """
        if not self.blocks:
            return np.empty((0, *self.shape), self.dtype)
        gathered, number = 0, 0
        while number < len(self.blocks) and gathered < count:
            number += 1
            gathered += self.blocks[-number].count
        if number > 1:
            self._join(number)
        return self.blocks[-1].rows if self.blocks else np.empty((0, *self.shape), self.dtype)

    def _join(self, number: int) -> None:
        last = self.blocks[-number:]
        joined = np.concatenate([block.rows for block in last])
        del self.blocks[-number:]
        self.blocks.append(Block(joined, len(joined)))

    def whole(self, room: int) -> np.ndarray:
        """All rows in one array that may be written to, with room for `room` rows at least."""
        count = len(self)
        if len(self.blocks) == 1 and not self.shared and len(self.blocks[0].array) >= room:
            return self.blocks[0].array
        # Twice as much as is asked for: then copying costs what the rows cost.
        array = np.empty((max(2 * room, count), *self.shape), self.dtype)
        place = 0
        for block in self.blocks:
            array[place : place + block.count] = block.rows
            place += block.count
        self.blocks = [Block(array, count)] if count else []
        self.shared = False
        return array

    def tensor(self) -> np.ndarray:
        """All rows as one array `[length, *element]`; a view where they lie in one block."""
        return self.top(len(self))[: len(self)]

    def rows(self) -> list[np.ndarray | None]:
        """All rows as the reference engine has them: a list of arrays, None for a slot never written."""
        marks = self.written
        return [np.array(row) if marks is None or marks[i] else None for i, row in enumerate(self)]


def from_rows(dtype: np.dtype, shape: tuple[int, ...], rows: Sequence[Any]) -> BlockStack:
    """A block stack of given rows; None stands for a row of zeros."""
    stack = BlockStack(dtype, shape)
    if rows:
        array = np.empty((len(rows), *shape), dtype)
        for i, row in enumerate(rows):
            array[i] = 0 if row is None else row
        stack.append(array, len(rows))
        if any(row is None for row in rows):
            stack.written = np.array([row is not None for row in rows], np.uint8)
    return stack
