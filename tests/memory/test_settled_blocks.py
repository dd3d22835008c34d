"""Complete blocks of a running chunk may be evicted; blocks still being written may not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from memory_cases.checked_run import Run, simulated

from ctrlgrad.errors import ExecutionError, MemoryBudgetError
from ctrlgrad.memory.sizes import Budget

BYTES = np.dtype(np.uint8)
NBYTES = 100


@pytest.mark.parametrize("tiers", [2, 3])
def test_blocks_that_are_complete_leave_before_their_chunk_is_over(tiers: int) -> None:
    """Complete blocks are evicted before their chunk ends: one chunk has four times the budget's bytes, out and in."""
    with Run(Budget(device=2 * NBYTES, host=4 * NBYTES if tiers == 3 else None), simulated(tiers)) as run:
        loop = run.manager.loop("loop")
        chunk, blocks = loop.begin(), []
        for value in range(8):
            block = chunk.block((NBYTES,), BYTES, "x")
            block.array[:] = value
            block.settle()
            with pytest.raises(ExecutionError, match="between open and close"):
                _ = block.array
            blocks.append(block)
        assert (blocks[5].open() == 5).all()
        blocks[5].close()
        chunk.seal(0.0)
        loop.finish()
        for value in reversed(range(8)):
            assert (blocks[value].open() == value).all()
            blocks[value].close()
            blocks[value].free()
        assert run.manager.stats.peak_bytes["device"] <= 2 * NBYTES


def test_a_block_that_is_being_written_does_not_leave() -> None:
    with Run(Budget(device=2 * NBYTES)) as run:
        chunk = run.manager.loop("loop").begin()
        written, complete = chunk.block((NBYTES,), BYTES, "x"), chunk.block((NBYTES,), BYTES, "y")
        complete.settle()
        chunk.block((NBYTES,), BYTES, "y")
        with pytest.raises(MemoryBudgetError):
            chunk.block((NBYTES,), BYTES, "y")
        written.array[:] = 1
        chunk.discard()


class Again:
    """A replay that fills the chunk's blocks again."""

    def advance(self, state: Any, chunks: Any, first: int, last: int) -> Any:
        for chunk in chunks:
            chunk.block((NBYTES,), BYTES, "x").array[:] = state
            state += 1
        return state

    def skip(self, state: Any, first: int, last: int) -> Any:
        return None

    def copy_bytes(self, state: Any) -> int:
        return 8


def test_a_loop_with_a_chunk_that_did_not_find_room_is_not_computed_again() -> None:
    with Run(Budget(device=3 * NBYTES)) as run:
        loop = run.manager.loop("loop", recompute=Again())
        chunk = loop.begin(lambda: (0, 8))
        assert run.manager.checkpoints.wants(loop._record)
        blocks = []
        for _ in range(4):
            blocks.append(chunk.block((NBYTES,), BYTES, "x"))
            blocks[-1].array[:] = 0
            blocks[-1].settle()
        chunk.seal(1.0)
        assert not run.manager.checkpoints.wants(loop._record)
        for block in blocks:
            block.free()
        loop.finish()
