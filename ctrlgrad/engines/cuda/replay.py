"""Running a chunk of a loop again, to have its blocks again: what a memory manager may do instead of keeping or
copying them.

A chunk is run again from a copy of the arrays and numbers that it began with, for exactly as many iterations. Values on
the device are not overwritten while they are referenced, so a state may be used again. The copies count as entry
states, which is the manager's work, and not as values of the computation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ctrlgrad.engines.cuda.context import Context, Speculation
from ctrlgrad.engines.cuda.placement import DEVICE, Places
from ctrlgrad.engines.cuda.prepared.forms import Body
from ctrlgrad.engines.cuda.prepared.runner import Iterations
from ctrlgrad.engines.cuda.prepared.state import LoopState, Way
from ctrlgrad.engines.cuda.program import Values
from ctrlgrad.engines.cuda.roles import StackRoles
from ctrlgrad.engines.cuda.saved import PushedChunk
from ctrlgrad.engines.cuda.stacks import DeviceStack
from ctrlgrad.engines.reference import Run
from ctrlgrad.runtime.chunks import EntryState, Replay
from ctrlgrad.runtime.stack import Blocks


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
        # An iteration past the loop's end may fail again.
        ending = self.body.ending
        speculation = Speculation() if ending is not None and ending.is_masked else None
        context = replace(self.context, run=Run(iterations=[0]), speculation=speculation)
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
