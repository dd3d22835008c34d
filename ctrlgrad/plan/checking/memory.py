"""The memory of a replayed plan: what lies where, by name and iteration.

A `Token` is one value of a run: a name, and the iterations of the loops in which it was computed. A `Cell` is memory
for one array; it knows which token lies in it. A stack is a list of blocks of cells. Memory of rows is only valid until
the stack closes their block, which it does whenever the driver may look at it; each time its `epoch` counts on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any


class PlanError(Exception):
    """A plan that computes something else than its steps say."""


@dataclass(frozen=True, slots=True, eq=False)
class Token:
    """One value of a run. Two are the same only if they are one object: copies of a value are the value."""

    name: str
    # The loops around, outermost first: (number of the loop, iteration).
    iterations: tuple[tuple[int, int], ...] = ()

    def __str__(self) -> str:
        where = ", ".join(f"iteration {i} of loop {loop}" for loop, i in self.iterations)
        return self.name + (f" ({where})" if where else "")


# A row of numbers is a token for each of them.
Content = Token | tuple[Token, ...]


def described(content: Content | None) -> str:
    if content is None:
        return "nothing"
    return " + i ".join(map(str, content)) if isinstance(content, tuple) else str(content)


@dataclass(slots=True, eq=False)
class Cell:
    """Memory for an array: what lies in it, and, where values are computed, the elements."""

    content: Content | None = None
    data: Any = None
    # How many elements it has room for, where that changes.
    room: object = None


@dataclass(slots=True, eq=False)
class _Block:
    cells: list[Cell]
    count: int


@dataclass(slots=True, eq=False)
class RunningStack:
    """Content of a handle: a version of a stack, with its rows in blocks; `capacity` is that of the open block."""

    version: Token
    # How many rows the next block has room for.
    next_capacity: Callable[[], int]
    blocks: list[_Block] = field(default_factory=list)
    capacity: int | None = None
    epoch: int = 0

    def __len__(self) -> int:
        return sum(block.count for block in self.blocks)

    def cells(self) -> Iterator[Cell]:
        """The rows, the first first."""
        for block in self.blocks:
            yield from block.cells[: block.count]

    def settle(self) -> None:
        """The driver looks at the stack: the open block is closed."""
        if self.capacity is not None and not self.blocks[-1].count:
            self.blocks.pop()
        self.capacity = None
        self.epoch += 1

    def top(self) -> Cell:
        """The memory of the next row; a fresh block where the open one is full."""
        if self.capacity is None or self.blocks[-1].count >= self.capacity:
            self.settle()
            self.capacity = self.next_capacity()
            self.blocks.append(_Block([Cell() for _ in range(self.capacity)], 0))
        block = self.blocks[-1]
        return block.cells[block.count]

    def grow(self) -> None:
        """The row on top counts from now on."""
        self.blocks[-1].count += 1

    def pop(self) -> Cell | None:
        """The last row, which no longer counts; None where there is none."""
        if self.capacity is None or not self.blocks[-1].count:
            self.settle()
            if not self.blocks:
                return None
            # A closed block takes no more rows.
            self.capacity = 0
        block = self.blocks[-1]
        block.count -= 1
        return block.cells[block.count]

    def gather(self) -> None:
        """All rows come to one block, elsewhere."""
        self.settle()
        cells = [Cell(c.content, c.data) for c in self.cells()]
        self.blocks = [_Block(cells, len(cells))] if cells else []
        self.capacity = len(cells) if cells else None

    def copy(self, version: Token) -> RunningStack:
        self.settle()
        blocks = [_Block([Cell(c.content, c.data) for c in b.cells[: b.count]], b.count) for b in self.blocks]
        return RunningStack(version, self.next_capacity, blocks)


@dataclass(frozen=True, slots=True)
class Pointer:
    """Place of a row, valid until its stack closes the block."""

    cell: Cell
    stack: RunningStack
    epoch: int
    # Of all rows: the version of the stack that they are the rows of.
    version: Token | None = None

    @property
    def is_valid(self) -> bool:
        return self.stack.epoch == self.epoch and self.version in (None, self.stack.version)
