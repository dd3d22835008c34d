"""Uses of the stacks that a loop carries, and whether its chunks can be run again."""

from __future__ import annotations

from ctrlgrad.ir import Loop, Node, StackType, TensorType, Trait, walk
from ctrlgrad.ir.control import Carry
from ctrlgrad.ir.flow import in_an_iteration
from ctrlgrad.records import record
from ctrlgrad.runtime.rows import describe


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
    can_replay, pops = not any(Trait.EFFECT in inner.op.traits for inner in walk(loop.body)), False
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
