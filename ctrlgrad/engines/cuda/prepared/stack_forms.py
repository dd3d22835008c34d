"""Form of a stack in a prepared body: a table, rows to pop off, or an array.

A stack that a body carries is pushed on or popped off (a `StackValue`), or its rows are read and written by index
(a `TableValue`). A stack that begins within an iteration is made of an array or by a known number of pushes (a
`LocalStack`). Its form follows from its use: a table where it is read by index, else rows to pop off, or an array.
Rows stay where they lie, except those of a table with rows that may not have been written: these are zeros then. A
stack that an inner loop carries has the same form in all of its iterations.
"""

from __future__ import annotations

import numpy as np

from ctrlgrad.engines.cuda.prepared.model import CannotPrepare
from ctrlgrad.engines.cuda.prepared.operands import Affine, Fixed, Operand, Shape, View
from ctrlgrad.engines.cuda.prepared.reading import LocalStack, Reading, TableValue
from ctrlgrad.engines.cuda.prepared.views import part, viewed
from ctrlgrad.engines.cuda.texts import TextBuilder

BOOL = np.dtype(np.bool_)
# The mark of a row that was written.
WRITTEN = Fixed(BOOL, np.True_)


def marks_of(table: TableValue) -> View | Fixed:
    return WRITTEN if table.marks is None else table.marks


def as_array(reading: Reading, stack: object) -> View:
    """All rows of a stack."""
    if isinstance(stack, TableValue):
        return _filled(reading, stack)
    if not isinstance(stack, LocalStack):
        raise CannotPrepare("a stack is read as an array that was not made inside")
    count = stack.length.constant
    if stack.length != Affine(count) or count <= 0:
        raise CannotPrepare("how many rows a stack has is not known")
    if stack.number is not None:
        lengths = reading.listing.lengths
        lengths[stack.number] = max(count, lengths.get(stack.number, 0))
    return part(stack.rows, (slice(0, count),), ())[0]


def _filled(reading: Reading, table: TableValue) -> View:
    """The rows of a table, zeros for those that were not written."""
    if table.marks is None:
        return table.rows
    lead = (slice(None), *(None,) * (len(table.rows.shape) - 1))
    return chosen_rows(reading, viewed(table.marks, lambda x: x[lead]), table.rows)


def chosen_rows(reading: Reading, marks: View, rows: View) -> View:
    """A buffer with rows, zeros for those that were not written."""
    zero = Fixed(rows.dtype, rows.dtype.type(0))
    return elementwise(reading, "where", [marks, rows, zero], [BOOL, rows.dtype, rows.dtype], rows.shape, rows.dtype)


def elementwise(
    reading: Reading, name: str, operands: list[Operand], dtypes: list[np.dtype], shape: Shape, dtype: np.dtype
) -> View:
    """A buffer with the result of an op."""
    builder = TextBuilder()
    text = builder.text(builder.elementwise(name, [builder.input(d) for d in dtypes], dtypes, dtype), dtype)
    found = reading.launches.buffer(shape, dtype)
    reading.launches.kernel(text, shape, operands, [found])
    return found


def as_table(reading: Reading, stack: object) -> TableValue:
    if isinstance(stack, TableValue):
        return stack
    if not isinstance(stack, LocalStack):
        raise CannotPrepare("a stack that grows or shrinks is read by index")
    return TableValue(as_array(reading, stack), None)


def own_table(reading: Reading, slot: int, operands: tuple[int, ...] | list[int]) -> TableValue:
    """The table in a slot as one that the step may overwrite, which has these other operands: itself, or a copy."""
    table = as_table(reading, reading.value(slot))
    if table.marks is not None:
        return TableValue(reading.own_view(table.rows, operands), reading.own_view(table.marks, operands))
    rows = reading.own_view(table.rows, operands)
    return TableValue(rows, reading.launches.copy(WRITTEN, table.rows.shape[:1]))


def as_popped(reading: Reading, stack: object) -> LocalStack:
    """As one whose rows are popped off."""
    if isinstance(stack, LocalStack) and stack.number is None:
        return stack
    rows = as_array(reading, stack)
    return LocalStack(rows, Affine(rows.shape[0]))
