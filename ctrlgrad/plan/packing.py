"""Right sides of products that loops leave as they are, laid out once before the outermost of these loops.

How many columns a panel has is a fact of the machine: it is given, and asked for where there is a product. Only float
matrices of known sizes are packed, from a size on that is worth it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace

import numpy as np

from ctrlgrad.plan.effects import defined_inside, names_of, with_blocks
from ctrlgrad.plan.model import Array, Block, Loop, Pack, Plan, Product, Step, View
from ctrlgrad.plan.sizes import ONE, Size
from ctrlgrad.records import record

# Smaller matrices stay in the fastest cache as they are.
LEAST_ELEMENTS = 1024


@record
class Panels:
    """Layout of packed operands of one dtype: columns of a panel, and elements read beyond the end."""

    columns: int
    slack: int

    def elements(self, k: int, n: int) -> int:
        return k * -(-n // self.columns) * self.columns + self.slack


def pack_constants(plan: Plan, panels: Callable[[], Mapping[np.dtype, Panels]]) -> Plan:
    """The plan with packed right sides."""
    return replace(plan, body=_Packing(panels).block(plan.body))


@record(frozen=False)
class _Packing:
    panels: Callable[[], Mapping[np.dtype, Panels]]
    count: int = 0
    packs: dict[View, Pack] = field(default_factory=dict)

    def block(self, block: Block) -> Block:
        steps: list[Step] = []
        for step in block.steps:
            if isinstance(step, Loop):
                steps += self.loop(step)
            else:
                steps.append(with_blocks(step, self.block))
        return replace(block, steps=tuple(steps))

    def loop(self, step: Loop) -> list[Step]:
        """The loop, which is in no other, and before it what it packs."""
        defined = defined_inside(step)
        packs: dict[View, Pack] = {}
        loop = with_blocks(step, lambda block: self.packed(block, defined, packs))
        return [*packs.values(), loop]

    def packed(self, block: Block, defined: set[object], packs: dict[View, Pack]) -> Block:
        steps: list[Step] = []
        for step in block.steps:
            if isinstance(step, Product):
                step = self.product(step, defined, packs)
            steps.append(with_blocks(step, lambda block: self.packed(block, defined, packs)))
        return replace(block, steps=tuple(steps))

    def product(self, step: Product, defined: set[object], packs: dict[View, Pack]) -> Product:
        b, panels = step.b, self.panels().get(step.b.dtype)
        names = names_of((*b.offset, *b.strides))
        if panels is None or b.array in defined or names & defined or any(s != ONE for s in b.shape[:-2]):
            return step
        k, n = b.shape[-2:]
        if not (k.is_known and n.is_known) or k.factor * n.factor < LEAST_ELEMENTS:
            return step
        if b not in packs:
            self.count += 1
            size = Size(panels.elements(k.factor, n.factor))
            packs[b] = Pack(Array(f"p{self.count}", b.dtype, (size,)), b)
        return replace(step, packed=packs[b].result)
