"""A loop whose saved values are easy to know, driven as an engine drives its loops.

The state is a number that each iteration changes; each chunk pushes rows that depend on it into several blocks. Going
back, every row is compared with what it must be, on the compute stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ctrlgrad.memory.manager import Block, Chunk, LoopMemory, Manager

DOUBLE = np.dtype(np.float64)
WIDTH = 5


def advanced(state: int, chunk: int) -> int:
    return (state * 31 + 17 * chunk + 7) % 1000003


@dataclass
class Driver:
    """One loop. `rows` gives the rows of each chunk's blocks; a block has `rows` times `WIDTH` doubles."""

    manager: Manager
    rows: Sequence[Sequence[int]]
    forward_seconds: float = 1.0
    backward_seconds: float = 2.0
    state_bytes: int = 8
    label: str = "loop"
    shrink: bool = False
    blocks: list[list[Block]] = field(default_factory=list)
    # Entry states of all chunks, for the comparison alone.
    entries: list[int] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    advances: list[int] = field(default_factory=list)
    memory: LoopMemory | None = None
    state: int = 1
    # True if it finds a state without the blocks before it; and the chunks after which it found states so.
    skips: bool = False
    skipped: list[int] = field(default_factory=list)

    def start(self, **ways: Any) -> None:
        recompute = self if ways.pop("can_recompute", True) else None
        self.memory = self.manager.loop(self.label, recompute=recompute, **ways)

    # The protocol of recomputation.

    def advance(self, state: Any, chunks: Iterator[Chunk], first: int, last: int) -> Any:
        for chunk in chunks:
            state = self.filled(state, chunk)
        return state

    def filled(self, state: Any, chunk: Chunk) -> Any:
        self.advances.append(chunk.index)
        self._fill(chunk, int(state), chunk.index)
        return advanced(int(state), chunk.index)

    def skip(self, state: Any, first: int, last: int) -> Any:
        if not self.skips:
            return None
        self.skipped += range(first, last)
        for index in range(first, last):
            state = advanced(int(state), index)
        return state

    def copy_bytes(self, state: Any) -> int:
        return self.state_bytes

    # Forward.

    def _fill(self, chunk: Chunk, state: int, index: int) -> list[Block]:
        blocks = []
        for number, rows in enumerate(self.rows[index]):
            block = chunk.block((rows, WIDTH), DOUBLE, f"{self.label}.{number}")
            blocks.append(block)
        arrays = [block.array for block in blocks]

        def work() -> None:
            for number, array in enumerate(arrays):
                array[...] = self.expected(state, number, len(array))

        self.compute(self.forward_seconds, work)
        if self.shrink:
            for block in blocks:
                block.shrink(max(block.shape[0] - 1, 0))
        return blocks

    def expected(self, state: int, number: int, rows: int) -> np.ndarray:
        return state + 1000.0 * number + np.arange(rows)[:, None] / 64 + np.zeros(WIDTH)

    def compute(self, seconds: float, work: Any) -> None:
        run = getattr(self.manager.device, "run", None)
        if run is None:
            work()
        else:
            run(seconds, work)

    def forward(self, count: int | None = None) -> None:
        """Run the next chunks, all by default."""
        assert self.memory is not None
        first = len(self.blocks)
        for index in range(first, len(self.rows) if count is None else first + count):
            state = self.state
            chunk = self.memory.begin(lambda state=state: (state, self.state_bytes), lambda: self.state_bytes)
            blocks = self._fill(chunk, state, index)
            chunk.seal(self.forward_seconds)
            self.entries.append(state)
            self.blocks.append(blocks)
            self.state = advanced(state, index)
        if len(self.blocks) == len(self.rows):
            self.memory.finish()

    # Backward.

    def backward(self, count: int | None = None, join: int = 1) -> None:
        """Go back through chunks, all by default, `join` of them opened together."""
        for _ in range(len(self.blocks) if count is None else count):
            if not self.blocks:
                return
            taken = [self.blocks.pop() for _ in range(min(join, len(self.blocks)))]
            states = [self.entries.pop() for _ in taken]
            for blocks, state in zip(taken, states, strict=True):
                for number, block in enumerate(blocks):
                    self._check(block.open(), state, number)
            self.compute(self.backward_seconds * len(taken), lambda: None)
            for blocks in taken:
                for block in blocks:
                    block.close()
                    block.free()

    def _check(self, array: Any, state: int, number: int) -> None:
        def work() -> None:
            expected = self.expected(state, number, len(array))
            if not np.array_equal(array, expected):
                self.wrong.append(f"{self.label}: block {number}, state {state}: {array} is not {expected}")

        self.compute(0.0, work)

    def run(self, **ways: Any) -> None:
        self.start(**ways)
        self.forward()
        self.backward()
        self.settle()

    def settle(self) -> None:
        """Wait for all computation, and look at what it found."""
        self.manager.device.compute.record().wait()
        self.manager.synchronize()
        assert not self.wrong, self.wrong[:3]


CHUNK = 4 * WIDTH * 8


def chunks(number: int) -> list[list[int]]:
    """Chunks of two blocks with two rows each, `CHUNK` bytes."""
    return [[2, 2]] * number


__all__ = ["CHUNK", "DOUBLE", "WIDTH", "Driver", "advanced", "chunks"]
