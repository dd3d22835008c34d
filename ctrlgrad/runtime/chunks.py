"""Loops that run in chunks in a memory session: how many iterations each has, its blocks, its end, and its replays.

An engine knows its loop (`LoopRun`): what is carried into a chunk, where its stacks get their blocks, how much they
hold. The driver begins a chunk, has the loop take blocks from it and run, and seals it. A chunk has few iterations at
first, since most loops are short; then each has at most twice as many as the one before, and no more than push
`chunk_bytes`, or under a small budget what has room. The manager counts the blocks, may ask for the state that the
chunk starts from, and may copy the blocks away, or drop them and have the chunk run again by the engine's `Replay`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import field
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from ctrlgrad import memory
from ctrlgrad.errors import MemoryBudgetError, UserInputError, forget_values
from ctrlgrad.ir import Node, attributes
from ctrlgrad.ir.control import loop_name
from ctrlgrad.memory.profile.records import Phase
from ctrlgrad.memory.session import current
from ctrlgrad.passes import CHUNK_BYTES
from ctrlgrad.records import record
from ctrlgrad.runtime.stack import Blocks, Storage

# The share of a budget that one chunk may push.
SHARE = 4
# Bytes up to which a chunk may push more than its share, where there is room: so short a chunk takes little time beside
# the fixed cost of its calls, and is copied in the caller's thread, with no other chunk under way.
WORTH_BYTES = 1 << 18
# Iterations of the one chunk of a loop that is one: as many as it takes.
UNBOUNDED = 1 << 62

Snapshot = Callable[[], tuple[Any, int]]
R = TypeVar("R")
T = TypeVar("T")
_NOTHING: AbstractContextManager[None] = nullcontext()


def chunk_bytes() -> int:
    """Bytes that one chunk may push now: less under a budget in which several must find room.

    A power of two, so that budgets of about one size share what is compiled.
    """
    session = current()
    if session is None or session.budget.device is None:
        return CHUNK_BYTES
    share = session.budget.device // SHARE
    return max(min(CHUNK_BYTES, 1 << max(share.bit_length() - 1, 0)) >> session.halvings, 1)


def leaving_bytes() -> int:
    """Bytes that one chunk may push whose rows leave the call: a call that reads them later cannot shorten it.

    It grows evenly with the budget, so that the room beside such chunks grows too.
    """
    session = current()
    limit = None if session is None else session.budget.device
    return chunk_bytes() if limit is None else max(min(chunk_bytes(), limit // (2 * SHARE)), 1)


def note_long() -> None:
    """Note that a chunk, or a block, is longer than it must be."""
    session = current()
    if session is not None:
        session.long_chunks += 1


def in_shorter_chunks(call: Callable[[], T]) -> T:
    """Run a call that can begin anew; where it is refused it does, in chunks of a quarter of the bytes, until they are
    as short as can be. So a budget suffices wherever a smaller one does. The next calls begin with such chunks."""
    session = current()
    if session is None:
        return call()
    halvings, refused = session.halvings, True
    try:
        while True:
            before = session.long_chunks
            try:
                found, refused = call(), False
                return found
            except MemoryBudgetError as error:
                if session.long_chunks == before:
                    raise
                forget_values(error)
            session.halvings += 2
            for manager in session.managers.values():
                manager.recorder.fall_back("there was no room; a call began anew in chunks of a quarter of the bytes")
    finally:
        if refused:
            session.halvings = halvings


# An engine's loop.


@record
class EntryState:
    """Entry state of a chunk: the carry, without the loop's captures. None stands for a stack that is made anew."""

    carry: tuple[Any, ...]

    @property
    def nbytes(self) -> int:
        return sum(map(bytes_of, self.carry))


def bytes_of(x: Any) -> int:
    """Bytes of a carried value that is held: an array or a number; rows of a stack count with the stack."""
    return int(x.nbytes) if hasattr(x, "ndim") else 0


@record
class Closed(Generic[R]):
    """A chunk on which nothing is pushed any more: the record of its run, for a replay, and its time.

    The seconds are those of a device that computes by itself; None where the driver's own clock tells.
    """

    ran: R
    seconds: float | None = None


class LoopRun(Protocol[R]):
    """One run of a loop of an engine, as the driver of its chunks sees it."""

    def state_bytes(self) -> int:
        """Bytes of a copy of the carry."""

    def snapshot(self) -> tuple[EntryState, int]:
        """A copy of the carry, and its bytes."""

    def iteration_bytes(self) -> float:
        """Bytes that an iteration pushes, as far as that is known; else 0."""

    def lend(self, chunk: Blocks, iterations: int) -> None:
        """A chunk begins, of at most so many iterations: stacks take their blocks from it."""

    def pushed_bytes(self) -> int:
        """Bytes that have been pushed in this chunk."""

    def close(self, iterations: int) -> Closed[R]:
        """The chunk has run so many iterations: nothing more is pushed on its blocks."""

    def sealed(self) -> None:
        """The manager has the chunk's blocks. It moves none before this returns."""

    def finish(self) -> None:
        """The loop is over, and its chunks are sealed."""

    def abandon(self) -> None:
        """The loop has failed."""


class Replay(Generic[R]):
    """Runs chunks of one run of a loop again. Implements `ctrlgrad.memory.Recompute`; `R` says how a chunk ran."""

    def __init__(self) -> None:
        # By the chunk's index.
        self.ran: dict[int, R] = {}

    def run(self, state: EntryState, chunk: Blocks, ran: R) -> EntryState:
        """Run the chunk that began with a state as it ran, into its blocks; gives the state after it."""
        raise NotImplementedError

    def advance(self, state: EntryState, chunks: Iterator[memory.Chunk], first: int, last: int) -> EntryState:
        for chunk in chunks:
            state = self.run(state, chunk, self.ran[chunk.index])
        return state

    def skip(self, state: EntryState, first: int, last: int) -> EntryState | None:
        """The state some chunks later; None where those chunks have to fill their blocks for that."""
        return None

    def copy_bytes(self, state: EntryState) -> int:
        return state.nbytes


# A run of a loop and the chunk that is under way, as the manager has them.


class ManagedLoop:
    """A run of a loop that begins, and its chunk. Of a loop that pushes nothing only the time of its one chunk is
    recorded: `loop` is None. `replay` is given where chunks can be run again.

    Its time is a part of that of the loop over chunks around it, and of whatever else is recorded already.
    """

    chunk: memory.Chunk

    def __init__(
        self,
        node: Node,
        manager: memory.Manager,
        replay: Replay[Any] | None,
        phase: Phase,
        *,
        pushes: bool,
        is_recorded: bool = False,
    ) -> None:
        given = attributes.Loop.of(node)
        # Of a loop over chunks and the loop over one chunk inside it, the outer one is run again. Products after the
        # inner one use its rows at once, so they are not swapped.
        is_inner = given.chunk is not None
        self.manager, self.label, self.phase = manager, loop_name(node), phase
        self.is_part, self.lock = is_recorded or is_inner, manager.lock
        self.seconds, self.chunks_timed = 0.0, 1
        self._recorded: AbstractContextManager[None] = _NOTHING
        self.replay = replay if pushes else None
        self.loop: memory.LoopMemory | None = None
        if not pushes:
            return
        checkpoint = None if is_inner else given.checkpoint
        if checkpoint and replay is None:
            if phase == "forward":
                raise _cannot_repeat(node)
            # A loop that runs backward and is differentiated itself: what it pops is gone.
            checkpoint = None
        swap = False if is_inner else given.swap_memory
        self.loop = manager.loop(self.label, swap=swap, checkpoint=checkpoint, recompute=replay)

    def begin(self, snapshot: Snapshot | None, state_bytes: Callable[[], int] | None) -> ManagedLoop:
        """Begin a chunk."""
        if self.loop is not None:
            self.chunk = self.loop.begin(snapshot, state_bytes)
        self.seconds, self.chunks_timed = 0.0, 1
        return self

    def block(self, shape: Sequence[int], dtype: np.dtype, label: str, stack: int = 0) -> Storage:
        return self.chunk.block(shape, dtype, label, stack)

    def __enter__(self) -> None:
        """Around the computation itself, to measure it."""
        if not self.is_part:
            place = () if self.loop is None else (self.label, self.chunk.index)
            self._recorded = self.manager.recorder.running(self.label, self.phase, *place)
            self._recorded.__enter__()
        self.seconds -= time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter()
        self._recorded.__exit__(None, None, None)

    def passing(self) -> int:
        """Number of chunks that may run in the blocks of the chunk that has begun."""
        return 0 if self.loop is None else self.loop.passing()

    def overwritten(self, count: int, ran: Any) -> list[list[memory.Block]]:
        """So many chunks ran in its blocks before it, each in this way: the blocks of each, which are nowhere."""
        assert self.replay is not None
        first = self.chunk.index
        self.replay.ran.update(dict.fromkeys(range(first, first + count), ran))
        # The chunks that ran in these blocks before took their share of the time so far.
        self.chunks_timed += count
        return self.chunk.overwritten(count)

    def seal(self, ran: Any, seconds: float | None) -> None:
        """End the chunk; its blocks are written.

        `ran` is the record of its run, for a replay; `seconds` is its time, where the time around it does not tell.
        """
        if self.replay is not None:
            self.replay.ran[self.chunk.index] = ran
        if self.loop is not None:
            self.chunk.seal(self.seconds / self.chunks_timed if seconds is None else seconds)

    def discard(self) -> None:
        """Drop the chunk: it has failed, or is run again with more room."""
        if self.loop is not None:
            self.chunk.discard()

    def finish(self) -> None:
        """The loop has run its last chunk."""
        if self.loop is not None:
            self.loop.finish()

    def abandon(self) -> None:
        """The loop has failed."""
        if self.loop is not None:
            self.loop.abandon()


def _cannot_repeat(node: Node) -> UserInputError:
    return UserInputError(
        f"{loop_name(node)}: checkpoint is given, but its iterations cannot be run again",
        source=node.source,
        expected="a loop that only reads the arrays that it is given, and only appends to those that it fills",
        got="a loop that changes a TensorArray, reads one that it fills, or calls back",
        hint="leave checkpoint out, or use swap_memory=True",
    )


# The driver.


@record(frozen=False)
class Lengths:
    """Numbers of iterations of the chunks in one run of a loop."""

    # The next one at most, each of them at most, and each of them at least.
    limit: int
    most: int
    least: int = 1
    # True if a chunk may push more than its share of the budget, where there is room for it; and on how many stacks.
    may_grow: bool = False
    stacks: int = 1
    # Bytes that a chunk may push.
    nbytes: int = field(default_factory=chunk_bytes)

    def next(self, nbytes: float) -> int:
        """Number of iterations of the next chunk, where an iteration pushes `nbytes` bytes, or 0 if that is unknown."""
        fitting = int(self.nbytes // nbytes) if nbytes else self.most
        found = max(self.least, min(self.limit, self.most, fitting))
        self.limit = min(2 * self.limit, self.most)
        return found


class ChunkDriver(Generic[R]):
    """Runs one loop in chunks: `before` and `after` stand around its iterations, `finish` or `abandon` at its end.

    `lengths` is a number where the whole loop is one chunk: the iterations that its blocks are to have room for.
    """

    def __init__(self, loop: LoopRun[R], runs: ManagedLoop, lengths: Lengths | int) -> None:
        self.loop, self.runs, self.lengths = loop, runs, lengths
        self.chunk: ManagedLoop | None = None
        # Iterations that the chunk has room for, and those that have run.
        self.capacity = self.ran = 0
        self._is_running = False

    def before(self) -> int:
        """An iteration is about to run: a chunk begins where none is under way. Answers how many may run in it."""
        if self.chunk is None:
            self._begin()
        elif self.ran:
            note_long()
        return self.capacity - self.ran

    def after(self, iterations: int = 1) -> None:
        """So many iterations have run: the chunk is over where it is long enough."""
        self.ran += iterations
        if self.ran >= self.capacity or (
            isinstance(self.lengths, Lengths) and self.loop.pushed_bytes() >= self.lengths.nbytes
        ):
            self._end()

    def finish(self, iterations: int = 0) -> None:
        """The loop is over, so many iterations after the last `after`."""
        self.ran += iterations
        if self.chunk is not None:
            self._end()
        self.loop.finish()
        self.runs.finish()

    def abandon(self) -> None:
        """The loop has failed."""
        self._stop()
        self.loop.abandon()
        if self.chunk is not None:
            self.chunk.discard()
            self.chunk = None
        self.runs.abandon()

    def _begin(self) -> None:
        loop, keeps_states = self.loop, self.runs.replay is not None
        chunk = self.runs.begin(*((loop.snapshot, loop.state_bytes) if keeps_states else (None, None)))
        if isinstance(self.lengths, Lengths):
            if self.lengths.may_grow:
                assert self.runs.loop is not None
                longer = self.runs.loop.longer(self.lengths.nbytes, WORTH_BYTES, loop.state_bytes, self.lengths.stacks)
                if longer:
                    self.lengths.nbytes, self.lengths.may_grow = longer, False
            nbytes = self.loop.iteration_bytes()
            iterations = self.capacity = self.lengths.next(nbytes)
            if nbytes and iterations > 1:
                note_long()
        else:
            iterations, self.capacity = self.lengths, UNBOUNDED
        try:
            self.loop.lend(chunk, iterations)
        except BaseException:
            chunk.discard()
            raise
        self.chunk, self.ran = chunk, 0
        chunk.__enter__()
        self._is_running = True

    def _stop(self) -> None:
        if self._is_running:
            self._is_running = False
            self.runs.__exit__()

    def _end(self) -> None:
        self._stop()
        chunk = self.chunk
        assert chunk is not None
        closed = self.loop.close(self.ran)
        self.chunk = None
        if not self.ran:
            chunk.discard()
            return
        with self.runs.lock:
            chunk.seal(closed.ran, closed.seconds)
            self.loop.sealed()
