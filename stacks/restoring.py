"""Carries of a loop that are updated in part: the backward loop restores them instead of popping each of their values.

An iteration that writes a row of a cache leaves the rest of it unchanged. The backward loop begins with the cache after
the last iteration, and undoes the updates one after the other: before an update the forward loop pushes the elements
that it overwrites, and the backward loop writes them back. Moving elements is exact, so restored values equal the
carried ones bit by bit. If an update names a position twice, the same old element is written back there twice. A loop
of T iterations then saves T rows, not T caches.

    forward   old = cache[i]    push old    next = cache with i updated
    backward  pop old           cache = next with cache[i] = old

`updates` finds the updates between a carry and its next value, and `stages` undoes them.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import field

from ctrlgrad.ir import Node, TensorType, Value
from ctrlgrad.ir.control import Carry
from ctrlgrad.records import record
from ctrlgrad.stacks.choice import bytes_of
from ctrlgrad.stacks.stages import Patch, Stage, another, find_stages
from ctrlgrad.stacks.updates import Producers


@record(eq=False)
class Restoring:
    """A carry whose next value comes from its value by updates alone: the stages, the last of them first."""

    carry: Carry
    stages: Sequence[Stage]

    @staticmethod
    def of(carry: Carry, producers: Producers, count: Mapping[Value, int]) -> Restoring | None:
        """Return None if a carry is not updated in parts, or the parts are not smaller than the carry."""
        first = carry.in_body
        if not isinstance(first.type, TensorType) or any(v.type != first.type for v in (carry.init, carry.result)):
            return None
        stages = find_stages(carry.next, [first], producers, count, first)
        if not stages:
            return None
        restoring = Restoring(carry, stages)
        return restoring if sum(bytes_of(patch.old) for patch in restoring.patches) < bytes_of(first) else None

    @property
    def members(self) -> tuple[Value, ...]:
        """The values that are restored."""
        return (*(stage.after for stage in self.stages), self.carry.in_body)

    @property
    def patches(self) -> list[Patch]:
        return [patch for stage in self.stages for patch in stage.patches]

    @property
    def needs(self) -> list[Value]:
        """The values with which the updates are undone."""
        return [v for patch in self.patches for v in (patch.old, *patch.indices)]

    def undone(self, brought: Mapping[Value, Value]) -> list[Node]:
        """The nodes that restore the members; `brought` has what stands for each of these, and for the needs."""
        nodes = []
        for stage in self.stages:
            value = brought[stage.after]
            for patch in stage.patches:
                before = brought[stage.before] if patch is stage.patches[-1] else another(value)
                indices = [brought[v] for v in patch.indices]
                nodes.append(patch.undone(value, brought[patch.old], indices, before))
                value = before
        return nodes


@record(eq=False, frozen=False)
class Restorable:
    """The carries of a loop that may be restored."""

    members: dict[Value, Restoring] = field(default_factory=dict)
    # The values with which the members are restored.
    olds: set[Value] = field(default_factory=set)
    indices: set[Value] = field(default_factory=set)
    # The values of the loop's body that members take part in.
    following: set[Value] = field(default_factory=set)

    @staticmethod
    def of(restorings: Iterable[Restoring], nodes: Sequence[Node]) -> Restorable:
        """`nodes` are those of the loop's body."""
        found = Restorable()
        for restoring in restorings:
            found.members.update(dict.fromkeys(restoring.members, restoring))
            found.olds.update(patch.old for patch in restoring.patches)
            found.indices.update(v for patch in restoring.patches for v in patch.indices)
        found.following.update(found.members)
        for node in nodes:
            if not found.following.isdisjoint(node.operands):
                found.following.update(node.results)
        return found

    def is_saved(self, value: Value) -> bool:
        """True if a value, if needed, can only be saved: values that restore a carry must not depend on carries."""
        return value in self.olds or (value in self.indices and value in self.following)


def placed(nodes: Iterable[Node], chains: Iterable[Sequence[Node]]) -> list[Node]:
    """Nodes with those of chains among them, each as late as can be: a value that is read before another one takes its
    place is not copied."""
    found: list[Node] = []
    left = [list(chain) for chain in chains]

    def reach(wanted: Container[Value]) -> None:
        for chain in left:
            last = max((i for i, node in enumerate(chain) if node.result in wanted), default=-1)
            found.extend(chain[: last + 1])
            del chain[: last + 1]

    for node in nodes:
        reach(node.operands)
        found.append(node)
    for chain in left:
        found += chain
    return found
