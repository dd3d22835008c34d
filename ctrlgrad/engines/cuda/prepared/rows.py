"""Rows of stacks in a prepared body: the place that a push writes, and the place that a pop reads.

A stack that the loop carries lies in blocks that exist when a run begins. The offset of a row from the first one
follows from the number of rows that regions have added so far. A stack that begins and ends within an iteration is
one array, and the host knows its number of rows. For a new stack that is its number when it is read as an array,
found in one reading of the body and used in the next; a stack that is made of an array is popped off where that
array lies.

A stack of numbers on the host has rows on the card while a run lasts. An integer that is popped off it is only on
the card from then on, though the host may know it beforehand.

No stack is both pushed on and popped off. The old version of a new stack is not used after a push, so rows are
never overwritten.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ctrlgrad.engines.cuda.prepared.model import CannotPrepare, Transfer
from ctrlgrad.engines.cuda.prepared.operands import INT64, Affine, Fixed, Rows, Shape, View, contiguous, slot
from ctrlgrad.engines.cuda.prepared.reading import LocalStack, Reading, StackValue, TableValue
from ctrlgrad.engines.cuda.prepared.stack_forms import BOOL, as_array, as_popped
from ctrlgrad.engines.cuda.prepared.views import part
from ctrlgrad.engines.cuda.program import NodeStep
from ctrlgrad.ir import Node, StackType
from ctrlgrad.ir.attributes import DYNAMIC
from ctrlgrad.ir.types import Shape as KnownShape

# Rows of a new stack, as long as it is not known how many it will have.
MANY = 1 << 20


def pushed(reading: Reading, node: Node, slot: int, shape: Shape, dtype: np.dtype) -> tuple[View, object]:
    """Push a row on the stack in a slot: the view to write, and the stack with it."""
    stack = reading.value(slot)
    after: object
    if isinstance(stack, LocalStack):
        if stack.number is None:
            raise CannotPrepare("a stack is pushed on and popped off")
        if _is_used_again(reading, stack.number):
            raise CannotPrepare("a stack is used again that was pushed on")
        row, after = _row(reading, stack, stack.length), replace(stack, length=stack.length.plus(Affine(1)))
        if (row.shape, row.dtype) != (shape, dtype):
            raise CannotPrepare("rows of one stack differ in shape")
    else:
        before = _carried(stack)
        row, after = _carried_row(reading, before, shape, dtype, True), replace(before, rows=before.rows + 1)
    reading.transfers.append(Transfer(node, row.size * dtype.itemsize, reading.counter))
    return row, after


def _push(reading: Reading, step: NodeStep) -> tuple[object, ...]:
    """Of a number, on a stack of the host's."""
    stack = reading.value(step.operands[0])
    if not isinstance(stack, LocalStack) and not _carried(stack).is_on_host:
        raise CannotPrepare("a push that is no kernel")
    value = reading.operand(step.operands[1])
    row, after = pushed(reading, step.node, step.operands[0], (), step.node.operands[1].tensor.dtype)
    reading.launches.copied(value, row)
    return (after,)


def _pop(reading: Reading, step: NodeStep) -> tuple[object, ...]:
    stack, element = reading.value(step.operands[0]), step.node.results[1].tensor
    shape = _known(element.shape, step.node)
    after: object
    if isinstance(stack, LocalStack | TableValue):
        stack = as_popped(reading, stack)
        after = replace(stack, length=stack.length.plus(Affine(1), -1))
        row = _row(reading, stack, stack.length.plus(Affine(1), -1))
    else:
        before = _carried(stack)
        row, after = _carried_row(reading, before, shape, element.dtype, False), replace(before, rows=before.rows - 1)
    reading.transfers.append(Transfer(step.node, None, reading.counter))
    if isinstance(stack, StackValue) and stack.is_on_host and element.dtype == INT64:
        return after, reading.stored(row, reading.listing.popped(stack.position, reading.counter))
    return after, row


def _carried(value: object) -> StackValue:
    if not isinstance(value, StackValue):
        raise CannotPrepare("a stack is read in another way than it was made")
    return value


def _carried_row(reading: Reading, stack: StackValue, shape: Shape, dtype: np.dtype, pushes: bool) -> View:
    """View of the row behind the last one, for a push; else of the last row."""
    reading.listing.row_type(stack.position, (shape, dtype), pushes)
    row = View(Rows(stack.position), dtype, shape, contiguous(shape, dtype))
    nbytes = row.size * dtype.itemsize
    rates = reading.listing.rates
    is_endless, sign = stack.position in rates.endless, 1 if pushes else -1
    known = {slot(stack.position): sign} if is_endless else rates.rows.get(stack.position, {})
    steps = tuple((counter, rows * nbytes) for counter, rows in sorted(known.items()))
    number = stack.rows if pushes else stack.rows - 1
    return replace(row, offset=number * nbytes, moved=Affine(0, (), steps))


def _row(reading: Reading, stack: LocalStack, index: Affine) -> View:
    """One row of an array."""
    if index.is_moving:
        found, bounds = part(stack.rows, (DYNAMIC,), (index,))
        reading.bounds.extend(bounds)
        return found
    if index.constant < 0:
        raise CannotPrepare("more rows are popped than there are")
    return part(stack.rows, (index.constant,), ())[0]


def _is_used_again(reading: Reading, number: int) -> bool:
    """Return true if a stack is read after the current step."""
    same = [n for n, x in reading.values.items() if isinstance(x, LocalStack) and x.number == number]
    if any(reading.last.get(n, -1) > reading.position for n in same):
        return True
    return reading.outside is not None and _is_used_again(reading.outside, number)


# Stacks that begin and end within an iteration.


def _new(reading: Reading, step: NodeStep) -> tuple[object, ...]:
    (stack,) = step.node.results
    assert isinstance(stack.type, StackType)
    element = stack.type.element
    if step.operands and reading.value(step.operands[0]) != Affine(0):
        return (_blank(reading, reading.value(step.operands[0]), _known(element.shape, step.node), element.dtype),)
    number = reading.listing.new_stack()
    count = reading.listing.rates.lengths.get(number, MANY)
    rows = reading.launches.buffer((count, *_known(element.shape, step.node)), element.dtype)
    return (LocalStack(rows, Affine(0), number),)


def _blank(reading: Reading, size: object, shape: Shape, dtype: np.dtype) -> TableValue:
    """A table of which no row was written."""
    if not isinstance(size, Affine) or size.is_moving or size.constant <= 0:
        raise CannotPrepare("how many rows a stack has is not known")
    rows = reading.launches.copy(Fixed(dtype, dtype.type(0)), (size.constant, *shape))
    return TableValue(rows, reading.launches.copy(Fixed(BOOL, np.False_), rows.shape[:1]))


def _from_tensor(reading: Reading, step: NodeStep) -> tuple[object, ...]:
    rows = reading.view(step.operands[0])
    return (LocalStack(rows, Affine(rows.shape[0])),)


def _to_tensor(reading: Reading, step: NodeStep) -> tuple[object, ...]:
    rows = as_array(reading, reading.value(step.operands[0]))
    # The rows are about to be overwritten, so they are copied first.
    return (reading.launches.copy(rows) if reading.is_updated(rows) else rows,)


def _known(shape: KnownShape, node: Node) -> Shape:
    if None in shape:
        raise CannotPrepare(f"a size of {node.op.name} is not known")
    return tuple(d for d in shape if d is not None)


STACKS = {"stack_new": _new, "stack_from_tensor": _from_tensor, "stack_to_tensor": _to_tensor, "stack_pop": _pop}
# Ops on stacks of numbers on the host.
NUMBERS = {"stack_new": _new, "stack_push": _push, "stack_pop": _pop}
