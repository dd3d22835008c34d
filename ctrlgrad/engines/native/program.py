"""What the code generator hands over: the source of one function, and what stands in its table."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal

import numpy as np

from ctrlgrad.engines.native.layout import Dims, Size, Sizes
from ctrlgrad.ir import Node

# The first places of the table.
LIMIT, STATUS, TRIPS, PLACE, FOUND, BOUND, ITERATIONS, FIRST_ENTRY = 0, 1, 2, 3, 4, 5, 6, 16

# The position of the first stack that is made inside an iteration.
FIRST_LOCAL = 1 << 20

# How many stores of one loop are told apart.
SCOPES = 16


class Status(IntEnum):
    """Why a compiled function returned."""

    FINISHED = 0
    LIMIT = 1
    # A stack has no room for (or no rows left for) one more iteration; nothing of that iteration has happened.
    FULL = 2
    EMPTY = 3
    # The same in the middle of an iteration, found by a loop inside: the chunk must run again from where it began.
    FULL_INSIDE = 4
    EMPTY_INSIDE = 5
    OUT_OF_RANGE = 6
    TOO_MANY_ITERATIONS = 7
    WRITTEN_TWICE = 8
    # A reference kernel that the function called raised an exception, or a signal's handler did.
    RAISED = 9


@dataclass(frozen=True)
class Entry:
    """One place of the table.

    "dim": the size named `name`. "operand", "constant", "temporary", "routine": an address; "outside": that of the
    callback for ops without a native form; "look": of the one that lets Python handle signals. "state": the address of
    a carry's current array, and "other": of the one that the next value is written to. "scalar": the address of a
    scalar carry or capture. "result": that of what straight-line code makes for its output `position`. "rows",
    "length", "capacity", "written": of the stack at carry `position`.
    """

    kind: Literal[
        "dim",
        "operand",
        "constant",
        "temporary",
        "routine",
        "outside",
        "look",
        "state",
        "other",
        "scalar",
        "result",
        "rows",
        "length",
        "capacity",
        "written",
    ]
    position: int = 0
    name: str = ""
    array: np.ndarray | None = None
    dtype: np.dtype | None = None
    # Of an operand: whether the loop may write to it, its rows being read for the last time.
    is_writable: bool = False
    size: Size | None = None


@dataclass
class StackUse:
    """How a loop uses the stack at one position of its carry."""

    position: int
    element: Sizes
    dtype: np.dtype
    # "push": only pushes; "pop": only pops; "read": only looks; "whole": anything, on all rows in one array.
    mode: Literal["push", "pop", "read", "whole"]
    # Rows that one iteration adds or takes outside of loops inside it.
    pushes: int
    pops: int
    # Whether slots remember that they were written.
    marks: bool
    # Whether a loop inside pushes or pops a number of rows that only a run tells.
    inside: bool
    # Rows that a block has beyond those that are pushed: for a carry that lives in it.
    extra: int = 0
    # Made anew in each iteration: its position is no operand's, and nothing of it outlives the iteration.
    is_local: bool = False

    @property
    def row_bytes(self) -> int:
        known = 1
        for size in self.element:
            known *= size.factor
        return self.dtype.itemsize * known


@dataclass
class Site:
    """A place in the user's code that may fail."""

    node: Node
    axis: int = 0
    # The loops inside the compiled one that stand around it, the outermost first.
    loops: tuple[Node, ...] = ()


@dataclass(frozen=True)
class OutsideCall:
    """An op that the reference engine's kernel computes: the shapes and dtypes of its operands and results."""

    node: Node
    operands: tuple[tuple[Sizes, np.dtype], ...]
    results: tuple[tuple[Sizes, np.dtype], ...]


@dataclass
class LoopProgram:
    """A compiled loop's source with all that a run needs to fill its table."""

    source: str
    entries: list[Entry]
    stacks: list[StackUse]
    sites: list[Site]
    dims: Dims
    # Per carry: its shape; None for a stack. Scalars have the empty shape.
    carried: list[Sizes | None]
    # Carries whose arrays change places with their other arrays after each iteration.
    swapped: list[int]
    # What the report says: a line per fused loop and matrix product.
    notes: list[str] = field(default_factory=list)
    calls: list[OutsideCall] = field(default_factory=list)
