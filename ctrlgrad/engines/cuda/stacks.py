"""Stacks on the device, the blocks of a chunk, and the account of one run in a session.

A stack is blocks, each a contiguous array `[capacity, *element]` of which `count` rows are in use. A kernel writes a
pushed value straight into the next slot; a popped row is read where it lies. Blocks double in length up to
`BLOCK_BYTES`, so that allocation costs nothing per push; a loop over the iterations of a chunk says how many rows it
will push, and gets one block for all of them, which is then the operand of a product without a copy. In a session
blocks of loops that push come from the memory manager (`PushedChunk`), which moves a chunk's as one unit. A stack that
is written by index, and not pushed on, is a list of rows instead, None for a slot that was never written, as in the
reference engine; the rows themselves are never copied.

Invariants: rows at and above `count` mean nothing; a block is written to only while it is the stack's `tail`: not when
another stack holds it too, nor when a row was popped off it, which may still be read, nor when the chunk that it
belongs to is over.

Every array that a run in a session makes on the device is counted before it is allocated, so the budget is hard for
them too: the library's allocator asks here (`RunMemory`). The bytes are given back when the array's memory is freed. An
array or a block may die at any point, also while the manager works. Its end is only noted then, and handled at the
run's next request. A row is a view that its reader may hold for as long as it likes. So a block is open (resident, at
its place) as long as an array of its rows or a view of one lives, and it is freed when no stack and no such array holds
it: the array's memory holds a `Lease`, which tells the manager when it dies.
"""

from __future__ import annotations

import itertools
import math
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ctrlgrad.engines.cuda.library import ArrayLibrary
from ctrlgrad.engines.reference.table import POPPED_ALONE
from ctrlgrad.errors import ExecutionError
from ctrlgrad.memory.arena import Reservation
from ctrlgrad.memory.manager import Manager
from ctrlgrad.runtime.stack import MOST_AHEAD, Block, Blocks, BlockStack, InPlace, Resident, Storage

_BYTE = np.dtype(np.uint8)


class RunMemory:
    """Counts what one run allocates. Implements `ctrlgrad.engines.cuda.library.Memory`."""

    def __init__(self, manager: Manager, library: ArrayLibrary) -> None:
        self.manager, self.library = manager, library
        # The profile has a slice for what runs now: the loops inside are parts of it.
        self.is_recorded = False
        self._is_counting = True
        self._due: deque[Callable[[], None]] = deque()

    @property
    def device(self) -> Any:
        return self.manager.device

    def count(self, nbytes: int) -> Reservation | None:
        """Make room for an array before it is allocated; its bytes count as long as the result lives.

        Raises `MemoryBudgetError` where no room can be made.
        """
        if not self._is_counting:
            return None
        self.settle()
        return self.manager.reserve(nbytes, "a value of the computation")

    def allocate(self, nbytes: int) -> Any:
        """Bytes from the manager itself, where the card is full although the budget has room: blocks leave for them.

        Raises `MemoryBudgetError` or `TierRefusedError` where no room can be made.
        """
        self.settle()
        return self.manager.allocate((nbytes,), _BYTE, "a value of the computation")

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Leave the arrays that are allocated inside uncounted: a replay's copies, which the manager counts as entry
        states."""
        before, self._is_counting = self._is_counting, False
        try:
            yield
        finally:
            self._is_counting = before

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Mark the work inside as part of a slice of the profile."""
        before, self.is_recorded = self.is_recorded, True
        try:
            yield
        finally:
            self.is_recorded = before

    def later(self, action: Callable[[], None]) -> None:
        """Do something with the manager, but not now; finalizers call it."""
        self._due.append(action)

    def settle(self) -> None:
        """Do what was to be done later."""
        while self._due:
            self._due.popleft()()


class Lease:
    """Lives as long as an array of a block's rows. Where it pins the block, the block is closed with its end."""

    __slots__ = ("__weakref__", "is_pinning", "saved")

    def __init__(self, saved: Saved, is_pinning: bool) -> None:
        self.saved, self.is_pinning = saved, is_pinning

    def __del__(self) -> None:
        if self.is_pinning:
            self.saved.memory.later(self.saved.storage.close)


class Saved:
    """A block of the manager; freed with its last holder where it `is_owner`, which a chunk that runs again is not.

    It holds what its loop needs to be run again: that lives as long as one of the loop's blocks.
    """

    __slots__ = ("_needs", "_writing", "is_owner", "is_shared", "memory", "storage")

    def __init__(self, memory: RunMemory, storage: Storage, is_owner: bool, needs: object) -> None:
        self.memory, self.storage, self.is_owner, self._needs = memory, storage, is_owner, needs
        # True if two stacks hold it; they may differ in their numbers of rows.
        self.is_shared = False
        self._writing: weakref.ref[Lease] | None = None

    def __del__(self) -> None:
        if self.is_owner:
            self.memory.later(self.storage.free)

    def write(self) -> Any:
        """The array of the rows, to be written to until the chunk is over."""
        lease = Lease(self, False)
        self._writing = weakref.ref(lease)
        return self.memory.library.borrowed(self.storage.open(), lease)

    def open(self) -> Any:
        """The array of the rows, which stay where they are as long as it or a view of it lives."""
        self.memory.settle()
        return self.memory.library.borrowed(self.storage.open(), Lease(self, True))

    @property
    def is_in_use(self) -> bool:
        """Return true if a reader still holds one of the written rows."""
        return self._writing is not None and self._writing() is not None

    def stay(self) -> None:
        """End the chunk; while a reader still holds a row, the block stays at its place."""
        lease = self._writing() if self._writing is not None else None
        if lease is not None and not lease.is_pinning:
            self.storage.open()
            lease.is_pinning = True


LEAST_ROWS, BLOCK_BYTES = 16, 16 << 20


class Managed(InPlace):
    """Rows in a block of a memory manager; `array` while the chunk runs that writes them."""

    __slots__ = ("array", "saved", "shape")

    def __init__(self, saved: Saved) -> None:
        self.saved, self.array = saved, saved.write()
        self.shape = tuple(self.array.shape)

    def open(self) -> Any:
        return self.saved.open() if self.array is None else self.array

    def share(self) -> None:
        self.saved.is_shared = True

    def shrink(self, rows: int) -> None:
        """The chunk is over."""
        self.array = None
        if self.saved.is_owner and not self.saved.is_shared:
            self.saved.storage.shrink(rows)


class DeviceStack(BlockStack):
    """A stack whose blocks lie on the device; elements may differ in shape from block to block."""

    __slots__ = ("capacity", "library", "pushing")

    lends = True

    def __init__(self, library: ArrayLibrary, dtype: np.dtype, capacity: int = 0) -> None:
        super().__init__(dtype, ())
        self.library = library
        # Rows that the next block has at least.
        self.capacity = capacity
        # Where a chunk gives this stack its blocks.
        self.pushing: RowSupply | None = None

    @staticmethod
    def of(library: ArrayLibrary, array: Any) -> DeviceStack:
        """A stack of an array's rows, which stay where they are."""
        stack = DeviceStack(library, array.dtype)
        if len(array):
            stack.add(Block(Resident(array), len(array)))
        return stack

    def _empty(self) -> DeviceStack:
        other = DeviceStack(self.library, self.dtype, self.capacity)
        other.pushing = self.pushing
        return other

    @property
    def is_managed(self) -> bool:
        """Return true if a memory manager has some of the rows."""
        return any(isinstance(block.storage, Managed) for block in self.blocks)

    def open(self, block: Block) -> Any:
        """As for other stacks; rows that are being written stay in place anyway."""
        array = block.storage.array
        return super().open(block) if array is None else array

    # Rows that kernels push.

    def slot(self, shape: Sequence[int]) -> Any:
        """Place of the next row. The row counts once `commit` is called."""
        self.free_rows(tuple(shape))
        return self.tail.array[self.blocks[-1].count]

    def commit(self, count: int = 1) -> None:
        """The slot that was given out, and those behind it, have been written."""
        self.blocks[-1].count += count

    def free_rows(self, shape: tuple[int, ...]) -> int:
        """Number of rows that can be pushed contiguously from now on; at least 1, after a new block where it is
        needed."""
        return self.open_rows(shape) or self._new_block(shape)

    def open_rows(self, shape: tuple[int, ...]) -> int:
        """Number of rows that can be pushed contiguously without a new block."""
        if self.tail is None or self.tail.array is None or self.tail.shape[1:] != shape:
            return 0
        return len(self.tail.array) - self.blocks[-1].count

    def _new_block(self, shape: tuple[int, ...]) -> int:
        """Put an empty block on top; the number of its rows."""
        if self.pushing is not None and not self.pushing.is_over:
            block = self.pushing.block(shape, self.dtype)
        else:
            row = self.dtype.itemsize * math.prod(shape)
            least = max(1, min(LEAST_ROWS, MOST_AHEAD // max(row, 1)), self.capacity)
            wish = max(least, 2 * self.blocks[-1].count if self.blocks else 0)
            rows = min(wish, max(least, BLOCK_BYTES // max(row, 1)))
            block = Block(Resident(self.library.empty((rows, *shape), self.dtype)), 0)
        self.add(block)
        self.tail = block.storage
        return len(self.tail.array)

    def extend(self, rows: Any) -> int:
        """Push rows that lie next to each other; how many copies that were."""
        done = copies = 0
        while done < len(rows):
            count = min(self.free_rows(tuple(rows.shape[1:])), len(rows) - done)
            start = self.blocks[-1].count
            self.tail.array[start : start + count] = rows[done : done + count]
            self.commit(count)
            done, copies = done + count, copies + 1
        return copies

    # Rows that kernels pop: they stay where they lie.

    def top_rows(self, shape: tuple[int, ...]) -> int:
        """Number of contiguous rows of this shape on top. A block whose tensor is not contiguous is copied."""
        storage: Any = self.blocks[-1].storage if self.blocks else None
        if storage is None or storage.shape[1:] != shape:
            return 0
        if storage.array is not None and not _lies_in_order(storage.array):
            storage.array = self.library.xp.ascontiguousarray(storage.array)
        return self.blocks[-1].count

    def top(self) -> tuple[Any, int]:
        """The array of the block on top, and how many of its rows are in use."""
        return self.open(self.blocks[-1]), self.blocks[-1].count

    def alike(self, shape: tuple[int, ...]) -> int:
        """Number of rows of this shape on top, over all blocks."""
        shapes = ((block.count, block.storage.shape[1:]) for block in reversed(self.blocks))
        return sum(count for count, _ in itertools.takewhile(lambda its: its[1] == shape, shapes))

    def take_off(self, count: int) -> None:
        """Take rows off the blocks on top."""
        if count > len(self):
            raise ExecutionError("stack: popped more values than were pushed")
        self.tail = None
        self.drop(count)


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


# Blocks of a chunk.

# Rows of a stack's first block in a chunk where the number of rows is unknown.
FIRST_ROWS = 4


class RowSupply:
    """Source of one stack's blocks in one chunk."""

    def __init__(self, chunk: PushedChunk, label: str, expected: int, number: int) -> None:
        self._chunk, self._number = chunk, number
        self.label = label
        # Rows that it will push in the chunk, as far as that is known; rows that it asked for so far; the most that
        # it may ask for, where that is known.
        self.expected = expected
        self.rows = 0
        self.most: int | None = None

    @property
    def is_over(self) -> bool:
        return self._chunk.is_over

    def enter(self, label: str, most: int) -> None:
        """A loop inside is going to push at most so many rows."""
        self.label, self.most = label, self.rows + most

    def block(self, shape: tuple[int, ...], dtype: np.dtype) -> Block:
        """A block to push on."""
        rows = self.expected - self.rows if self.rows < self.expected else max(FIRST_ROWS, self.rows)
        if self.most is not None:
            rows = max(1, min(rows, self.most - self.rows))
        self.rows += rows
        return self._chunk.block(rows, shape, dtype, self.label, self._number)

    @property
    def pushed(self) -> int:
        """The rows that it has pushed so far."""
        return sum(block.count for block, number in self._chunk.blocks if number == self._number)


class PushedChunk:
    """The blocks that are filled while a chunk runs, for the first time or, where it is not their owner, again."""

    def __init__(self, memory: RunMemory, chunk: Blocks, is_owner: bool = True, needs: object = None) -> None:
        self.memory, self.chunk, self.is_owner, self._needs = memory, chunk, is_owner, needs
        self.is_over = False
        # The blocks, each with the number of its stack: none any more once the chunk is left, since a stack may hold on
        # to its supply.
        self.blocks: list[tuple[Block, int]] = []
        self._supplies = itertools.count()

    def supply(self, label: str, expected: int) -> RowSupply:
        """New source of a stack's blocks."""
        return RowSupply(self, label, expected, next(self._supplies))

    def block(self, rows: int, shape: tuple[int, ...], dtype: np.dtype, label: str, stack: int) -> Block:
        """A fresh block that counts."""
        self.memory.settle()
        saved = Saved(self.memory, self.chunk.block((rows, *shape), dtype, label, stack), self.is_owner, self._needs)
        block = Block(Managed(saved), 0)
        self.blocks.append((block, stack))
        return block

    @property
    def nbytes(self) -> int:
        """Bytes of the rows that were pushed."""
        rows = ((block.count, block.storage.array) for block, _ in self.blocks)
        return sum(count * math.prod(array.shape[1:]) * array.dtype.itemsize for count, array in rows)

    def detach(self, carry: list[Any]) -> int:
        """Copy what lies in the chunk's blocks and is carried on. Answers how many copies that were."""
        roots = {id(block.storage.array) for block, _ in self.blocks}
        copies = 0
        for holder, place in _arrays(carry):
            x = holder[place]
            if x is not None and id(getattr(x, "base", None)) in roots:
                holder[place] = self.memory.library.xp.array(x)
                copies += 1
        return copies

    def end(self) -> None:
        """The chunk has run, and nothing is pushed on its blocks any more."""
        self.is_over = True
        for block, _ in self.blocks:
            block.storage.shrink(block.count)

    def leave(self) -> None:
        """Leave the blocks to the manager, after `end`. A block with a row that is still read stays at its place until
        then.

        In a chunk that runs again the manager takes them by itself.
        """
        blocks, self.blocks = self.blocks, []
        for block, _ in blocks:
            assert self.is_owner or not block.storage.saved.is_in_use
            block.storage.saved.stay()

    def abandon(self) -> None:
        """The chunk has failed."""
        self.is_over = True
        self.blocks.clear()


def _arrays(carry: list[Any]) -> Iterator[tuple[Any, Any]]:
    """The places of the arrays that a loop carries: in the carry itself, and in lists of rows on the device."""
    for place, x in enumerate(carry):
        if isinstance(x, list):
            if not any(isinstance(row, np.generic) for row in x[-1:]):
                yield from ((x, number) for number in range(len(x)))
        elif not isinstance(x, DeviceStack):
            yield carry, place
