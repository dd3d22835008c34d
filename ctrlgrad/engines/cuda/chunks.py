"""A loop on the device as the driver of its chunks sees it: the rows that one chunk pushes are one unit that the
manager moves, or has by running the chunk again.

Of nested loops the outermost one that carries a stack has the chunks; those inside push into the current chunk. A
chunk of a loop over chunks (`ctrlgrad.passes.distribution`) is one iteration. Stacks that begin and end inside one such
chunk count as other values do.

A chunk gets blocks, fills them and leaves them to the manager. A carry that is a view into the chunk's own blocks is
copied; else the blocks could not leave. A chunk is run again from a copy of the arrays and numbers that it began with,
for exactly as many iterations. Values on the device are not overwritten while they are referenced, so a state may be
used again. The copies count as entry states, and not as values of the computation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from ctrlgrad.engines.block_kernels import describe
from ctrlgrad.engines.cuda.placement import DEVICE, Places
from ctrlgrad.engines.cuda.prepared.runner import Body, Iterations, LoopState, Way
from ctrlgrad.engines.cuda.program import Context, Values
from ctrlgrad.engines.cuda.stacks import DeviceStack, PushedChunk, RowSupply, RunMemory
from ctrlgrad.engines.reference import Run
from ctrlgrad.ir import Loop, Node, StackType, TensorType, Trait, attributes, walk
from ctrlgrad.ir.control import Carry
from ctrlgrad.ir.flow import in_an_iteration
from ctrlgrad.memory.devices.device import Event
from ctrlgrad.memory.profile.records import Phase
from ctrlgrad.records import record
from ctrlgrad.runtime.chunks import UNBOUNDED, ChunkDriver, Closed, EntryState, Lengths, ManagedLoop, Replay, bytes_of
from ctrlgrad.runtime.stack import Blocks


@record
class PushedStack:
    """A carried stack that a loop only pushes on. `rows` are those of an iteration, None where loops inside push."""

    type: StackType
    rows: int | None
    label: str


@record
class StackRoles:
    """Uses of the stacks that a loop carries, by their positions in the carry."""

    pushed: dict[int, PushedStack]
    # True if it only pushes to its stacks and reads them, and has no effects: then a chunk that is run again from its
    # initial arrays and numbers gives the same, and changes nothing else.
    can_replay: bool
    pops: bool


def roles_of(node: Node) -> StackRoles:
    """The roles of a loop's stacks."""
    loop = Loop.of(node)
    pushed: dict[int, PushedStack] = {}
    inside = (inner for region in (loop.cond, loop.body) for inner in walk(region))
    can_replay, pops = not any(Trait.EFFECT in inner.op.traits for inner in inside), False
    stacks = [(i, c, t) for i, c in enumerate(loop.carries) if isinstance(t := c.result.type, StackType)]
    for number, (i, carry, type) in enumerate(stacks):
        ops = [found for event in in_an_iteration(loop, carry) for found in event.ops()]
        kinds = {op.kind for op, _ in ops}
        pops |= kinds == {"pop"}
        if kinds == {"push"}:
            rows = None if any(is_repeated for _, is_repeated in ops) else len(ops)
            pushed[i] = PushedStack(type, rows, describe(node, number).label)
        elif not kinds <= {"read", "measure"}:
            can_replay = False
    return StackRoles(pushed, can_replay and bool(pushed), pops)


def tables_of(loop: Loop) -> dict[int, TensorType]:
    """The elements of stacks whose rows an iteration reads and writes by index, or adds up, and that it neither makes
    longer nor shorter, by their places among the body's inputs."""
    found: dict[int, TensorType] = {}
    for slot, value in enumerate(loop.body.inputs):
        carry = slot - len(loop.captures)
        if isinstance(value.type, StackType) and (carry < 0 or _is_table(loop, loop.carries[carry])):
            found[slot] = value.type.element
    return found


def _is_table(loop: Loop, carry: Carry) -> bool:
    kinds = {op.kind for event in in_an_iteration(loop, carry) for op, _ in event.ops()}
    return bool(kinds - {"measure"}) and not kinds & {"push", "pop"}


def entry_state(carry: Sequence[Any], roles: StackRoles, context: Context) -> tuple[EntryState, int]:
    """The state in which a carry is, and its bytes."""
    assert context.memory is not None
    kept = [None if i in roles.pushed else x for i, x in enumerate(carry)]
    with context.memory.uncounted():
        for i, x in enumerate(kept):
            if context.library.is_array(x):
                context.counts.calls += 1
                kept[i] = context.xp.array(x)
    state = EntryState(tuple(kept))
    return state, state.nbytes


@dataclass(frozen=True)
class Ran:
    """Record of a chunk's run: the rows that its stacks were expected to push, by position, and its iterations."""

    expected: dict[int, int]
    ways: tuple[Way, ...]


class BodyReplay(Replay[Ran]):
    """Runs the body of a loop, whose carry lives in `places`, as often as a chunk did."""

    def __init__(self, body: Body, shared: Values, roles: StackRoles, places: Places, context: Context) -> None:
        super().__init__()
        self.body, self.shared, self.roles, self.places = body, shared, roles, places
        self.context = context

    def run(self, state: EntryState, chunk: Blocks, ran: Ran) -> EntryState:
        memory = self.context.memory
        assert memory is not None
        again = PushedChunk(memory, chunk, is_owner=False)
        carry = list(state.carry)
        for i, role in self.roles.pushed.items():
            carry[i] = []
            if self.places[i] is DEVICE:
                carry[i] = DeviceStack(memory.library, role.type.element.dtype)
                if i in ran.expected:
                    carry[i].pushing = again.supply(role.label, ran.expected[i])
        context = replace(self.context, run=Run(iterations=[0]))
        with memory.recorded():
            # As the first time: which iterations are prepared follows from blocks and numbers, or is told.
            loop = LoopState(list(self.shared), carry)
            del carry
            with Iterations(self.body, context, loop) as iterations:
                iterations.again(ran.ways)
        after, _ = entry_state(loop.carry, self.roles, context)
        del loop, iterations
        again.end()
        again.leave()
        return after


class Needed:
    """Token of a possible replay, held by a loop while it runs, and by its blocks.

    The manager's records of a loop refer to each other. Without this they would keep what the loop captured, until
    Python looks for such circles.
    """

    __slots__ = ("_replay",)

    def __init__(self, replay: BodyReplay) -> None:
        self._replay = replay

    def __del__(self) -> None:
        self._replay.shared.clear()


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


def _supply(stack: object) -> RowSupply | None:
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
    runs = ManagedLoop(node, memory.manager, replay, phase, pushes=pushes, is_recorded=memory.is_recorded)
    is_of_chunks = given.chunks_of is not None
    return ChunkDriver(loop, runs, Lengths(1, 1) if is_of_chunks else Lengths(FIRST_ITERATIONS, MOST_ITERATIONS))
