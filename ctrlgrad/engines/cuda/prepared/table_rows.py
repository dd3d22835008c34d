"""Tables while a prepared loop runs: stacks on their way into one array, and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ctrlgrad.engines.cuda.context import Context
from ctrlgrad.engines.cuda.kernels.stacks import joined
from ctrlgrad.engines.cuda.prepared.inputs import StackInput, TableInput
from ctrlgrad.engines.cuda.prepared.operands import Shape
from ctrlgrad.engines.cuda.stacks import DeviceRows, DeviceStack, Stack
from ctrlgrad.ir import TensorType


@dataclass(frozen=True, eq=False)
class Table:
    """Rows in one array, and which of them were written; None where all were."""

    rows: Any
    marks: Any


def table_input(stack: Table | Stack, element: TensorType) -> TableInput | StackInput:
    """Description of a stack for a launch list. A table needs rows on the card, all of one shape."""
    if isinstance(stack, Table):
        return TableInput(element.dtype, tuple(stack.rows.shape), stack.marks is None)
    if isinstance(stack, DeviceStack):
        shapes, is_full = {block.shape for block in stack.blocks}, True
    elif isinstance(stack, DeviceRows):
        written = [tuple(row.shape) for row in stack if row is not None]
        shapes, is_full = set(written), len(written) == len(stack)
    else:
        return StackInput(False)
    shapes = shapes or _known_shape(element)
    if len(shapes) != 1 or not len(stack):
        return StackInput(False)
    return TableInput(element.dtype, (len(stack), *shapes.pop()), is_full)


def _known_shape(element: TensorType) -> set[Shape]:
    return {tuple(d for d in element.shape if d is not None)} if element.is_static else set()


def as_table(context: Context, stack: Table | Stack, its: TableInput) -> Table:
    """A stack as a table. The rows of a block stay where they lie."""
    if isinstance(stack, Table):
        return stack
    if isinstance(stack, DeviceStack):
        (block, *others) = stack.blocks
        is_one = not others and block.array is not None
        if is_one and block.count == block.capacity:
            return Table(block.array, None)
        return Table(stack.rows(block) if is_one else joined(context, stack), None)
    written = np.array([row is not None for row in stack])
    marks = None if written.all() else context.on_device(written)
    context.counts.calls += 1
    if not written.any():
        # A row that was not written is read as zeros, whatever its memory holds.
        return Table(context.xp.zeros(its.shape, its.dtype), marks)
    blank = None if marks is None else context.xp.zeros(its.shape[1:], its.dtype)
    return Table(context.xp.stack([blank if row is None else row for row in stack]), marks)


def as_stack(context: Context, table: Table) -> Stack:
    """Stack form of a table, outside of launch lists. Waits for the marks."""
    (written,) = context.on_host(table.marks)
    if written.all():
        return DeviceStack.of(context.library, table.rows)
    return DeviceRows(table.rows[number, ...] if is_there else None for number, is_there in enumerate(written))
