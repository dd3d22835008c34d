"""A distributed loop in a session: each iteration of the loop over chunks is a chunk of the memory manager.

Loop distribution (`ctrlgrad.passes.distribution`) makes a loop over chunks whose body runs the iterations of one chunk.
What the body pushes on stacks that the loop carries belongs to the chunk. Where the loop does nothing but push on them,
a chunk can be run again from the values that it started from: the whole body, batched products included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ctrlgrad.engines.account import supply
from ctrlgrad.engines.chunks import Chunk, Replaying, Snapshot, managed
from ctrlgrad.engines.reference import Run
from ctrlgrad.engines.reference.control_kernels import InterpretedLoop
from ctrlgrad.engines.reference.interpreter import Program
from ctrlgrad.engines.replay import EntryState, PushedStack, StackRoles, roles_of
from ctrlgrad.ir import Node, StackType, walk
from ctrlgrad.memory.chunk import Chunk as MemoryChunk
from ctrlgrad.memory.profile.records import Phase
from ctrlgrad.stacks.blocks import BlockStack
from ctrlgrad.stacks.flow import stack_use


def _roles_of(node: Node) -> StackRoles:
    """The roles of a loop's stacks. It has blocks for those whose rows are all of one size, that is known."""
    found = roles_of(node)
    pushed = {i: role for i, role in found.pushed.items() if role.type.element.is_static}
    can_replay = found.can_replay and len(pushed) == len(found.pushed)
    for inner in walk(node.regions[1]):
        if inner.op.name == "while":
            can_replay &= not any(
                stack_use(inner, k).is_data_dependent
                for k, v in enumerate(inner.operands)
                if isinstance(v.type, StackType)
            )
    return StackRoles(pushed, can_replay, found.pops)


class ChunkLoop:
    """A loop over chunks, run by the interpreter with a manager's chunks."""

    def __init__(self, node: Node, interpreted: InterpretedLoop) -> None:
        self.node, self.interpreted = node, interpreted
        self.roles = _roles_of(node)

    def __call__(self, values: list[Any], run: Run) -> Any:
        state = self.interpreted.start(values)
        for i, role in self.roles.pushed.items():
            if isinstance(state.carry[i], list) and not state.carry[i]:
                state.carry[i] = _stack(role)
        replay = BodyReplay(self.interpreted.body, state.shared, self.roles) if self.roles.can_replay else None
        phase: Phase = "backward" if self.roles.pops else "forward"
        chunks = managed(self.node, replay, phase, bool(self.roles.pushed))
        try:
            while True:
                before = state.trips
                chunk = chunks.begin(self._snapshot(state.carry))
                try:
                    self._give(state.carry, chunk)
                    with chunk.running():
                        finished = self.interpreted.advance(state, run, lambda trips: True)
                except BaseException:
                    chunk.discard()
                    raise
                if state.trips == before:
                    chunk.discard()
                else:
                    chunk.seal()
                if finished:
                    chunks.finish()
                    return self.interpreted.finish(state, run)
        except BaseException:
            chunks.abandon()
            raise

    def _give(self, carry: Sequence[Any], chunk: Chunk) -> None:
        """What is pushed on the carried stacks from now on belongs to the chunk."""
        for i in self.roles.pushed:
            if isinstance(carry[i], BlockStack):
                carry[i].pushing = chunk

    def _snapshot(self, carry: Sequence[Any]) -> Snapshot:
        def make() -> tuple[Any, int]:
            # No copies: a value that is held here is not overwritten.
            state = EntryState(tuple(None if i in self.roles.pushed else x for i, x in enumerate(carry)))
            return state, state.nbytes

        return make


class BodyReplay:
    """Runs the body of a loop over chunks again. Implements `ctrlgrad.memory.Recompute`."""

    def __init__(self, body: Program, shared: Sequence[Any], roles: StackRoles) -> None:
        self.body, self.shared, self.roles = body, list(shared), roles

    def advance(self, state: EntryState, chunk: MemoryChunk) -> EntryState:
        """Run the chunk that began with a state, into its blocks; gives the state after it."""
        carry = list(state.carry)
        supply_of_blocks = Replaying(chunk).begin(None)
        for i, role in self.roles.pushed.items():
            carry[i] = _stack(role)
            carry[i].pushing = supply_of_blocks
        arguments = [*self.shared, *carry]
        del carry
        found = self.body(arguments, Run())
        return EntryState(tuple(None if i in self.roles.pushed else x for i, x in enumerate(found)))

    def copy_bytes(self, state: EntryState) -> int:
        return state.nbytes


def _stack(role: PushedStack) -> BlockStack:
    element = role.type.element
    return BlockStack(element.dtype, tuple(d for d in element.shape if d is not None), supply=supply())


__all__ = ["ChunkLoop"]
