"""How a loop runs in chunks in a session: what one chunk pushes is one unit that the memory manager moves.

Of nested loops the outermost one that carries a stack has the chunks; those inside push into the chunk that is under
way. A chunk of a loop over chunks (`ctrlgrad.passes.distribution`) is one iteration; of another loop it grows up to as
many iterations as push `chunk_bytes`. A masked loop's chunks are those after which it asks its predicate, at most.
Stacks that are made and used up inside one such chunk are no business of the manager's: they count as other values do.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Protocol

from ctrlgrad.engines.chunks import ManagedChunk, bytes_of, chunk_bytes, managed
from ctrlgrad.engines.cuda.account import RunMemory
from ctrlgrad.engines.cuda.context import Context
from ctrlgrad.engines.cuda.program import Values
from ctrlgrad.engines.cuda.replay import BodyReplay, Needed, Ran, entry_state
from ctrlgrad.engines.cuda.roles import StackRoles
from ctrlgrad.engines.cuda.saved import PushedChunk, RowSupply
from ctrlgrad.engines.cuda.stacks import DeviceStack
from ctrlgrad.ir import Node, attributes
from ctrlgrad.memory.devices.device import Event
from ctrlgrad.memory.profile.records import Phase

# Iterations of the first chunk of a loop, and of any.
FIRST_ITERATIONS, MOST_ITERATIONS = 4, 4096


class Chunks(Protocol):
    """The chunks of one run of a loop."""

    @property
    def length(self) -> int:
        """Iterations that the next chunk is to have at most."""

    def before(self, carry: Values) -> None:
        """An iteration, or more, is about to run from a carry: a chunk begins where none is under way."""

    def after(self, carry: Values, iterations: int = 1) -> None:
        """So many iterations have run, to a carry: the chunk ends where it is long enough."""

    def finish(self, carry: Values, shared: Values) -> None:
        """The loop is over; what it captured is given too."""

    def abandon(self) -> None:
        """The loop has failed."""


class _Unwatched:
    """A loop whose chunks are nobody's business."""

    length = MOST_ITERATIONS

    def before(self, carry: Values) -> None:
        pass

    def after(self, carry: Values, iterations: int = 1) -> None:
        pass

    def finish(self, carry: Values, shared: Values) -> None:
        pass

    def abandon(self) -> None:
        pass


UNWATCHED = _Unwatched()


@dataclass
class _Clock:
    """Seconds that the device takes for a pushed byte, from events around chunks that are over by now."""

    waiting: deque[tuple[Event, Event, int]] = field(default_factory=deque)
    per_byte: float | None = None

    def ran(self, begun: Event, ended: Event, nbytes: int) -> None:
        if nbytes:
            self.waiting.append((begun, ended, nbytes))
        while self.waiting and self.waiting[0][1].is_done():
            first, last, count = self.waiting.popleft()
            start, end = first.time, last.time
            if start is not None and end is not None:
                self.per_byte = (end - start) / count


class WatchedChunks:
    """The chunks of a loop in a session; `owned` are the stacks, by position, of which it has the blocks."""

    def __init__(self, node: Node, context: Context, memory: RunMemory, roles: StackRoles, replay: BodyReplay | None):
        self.context, self.memory, self.roles, self.replay = context, memory, roles, replay
        self._needs = None if replay is None else Needed(replay)
        self.length = 1 if attributes.Loop.of(node).chunks_of is not None else FIRST_ITERATIONS
        self._grows = attributes.Loop.of(node).chunks_of is None
        phase: Phase = "backward" if roles.pops else "forward"
        self.owned: list[int] = []
        self.runs = managed(node, memory.manager, None, phase, False)
        self._node, self._phase = node, phase
        self._chunk: PushedChunk | None = None
        self._supplies: dict[int, RowSupply] = {}
        # Rows that the last chunk pushed on a stack, an iteration.
        self._rows: dict[int, float] = {i: float(p.rows) for i, p in roles.pushed.items() if p.rows is not None}
        self._ran = 0
        self._running = ExitStack()
        self._begun: Event | None = None
        self._clock = _Clock()
        self._start = 0.0

    def own(self, carry: Values) -> None:
        """Take over those stacks that no loop around this one has."""
        self.owned = [i for i in self.roles.pushed if _is_free(carry[i])]
        if self.owned:
            self.runs = managed(self._node, self.memory.manager, self.replay, self._phase, True)

    def before(self, carry: Values) -> None:
        if self._chunk is not None:
            return
        self.memory.settle()
        nbytes = sum(map(bytes_of, carry))
        chunk = self.runs.begin(lambda: entry_state(carry, self.roles, self.context), nbytes)
        self._chunk = PushedChunk(self.memory, chunk, needs=self._needs)
        self._supplies = {}
        for i in self.owned:
            rows = round(self._rows.get(i, 0.0) * self.length)
            self._supplies[i] = carry[i].pushing = self._chunk.supply(self.roles.pushed[i].label, rows)
        self._ran = 0
        if not self.memory.is_recorded:
            self._running.enter_context(chunk.running())
            self._running.enter_context(self.memory.recorded())
        self._begun, self._start = self.memory.manager.device.compute.record(), time.perf_counter()

    def after(self, carry: Values, iterations: int = 1) -> None:
        self._ran += iterations
        if self._ran >= self.length:
            self._end(carry)

    def _end(self, carry: Values) -> None:
        """The chunk is over."""
        pushed, begun = self._chunk, self._begun
        assert pushed is not None and begun is not None
        chunk = pushed.chunk
        self.context.counts.calls += pushed.detach(carry)
        nbytes = pushed.nbytes
        ended = self.memory.manager.device.compute.record()
        self._running.close()
        if isinstance(chunk, ManagedChunk):
            self._clock.ran(begun, ended, nbytes)
            rate = self._clock.per_byte
            chunk.seconds = time.perf_counter() - self._start if rate is None else rate * nbytes
        ran = Ran(self._ran, {i: supply.expected for i, supply in self._supplies.items()})
        self._rows |= {i: supply.pushed / self._ran for i, supply in self._supplies.items() if self._rows_vary(i)}
        pushed.end()
        self._chunk = None
        pushed.seal(ran)
        if self._grows:
            most = chunk_bytes() * self._ran // nbytes if nbytes else MOST_ITERATIONS
            self.length = max(1, min(2 * self.length, most, MOST_ITERATIONS))

    def _rows_vary(self, position: int) -> bool:
        return self.roles.pushed[position].rows is None

    def finish(self, carry: Values, shared: Values) -> None:
        if self._chunk is not None:
            self._end(carry)
        for i in self.owned:
            carry[i].pushing = None
        if not self.memory.is_recorded:
            for x in (*carry, *shared):
                if isinstance(x, DeviceStack):
                    x.rest()
        self.memory.settle()
        self.runs.finish()

    def abandon(self) -> None:
        self._running.close()
        if self._chunk is not None:
            self._chunk.discard()
            self._chunk = None
        self.runs.abandon()


def _is_free(stack: object) -> bool:
    """Whether a stack gets its blocks from no chunk that is under way."""
    return isinstance(stack, DeviceStack) and (stack.pushing is None or stack.pushing.is_over)


def chunks_of(node: Node, context: Context, roles: StackRoles, replay: BodyReplay | None, carry: Values) -> Chunks:
    """The chunks of a loop that is about to run from a carry."""
    memory = context.memory
    if memory is None:
        return UNWATCHED
    length = attributes.Loop.of(node).chunk
    if length is not None:
        # What the loop over one chunk collects for itself is used at once, by the products after it.
        for i, role in roles.pushed.items():
            if isinstance(carry[i], DeviceStack) and not _is_free(carry[i]) and role.rows is not None:
                carry[i].pushing.enter(role.label, length * role.rows)
        return UNWATCHED
    chunks = WatchedChunks(node, context, memory, roles, replay)
    chunks.own(carry)
    return chunks if chunks.owned or not memory.is_recorded else UNWATCHED


__all__ = ["FIRST_ITERATIONS", "MOST_ITERATIONS", "Chunks", "WatchedChunks", "chunks_of"]
