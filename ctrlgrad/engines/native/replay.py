"""Running a chunk of a compiled loop again, to have its blocks again: what a memory manager may do instead of keeping
or copying them.

A chunk is run again from a copy of the state that it began with, for exactly as many iterations. That is allowed where
the loop does nothing to its stacks but push and read: then the state is the carried arrays and numbers alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ctrlgrad.engines.chunks import Replaying
from ctrlgrad.engines.native.execution import ChunkLength, Execution
from ctrlgrad.engines.native.program import LoopProgram
from ctrlgrad.engines.reference.run import Run
from ctrlgrad.engines.replay import EntryState
from ctrlgrad.memory.chunk import Chunk
from ctrlgrad.stacks.blocks import BlockStack

if TYPE_CHECKING:
    from ctrlgrad.engines.native.loop import Plan


def can_replay(program: LoopProgram) -> bool:
    """Whether running a chunk of this loop again gives the same, and changes nothing else."""
    # What is made anew in each iteration is made anew again.
    modes = {use.mode for use in program.stacks if not use.is_local}
    return "push" in modes and modes <= {"push", "read"} and not any(e.is_writable for e in program.entries)


class PlanReplay:
    """Runs chunks of one run of a plan again. Implements `ctrlgrad.memory.Recompute`.

    `lengths` is the run's own record of how long each chunk was.
    """

    def __init__(self, plan: Plan, captured: Sequence[Any]) -> None:
        self.plan, self.captured = plan, list(captured)
        self.lengths: dict[int, ChunkLength] = {}

    def advance(self, state: EntryState, chunk: Chunk) -> EntryState:
        """Run the chunk that began with a state, into its blocks; gives the state after it."""
        plan, length = self.plan, self.lengths[state.done]
        values = [*self.captured, *state.carry]
        for use in plan.program.stacks:
            if use.mode == "push":
                shape = tuple(plan.size(d) for d in use.element)
                values[use.position] = BlockStack(np.dtype(use.dtype), shape)
        chunks = Replaying(chunk)
        execution = Execution(plan, values, chunks, Run(), state.done)
        for position, room in length.rooms.items():
            execution.stacks[position].room = room
        try:
            execution.advance(length.allowed, chunks.begin(None), length.trips)
            return execution.state()
        finally:
            execution.end()

    def copy_bytes(self, state: EntryState) -> int:
        return state.nbytes


__all__ = ["PlanReplay", "can_replay"]
