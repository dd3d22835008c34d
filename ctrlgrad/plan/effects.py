"""What each step of a plan reads and defines: the one place that knows, for fusion, placement, checker and printer."""

from __future__ import annotations

import dataclasses
import typing
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ctrlgrad.plan.model import (
    Array,
    Block,
    Branch,
    Cascade,
    Check,
    Columns,
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
    Numbers,
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
# The fields of a step, and of what is part of one and may hold numbers and sizes.
_FIELDS = {
    cls: tuple(f.name for f in dataclasses.fields(cls))
    for cls in (*typing.get_args(Step), Array, Check, Operand, View, Write)
}


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


def _row(row: Numbers | Array) -> tuple[Value, ...]:
    return row if isinstance(row, tuple) else (row,)


def _result(step: Any) -> tuple[Value, ...]:
    return (step.result,)


def _stack(step: Any) -> tuple[Stack, ...]:
    return (step.stack,)


def _nothing(step: Step) -> tuple[()]:
    return ()


# By class. Every stage asks for this of every step, some of them at every depth.
_READS: dict[type, Callable[[Any], tuple[Array | Stack, ...]]] = {
    Branch: _nothing,
    Cascade: lambda step: tuple(a for k in (step.first, step.second) for a in reads(k) if a not in defines(step.first)),
    Columns: lambda step: (step.view.array,),
    Compute: _nothing,
    CopyStack: _stack,
    Factorise: lambda step: tuple(view.array for view in (step.a, step.b) if view is not None),
    FromStack: _stack,
    Guard: _nothing,
    Kernel: lambda step: (
        *[operand.view.array for operand in step.operands],
        *[operand.columns.array for operand in step.operands if operand.columns is not None],
        *[write.base for write in step.writes if write.base is not None],
    ),
    Length: _stack,
    Load: lambda step: (step.view.array,),
    Loop: lambda step: tuple(_of(tuple(c.init for c in step.carries))),
    NewStack: _nothing,
    Outside: lambda step: tuple(_of(step.operands)),
    Pack: lambda step: (step.view.array,),
    Pop: _stack,
    Product: lambda step: tuple(
        array for array in (step.a.array, step.b.array, step.base, step.packed) if array is not None
    ),
    Push: lambda step: (step.stack, *_of(step.row)),
    ReadRow: _stack,
    ToStack: lambda step: (step.rows.array,),
    WriteRow: lambda step: (step.stack, *_of(step.row)),
}
_DEFINES: dict[type, Callable[[Any], tuple[Value, ...]]] = {
    Branch: lambda step: step.results,
    Cascade: lambda step: (*defines(step.first), *defines(step.second)),
    Columns: _result,
    Compute: lambda step: step.results,
    CopyStack: _result,
    Factorise: lambda step: (step.result, step.done),
    FromStack: _result,
    Guard: _nothing,
    Kernel: lambda step: tuple([write.view.array for write in step.writes]),
    Length: _result,
    Load: lambda step: step.results,
    Loop: lambda step: tuple([c.result for c in step.carries]),
    NewStack: _result,
    Outside: lambda step: (
        *[value for result in step.results for value in _row(result)],
        *[register for register, _, _ in step.sizes],
    ),
    Pack: _result,
    Pop: lambda step: (step.result, *_row(step.row)),
    Product: _result,
    Push: _result,
    ReadRow: lambda step: _row(step.row),
    ToStack: _result,
    WriteRow: _result,
}


def reads(step: Step) -> tuple[Array | Stack, ...]:
    """The arrays and stacks that a step reads itself; not what the blocks inside it do."""
    return _READS[step.__class__](step)


def defines(step: Step) -> tuple[Value, ...]:
    """What a step defines for the steps after it."""
    return _DEFINES[step.__class__](step)


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
    else:
        for name in _FIELDS.get(item.__class__, ()):
            _collect(getattr(item, name), found)


def yields(step: Step) -> Iterator[tuple[Block, tuple[Value, ...]]]:
    """What each block inside a step gives at its end."""
    if isinstance(step, Loop):
        yield step.body, tuple(c.next for c in step.carries)
    elif isinstance(step, Branch):
        yield from zip(step.blocks, step.outputs, strict=True)


def deep_reads(step: Step, known: dict[Step, frozenset[Array | Stack]]) -> frozenset[Array | Stack]:
    """All arrays and stacks that a step needs from before it, by the blocks inside it too.

    `known` remembers it for those who ask at every depth.
    """
    if step in known:
        return known[step]
    found = set(reads(step))
    for block in blocks_of(step):
        inner: set[Array | Stack] = set()
        for each in block.steps:
            inner |= deep_reads(each, known)
        for whose, values in yields(step):
            if whose is block:
                inner.update(v for v in values if isinstance(v, Array | Stack))
        for each in block.steps:
            inner.difference_update(defines(each))
        if isinstance(step, Loop):
            inner.difference_update(c.inside for c in step.carries if isinstance(c.inside, Array | Stack))
        found |= inner
    known[step] = frozenset(found)
    return known[step]


def walk(block: Block) -> Iterator[Step]:
    """Every step, those inside a step right after it."""
    for step in block.steps:
        yield step
        for inner in blocks_of(step):
            yield from walk(inner)


def defined_inside(loop: Loop) -> set[object]:
    """The arrays and stacks that a loop makes, and the names of its registers."""
    found: set[object] = {loop.counter.name}
    for step in walk(Block((loop,))):
        values = list(defines(step))
        if isinstance(step, Loop):
            values += [c.inside for c in step.carries]
            found.add(step.counter.name)
        found.update(v.name if isinstance(v, Register) else v for v in values)
    return found


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
