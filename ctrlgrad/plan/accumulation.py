"""Products that are added to something as they are made.

A kernel that does nothing but add a product to another array becomes part of the product: one pass over the sum less,
and what is added to may be overwritten. Where kernels over the same space read the sum it costs nothing in them, and
stays there. So this comes before fusion.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace

from ctrlgrad.plan.effects import count_reads, walk, with_blocks
from ctrlgrad.plan.model import Array, Block, Kernel, Plan, Product, Step


def accumulate(plan: Plan) -> Plan:
    """The plan with the sums that products make themselves."""
    inside = {
        operand.view.array
        for step in walk(plan.body)
        if isinstance(step, Kernel)
        for operand in step.operands
        if operand.view == operand.view.array.view and operand.view.shape == step.space
    }
    return replace(plan, body=_block(plan.body, count_reads(plan), inside))


def _block(block: Block, reads: Counter[Array], inside: Collection[Array]) -> Block:
    """A block, whose sums that are in `inside` stay."""
    steps: list[Step | None] = []
    products: dict[Array, int] = {}
    for step in block.steps:
        step = with_blocks(step, lambda each: _block(each, reads, inside))
        if isinstance(step, Kernel) and len(step.writes) == 1 and step.writes[0].view.array not in inside:
            step = _added(step, steps, products, reads)
        if isinstance(step, Product) and step.base is None:
            products[step.result] = len(steps)
        steps.append(step)
    return replace(block, steps=tuple(step for step in steps if step is not None))


def _added(kernel: Kernel, steps: list[Step | None], products: dict[Array, int], reads: Counter[Array]) -> Step:
    """The product that makes a kernel's sum, else the kernel; of two products the later one is added to the other."""
    summands = _summands(kernel)
    made = [array for array in summands if array in products and reads[array] == 1]
    if not made:
        return kernel
    found = max(made, key=products.__getitem__)
    (base,) = (array for array in summands if array != found)
    number = products.pop(found)
    product, steps[number] = steps[number], None
    assert isinstance(product, Product)
    return replace(product, result=kernel.writes[0].view.array, base=base, node=kernel.nodes[0])


def _summands(kernel: Kernel) -> tuple[Array, ...]:
    """The two whole arrays whose sum is all that a kernel computes; none where it is another one."""
    write = kernel.writes[0]
    views = [operand.view for operand in kernel.operands]
    arrays = tuple(view.array for view in views)
    is_plain = write.how == "store" and write.base is None and not kernel.checks
    if not is_plain or len(set(arrays)) != 2 or any(view != view.array.view for view in views):
        return ()
    if any(array.shape != write.view.array.shape or array.dtype != write.view.dtype for array in arrays):
        return ()
    instructions = kernel.expression.instructions
    for part, output in enumerate(write.outputs):
        total = instructions[kernel.expression.outputs[output]]
        loaded = {(instructions[a].op, instructions[a].value) for a in total.args}
        if total.op != "add" or loaded != {("load", (0, part)), ("load", (1, part))}:
            return ()
    return arrays
