"""Which memory nobody needs any more after a step, so that the driver may take it back where bytes are short.

Only buffers that are sized when they are needed, and stacks, are worth telling: the others are one piece of memory that
a call has from beginning to end. A row that is read or made in place keeps the stack that it lies in.
"""

from __future__ import annotations

from typing import Literal

from ctrlgrad.plan.effects import blocks_of, defines, walk
from ctrlgrad.plan.liveness import Liveness
from ctrlgrad.plan.model import Array, Block, FromStack, Plan, Pop, Push, Release, Stack, Step, Value

Memory = tuple[Literal["buffer", "stack"], int]


def releases(plan: Plan) -> dict[Step, Release]:
    """For each step of a placed plan that is the last to use some memory: which."""
    return _Releases(plan).found


class _Releases:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.live = Liveness(plan)
        self.late = {b.number for b in plan.buffers if b.is_free_to_move}
        steps = list(walk(plan.body))
        self.pushes = [s.stack for s in steps if isinstance(s, Push)]
        self.pops = [s.stack for s in steps if isinstance(s, Pop | FromStack)]
        # What lies in each memory. That all have a place is the checker's to say.
        self.memory: dict[Value, Memory] = {}
        self.values: dict[Memory, set[Value]] = {}
        values: list[Array | Stack] = [*plan.handles, *plan.places]
        for value in values:
            found = self.memory_of(value)
            if found is not None:
                self.memory[value] = found
                self.values.setdefault(found, set()).add(value)
        self.found: dict[Step, Release] = {}
        self.block(plan.body)

    def block(self, block: Block) -> None:
        for step in block.steps:
            for inner in blocks_of(step):
                self.block(inner)
            after, memory = self.live.after[step], self.memory
            used = {memory[v] for v in (*self.live.reads[step], *defines(step)) if v in memory}
            idle = sorted(m for m in used if after.isdisjoint(self.values[m]))
            if idle:
                self.found[step] = Release(
                    tuple(number for kind, number in idle if kind == "buffer"),
                    tuple(number for kind, number in idle if kind == "stack"),
                )

    def memory_of(self, value: Array | Stack) -> Memory | None:
        """What a value lies in, if that is worth telling."""
        handles = self.plan.handles
        if isinstance(value, Stack):
            return "stack", handles[value]
        place = self.plan.places[value]
        if place.kind == "buffer":
            return ("buffer", place.number) if place.number in self.late else None
        if place.kind in ("slot", "row"):
            return "stack", handles[(self.pushes if place.kind == "slot" else self.pops)[place.number]]
        return None
