"""Functions of a plan: long plans become several, and each keeps some of what it works with near.

LLVM's time grows with the square of a function's text, so each function of a long plan has a bounded one: consecutive
steps up to a weight. A step that is longer by itself stays in the plan's own function, and its blocks are cut.

A function keeps words of stacks in variables, and small temporaries on the machine's stack, where LLVM makes registers
of them if it can. A stack's words are near between two requests; a temporary is near in the only function that uses it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from ctrlgrad.plan.effects import blocks_of, defines, reads, walk, yields
from ctrlgrad.plan.model import (
    Array,
    Block,
    Compute,
    Kernel,
    Loop,
    Piece,
    Plan,
    Pop,
    Push,
    ReadRow,
    Step,
    Tiles,
    WriteRow,
)

# The most weight of a plan that is one function, and of a function of another plan. A weight is about a line of text.
WHOLE, PIECE = 6000, 1500
# The most bytes of a temporary on the machine's stack, and of all temporaries of a function.
SMALL, MOST_SMALL = 128, 1 << 14
# The most stacks whose words a function keeps near.
MOST_NEAR = 6


def weight_of(step: Step) -> int:
    """About how many lines of text a step becomes."""
    found = 0
    if isinstance(step, Kernel):
        found = 20 + 2 * len(step.expression.instructions) + 4 * (len(step.operands) + len(step.writes))
    elif isinstance(step, Compute):
        found = len(step.expression.instructions)
    elif isinstance(step, Loop):
        found = 40 + 4 * len(step.carries)
    else:
        found = 20
    return found + sum(weight_of(inner) for block in blocks_of(step) for inner in block.steps)


def is_cut(plan: Plan) -> bool:
    """Return true for a plan that becomes several functions."""
    return sum(map(weight_of, plan.body.steps)) > WHOLE


def is_in_pieces(step: Step) -> bool:
    """Return true for a step whose blocks become several functions, in a plan that is cut."""
    return weight_of(step) > PIECE and bool(blocks_of(step))


def pieces_of(plan: Plan) -> dict[Step, Piece]:
    """The functions of a long plan, by their first steps."""
    uses = touched(plan, plan.body)
    found = {}
    for steps in _cut(plan, plan.body):
        counts = touched(plan, Block(steps))
        own = (number for number, count in counts.items() if count == uses[number])
        found[steps[0]] = Piece(steps, near_stacks(plan, steps), local_buffers(plan, own))
    return found


def grouped(plan: Plan, steps: Sequence[Step]) -> Iterator[tuple[Tiles | None, list[Step]]]:
    """Steps one by one, but those that run tile by tile as a group."""
    left = iter(steps)
    for step in left:
        group, tiles = [step], plan.tiles.get(step) if isinstance(step, Kernel) else None
        while tiles is not None and group[-1] is not tiles.kernels[-1]:
            group.append(next(left))
        yield tiles, group


def _cut(plan: Plan, block: Block) -> Iterator[tuple[Step, ...]]:
    """The steps of each function, in the order of the text."""
    waiting: list[Step] = []
    total = 0
    for _, group in grouped(plan, block.steps):
        weight = sum(map(weight_of, group))
        if waiting and total + weight > PIECE:
            yield tuple(waiting)
            waiting, total = [], 0
        if is_in_pieces(group[0]):
            for inner in blocks_of(group[0]):
                yield from _cut(plan, inner)
        else:
            waiting += group
            total += weight
    if waiting:
        yield tuple(waiting)


def near_stacks(plan: Plan, steps: Iterable[Step]) -> tuple[int, ...]:
    """The handles of stacks of numbers that loops use, if there are few: a push or a pop of a number costs little
    beside their words. Outside of loops they would be no gain, and every request in the plan is longer by them."""
    loops = [step for step in walk(Block(tuple(steps))) if isinstance(step, Loop)]
    inside = (step for loop in loops for block in (loop.condition, loop.body) for step in walk(block))
    used = {step.stack for step in inside if isinstance(step, Push | Pop | ReadRow | WriteRow)}
    handles = {plan.handles[stack] for stack in used if plan.rows[stack] == ()}
    return tuple(sorted(handles)) if len(handles) <= MOST_NEAR else ()


def local_buffers(plan: Plan, numbers: Iterable[int]) -> tuple[int, ...]:
    """The small temporaries among buffers, for the machine's stack."""
    found, total = [], 0
    for buffer in (plan.buffers[number] for number in numbers):
        nbytes = buffer.count.factor * buffer.dtype.itemsize
        is_small = buffer.count.is_known and 0 < nbytes <= SMALL and total + nbytes <= MOST_SMALL
        if is_small and buffer.result is None and buffer.is_known_at_entry:
            total += nbytes
            found.append(buffer.number)
    return tuple(found)


def touched(plan: Plan, block: Block) -> Counter[int]:
    """Count the uses of each buffer in a block, with the blocks and moves inside it."""
    found: Counter[int] = Counter()

    def note(values: Iterable[object]) -> None:
        for value in values:
            if isinstance(value, Array) and value in plan.places and plan.places[value].kind == "buffer":
                found[plan.places[value].number] += 1

    def note_moves(block: Block) -> None:
        found.update(p.number for m in block.moves for p in (m.source, m.target) if p.kind == "buffer")

    note_moves(block)
    for step in block.steps:
        note((*reads(step), *defines(step)))
        note(yields(step))
        if isinstance(step, Loop):
            note(c.inside for c in step.carries)
            note_moves(step.entry)
        for inner in blocks_of(step):
            found.update(touched(plan, inner))
    return found
