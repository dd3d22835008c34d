"""A loop on the device as the driver of its chunks sees it: what one chunk pushes is one unit that the manager moves.

Of nested loops the outermost one that carries a stack has the chunks; those inside push into the chunk that is under
way. A chunk of a loop over chunks (`ctrlgrad.passes.distribution`) is one iteration. A masked loop asks its predicate
at the end of a chunk at the latest. Stacks that begin and end inside one such chunk are no business of the
manager's: they count as other values do.
"""

from __future__ import annotations

from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass, field

from ctrlgrad.engines.cuda.account import RunMemory
from ctrlgrad.engines.cuda.context import Context
from ctrlgrad.engines.cuda.prepared.state import LoopState
from ctrlgrad.engines.cuda.replay import BodyReplay, Needed, Ran, entry_state
from ctrlgrad.engines.cuda.roles import StackRoles
from ctrlgrad.engines.cuda.saved import PushedChunk, RowSupply
from ctrlgrad.engines.cuda.stacks import DeviceStack, Supply
from ctrlgrad.ir import Node, attributes
from ctrlgrad.memory.devices.device import Event
from ctrlgrad.memory.profile.records import Phase
from ctrlgrad.runtime.chunks import UNBOUNDED, ChunkDriver, Closed, EntryState, Lengths, bytes_of, managed
from ctrlgrad.runtime.stack import Blocks

# Iterations of the first chunk of a loop, and of any.
FIRST_ITERATIONS, MOST_ITERATIONS = 4, 4096


class NoChunks:
    """Stand-in for a driver where no manager follows a loop's chunks."""

    def before(self) -> int:
        return UNBOUNDED

    def after(self, iterations: int = 1) -> None:
        pass

    def finish(self) -> None:
        pass

    def abandon(self) -> None:
        pass


NO_CHUNKS = NoChunks()


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


class DeviceLoop:
    """A loop in a session; `owned` are the stacks, by position, that no loop around this one has the blocks of."""

    def __init__(
        self, state: LoopState, context: Context, memory: RunMemory, roles: StackRoles, replay: BodyReplay | None
    ) -> None:
        self.state, self.context, self.memory, self.roles = state, context, memory, roles
        self.owned = [
            i for i in roles.pushed if isinstance(state.carry[i], DeviceStack) and _supply(state.carry[i]) is None
        ]
        self._needs = None if replay is None else Needed(replay)
        self._supplies: dict[int, RowSupply] = {}
        # Rows that an iteration of the last chunk pushed on each stack, and their bytes.
        self._rows: dict[int, float] = {i: float(p.rows) for i, p in roles.pushed.items() if p.rows is not None}
        self._bytes = 0.0
        self._recorded = ExitStack()
        self._chunk: tuple[PushedChunk, Event] | None = None
        self._clock = _Clock()

    def state_bytes(self) -> int:
        self.memory.settle()
        return sum(map(bytes_of, self.state.carry))

    def snapshot(self) -> tuple[EntryState, int]:
        return entry_state(self.state.carry, self.roles, self.context)

    def iteration_bytes(self) -> float:
        return self._bytes

    def lend(self, chunk: Blocks, iterations: int) -> None:
        self.memory.settle()
        self.state.ways.clear()
        pushed = PushedChunk(self.memory, chunk, needs=self._needs)
        self._supplies = {}
        for i in self.owned:
            rows = round(self._rows.get(i, 0.0) * iterations)
            self._supplies[i] = self.state.carry[i].pushing = pushed.supply(self.roles.pushed[i].label, rows)
        self._recorded.enter_context(self.memory.recorded())
        self._chunk = pushed, self.memory.manager.device.compute.record()

    def pushed_bytes(self) -> int:
        assert self._chunk is not None
        return self._chunk[0].nbytes

    def close(self, iterations: int) -> Closed[Ran]:
        assert self._chunk is not None
        pushed, begun = self._chunk
        self.context.counts.calls += pushed.detach(self.state.carry)
        self._recorded.close()
        nbytes = pushed.nbytes
        self._clock.ran(begun, self.memory.manager.device.compute.record(), nbytes)
        rate = self._clock.per_byte
        ran = Ran({i: supply.expected for i, supply in self._supplies.items()}, tuple(self.state.ways))
        self._bytes = nbytes / iterations
        self._rows |= {i: s.pushed / iterations for i, s in self._supplies.items() if self.roles.pushed[i].rows is None}
        pushed.end()
        return Closed(ran, None if rate is None else rate * nbytes)

    def sealed(self) -> None:
        assert self._chunk is not None
        self._chunk[0].leave()
        self._chunk = None

    def finish(self) -> None:
        for i in self.owned:
            self.state.carry[i].pushing = None
        if not self.memory.is_recorded:
            for x in (*self.state.carry, *self.state.shared):
                if isinstance(x, DeviceStack):
                    x.rest()
        self.memory.settle()

    def abandon(self) -> None:
        self._recorded.close()
        if self._chunk is not None:
            self._chunk[0].abandon()
            self._chunk = None


def _supply(stack: object) -> Supply | None:
    """The chunk under way that a stack gets its blocks from, if there is one."""
    supply = stack.pushing if isinstance(stack, DeviceStack) else None
    return None if supply is None or supply.is_over else supply


def chunks_of(
    node: Node, context: Context, roles: StackRoles, replay: BodyReplay | None, state: LoopState
) -> ChunkDriver[Ran] | NoChunks:
    """Driver of the chunks of a loop that is about to run; `NO_CHUNKS` where the manager does not follow them."""
    memory, given = context.memory, attributes.Loop.of(node)
    if memory is None:
        return NO_CHUNKS
    if given.chunk is not None:
        # The products after the loop over one chunk use its rows at once: it has no chunks of its own, and only states
        # its capacity.
        for i, role in roles.pushed.items():
            supply = _supply(state.carry[i])
            if supply is not None and role.rows is not None:
                supply.enter(role.label, given.chunk * role.rows)
        return NO_CHUNKS
    loop = DeviceLoop(state, context, memory, roles, replay)
    if memory.is_recorded and not loop.owned:
        return NO_CHUNKS
    phase: Phase = "backward" if roles.pops else "forward"
    pushes = bool(loop.owned)
    runs = managed(node, memory.manager, replay, phase, pushes=pushes, is_recorded=memory.is_recorded)
    is_of_chunks = given.chunks_of is not None
    return ChunkDriver(loop, runs, Lengths(1, 1) if is_of_chunks else Lengths(FIRST_ITERATIONS, MOST_ITERATIONS))
