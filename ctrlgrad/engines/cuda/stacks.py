"""Stacks on the device: blocks, each a contiguous array `[capacity, *element]` of which `count` rows are in use.

A kernel writes a pushed value straight into the next slot; a popped row is read where it lies. Blocks double in length
up to `BLOCK_BYTES`, so that allocation costs nothing per push; a loop over the iterations of a chunk says how many
rows it will push, and gets one block for all of them, which is then the operand of a product without a copy. In a
session blocks of loops that push come from the memory manager, by a `Supply` (`ctrlgrad.engines.cuda.chunks`).

Invariants: no block is empty; rows at and above `count` mean nothing; a block is written to only while it is `open`:
not when another stack holds it too, nor when a row was popped off it, which may still be read, nor when the chunk that
it belongs to is over.

A stack that is written by index, and not pushed on, is a list of rows instead, None for a slot that was never
written, as in the reference engine; the rows themselves are never copied.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ctrlgrad.engines.cuda.account import Saved
from ctrlgrad.engines.cuda.library import ArrayLibrary
from ctrlgrad.engines.ownership import POPPED_ALONE
from ctrlgrad.errors import ExecutionError

LEAST_ROWS, BLOCK_BYTES = 16, 16 << 20


@dataclass(slots=True)
class DeviceBlock:
    """`capacity` rows of one shape, `count` of them in use.

    `array` is None where the block is a memory manager's and its chunk is over: then `saved` has the rows.
    """

    shape: tuple[int, ...]
    capacity: int
    count: int
    open: bool
    array: Any = None
    saved: Saved | None = None


class Supply(Protocol):
    """Source of a stack's blocks while a chunk runs."""

    @property
    def is_over(self) -> bool: ...

    def block(self, shape: tuple[int, ...], dtype: np.dtype) -> DeviceBlock:
        """A block to push on."""
        ...

    def enter(self, label: str, most: int) -> None:
        """A loop inside is going to push at most so many rows."""
        ...


class DeviceStack:
    """A run-time stack as blocks on the device. Elements may differ in shape from block to block."""

    __slots__ = ("_opened", "_rows", "blocks", "capacity", "dtype", "library", "pushing")

    def __init__(self, library: ArrayLibrary, dtype: np.dtype, capacity: int = 0) -> None:
        self.library = library
        self.dtype = dtype
        self.blocks: list[DeviceBlock] = []
        # Rows that the next block has at least.
        self.capacity = capacity
        # Where a chunk gives this stack its blocks.
        self.pushing: Supply | None = None
        # The block of a memory manager that was read last, and its rows.
        self._opened: DeviceBlock | None = None
        self._rows: Any = None

    def __len__(self) -> int:
        return sum(block.count for block in self.blocks)

    def __iter__(self) -> Iterator[Any]:
        for block in self.blocks:
            for i in range(block.count):
                yield self._array(block)[i]

    @property
    def is_managed(self) -> bool:
        """Return true if a memory manager has some of the rows."""
        return any(block.saved is not None for block in self.blocks)

    def copy(self) -> DeviceStack:
        """Another stack of the same rows, which neither writes to from now on."""
        other = DeviceStack(self.library, self.dtype, self.capacity)
        other.pushing = self.pushing
        for block in self.blocks:
            block.open = False
            if block.saved is not None:
                block.saved.is_shared = True
            other.blocks.append(DeviceBlock(block.shape, block.capacity, block.count, False, block.array, block.saved))
        return other

    def slot(self, shape: Sequence[int]) -> Any:
        """Place of the next row. The row counts once `commit` is called."""
        last = self._block_for(tuple(shape))
        return last.array[last.count]

    def free_rows(self, shape: tuple[int, ...]) -> int:
        """Number of rows that can be pushed contiguously from now on; at least 1, after a new block where it is
        needed."""
        last = self._block_for(shape)
        return last.capacity - last.count

    def open_rows(self, shape: tuple[int, ...]) -> int:
        """Number of rows that can be pushed contiguously without a new block."""
        last = self.blocks[-1] if self.blocks else None
        if last is None or not last.open or last.shape != shape:
            return 0
        return last.capacity - last.count

    def top_rows(self, shape: tuple[int, ...]) -> int:
        """Number of contiguous rows of this shape on top. A block whose tensor is not contiguous is copied."""
        if not self.blocks or self.blocks[-1].shape != shape:
            return 0
        block = self.blocks[-1]
        if block.array is not None and not _lies_in_order(block.array):
            block.array = self.library.xp.ascontiguousarray(block.array)
        return block.count

    def top(self) -> tuple[Any, int]:
        """The array of the block on top, and how many of its rows are in use."""
        block = self.blocks[-1]
        return self._array(block), block.count

    def _block_for(self, shape: tuple[int, ...]) -> DeviceBlock:
        last = self.blocks[-1] if self.blocks else None
        if last is None or not self.open_rows(shape):
            last = self._new_block(shape, last)
        return last

    def _new_block(self, shape: tuple[int, ...], last: DeviceBlock | None) -> DeviceBlock:
        if self.pushing is not None and not self.pushing.is_over:
            block = self.pushing.block(shape, self.dtype)
        else:
            row = self.dtype.itemsize * math.prod(shape)
            wish = max(LEAST_ROWS, self.capacity, 2 * last.count if last is not None else 0)
            rows = max(1, min(wish, max(LEAST_ROWS, self.capacity, BLOCK_BYTES // max(row, 1))))
            block = DeviceBlock(shape, rows, 0, True, self.library.empty((rows, *shape), self.dtype))
        self.blocks.append(block)
        return block

    def commit(self, count: int = 1) -> None:
        """The slot that was given out, and those behind it, have been written."""
        self.blocks[-1].count += count

    def extend(self, rows: Any) -> int:
        """Push rows that lie next to each other; how many copies that were."""
        done = copies = 0
        while done < len(rows):
            count = min(self.free_rows(tuple(rows.shape[1:])), len(rows) - done)
            block = self.blocks[-1]
            block.array[block.count : block.count + count] = rows[done : done + count]
            self.commit(count)
            done, copies = done + count, copies + 1
        return copies

    def pop(self) -> Any:
        """Take the last row off; it stays where it lies."""
        block = self.blocks[-1]
        row = self._array(block)[block.count - 1]
        self.take(1)
        return row

    def take(self, count: int) -> None:
        """Take rows off the block on top; they stay where they lie."""
        block = self.blocks[-1]
        block.count -= count
        block.open = False
        if not block.count:
            self.blocks.pop()
            self.rest()

    def take_off(self, count: int) -> None:
        """Take rows off the blocks on top; they stay where they lie."""
        if count > len(self):
            raise ExecutionError("stack: popped more values than were pushed")
        while count:
            taken = min(count, self.blocks[-1].count)
            self.take(taken)
            count -= taken

    def alike(self, shape: tuple[int, ...]) -> int:
        """Number of rows of this shape on top, over all blocks."""
        return sum(block.count for block in itertools.takewhile(lambda its: its.shape == shape, reversed(self.blocks)))

    def copy_top(self, target: Any) -> int:
        """Copy as many rows from the top as there are in an array; how many copies that were."""
        left, copies = len(target), 0
        for block in reversed(self.blocks):
            count = min(left, block.count)
            if not count:
                break
            target[left - count : left] = self._array(block)[block.count - count : block.count]
            left, copies = left - count, copies + 1
        return copies

    def drop(self, count: int) -> None:
        """Take rows off the end that nothing has read."""
        while count:
            block = self.blocks[-1]
            dropped = min(count, block.count)
            block.count -= dropped
            count -= dropped
            if not block.count:
                self.blocks.pop()

    def row(self, index: int) -> Any:
        """One row, as a view."""
        for block in self.blocks:
            if index < block.count:
                return self._array(block)[index]
            index -= block.count
        raise IndexError(index)

    def rows(self, block: DeviceBlock) -> Any:
        """The rows of one of its blocks that are in use, as a view."""
        return self._array(block)[: block.count]

    def rest(self) -> None:
        """Nothing reads the stack for now: a memory manager may move its blocks, but for rows that are still held."""
        self._opened = self._rows = None

    def _array(self, block: DeviceBlock) -> Any:
        if block.array is not None:
            return block.array
        if self._opened is not block:
            # First the other one: there may be room for one alone.
            self.rest()
            assert block.saved is not None
            self._opened, self._rows = block, block.saved.open()
        return self._rows

    @staticmethod
    def of(library: ArrayLibrary, array: Any) -> DeviceStack:
        """A stack of an array's rows, which stay where they are."""
        stack = DeviceStack(library, array.dtype)
        if len(array):
            stack.blocks.append(DeviceBlock(tuple(array.shape[1:]), len(array), len(array), False, array))
        return stack


class DeviceRows(list[Any]):
    """A stack as a list of rows that are on the device, None for a slot that was never written."""

    __slots__ = ()

    def copy(self) -> DeviceRows:
        return DeviceRows(self)


def _lies_in_order(array: Any) -> bool:
    sizes = [array.dtype.itemsize * math.prod(array.shape[axis + 1 :]) for axis in range(array.ndim)]
    return tuple(array.strides) == tuple(sizes)


# A stack while it runs: blocks, or a list of rows.
Stack = DeviceStack | list[Any]


def own_stack(operands: list[Any]) -> Stack:
    """Take the first operand off the list as a stack that may be changed: itself if nothing else holds it."""
    value: Stack = operands.pop(0)
    if sys.getrefcount(value) == POPPED_ALONE:
        return value
    return value.copy()


def own_array(operands: list[Any], library: ArrayLibrary) -> tuple[Any, bool]:
    """As `own_stack`, for an array on the device; and whether it was copied. A view is never its own.

    Where a copy is refused the array is among the operands still.
    """
    value = operands.pop(0)
    if sys.getrefcount(value) == POPPED_ALONE and value.base is None:
        return value, False
    try:
        return library.xp.array(value), True
    except MemoryError:
        operands.insert(0, value)
        raise
