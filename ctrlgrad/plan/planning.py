"""From a graph to its plan: lowering, then passes from plan to plan, each of which can be left out, then places."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from ctrlgrad.ir import Graph
from ctrlgrad.plan import PASSES
from ctrlgrad.plan.accumulation import accumulate
from ctrlgrad.plan.arguments import ArgumentShape
from ctrlgrad.plan.columns import lay_out_columns
from ctrlgrad.plan.effects import with_blocks
from ctrlgrad.plan.expression import Expression, Instruction
from ctrlgrad.plan.fusion import fuse
from ctrlgrad.plan.lowering.lower import lower
from ctrlgrad.plan.model import Assumption, Block, Kernel, Plan, Step
from ctrlgrad.plan.packing import Panels, pack_constants
from ctrlgrad.plan.placement import place

# Sums of products, each rounded once: what a kernel multiplies only to add it up is added with its multiplication.
#
# That is one operation of most processors in place of two, and less error; products of matrices are computed so.
# Nothing else is contracted: what an expression says is rounded as it says.


# Narrower floats are rounded after each operation.
DTYPES = (np.dtype(np.float32), np.dtype(np.float64))


def contract(plan: Plan) -> Plan:
    """The plan with sums of products as "dot"."""
    return replace(plan, body=_block(plan.body))


def _block(block: Block) -> Block:
    return replace(block, steps=tuple(map(_step, block.steps)))


def _step(step: Step) -> Step:
    if isinstance(step, Kernel):
        sums = [number for number, write in enumerate(step.writes) if write.how == "sum"]
        uses = _uses(step) if sums else Counter()
        for number in sums:
            contracted = _contracted(step, number, uses)
            if contracted is not step:
                step, uses = contracted, _uses(contracted)
    return with_blocks(step, _block)  # type: ignore[no-any-return]


def _contracted(kernel: Kernel, number: int, uses: Counter[int]) -> Kernel:
    """The kernel, one of its sums as one of products, if nothing else needs these."""
    write, expression = kernel.writes[number], kernel.expression
    if write.scattered or len(write.outputs) > 1:
        return kernel
    (output,) = write.outputs
    product = expression.outputs[output]
    instruction = expression.instructions[product]
    if instruction.op != "multiply" or instruction.dtype not in DTYPES or uses[product] > 1:
        return kernel
    outputs = [*expression.outputs, *instruction.args]
    outputs[output] = outputs.pop()
    pair = len(outputs) - 1, output
    writes = [*kernel.writes]
    writes[number] = replace(write, how="dot", outputs=pair)
    return replace(kernel, expression=_without(expression.instructions, product, outputs), writes=tuple(writes))


def _uses(kernel: Kernel) -> Counter[int]:
    """Number of uses of each instruction, by other instructions and by the kernel's writes and checks."""
    expression = kernel.expression
    found = Counter(a for instruction in expression.instructions for a in instruction.args)
    outputs = [o for write in kernel.writes for o in (*write.outputs, *write.indices)]
    outputs += [o for check in kernel.checks for o in (check.output, check.found)]
    found.update(expression.outputs[o] for o in outputs)
    return found


def _without(instructions: tuple[Instruction, ...], number: int, outputs: list[int]) -> Expression:
    """The expression of these outputs without an instruction that nothing needs."""
    left = [replace(i, args=tuple(a - (a > number) for a in i.args)) for i in instructions]
    return Expression((*left[:number], *left[number + 1 :]), tuple(o - (o > number) for o in outputs))


def plan_of(
    graph: Graph,
    shapes: Sequence[ArgumentShape],
    panels: Callable[[], Mapping[np.dtype, Panels]],
    without: Collection[str] = (),
    dropped: frozenset[Assumption] = frozenset(),
    vector_bytes: int = 0,
) -> Plan:
    """The plan of a graph, with places, for vector registers of so many bytes; `without` names passes to leave out,
    `dropped` what it may not assume."""
    return place(replace(unplaced(graph, shapes, panels, without, dropped), vector_bytes=vector_bytes))


def unplaced(
    graph: Graph,
    shapes: Sequence[ArgumentShape],
    panels: Callable[[], Mapping[np.dtype, Panels]],
    without: Collection[str] = (),
    dropped: frozenset[Assumption] = frozenset(),
) -> Plan:
    """The plan of a graph over values, which lie nowhere yet."""
    passes: dict[str, Callable[[Plan], Plan]] = {
        "accumulate": accumulate,
        "fuse": fuse,
        "contract": contract,
        "lay_out_columns": lay_out_columns,
        "pack_constants": partial(pack_constants, panels=panels),
    }
    plan = lower(graph, shapes, dropped)
    for name in PASSES:
        if name not in without:
            plan = passes[name](plan)
    return plan
