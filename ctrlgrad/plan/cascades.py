"""Reductions of reduced rows, each begun before the first has come to its end.

Distances are sums over the terms of each row, and the nearest row is the least of them: between the two kernels a
vector goes to memory, and the second one waits for all of it. In a cascade it takes each number as the first has it.

In: kernels of which some read columns. Out: where what such a kernel makes is only read by one other kernel over the
same rows, which does nothing but reduce them, both are one `Cascade`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.plan.effects import count_reads, with_blocks
from ctrlgrad.plan.model import Array, Block, Cascade, Kernel, Plan, Step, View, Write
from ctrlgrad.plan.sizes import ONE, ZERO


def cascade(plan: Plan) -> Plan:
    """The plan with such kernels as cascades."""
    return replace(plan, body=_block(plan.body, count_reads(plan)))


def _block(block: Block, reads: Counter[Array]) -> Block:
    steps: list[Step] = []
    for step in block.steps:
        step = with_blocks(step, lambda each: _block(each, reads))
        if isinstance(step, Kernel) and _reduces_all(step):
            first = _first_of(step, steps, reads)
            if first is not None:
                # Values do not change, so the first kernel may as well run here.
                steps.remove(first)
                step = Cascade(first, step)
        steps.append(step)
    return replace(block, steps=tuple(steps))


def _first_of(second: Kernel, steps: Sequence[Step], reads: Counter[Array]) -> Kernel | None:
    """The earlier kernel whose rows `second` reduces, if no other step reads these rows."""
    read = Counter(operand.view.array for operand in second.operands)
    for step in steps:
        if (
            isinstance(step, Kernel)
            and any(operand.columns is not None for operand in step.operands)
            and step.space[:-1] == second.space
            and all(reads[write.view.array] == read[write.view.array] for write in step.writes)
            and all(reads_as_made(write.view, second) for write in step.writes)
        ):
            return step
    return None


def reads_as_made(rows: View, second: Kernel) -> bool:
    """Return true if a kernel reads from the array of `rows`, at each of its points, only that row's number."""
    row = View(rows.array, rows.offset, rows.shape[:-1], rows.strides[:-1])
    return all(o.view == row and not o.gathered for o in second.operands if o.view.array is rows.array)


def _reduces_all(kernel: Kernel) -> bool:
    """Return true if a kernel only reduces the elements along its one axis to numbers."""
    return (
        len(kernel.space) == 1 and kernel.space != (ONE,) and not kernel.checks and all(map(_is_number, kernel.writes))
    )


def _is_number(write: Write) -> bool:
    is_sum = write.how != "store" and write.base is None and not write.scattered
    return is_sum and write.view.strides == (ZERO,) and dtype_kind(write.view.dtype) != "c"
