"""Driver of a loop in chunks: the number of iterations of each, the loop's end, and the work around each chunk.

An engine knows its loop (`LoopRun`): what is carried into a chunk, where its stacks get their blocks, how much they
hold. All else is here. A chunk has few iterations at first, since most loops are short; then each has at most twice as
many as the one before, and no more than push `chunk_bytes`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Generic, Protocol, TypeVar

from ctrlgrad.engines.chunks import Chunk, EntryState, ManagedLoop, Measured, chunk_bytes
from ctrlgrad.records import record

# Iterations of the one chunk of a loop that is one: as many as it takes.
UNBOUNDED = 1 << 62

R = TypeVar("R")


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

    def lend(self, chunk: Chunk, iterations: int) -> None:
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


@record(frozen=False)
class Lengths:
    """Numbers of iterations of the chunks in one run of a loop."""

    # The next one at most, each of them at most, and each of them at least.
    limit: int
    most: int
    least: int = 1

    def next(self, nbytes: float) -> int:
        """Number of iterations of the next chunk, where an iteration pushes `nbytes` bytes, or 0 if that is unknown."""
        fitting = int(chunk_bytes() // nbytes) if nbytes else self.most
        found = max(self.least, min(self.limit, self.most, fitting))
        self.limit = min(2 * self.limit, self.most)
        return found


class ChunkDriver(Generic[R]):
    """Runs one loop in chunks: `before` and `after` stand around its iterations, `finish` or `abandon` at its end.

    `lengths` is a number where the whole loop is one chunk: the iterations that its blocks are to have room for.
    """

    def __init__(self, loop: LoopRun[R], runs: ManagedLoop | Measured, lengths: Lengths | int) -> None:
        self.loop, self.runs, self.lengths = loop, runs, lengths
        self.chunk: Chunk | None = None
        # Iterations that the chunk has room for, and those that have run.
        self.capacity = self.ran = 0
        self._running: AbstractContextManager[object] | None = None

    def before(self) -> int:
        """An iteration is about to run: a chunk begins where none is under way. Answers how many may run in it."""
        if self.chunk is None:
            self._begin()
        return self.capacity - self.ran

    def after(self, iterations: int = 1) -> None:
        """So many iterations have run: the chunk is over where it is long enough."""
        self.ran += iterations
        if self.ran >= self.capacity or (
            isinstance(self.lengths, Lengths) and self.loop.pushed_bytes() >= chunk_bytes()
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
        keeps_states = self.runs.replay is not None
        chunk = self.runs.begin(
            self.loop.snapshot if keeps_states else None, self.loop.state_bytes() if keeps_states else None
        )
        if isinstance(self.lengths, Lengths):
            iterations = self.capacity = self.lengths.next(self.loop.iteration_bytes())
        else:
            iterations, self.capacity = self.lengths, UNBOUNDED
        try:
            self.loop.lend(chunk, iterations)
        except BaseException:
            chunk.discard()
            raise
        self.chunk, self.ran = chunk, 0
        self._running = chunk.running()
        self._running.__enter__()

    def _stop(self) -> None:
        if self._running is not None:
            self._running.__exit__(None, None, None)
            self._running = None

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
