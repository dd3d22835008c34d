"""What a loop does with the stacks that it carries: which of them a memory manager may have, and whether a chunk of the
loop can be run again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ctrlgrad.engines.cuda.placement import DEVICE, Place
from ctrlgrad.engines.native.stack_uses import stack_use
from ctrlgrad.engines.pushes import describe
from ctrlgrad.ir import Node, StackType, Trait, walk


@dataclass(frozen=True)
class Pushed:
    """A carried stack that the loop only pushes on. `rows` are those of an iteration, None where loops inside push."""

    dtype: np.dtype
    place: Place
    rows: int | None
    label: str


@dataclass(frozen=True)
class StackRoles:
    """By the stacks' positions in the carry."""

    pushed: dict[int, Pushed]
    # Whether it does nothing to its stacks but push and read, and has no effects: then a chunk that is run again from
    # the arrays and numbers that it began with gives the same, and changes nothing else.
    can_replay: bool
    pops: bool


def roles_of(node: Node, places: Sequence[Place]) -> StackRoles:
    """The roles of a loop's stacks; its carry lives in the given places."""
    captures: int = node.attrs["captures"]
    pushed: dict[int, Pushed] = {}
    can_replay, pops = True, False
    for i, v in enumerate(node.results):
        if not isinstance(v.type, StackType):
            continue
        use = stack_use(node, captures + i, ())
        pops |= use.mode == "pop"
        if use.mode == "push":
            rows = None if use.inside else use.pushes
            pushed[i] = Pushed(v.type.element.dtype, places[i], rows, describe(node, captures + i).label)
        elif use.mode != "read":
            can_replay = False
    has_effects = any(Trait.EFFECT in inner.op.traits for inner in walk(node.regions[1]))
    on_device = any(role.place is DEVICE for role in pushed.values())
    return StackRoles(pushed, can_replay and on_device and not has_effects, pops)


__all__ = ["Pushed", "StackRoles", "roles_of"]
