"""A run of a plan in a memory session: its loops run in chunks, whose blocks a manager copies away or has made again.

At the head of an iteration a loop that pushes may end its chunk: what was pushed is sealed, and the stacks get fresh
blocks of the next chunk, with room for so many iterations. Loops inside push into further blocks of the same chunk. To
have a chunk's blocks again, the loop is run as a plan of its own, from a copy of what its carries began the chunk with.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from ctrlgrad.engines.account import CPU, forget_values, giving_back
from ctrlgrad.engines.chunks import (
    Chunk,
    EntryState,
    ManagedLoop,
    Measured,
    Replay,
    Replaying,
    chunk_bytes,
    managed,
)
from ctrlgrad.engines.native import frame as words
from ctrlgrad.engines.native.running import Frame
from ctrlgrad.engines.reference.control_kernels import loop_name
from ctrlgrad.errors import MemoryBudgetError
from ctrlgrad.ir import Trait
from ctrlgrad.memory import Manager
from ctrlgrad.memory.profile.records import Phase
from ctrlgrad.memory.session import current
from ctrlgrad.passes import CHUNK_BYTES
from ctrlgrad.plan.chunks import ChunkedLoop
from ctrlgrad.plan.model import Stack
from ctrlgrad.records import record
from ctrlgrad.stacks.blocks import BlockStack
from ctrlgrad.stacks.storage import Storage

# The first chunk is short, since most loops are; the least and the most iterations of one.
FIRST_ITERATIONS, LEAST_ITERATIONS, MOST_ITERATIONS = 256, 16, 1 << 16


@record
class _Length:
    """How many iterations a chunk ran, and for how many its first blocks had room."""

    iterations: int
    room: int


def manager() -> Manager:
    """The memory manager of this call."""
    session = current()
    assert session is not None
    return session.manager(CPU)


class Session:
    """One call of a program in a session; of a loop's own program one that fills the blocks of a chunk again.

    `again` is that chunk, and how many iterations its first blocks have room for.

    Where the manager chose by measured times to compute chunks again, and there turns out to be no room for that, the
    call begins anew with copies: whether a budget suffices is no matter of times. A call that has effects cannot begin
    anew, and keeps to copies from the start.
    """

    def __init__(self, frame: Frame, again: tuple[Chunk, int] | None = None) -> None:
        self.frame, self.again = frame, again
        self.loops: dict[int, LoopInChunks] = {}
        # The names of the loops that have begun.
        self.begun: set[str] = set()
        self.has_effects = any(Trait.EFFECT in call.node.op.traits for call in frame.layout.calls)

    def run(self, arguments: Any) -> list[Any]:
        program = self.frame.program
        try:
            return self._run(arguments)
        except MemoryBudgetError as error:
            if self.again is not None or self.has_effects or not self.keep_to_copies(self.begun):
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
            for loop in self.loops.values():
                loop.abandon()
            raise
        finally:
            frame.dispose()

    def begin(self, number: int) -> None:
        name = loop_name(self.frame.layout.loops[number].node)
        self.begun.add(name)
        if self.has_effects:
            self.keep_to_copies((name,))
        self.loops[number] = LoopInChunks(self.frame, self.frame.layout.chunked[number], self.again)
        self.loops[number].begin()

    def next(self, number: int) -> None:
        self.loops[number].next()

    def end(self, number: int) -> None:
        self.loops.pop(number).end()


class LoopInChunks:
    """One run of a loop."""

    def __init__(self, frame: Frame, roles: ChunkedLoop, again: tuple[Chunk, int] | None = None) -> None:
        self.frame, self.roles, self.loop = frame, roles, roles.loop
        self.index = frame.layout.chunks[roles.loop.number]
        self.handles = (*roles.pushed, *roles.pushed_inside)
        # Of a chunk that is run again: where its blocks come from, and the room of the first ones.
        self.again = again
        self.chunks: ManagedLoop | Measured | None = None
        self.chunk: Chunk | None = None
        self.running: AbstractContextManager[None] | None = None
        self.before, self.room, self.limit = 0, 0, FIRST_ITERATIONS
        self.bytes_before = 0

    def begin(self) -> None:
        if self.again is not None:
            self.chunk, self.room = self.again
            self.lend(self.room)
            self.set_room(1 << 62)
            return
        pushes = bool(self.handles)
        replay = LoopReplay(self.frame, self.roles) if self.roles.can_repeat else None
        phase: Phase = "backward" if self.roles.pops else "forward"
        self.chunks = managed(self.loop.node, manager(), replay, phase, pushes)
        if pushes:
            # The first iteration begins the first chunk.
            self.set_room(0)
        else:
            self.set_room(1 << 62)
            self.start_running(self.chunks.begin(None))

    def set_room(self, room: int) -> None:
        self.frame.words[self.index] = room

    def start_running(self, chunk: Chunk) -> None:
        self.chunk = chunk
        self.running = chunk.running()
        self.running.__enter__()

    def stop_running(self) -> None:
        if self.running is not None:
            running, self.running = self.running, None
            running.__exit__(None, None, None)

    def counter(self) -> int:
        return int(self.frame.words[self.frame.layout.counters + self.loop.number])

    # Chunks.

    def next(self) -> None:
        """At the head of an iteration the chunk has no more room."""
        assert self.again is None, "a chunk that is run again has room for all of its iterations"
        if self.chunk is not None:
            is_full = self.counter() - self.before >= self.room if self.roles.pushed else False
            if self.roles.pushed_inside and not is_full and self.pushed_bytes() < chunk_bytes():
                self.set_room(1)
                return
            self.seal()
        assert self.chunks is not None
        self.before = self.counter()
        chunk = self.chunks.begin(self.snapshot if self.roles.can_repeat else None, self.state_bytes())
        self.chunk = chunk
        self.room = self.iterations()
        try:
            self.lend(self.room)
        except BaseException:
            self.chunk = None
            chunk.discard()
            raise
        # How much loops inside push is seen after each iteration.
        self.set_room(1 if self.roles.pushed_inside else self.room)
        self.start_running(chunk)

    def iterations(self) -> int:
        """How many iterations the next chunk has."""
        if not self.roles.pushed:
            return 1
        nbytes = chunk_bytes()
        each = sum(self.frame.stacks[h].row_bytes(self.frame.row_shape(h)) for h in self.roles.pushed)
        if self.roles.pushed_inside:
            each *= 2
        least = 1 if nbytes < CHUNK_BYTES else LEAST_ITERATIONS
        most = max(least, min(MOST_ITERATIONS, nbytes // max(each, 1)))
        found = min(self.limit, most)
        self.limit *= 2
        return found

    def lend(self, room: int) -> None:
        """Blocks of the chunk for the stacks that each iteration pushes on."""
        for handle in self.roles.pushed:
            self.frame.stacks[handle].lend(self.block, self.frame.row_shape(handle), room)
        for handle in self.roles.pushed_inside:
            self.frame.stacks[handle].source = self.block

    def block(self, handle: int, shape: tuple[int, ...], dtype: np.dtype) -> Storage:
        assert self.chunk is not None
        return self.chunk.block(shape, dtype, self.frame.label(handle))

    def pushed_bytes(self) -> int:
        total = sum(self.frame.stacks[h].nbytes for h in self.handles)
        return total - self.bytes_before

    def seal(self) -> None:
        """What was pushed is complete."""
        self.stop_running()
        chunk, self.chunk = self.chunk, None
        assert chunk is not None
        done = self.counter() - self.before
        for handle in self.handles:
            self.frame.stacks[handle].close_block()
        if done:
            chunk.seal(_Length(done, self.room))
        else:
            chunk.discard()
        self.bytes_before = sum(self.frame.stacks[h].nbytes for h in self.handles)

    def end(self) -> None:
        if self.again is not None:
            for handle in self.handles:
                self.frame.stacks[handle].close_block()
            return
        if self.chunk is not None:
            if self.handles:
                self.seal()
            else:
                self.stop_running()
        for handle in self.handles:
            self.frame.stacks[handle].source = None
        assert self.chunks is not None
        self.chunks.finish()

    def abandon(self) -> None:
        if self.again is not None:
            # Whoever wanted the chunk again knows what to do.
            return
        self.stop_running()
        for handle in self.handles:
            self.frame.stacks[handle].clear()
        if self.chunk is not None and self.handles:
            self.chunk.discard()
        if self.chunks is not None:
            self.chunks.abandon()

    # What a chunk starts from.

    def carried(self) -> list[Any]:
        """The numbers and arrays that the loop carries now; arrays are views of its memory."""
        return self.frame.told([c.inside for c in self.loop.carries], self.index + 1)

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
        self.program, found = frame.program.loop_program(roles.loop.number)
        captured = frame.told(found.captured, frame.layout.captures[roles.loop.number])
        # What lies in the plan's own memory is overwritten once the plan needs it no more.
        self.captured = [frame.kept(value, x) for value, x in zip(found.captured, captured, strict=True)]
        self.carried = [c.inside for c in roles.loop.carries]

    def run(self, state: EntryState, chunk: Replaying, ran: _Length) -> EntryState:
        carry = [
            BlockStack(inside.dtype, ()) if isinstance(inside, Stack) else value
            for value, inside in zip(state.carry, self.carried, strict=True)
        ]
        arguments = [np.int64(ran.iterations), *self.captured, *carry]
        results = self.program.run_again(arguments, chunk, ran.room, self.frame.memory.scratch)
        is_stack = [isinstance(inside, Stack) for inside in self.carried]
        return EntryState(tuple(None if s else x for s, x in zip(is_stack, results, strict=True)))
