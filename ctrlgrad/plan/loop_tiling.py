"""Loops over long vectors, run tile by tile: all iterations for the first points, then all of them for the next ones.

A loop whose kernels each go through all of their arrays reads and writes them once in each iteration, from further away
than the processor's nearest memory where they do not fit into it. Where each point of what the loop writes depends on
nothing but the same point of it, and on what the loop leaves as it is, the loop over the points may as well be the
outer one ("loop interchange", here of tiles: M. E. Wolf and M. S. Lam, "A data locality optimizing algorithm", 1991).

Numbers that the loop computes must not depend on what it writes either. They are computed again for each tile, with
how many iterations there are, and are the same for all.
"""

from __future__ import annotations

from ctrlgrad.plan.effects import defines
from ctrlgrad.plan.model import Array, Compute, Guard, Kernel, Load, Loop, Plan, Register, Stack
from ctrlgrad.plan.places import Place
from ctrlgrad.plan.sizes import ONE, Size
from ctrlgrad.plan.tiling import accesses_of, is_along_a_line, is_long, length_of, points_of
from ctrlgrad.records import record


@record
class LoopTiles:
    """The points of a loop's kernels, and how many of them a tile has."""

    length: Size
    points: int


def loop_tiles(loop: Loop, plan: Plan) -> LoopTiles | None:
    """Tiles of a loop that can run tile by tile; else None."""
    steps = [*loop.condition.steps, *loop.body.steps]
    if any(block.moves or block.stack_moves for block in (loop.condition, loop.body)):
        return None
    if not all(isinstance(step, Kernel | Compute | Load | Guard) and step not in plan.releases for step in steps):
        return None
    if any(isinstance(carry.inside, Stack) for carry in loop.carries):
        return None
    kernels = [step for step in steps if isinstance(step, Kernel)]
    carried = [carry.inside for carry in loop.carries if isinstance(carry.inside, Array)]
    if not kernels or not all(is_along_a_line(kernel, plan, carried) for kernel in kernels):
        return None
    length = length_of(kernels[0])
    if length == ONE or any(length_of(kernel) != length for kernel in kernels):
        return None
    accesses = [access for kernel in kernels for access in accesses_of(kernel, plan.places)]
    # Of what is written, each point touches one element, which is the same in all iterations.
    own = {register.name for step in steps for register in defines(step) if isinstance(register, Register)}
    own |= {carry.inside.name for carry in loop.carries if isinstance(carry.inside, Register)} | {loop.counter.name}
    offsets: dict[Place, set[object]] = {access.place: set() for access in accesses if access.is_write}
    for access in accesses:
        if access.place in offsets:
            if access.offset is None or any(own.intersection(names) for names, _ in access.offset):
                return None
            offsets[access.place].add((access.offset, access.item_bytes))
    if any(place.kind != "buffer" or len(found) > 1 for place, found in offsets.items()):
        return None
    if any(plan.places[step.view.array] in offsets for step in steps if isinstance(step, Load)):
        return None
    points = points_of([accesses])
    return LoopTiles(length, points) if is_long(length, points) and own.isdisjoint(length.names) else None
