"""What each step of a plan reads and defines: the one place that knows, for fusion, placement, checker and printer."""

from __future__ import annotations

import dataclasses
import typing
from collections import Counter
from collections.abc import Iterator

import numpy as np

from ctrlgrad.plan.model import (
    Array,
    Block,
    Branch,
    Check,
    Compute,
    CopyStack,
    Factorise,
    FromStack,
    Guard,
    Kernel,
    Length,
    Load,
    Loop,
    NewStack,
    Operand,
    Outside,
    Pack,
    Plan,
    Pop,
    Product,
    Push,
    ReadRow,
    Register,
    Stack,
    Step,
    ToStack,
    Value,
    View,
    Write,
    WriteRow,
)
from ctrlgrad.plan.sizes import Size

INDEX = np.dtype(np.int64)
# What is part of a step, and may hold numbers and sizes.
_PARTS = (*typing.get_args(Step), Array, Check, Operand, View, Write)


def blocks_of(step: Step) -> tuple[Block, ...]:
    """The blocks inside a step."""
    if isinstance(step, Loop):
        return (step.condition, step.body)
    return step.blocks if isinstance(step, Branch) else ()


def _of(item: object) -> Iterator[Array | Stack]:
    if isinstance(item, View):
        yield item.array
    elif isinstance(item, Array | Stack):
        yield item
    elif isinstance(item, tuple):
        for each in item:
            yield from _of(each)


def reads(step: Step) -> Iterator[Array | Stack]:
    """The arrays and stacks that a step reads itself; not what the blocks inside it do."""
    if isinstance(step, Kernel):
        for operand in step.operands:
            yield operand.view.array
        for write in step.writes:
            if write.base is not None:
                yield write.base
    elif isinstance(step, Load):
        yield step.view.array
    elif isinstance(step, Product):
        yield from (step.a.array, step.b.array)
        yield from (array for array in (step.base, step.packed) if array is not None)
    elif isinstance(step, Pack):
        yield step.view.array
    elif isinstance(step, Factorise):
        yield from (view.array for view in (step.a, step.b) if view is not None)
    elif isinstance(step, Outside):
        yield from _of(step.operands)
    elif isinstance(step, Push | WriteRow):
        yield step.stack
        yield from _of(step.row)
    elif isinstance(step, Pop | ReadRow | Length | FromStack | CopyStack):
        yield step.stack
    elif isinstance(step, ToStack):
        yield step.rows.array
    elif isinstance(step, Loop):
        yield from _of(tuple(c.init for c in step.carries))
    else:
        assert isinstance(step, Compute | Guard | NewStack | Branch)


def defines(step: Step) -> Iterator[Value]:
    """What a step defines for the steps after it."""
    if isinstance(step, Compute | Load):
        yield from step.results
    elif isinstance(step, Kernel):
        yield from (write.view.array for write in step.writes)
    elif isinstance(step, Product | Pack | Push | WriteRow | Length | NewStack | ToStack | FromStack | CopyStack):
        yield step.result
    elif isinstance(step, Factorise):
        yield from (step.result, step.done)
    elif isinstance(step, Outside):
        for result in step.results:
            yield from result if isinstance(result, tuple) else (result,)
        yield from (register for register, _, _ in step.sizes)
    elif isinstance(step, Pop):
        yield step.result
        yield from step.row if isinstance(step.row, tuple) else (step.row,)
    elif isinstance(step, ReadRow):
        yield from step.row if isinstance(step.row, tuple) else (step.row,)
    elif isinstance(step, Loop):
        yield from (c.result for c in step.carries)
    elif isinstance(step, Branch):
        yield from step.results
    else:
        assert isinstance(step, Guard)


def numbers_of(step: Step) -> tuple[Register, ...]:
    """The registers that a step reads itself, those in the sizes of what it reads and defines too."""
    found: dict[Register, None] = {}
    if isinstance(step, Loop):
        _collect(tuple(c.init for c in step.carries if isinstance(c.init, Register)), found)
    elif isinstance(step, Branch):
        _collect(step.selector, found)
    else:
        _collect(step, found)
    defined = {value.name for value in defines(step) if isinstance(value, Register)}
    return tuple(register for register in found if register.name not in defined)


def _collect(item: object, found: dict[Register, None]) -> None:
    if isinstance(item, Register):
        found[item] = None
    elif isinstance(item, Size):
        found.update(dict.fromkeys(Register(name, INDEX) for name in item.names))
    elif isinstance(item, tuple):
        for each in item:
            _collect(each, found)
    elif isinstance(item, _PARTS):
        for each in dataclasses.fields(item):
            _collect(getattr(item, each.name), found)


def yields(step: Step) -> Iterator[tuple[Block, tuple[Value, ...]]]:
    """What each block inside a step gives at its end."""
    if isinstance(step, Loop):
        yield step.body, tuple(c.next for c in step.carries)
    elif isinstance(step, Branch):
        yield from zip(step.blocks, step.outputs, strict=True)


def deep_reads(step: Step, known: dict[Step, set[Array | Stack]] | None = None) -> set[Array | Stack]:
    """All arrays and stacks that a step needs from before it, by the blocks inside it too.

    `known` remembers that of steps with blocks, for those who ask at every depth.
    """
    found = set(reads(step))
    blocks = blocks_of(step)
    if not blocks:
        return found
    if known is not None and step in known:
        return known[step]
    for block in blocks:
        inner: set[Array | Stack] = set()
        for each in block.steps:
            inner |= deep_reads(each, known)
        for whose, values in yields(step):
            if whose is block:
                inner.update(v for v in values if isinstance(v, Array | Stack))
        for each in block.steps:
            inner.difference_update(v for v in defines(each) if isinstance(v, Array | Stack))
        if isinstance(step, Loop):
            inner.difference_update(c.inside for c in step.carries if isinstance(c.inside, Array | Stack))
        found |= inner
    if known is not None:
        known[step] = found
    return found


def walk(block: Block) -> Iterator[Step]:
    """Every step, those inside a step right after it."""
    for step in block.steps:
        yield step
        for inner in blocks_of(step):
            yield from walk(inner)


def count_reads(plan: Plan) -> Counter[Array]:
    """How often each array is read, by steps, at ends of blocks and as a result."""
    counts: Counter[Array] = Counter(v for v in plan.results if isinstance(v, Array))
    for step in walk(plan.body):
        counts.update(v for v in reads(step) if isinstance(v, Array))
        for _, values in yields(step):
            counts.update(v for v in values if isinstance(v, Array))
    return counts


def names_of(sizes: Iterator[Size] | tuple[Size, ...]) -> set[str]:
    """The registers that sizes are made of."""
    return {name for size in sizes for name in size.names}
