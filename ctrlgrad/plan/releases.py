"""Which memory nobody needs any more after a step, so that the driver may take it back where bytes are short.

Only buffers that are sized when they are needed, and stacks, are worth telling: the others are one piece of memory that
a call has from beginning to end. A row that is read or made in place keeps the stack that it lies in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from ctrlgrad.plan.effects import blocks_of, defines, walk
from ctrlgrad.plan.liveness import Liveness
from ctrlgrad.plan.model import Array, Block, FromStack, Plan, Pop, Push, Release, Stack, Step

Memory = tuple[Literal["buffer", "stack"], int]


def releases(plan: Plan) -> dict[Step, Release]:
    """For each step of a placed plan that is the last to use some memory: which."""
    return _Releases(plan).found


class _Releases:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.live = Liveness(plan)
        self.late = {b.number for b in plan.buffers if b.result is None and not b.is_known_at_entry}
        steps = list(walk(plan.body))
        self.pushes = [s.stack for s in steps if isinstance(s, Push)]
        self.pops = [s.stack for s in steps if isinstance(s, Pop | FromStack)]
        self.found: dict[Step, Release] = {}
        self.block(plan.body)

    def block(self, block: Block) -> None:
        for step in block.steps:
            for inner in blocks_of(step):
                self.block(inner)
            used = set(self.memory((*self.live.reads[step], *defines(step))))
            idle = sorted(used - set(self.memory(self.live.after[step])))
            if idle:
                self.found[step] = Release(
                    tuple(number for kind, number in idle if kind == "buffer"),
                    tuple(number for kind, number in idle if kind == "stack"),
                )

    def memory(self, values: Iterable[object]) -> Iterator[Memory]:
        """What values lie in. That all have a place is the checker's to say."""
        handles, places = self.plan.handles, self.plan.places
        for value in values:
            if isinstance(value, Stack) and value in handles:
                yield "stack", handles[value]
            elif isinstance(value, Array) and value in places:
                place = places[value]
                if place.kind == "buffer" and place.number in self.late:
                    yield "buffer", place.number
                elif place.kind in ("slot", "row"):
                    yield "stack", handles[(self.pushes if place.kind == "slot" else self.pops)[place.number]]


__all__ = ["releases"]
