"""Blocks of stacks that a memory manager has: who keeps them where they are, and until when they live."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from instruments.stand_in import StandIn, StandInDevice

from ctrlgrad.engines.cuda.stacks import FIRST_ROWS, DeviceStack, Managed, PushedChunk, RunMemory
from ctrlgrad.errors import MemoryBudgetError
from ctrlgrad.memory.manager import Manager
from ctrlgrad.memory.sizes import Budget

F64 = np.dtype(np.float64)
LIMIT = 2000


@pytest.fixture
def memory() -> Iterator[RunMemory]:
    library = StandIn()
    found = RunMemory(Manager(StandInDevice(), Budget(device=LIMIT)), library)
    with library.running(found):
        yield found
    found.settle()
    found.manager.close()


def begin(memory: RunMemory) -> PushedChunk:
    return PushedChunk(memory, memory.manager.loop("loop", swap=True).begin())


def end(memory: RunMemory, chunk: PushedChunk) -> None:
    """As the driver of chunks does it."""
    chunk.end()
    with memory.manager.lock:
        chunk.chunk.seal(1e-3)  # type: ignore[attr-defined]
        chunk.leave()


def pushed(memory: RunMemory, count: int, stack: DeviceStack | None = None) -> DeviceStack:
    """A stack on which a chunk has pushed so many rows of 80 bytes, counted from 0."""
    stack = stack or DeviceStack(memory.library, F64)
    chunk = begin(memory)
    stack.pushing = chunk.supply("rows", count)
    for number in range(count):
        stack.slot((10,))[...] = float(number)
        stack.commit()
    end(memory, chunk)
    return stack


def blocks_in_use(memory: RunMemory) -> int:
    memory.settle()
    memory.manager.reserve(0, "what is due").release()
    return memory.manager.accounts[0].kinds["blocks"]


def fill(memory: RunMemory) -> None:
    """All of the device is wanted for something else."""
    memory.settle()
    memory.manager.allocate((LIMIT,), np.dtype(np.uint8), "everything").release()


def values(rows: Any) -> list[float]:
    return [float(row.data[0]) for row in rows]


def test_a_block_leaves_when_nobody_reads_it_and_comes_back(memory: RunMemory) -> None:
    stack = pushed(memory, 5)
    assert stack.is_managed and blocks_in_use(memory) == 400
    fill(memory)
    assert blocks_in_use(memory) == 0 and memory.manager.stats.copies_out == 1
    assert values(stack) == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_a_row_that_somebody_holds_keeps_its_block(memory: RunMemory) -> None:
    """One that was written, and one that was popped."""
    stack = DeviceStack(memory.library, F64)
    chunk = begin(memory)
    stack.pushing = chunk.supply("rows", 2)
    written = stack.slot((10,))
    written[...] = 7.0
    stack.commit()
    end(memory, chunk)
    with pytest.raises(MemoryBudgetError):
        fill(memory)
    assert values([written]) == [7.0]
    del written
    fill(memory)
    popped = stack.pop()
    assert not stack.blocks
    with pytest.raises(MemoryBudgetError):
        fill(memory)
    assert values([popped]) == [7.0]
    part = popped[2:]
    del popped
    assert blocks_in_use(memory) == 80
    del part
    assert blocks_in_use(memory) == 0


def test_a_stack_keeps_the_block_that_it_read_last_until_it_rests(memory: RunMemory) -> None:
    stack = pushed(memory, 3, pushed(memory, 2))
    assert values([stack[0]]) == [0.0]
    assert values([stack.pop()]) == [2.0]
    with pytest.raises(MemoryBudgetError):
        fill(memory)
    stack.rest()
    fill(memory)
    assert values(stack) == [0.0, 1.0, 0.0, 1.0]


def test_a_block_dies_with_its_last_holder(memory: RunMemory) -> None:
    stack = pushed(memory, 3)
    other = stack.copy()
    assert values([stack.pop() for _ in range(3)]) == [2.0, 1.0, 0.0]
    assert blocks_in_use(memory) == 240
    assert values(other) == [0.0, 1.0, 2.0]
    del other
    assert blocks_in_use(memory) == 0


def test_rows_that_were_dropped_are_not_kept(memory: RunMemory) -> None:
    stack = DeviceStack(memory.library, F64)
    chunk = begin(memory)
    stack.pushing = chunk.supply("rows", 4)
    for _ in range(4):
        stack.slot((10,))[...] = 1.0
        stack.commit()
    stack.drop(3)
    end(memory, chunk)
    fill(memory)
    assert memory.manager.stats.bytes_out == 80


def test_nothing_is_pushed_on_a_block_of_a_chunk_that_is_over(memory: RunMemory) -> None:
    stack = pushed(memory, 2)
    stack.slot((10,))[...] = 5.0
    stack.commit()
    assert [isinstance(block.storage, Managed) for block in stack.blocks] == [True, False]
    assert values(stack) == [0.0, 1.0, 5.0]


@pytest.mark.parametrize(
    ("expected", "most", "rows"),
    [
        # As many as are expected, and then as many as there are.
        (6, None, [6, 6, 12]),
        # An unknown number: the capacity doubles, up to what the inner loop can push.
        (0, None, [FIRST_ROWS, FIRST_ROWS, 2 * FIRST_ROWS]),
        (0, 6, [FIRST_ROWS, 2]),
        (9, 6, [6]),
    ],
)
def test_how_many_rows_a_block_has(memory: RunMemory, expected: int, most: int | None, rows: list[int]) -> None:
    supply = begin(memory).supply("rows", expected)
    if most is not None:
        supply.enter("rows inside", most)
    assert [len(supply.block((), F64).storage.array) for _ in rows] == rows


def test_counted_bytes_are_those_of_live_arrays(memory: RunMemory) -> None:
    account, xp = memory.manager.accounts[0], memory.library.xp
    x = xp.zeros((50,), F64)
    view = x[10:]
    del x
    assert account.used == 400
    with memory.uncounted():
        kept = xp.array(view)
    assert account.used == 400
    with pytest.raises(MemoryBudgetError, match="a value of the computation needs"):
        xp.zeros((220,), F64)
    del view
    assert len(xp.zeros((200,), F64)) == 200 and len(kept) == 40
