"""The frame: the table of 64-bit words through which a compiled plan and its driver speak.

A plan's function takes the frame's address and nothing else. The driver fills in addresses and numbers before the call;
the function asks for what it lacks by calling back (`Request`), and leaves a status.
"""

from __future__ import annotations

from dataclasses import field
from enum import IntEnum

from ctrlgrad.plan.chunks import ChunkedLoop, loops_in_chunks
from ctrlgrad.plan.effects import binds, defines, walk
from ctrlgrad.plan.model import Array, Loop, Outside, Plan, Register, Stack, Value, View
from ctrlgrad.plan.places import Place
from ctrlgrad.records import record

# The first words.
CALLBACK, STATUS, SITE, FOUND, BOUND, WORKSPACE, WORKSPACE_BYTES, IS_MANAGED, SCRATCH, SCRATCH_BYTES = range(10)
REQUEST, A, B = range(10, 13)
# 1 where a plan with loops takes subnormal numbers for zero.
FLUSHES = 13
FIRST = 14


class Request(IntEnum):
    """Request of compiled code to the driver, with operands `a` and `b`; an answer other than 0 ends the run."""

    # Memory: the workspace has to have so many bytes; buffer `a` so many.
    GROW_WORKSPACE = 1
    GROW_BUFFER = 2
    # A turn for Python, in loop `a`.
    POLL = 3
    # Stack `a`: room for `b` more rows; the rows below the current block, `b` of them in one piece; all rows in one
    # block; a block to write to.
    FULL = 4
    EMPTY = 5
    GATHER = 6
    OWN = 7
    # Stack `a` starts with `b` rows; is a copy of stack `b`.
    NEW_STACK = 8
    COPY_STACK = 9
    MOVE_STACKS = 10
    # Outside call `a`: compute; write the results to where they belong.
    COMPUTE = 11
    FETCH = 12
    # Loop `a`, which runs in chunks for a memory manager, begins, has come to the end of a chunk, ends.
    BEGIN_LOOP = 13
    NEXT_CHUNK = 14
    END_LOOP = 15
    # Scratch memory of `a` bytes.
    GROW_SCRATCH = 16
    # Stack `a`: starts with `b` rows, which compiled code fills; all rows in one block, to be read; all rows are to be
    # copied to address `b`.
    NEW_ROWS = 17
    JOIN = 18
    COPY_ROWS = 19
    # Stack `a`: marks of its rows, all of which are written, in one block to write to.
    MARK = 20


class Status(IntEnum):
    """Outcome of a run."""

    FINISHED = 0
    INDEX = 1
    SIZE = 2
    ITERATIONS = 3
    TWICE = 4
    EMPTY = 5
    # A callback raised an exception.
    RAISED = 6
    # An op is not defined for these numbers.
    VALUE = 7
    # Sizes that were assumed equal are not; nor are shapes of a stack's rows.
    EQUAL = 8
    ROWS = 9


# The words of one stack, and of one buffer. `IDLE` is not 0 where the plan needs the contents no more.
BASE, COUNT, CAPACITY, BELOW, WRITABLE, MARKS, IDLE = range(7)
STACK_WORDS = 7
# Stands for the size of an empty stack of `NEW_STACK`, the shape of whose rows is told with the first of them.
SHAPE_UNKNOWN = -1
ADDRESS, BYTES, BUFFER_IDLE = range(3)
BUFFER_WORDS = 3


@record(frozen=False)
class Layout:
    """Positions of a plan's words in its frame."""

    plan: Plan
    arguments: list[int] = field(default_factory=list)
    results: list[int] = field(default_factory=list)
    sizes: int = 0
    constants: int = 0
    buffers: int = 0
    stacks: int = 0
    stack_count: int = 0
    # For each loop, how many iterations it runs until Python has its next turn.
    ticks: int = 0
    # The iteration of each loop, and its number as people count: a loop that runs backwards has the forward one's.
    counters: int = 0
    iterations: int = 0
    loops: dict[int, Loop] = field(default_factory=dict)
    # For each outside call, where its words start.
    outside: dict[Outside, int] = field(default_factory=dict)
    calls: list[Outside] = field(default_factory=list)
    # Where the shape of each handle's rows is told.
    shapes: dict[int, int] = field(default_factory=dict)
    # Loops in chunks: the iterations that a chunk has left; then the values that it carries, and those that it
    # captures.
    chunked: dict[int, ChunkedLoop] = field(default_factory=dict)
    chunks: dict[int, int] = field(default_factory=dict)
    # Of such a loop that is steady: how many chunks run in the blocks of the next one, each overwriting the last.
    passing: dict[int, int] = field(default_factory=dict)
    captures: dict[int, int] = field(default_factory=dict)
    # Of a plan that is several functions: where buffers of unknown size begin in the workspace, addresses of slots and
    # rows, and numbers that the functions leave for each other.
    offsets: int = 0
    pointers: dict[Place, int] = field(default_factory=dict)
    numbers: int = 0
    words: int = FIRST

    def __post_init__(self) -> None:
        plan = self.plan
        for argument in plan.arguments:
            self.arguments.append(self.take(len(argument) if isinstance(argument, tuple) else 1))
        self.sizes = self.take(len(plan.sizes))
        self.constants = self.take(len(plan.constants))
        self.buffers = self.take(BUFFER_WORDS * len(plan.buffers))
        for result in plan.results:
            # Of an array its sizes; where it lies is said by its buffer.
            items = result.shape if isinstance(result, Array) else () if isinstance(result, Stack) else result
            self.results.append(self.take(len(items)))
        self.stack_count = 1 + max(plan.handles.values(), default=-1)
        self.stacks = self.take(STACK_WORDS * self.stack_count)
        for stack, handle in plan.handles.items():
            rows = plan.rows[stack]
            if handle not in self.shapes and rows is not None:
                self.shapes[handle] = self.take(len(rows))
        for found in loops_in_chunks(plan):
            loop = found.loop
            self.chunked[loop.number] = found
            self.chunks[loop.number] = self.take(1 + sum(value_words(c.inside) for c in loop.carries))
            if found.can_repeat and found.is_steady:
                self.passing[loop.number] = self.take(1)
            self.captures[loop.number] = self.take(sum(map(value_words, found.captured)))
        for step in walk(plan.body):
            if isinstance(step, Loop):
                self.loops[step.number] = step
            elif isinstance(step, Outside):
                self.outside[step] = self.take(sum(map(operand_words, (*step.operands, *step.results))))
                self.calls.append(step)
        self.ticks = self.take(1 + max(self.loops, default=-1))
        self.counters = self.take(1 + max(self.loops, default=-1))
        self.iterations = self.take(1 + max(self.loops, default=-1))
        if plan.pieces:
            self.offsets = self.take(len(plan.buffers))
            for place in plan.places.values():
                if place.kind in ("slot", "row") and place not in self.pointers:
                    self.pointers[place] = self.take(1)
            made = (value for step in walk(plan.body) for value in (*defines(step), *binds(step)))
            self.numbers = self.take(len({value.name for value in made if isinstance(value, Register)}))

    def take(self, words: int) -> int:
        start = self.words
        self.words += words
        return start

    def stack(self, handle: int) -> int:
        return self.stacks + STACK_WORDS * handle

    def buffer(self, number: int) -> int:
        return self.buffers + BUFFER_WORDS * number


def value_words(value: Value) -> int:
    """Of a number one; of an array its address and sizes; of a stack none."""
    return 1 + len(value.shape) if isinstance(value, Array) else int(isinstance(value, Register))


def operand_words(item: object) -> int:
    """Of numbers one each; of an array its address, sizes and strides; of a stack none."""
    if isinstance(item, tuple):
        return len(item)
    if isinstance(item, View | Array):
        return 1 + 2 * len(item.shape)
    return 0
