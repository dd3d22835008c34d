"""Decisions about the execution of a placed plan, which backends carry out and the plan's text shows.

In: a plan with places. Out: the same plan with `inlined`, the loops that inline elementary functions of scalars;
`functions`, the kernels that it has several times (layers and passes over them repeat each other); `ahead`, the
prefetch of each step on rows of a stack; `tiles` and `shares`, kernels and loops that run tile by tile, and work that
threads share; `vectors`, the vector forms of kernels; and the functions of a long plan (`pieces`), and what each
function keeps near (`near`, `local`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import replace

from ctrlgrad.plan.effects import blocks_of, walk
from ctrlgrad.plan.model import (
    Ahead,
    Compute,
    Cumulate,
    Kernel,
    Loop,
    Plan,
    Pop,
    Push,
    Share,
    Step,
    Tiles,
    Transform,
    View,
    WriteRow,
)
from ctrlgrad.plan.outlining import is_cut, is_in_pieces, local_buffers, near_stacks, pieces_of
from ctrlgrad.plan.sharing import shares_of
from ctrlgrad.plan.sizes import ONE, Size, product
from ctrlgrad.plan.tiling import groups_of, loop_tiles
from ctrlgrad.plan.vectors import is_small, vectors_of

# The most elementary functions of scalars in a loop that inlines them: each is hundreds of instructions.
MOST_INLINED = 8

# A backward loop pops rows below the ones before, and reads each upwards: a processor follows one direction only, and
# takes this for none. So the row below is fetched downwards. Of pushed rows, which are in order, the processor fetches
# too little ahead. Where rows are a few lines of the cache, or long, it fetches enough itself: measured with rows of
# 128 bytes to 8 KiB.
PUSHED, POPPED = Ahead(2, 256, 1024), Ahead(-1, 256, 2048)


def decide(plan: Plan) -> Plan:
    """The plan with its decisions about execution."""
    steps = list(walk(plan.body))
    inlined = frozenset(step for step in steps if isinstance(step, Loop) and _is_inlined(step))
    functions = _functions([step for step in steps if isinstance(step, Kernel)])
    ahead = {step: found for step in steps if (found := _ahead(step, plan)) is not None}
    plan = _shared(replace(plan, inlined=inlined, functions=functions, ahead=ahead))
    plan = with_vectors(plan, plan.vector_bytes)
    if is_cut(plan):
        return replace(plan, pieces=pieces_of(plan))
    local = local_buffers(plan, range(len(plan.buffers)))
    return replace(plan, near=near_stacks(plan, plan.body.steps), local=local)


def with_vectors(plan: Plan, nbytes: int) -> Plan:
    """The plan with the vector forms of its kernels for registers of `nbytes` bytes; without any for 0."""
    tiled = {kernel for tiles in plan.tiles.values() for kernel in tiles.kernels}
    kernels = [step for step in walk(plan.body) if isinstance(step, Kernel)] if nbytes else []
    vectors = {kernel: vectors_of(kernel, nbytes, kernel in tiled) for kernel in kernels}
    return replace(plan, vector_bytes=nbytes, vectors=vectors)


def _shared(plan: Plan) -> Plan:
    """The plan with `tiles` and `shares`.

    A loop with a kernel that threads share is not tiled, nor one that becomes several functions.
    """
    shares: dict[Kernel | Cumulate | Transform, Share] = {}
    tiles: dict[Step, Tiles] = {}
    loops = {id(step.body) for step in walk(plan.body) if isinstance(step, Loop)}
    for block in (plan.body, *(inner for step in walk(plan.body) for inner in blocks_of(step))):
        groups = list(groups_of(block, plan))
        tiles |= {group.kernels[0]: group for group in groups}
        tiled = {kernel for group in groups for kernel in group.kernels}
        shares |= shares_of(block, tiled, id(block) in loops, block is plan.body)
    cuts = is_cut(plan)
    for step in walk(plan.body):
        if not isinstance(step, Loop) or (cuts and is_in_pieces(step)) or not shares.keys().isdisjoint(step.body.steps):
            continue
        if (found := loop_tiles(step, plan)) is not None:
            tiles = {first: group for first, group in tiles.items() if first not in found.kernels} | {step: found}
    return replace(plan, shares=shares, tiles=tiles)


def _is_inlined(loop: Loop) -> bool:
    """Return true for an innermost loop with few elementary functions of scalars.

    Around calls all that it computes with lies in memory, and functions of one angle would each reduce it.
    """
    steps = [*walk(loop.condition), *walk(loop.body)]
    expressions = [step.expression for step in steps if isinstance(step, Compute)]
    calls = sum(instruction.op == "call" for e in expressions for instruction in e.instructions)
    return 0 < calls <= MOST_INLINED and not any(isinstance(step, Loop) for step in steps)


def _functions(kernels: list[Kernel]) -> frozenset[Kernel]:
    """Kernels that share their form with another one and become a function.

    Kernels that may fail report their iteration, and LLVM keeps arrays of small ones in registers: both stay inline.
    """
    forms = {kernel: _form_of(kernel) for kernel in kernels if not kernel.checks}
    counts = Counter(forms.values())
    return frozenset(kernel for kernel, form in forms.items() if counts[form] > 1 and not is_small(kernel))


def _form(columns: View | None) -> Hashable:
    return None if columns is None else (columns.strides, columns.array.shape)


def _form_of(kernel: Kernel) -> Hashable:
    """Hashable form of a kernel: equal for kernels that differ only in arrays and numbers."""
    operands = [(o.view.dtype, o.view.offset, o.view.strides, o.gathered, _form(o.columns)) for o in kernel.operands]
    writes = [
        (w.view.dtype, w.view.offset, w.view.strides, w.how, w.outputs, w.indices, w.scattered, w.base is None)
        for w in kernel.writes
    ]
    numbers = tuple(register.dtype for register in kernel.numbers)
    return kernel.space, kernel.expression, tuple(operands), numbers, tuple(writes)


def _ahead(step: Step, plan: Plan) -> Ahead | None:
    """Prefetch of a step; None where none pays. Rows of unknown sizes are judged by each run."""
    if not isinstance(step, Push | Pop | WriteRow) or (isinstance(step, WriteRow) and not step.grow):
        return None
    found = POPPED if isinstance(step, Pop) else PUSHED
    shape = plan.rows[step.stack]
    if shape is None:
        return None
    nbytes = product(shape) * Size(step.stack.dtype.itemsize) * entries(step)
    return None if nbytes.is_known and not found.least <= nbytes.factor <= found.most else found


def entries(step: Push | Pop | WriteRow) -> Size:
    """Number of entries that the row of a step takes on its stack: 1, or the element count on a stack of elements."""
    row = step.row
    is_run = step.stack.holds == "elements" and not isinstance(step, WriteRow) and not isinstance(row, tuple)
    return product(row.shape) if is_run else ONE  # type: ignore[union-attr]
