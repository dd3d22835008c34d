"""A run of a plan in a memory session: its loops run in chunks, whose blocks a manager copies away or computes again.

At the head of an iteration a loop that pushes may end its chunk: what was pushed is sealed, and the stacks get fresh
blocks of the next chunk, with room for so many iterations. Loops inside push into further blocks of the same chunk. To
have a chunk's blocks again, the loop is run as a plan of its own, from a copy of what its carries began the chunk with.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np

from ctrlgrad import memory
from ctrlgrad.engines.native import frame as words
from ctrlgrad.engines.native.running import Frame
from ctrlgrad.errors import MemoryBudgetError, forget_values
from ctrlgrad.ir import Trait
from ctrlgrad.ir.control import loop_name
from ctrlgrad.memory import Manager
from ctrlgrad.memory.manager import giving_back
from ctrlgrad.memory.profile.records import Phase
from ctrlgrad.memory.session import current
from ctrlgrad.passes import CHUNK_BYTES
from ctrlgrad.plan.chunks import ChunkedLoop
from ctrlgrad.plan.model import Stack
from ctrlgrad.records import record
from ctrlgrad.runtime.chunks import (
    UNBOUNDED,
    ChunkDriver,
    Closed,
    EntryState,
    Lengths,
    ManagedLoop,
    Replay,
    chunk_bytes,
    managed,
)
from ctrlgrad.runtime.stack import CPU, Blocks, BlockStack, Storage

# The first chunk is short, since most loops are; the least and the most iterations of one.
FIRST_ITERATIONS, LEAST_ITERATIONS, MOST_ITERATIONS = 256, 16, 1 << 16


@record
class _Length:
    """Number of iterations that a chunk ran, and capacity of its first blocks in iterations."""

    iterations: int
    capacity: int


def manager() -> Manager:
    """The memory manager of this call."""
    session = current()
    assert session is not None
    return session.manager(CPU)


class Session:
    """One call of a program in a session.

    Where the manager chose by measured times to compute chunks again, and there turns out to be no room for that, the
    call begins anew with copies: whether a budget suffices is no matter of times. A call that has effects cannot begin
    anew, and keeps to copies from the start.
    """

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.loops: dict[int, tuple[FrameLoop, ChunkDriver[_Length]]] = {}
        # The names of the loops that have begun.
        self.begun: set[str] = set()
        self.has_effects = any(Trait.EFFECT in call.node.op.traits for call in frame.layout.calls)

    def run(self, arguments: Any) -> list[Any]:
        program = self.frame.program
        try:
            return self._run(arguments)
        except MemoryBudgetError as error:
            if self.has_effects or not self.keep_to_copies(self.begun):
                raise
            forget_values(error)
        return program(arguments)

    def keep_to_copies(self, names: Collection[str]) -> bool:
        changed = {name for name in names if manager().keep_to_copies(name)}
        return bool(changed)

    def _run(self, arguments: Any) -> list[Any]:
        frame = self.frame
        frame.session = self
        frame.words[words.IS_MANAGED] = 1
        try:
            with giving_back(frame.give_back):
                return frame.run(arguments)
        except BaseException:
            for _, driver in self.loops.values():
                driver.abandon()
            raise
        finally:
            frame.dispose()

    def begin(self, number: int) -> None:
        name = loop_name(self.frame.layout.loops[number].node)
        self.begun.add(name)
        if self.has_effects:
            self.keep_to_copies((name,))
        roles = self.frame.layout.chunked[number]
        loop = FrameLoop(self.frame, roles)
        driver = self._driver(loop, roles)
        self.loops[number] = loop, driver
        # Where there may be several chunks, the first iteration begins the first one.
        loop.allow(0 if isinstance(driver.lengths, Lengths) else driver.before())

    def _driver(self, loop: FrameLoop, roles: ChunkedLoop) -> ChunkDriver[_Length]:
        replay = LoopReplay(self.frame, roles) if roles.can_repeat else None
        phase: Phase = "backward" if roles.pops else "forward"
        runs = managed(roles.loop.node, manager(), replay, phase, pushes=roles.pushes)
        if not roles.pushes:
            return ChunkDriver(loop, runs, UNBOUNDED)
        least = 1 if chunk_bytes() < CHUNK_BYTES else LEAST_ITERATIONS
        # A chunk of what loops inside push alone is over when they have pushed enough.
        first = FIRST_ITERATIONS if roles.pushed else MOST_ITERATIONS
        return ChunkDriver(loop, runs, Lengths(first, MOST_ITERATIONS, least))

    def next(self, number: int) -> None:
        """At the head of an iteration: as many have run as were allowed."""
        loop, driver = self.loops[number]
        iterations = loop.iterations()
        if driver.chunk is not None:
            driver.after(iterations)
        capacity = driver.before()
        # How much loops inside push is seen after each iteration.
        loop.allow(
            1 if loop.roles.pushed_inside else capacity, driver.runs.passing() if capacity == loop.capacity else 0
        )

    def end(self, number: int) -> None:
        loop, driver = self.loops.pop(number)
        driver.finish(loop.iterations())


class Again:
    """One call of a loop's own program, which fills the blocks of chunks again, or none where it has no pushes.

    `chunks` gives each chunk when the one before it is filled; `ran` says how they ran. The frame is kept for the next
    such call.
    """

    def __init__(self, frame: Frame, chunks: Iterator[memory.Chunk], ran: Sequence[_Length]) -> None:
        self.frame, self.chunks, self.ran = frame, chunks, iter(ran)
        self.left = len(ran)
        self.loop: FrameLoop | None = None

    def run(self, arguments: Any) -> list[Any]:
        frame = self.frame
        frame.session = self
        frame.words[words.IS_MANAGED] = self.left > 0
        try:
            with giving_back(frame.give_back):
                results = frame.run(arguments)
        except BaseException:
            if self.loop is not None:
                self.loop.abandon()
            frame.dispose()
            raise
        frame.rest()
        return results

    def begin(self, number: int) -> None:
        self.loop = FrameLoop(self.frame, self.frame.layout.chunked[number])
        self.next(number)

    def next(self, number: int) -> None:
        loop = self.loop
        assert loop is not None
        if loop.chunk is not None:
            loop.close(loop.iterations())
        ran = next(self.ran)
        loop.lend(next(self.chunks), ran.capacity)
        # The loop ends by itself with the last chunk, before it asks for another one.
        self.left -= 1
        loop.allow(ran.iterations if self.left else UNBOUNDED)

    def end(self, number: int) -> None:
        assert self.loop is not None
        self.loop.close(self.loop.iterations())
        self.loop.finish()


class FrameLoop:
    """A loop of a frame, as the driver of its chunks sees it."""

    def __init__(self, frame: Frame, roles: ChunkedLoop) -> None:
        self.frame, self.roles = frame, roles
        self.index = frame.layout.chunks[roles.loop.number]
        self.handles = (*roles.pushed, *roles.pushed_inside)
        self.chunk: Blocks | None = None
        self.capacity = self.counted = self.bytes_before = self.passing = 0
        self.passing_word = frame.layout.passing.get(roles.loop.number)

    def allow(self, iterations: int, passing: int = 0) -> None:
        """Set the number of iterations until the next request, and how many chunks may reuse the same blocks first."""
        self.frame.words[self.index] = iterations
        if self.passing_word is not None:
            self.passing = self.frame.words[self.passing_word] = passing

    def iterations(self) -> int:
        """Return the number of iterations of this chunk since the last call. Rows of earlier chunks that ran in the
        same blocks are put below this chunk's."""
        before = self.counted
        self.counted = int(self.frame.words[self.frame.layout.counters + self.roles.loop.number])
        overwritten = 0 if self.passing_word is None else self.passing - int(self.frame.words[self.passing_word])
        if overwritten:
            assert isinstance(self.chunk, ManagedLoop)
            chunks = self.chunk.overwritten(overwritten, _Length(self.capacity, self.capacity))
            for number, handle in enumerate(self.roles.pushed):
                self.frame.stacks[handle].put_below([blocks[number] for blocks in chunks], self.capacity)
            self.bytes_before += overwritten * self.capacity * self.bytes_each()
            self.passing -= overwritten
        return self.counted - before - overwritten * self.capacity

    def iteration_bytes(self) -> float:
        """Of what loops inside push nothing is known: they are given as much again."""
        return 2 * self.bytes_each() if self.roles.pushed_inside else self.bytes_each()

    def bytes_each(self) -> int:
        """Bytes of a row of each stack that every iteration pushes on."""
        return sum(self.frame.stacks[h].row_bytes(self.frame.row_shape(h)) for h in self.roles.pushed)

    def lend(self, chunk: Blocks, iterations: int) -> None:
        """Lend blocks to the stacks that each iteration pushes on; the remaining stacks request blocks when a row
        comes."""
        self.chunk, self.capacity = chunk, iterations
        for handle in self.roles.pushed:
            self.frame.stacks[handle].lend(self.block, self.frame.row_shape(handle), iterations)
        for handle in self.roles.pushed_inside:
            self.frame.stacks[handle].source = self.block

    def block(self, handle: int, shape: tuple[int, ...], dtype: np.dtype) -> Storage:
        assert self.chunk is not None
        return self.chunk.block(shape, dtype, self.frame.label(handle))

    def pushed_bytes(self) -> int:
        return self._bytes() - self.bytes_before

    def _bytes(self) -> int:
        return sum(self.frame.stacks[h].nbytes for h in self.handles)

    def close(self, iterations: int) -> Closed[_Length]:
        for handle in self.handles:
            self.frame.stacks[handle].close_block()
        self.bytes_before = self._bytes()
        return Closed(_Length(iterations, self.capacity))

    def sealed(self) -> None:
        self.chunk = None

    def finish(self) -> None:
        for handle in self.handles:
            self.frame.stacks[handle].source = None

    def abandon(self) -> None:
        for handle in self.handles:
            self.frame.stacks[handle].clear()

    # State at the start of a chunk.

    def carried(self) -> list[Any]:
        """The numbers and arrays that the loop carries now; arrays are views of its memory."""
        return self.frame.told([c.inside for c in self.roles.loop.carries], self.index + 1)

    def state_bytes(self) -> int:
        return sum(x.nbytes for x in self.carried() if x is not None)

    def snapshot(self) -> tuple[EntryState, int]:
        state = EntryState(tuple(None if x is None else x.copy() for x in self.carried()))
        return state, state.nbytes


class LoopReplay(Replay[_Length]):
    """Runs a loop as a plan of its own for as many iterations as a chunk had."""

    def __init__(self, frame: Frame, roles: ChunkedLoop) -> None:
        super().__init__()
        self.frame = frame
        self.roles = roles
        self.program, found = frame.program.loop_program(roles.loop.number, pushes=True)
        captured = frame.told(found.captured, frame.layout.captures[roles.loop.number])
        # Captures in the plan's own memory may be overwritten later and are copied.
        self.captured = {value: frame.kept(value, x) for value, x in zip(found.captured, captured, strict=True)}
        self.carried = [c.inside for c in roles.loop.carries]
        self.is_stack = [isinstance(inside, Stack) for inside in self.carried]

    def advance(self, state: EntryState, chunks: Iterator[memory.Chunk], first: int, last: int) -> EntryState:
        """One run of the loop's own program fills the blocks of all."""
        carry = [
            BlockStack(inside.dtype, ()) if isinstance(inside, Stack) else value
            for value, inside in zip(state.carry, self.carried, strict=True)
        ]
        ran = [self.ran[index] for index in range(first, last)]
        arguments = [np.int64(sum(each.iterations for each in ran)), *self.captured.values(), *carry]
        results = self.program.run_again(arguments, chunks, ran, self.frame.memory.scratch)
        return EntryState(tuple(None if s else x for s, x in zip(self.is_stack, results, strict=True)))

    def skip(self, state: EntryState, first: int, last: int) -> EntryState:
        """One run of so many iterations, which pushes nothing."""
        iterations = sum(self.ran[index].iterations for index in range(first, last))
        program, found = self.frame.program.loop_program(self.roles.loop.number, pushes=False)
        carry = (x for x, s in zip(state.carry, self.is_stack, strict=True) if not s)
        arguments = [np.int64(iterations), *(self.captured[value] for value in found.captured), *carry]
        results = iter(program.run_again(arguments, iter(()), (), self.frame.memory.scratch))
        return EntryState(tuple(None if s else next(results) for s in self.is_stack))
