"""Stacks while a program runs, and where their rows lie.

A stack is a list of blocks; a block is one contiguous array `[capacity, *element]` of which the first `count` rows
are in use. A compiled loop appends a block per chunk that it runs, and takes rows from the last block; the rows are
written and read in place, between `open` and `close` of the block. Interpreted code pushes and pops single rows: pushed
rows go into a block that grows, the tail; popped ones come from the last block, which stays open in between. A stack on
a device (`ctrlgrad.engines.cuda.stacks`) lends its rows: they are read where they lie.

A block lies in a storage, which is opened before its rows are touched and closed afterwards; between two uses a memory
manager may keep the rows in another tier. Without a budget rows stay in place, and both do nothing.

Invariants: no block but the last may be empty; the array of a block that another stack also holds is never
written to (`BlockStack.copy` marks both stacks as sharing, and a tail takes no more rows once it is opened or shared);
rows at and above `count` mean nothing.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, Protocol, Self

import numpy as np

from ctrlgrad.memory.pool import POOL, aligned
from ctrlgrad.memory.session import current
from ctrlgrad.records import record

# The device of the engines that run on this computer's processor.
CPU = "cpu"
# The most bytes of a block that is made longer than its first rows need, without knowing how many rows will follow.
MOST_AHEAD = 1 << 28


class Storage(Protocol):
    """An array `[capacity, *element]`."""

    def open(self) -> Any:
        """The array, which stays where it is until `close`."""

    def close(self) -> None:
        """The array is not used any more, for now."""

    def shrink(self, rows: int) -> None:
        """Only the first rows matter from now on."""

    def settle(self) -> None:
        """No more rows are written."""

    def share(self) -> object:
        """Another block holds this storage too."""

    def free(self) -> None:
        """One block less holds it; no row is read again through that one."""


class Blocks(Protocol):
    """Source of memory for the values that a running chunk pushes."""

    def block(self, shape: Sequence[int], dtype: np.dtype, label: str, stack: int = 0) -> Storage:
        """Memory for values that the backward pass takes back, the last first.

        Where the chunk runs again, it asks for the blocks of each `stack` in the same order.
        """


class InPlace:
    """Base of storages whose rows no manager moves."""

    __slots__ = ()

    def close(self) -> None:
        pass

    def settle(self) -> None:
        pass

    def share(self) -> None:
        pass

    def free(self) -> None:
        pass


class Resident(InPlace):
    """An array of this process's own memory.

    Several stacks may share its first rows; the unwritten rows after them go to the first stack that claims them.
    """

    __slots__ = ("_unclaimed", "array")

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        # The first unwritten row; empty while a stack writes there, or if no stack may.
        self._unclaimed: list[int] = []

    def release(self, row: int) -> None:
        """Release the rows from this one on, for another stack to claim."""
        self._unclaimed = [row]

    def claim(self, row: int) -> bool:
        """Take the rows from this one on, to write to them; False where there are none, or another stack has them."""
        try:
            # One step, also where several threads come at once.
            first = self._unclaimed.pop()
        except IndexError:
            return False
        if first != row or row == len(self.array):
            self._unclaimed.append(first)
            return False
        return True

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def open(self) -> np.ndarray:
        return self.array

    def shrink(self, rows: int) -> None:
        # In a session a smaller copy would need room for both.
        if rows * 2 < len(self.array) and current() is None:
            self.array = self.array[:rows].copy()
            self._unclaimed = []


class ClaimedRows(Resident):
    """The rows of a block's memory that a stack has claimed; what it writes becomes a part of that block."""

    __slots__ = ("memory",)

    def __init__(self, memory: Resident, start: int) -> None:
        super().__init__(memory.array[start:])
        self.memory = memory


# Memory that a run takes beside the blocks of its chunks: from the pool, or counted where there is a session.


def empty(shape: Sequence[int], dtype: np.dtype, label: str) -> np.ndarray:
    """An uninitialised array, aligned. In a session its bytes count as long as it, or a view of it, lives."""
    if current() is None:
        return POOL.empty(shape, dtype)
    return _counted(lambda: aligned(shape, dtype), math.prod(shape) * dtype.itemsize, label)


def copied(array: np.ndarray, label: str) -> np.ndarray:
    """A copy that is no view of other memory. In a session its bytes count as long as it, or a view of it, lives."""
    if current() is None:
        return array.copy()
    return _counted(array.copy, array.nbytes, label)


def _counted(take: Callable[[], np.ndarray], nbytes: int, label: str) -> np.ndarray:
    """An array whose bytes a session counts, a view of a whole one or one itself."""
    session = current()
    assert session is not None
    manager = session.manager(CPU)
    held = manager.with_room(lambda: manager.reserve(nbytes, label), nbytes)
    array = take()
    weakref.finalize(array if array.base is None else array.base, held.release)
    return array


def resident(shape: Sequence[int], dtype: np.dtype, label: str = "rows") -> Resident:
    """An uninitialised storage of the current source of memory, see `empty`."""
    return Resident(empty(shape, dtype, label))


# Stacks.


@record(frozen=False)
class Block:
    """One contiguous array of rows, `count` of them in use."""

    # A `Storage`; on a device one with its array.
    storage: Any
    count: int
    # The most rows that were in use.
    most: int = field(init=False)
    # Rows of the blocks under it.
    below: int = field(init=False)

    def __post_init__(self) -> None:
        self.most, self.below = self.count, 0


@record(frozen=False)
class BlockStack:
    """A run-time stack as blocks; all elements have one shape."""

    dtype: np.dtype
    shape: tuple[int, ...]
    blocks: list[Block] = field(default_factory=list)
    # True if another stack may hold some of these arrays: then none of them is written to.
    shared: bool = False
    # Slots that were written, if a loop tracks them; None: all of them. An unwritten slot holds zeros.
    written: np.ndarray | None = None
    # Source of storages for rows that are pushed one by one: `tail(row, before)` is an empty one for such rows,
    # after one of `before` rows. And the storage on top while it takes more: `put(row)` is false if it does not.
    tails: Any = None
    tail: Any = None
    # The block that is read, and its rows, which stay in place until `rest`.
    reading: Block | None = None
    read_from: Any = None
    # What keeps the blocks of a stack that has left its call beyond the end of the session.
    stays: Any = None

    # True if rows are read where they lie, and their memory lives as long as a reader holds them. Else they are copied.
    lends = False

    def __len__(self) -> int:
        if not self.blocks:
            return 0
        last = self.blocks[-1]
        return last.below + last.count

    def __iter__(self) -> Iterator[Any]:
        """The rows, the first first."""
        for block in self.blocks:
            rows = self.open(block)
            found = [rows[i] if self.lends else np.array(rows[i]) for i in range(block.count)]
            if not self.lends:
                self.rest()
            yield from found

    def copy(self) -> Self:
        """Another stack of the same rows; the rows themselves are shared from now on."""
        self.shared, self.tail = True, None
        for block in self.blocks:
            block.storage.share()
        found: Self = self._empty()
        for block in self.blocks:
            found.add(Block(block.storage, block.count))
        return found

    def _empty(self) -> Any:
        """A stack without rows, but with the same options."""
        return BlockStack(self.dtype, self.shape, [], True, self.written, self.tails)

    def add(self, block: Block) -> None:
        """Put a block on top; the counts of those under it change no more."""
        block.below = len(self)
        self.blocks.append(block)

    def append(self, storage: Storage, count: int) -> None:
        """Take over memory of which `count` rows were filled."""
        if self.tail is not None:
            self.tail.settle()
            self.tail = None
        if count:
            self.add(Block(storage, count))
        else:
            storage.free()

    def drop(self, count: int) -> None:
        """Take `count` rows off the end."""
        while count:
            last = self.blocks[-1]
            dropped = min(count, last.count)
            last.count -= dropped
            count -= dropped
            if not last.count:
                if self.reading is last:
                    self.rest()
                self.blocks.pop()
                self.tail = None
                last.storage.free()

    # Single rows.

    def push(self, row: Any) -> None:
        """Put a row of the stack's shape on top; it is copied. Only where `tails` is set."""
        while self.tail is None or not self.tail.put(row):
            self._begin_tail(row)
        last = self.blocks[-1]
        last.count += 1
        last.most = max(last.most, last.count)

    def _begin_tail(self, row: Any) -> None:
        """Another block on top, which takes rows like this one.

        A thread that is short of room may settle it at any time from now on, then it takes no more, or none at all.
        """
        assert self.tails is not None
        self.rest()
        self.tail = None
        if self.blocks and not self.blocks[-1].count:
            self.blocks.pop().storage.free()
        below = self.blocks[-1] if self.blocks else None
        tail = self.tails.tail(row, 0 if below is None else below.most)
        moved = 0
        # A block most of whose rows were popped would hold all their bytes: what is left of it goes with the new ones.
        if below is not None and 2 * below.count <= min(below.most, tail.capacity):
            moved = sum([tail.put(row) for row in self.used(below)])
            self.rest()
            # All rows of a block are alike: the tail takes all of them or none, if it is not settled meanwhile.
            if 0 < moved < below.count:
                tail.free()
                return
            self.drop(moved)
        self.tail = tail
        self.add(Block(tail, moved))

    def pop(self) -> Any:
        """Take the last row off. The block that it lies in stays open for the next ones, and takes no more rows."""
        last = self.blocks[-1]
        row = self._kept(self.open(last)[last.count - 1])
        self.tail = None
        self.drop(1)
        return row

    def __getitem__(self, index: int) -> Any:
        """The row at an index from 0; None for a slot never written."""
        if self.written is not None and not self.written[index]:
            return None
        for block in reversed(self.blocks):
            if index >= block.below:
                found = self._kept(self.open(block)[index - block.below])
                if not self.lends:
                    self.rest()
                return found
        raise IndexError(index)

    def open(self, block: Block) -> Any:
        """The array in which a block's rows lie, in place until another block is opened, or until `rest`."""
        if self.reading is not block:
            # First the other one: there may be room for one alone.
            self.rest()
            self.read_from, self.reading = block.storage.open(), block
        return self.read_from

    def used(self, block: Block) -> Any:
        """As `open`, without the rows above those in use."""
        return self.open(block)[: block.count]

    def rest(self) -> None:
        """Nothing reads the stack for now: a memory manager may move its blocks."""
        reading, self.reading, self.read_from = self.reading, None, None
        if reading is not None:
            reading.storage.close()

    def _kept(self, row: Any) -> Any:
        """A row as its reader has it. A copy has the same order of axes: sums over it have the same bits."""
        return row if self.lends or not row.ndim else row.copy(order="K")

    # Many rows.

    def copy_to(self, target: Any, is_last: bool = False) -> int:
        """Copy as many of the last rows as an array has; answers how many copies that were.

        With `is_last` the blocks are freed as they are copied.
        """
        first, copies = len(self) - len(target), 0
        for block in self.blocks:
            place, skipped = block.below - first, max(first - block.below, 0)
            if skipped < block.count:
                target[place + skipped : place + block.count] = self.open(block)[skipped : block.count]
                copies += 1
            if is_last:
                self.rest()
                block.storage.free()
        self.rest()
        return copies

    def join(self) -> Block:
        """A block of all rows, which are brought together where they lie in several. There has to be a row."""
        if len(self.blocks) > 1:
            count = len(self)
            self.blocks = [Block(self._gathered(count), count)]
        return self.blocks[0]

    def _gathered(self, capacity: int) -> Resident:
        """All rows in memory with room for so many; the blocks are freed."""
        found = resident((capacity, *self.shape), self.dtype, "rows of several chunks")
        self.copy_to(found.array[: len(self)], is_last=True)
        return found

    def whole(self, capacity: int) -> Storage:
        """All rows in memory that may be written to, with room for so many at least."""
        count = len(self)
        # Rows in blocks of a memory manager are not written to again: there may be copies of them elsewhere.
        if len(self.blocks) == 1 and not self.shared:
            lies = self.blocks[0].storage
            if isinstance(lies, Resident) and len(lies.array) >= capacity:
                return lies
        # Twice as much as is asked for, where rows are to come: then copying costs what the rows cost.
        storage = self._gathered(count if capacity <= count else 2 * capacity)
        self.blocks = [Block(storage, count)] if count else []
        self.shared = False
        if self.written is not None:
            self.written = self.written.copy()
        return storage

    def tensor(self) -> np.ndarray:
        """All rows as one array `[length, *element]`; a view where they lie in one array of this process."""
        if len(self.blocks) == 1 and isinstance(self.blocks[0].storage, Resident):
            return self.blocks[0].storage.array[: len(self)]
        rows = np.empty((len(self), *self.shape), self.dtype)
        self.copy_to(rows)
        return rows

    def rows(self) -> list[np.ndarray | None]:
        """All rows as the reference engine has them: a list of arrays, None for a slot never written."""
        marks = self.written
        return [row if marks is None or marks[i] else None for i, row in enumerate(self)]


class ListedRows(InPlace):
    """Rows of a caller's list as a storage: they take memory while it is open."""

    __slots__ = ("_dtype", "_lies", "_opened", "_rows", "_shape")

    def __init__(self, dtype: np.dtype, shape: tuple[int, ...], rows: Sequence[Any]) -> None:
        self._dtype, self._shape, self._rows = dtype, shape, rows
        self._opened = 0
        self._lies: Storage | None = None

    def open(self) -> Any:
        if self._lies is None:
            self._lies = _filled(self._dtype, self._shape, self._rows)
        self._opened += 1
        return self._lies.open()

    def close(self) -> None:
        self._opened -= 1
        if not self._opened:
            self._lies = None

    def shrink(self, rows: int) -> None:
        self._rows = self._rows[:rows]


def _filled(dtype: np.dtype, shape: tuple[int, ...], rows: Sequence[Any]) -> Resident:
    """Memory with these rows; None stands for a row of zeros."""
    storage = resident((len(rows), *shape), dtype)
    for i, row in enumerate(rows):
        storage.array[i] = 0 if row is None else row
    return storage


def from_rows(dtype: np.dtype, shape: tuple[int, ...], rows: Sequence[Any], most_rows: int | None = None) -> BlockStack:
    """A block stack of given rows; None stands for a row of zeros.

    Where there are more than `most_rows`, they lie in blocks of as many, each of which takes memory while it is open.
    """
    stack = BlockStack(dtype, shape)
    if any(row is None for row in rows):
        stack.written = np.array([row is not None for row in rows], np.uint8)
    step = most_rows or max(len(rows), 1)
    for start in range(0, len(rows), step):
        block = rows[start : start + step]
        stack.append((_filled if len(rows) <= step else ListedRows)(dtype, shape, block), len(block))
    return stack


# Ops on whole stacks whose rows have one shape, by blocks instead of row by row.


def resized(stack: Any, length: Any) -> Any:
    """The first rows, and rows of zeros behind them where there are too few. The stack is the caller's no longer."""
    if not isinstance(stack, BlockStack):
        return None
    count, length = len(stack), int(length)
    if length <= count:
        # In place: a loop that drops a row in each iteration must not copy the remaining rows each time.
        stack.drop(count - length)
        stack.written = None if stack.written is None else stack.written[:length]
        return stack
    whole = _with_zeros_behind(stack, length)
    whole.written = np.zeros(length, np.uint8)
    whole.written[:count] = 1 if stack.written is None else stack.written
    return whole


def summed(a: Any, b: Any) -> Any:
    """Row by row; the rows that only one of them has as they are."""
    if not (isinstance(a, BlockStack) and isinstance(b, BlockStack)):
        return None
    if not len(a) or not len(b):
        return (a if len(a) else b).copy()
    if a.shape != b.shape:
        return None
    longer, shorter = (b, a) if len(a) < len(b) else (a, b)
    whole = _with_zeros_behind(longer, len(longer))
    total = whole.blocks[0].storage.open()
    for block in shorter.blocks:
        total[block.below : block.below + block.count] += shorter.used(block)
    shorter.rest()
    if longer.written is not None:
        whole.written = longer.written[: len(longer)].copy()
        marks = 1 if shorter.written is None else shorter.written[: len(shorter)]
        whole.written[: len(shorter)] |= marks
    return whole


def _with_zeros_behind(stack: BlockStack, length: int) -> BlockStack:
    """A stack of at least as many rows as this one: its rows, then zeros."""
    whole = BlockStack(stack.dtype, stack.shape)
    if length:
        storage = resident((length, *stack.shape), stack.dtype)
        stack.copy_to(storage.array[: len(stack)])
        storage.array[len(stack) :] = 0
        whole.add(Block(storage, length))
    return whole


# A function that returns None leaves the op to the reference kernel.
WHOLE_STACKS: Mapping[str, Callable[..., Any]] = {"stack_resize": resized, "stack_sum": summed}
