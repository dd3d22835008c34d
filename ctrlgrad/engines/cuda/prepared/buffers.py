"""Captures of a loop, and the buffers of its carry: two for an array that iterations read and write in turn; an array
that stays has the same buffer twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ctrlgrad.engines.cuda.context import Context
from ctrlgrad.engines.cuda.prepared.inputs import Input, TableInput
from ctrlgrad.engines.cuda.prepared.model import CarriedArray, CarriedTable
from ctrlgrad.engines.cuda.prepared.operands import Given, contiguous
from ctrlgrad.engines.cuda.prepared.table_rows import Table, as_table
from ctrlgrad.engines.cuda.stacks import own_array


def captured(context: Context, shared: Sequence[Any], inputs: Sequence[Input]) -> dict[Given, Any]:
    """Captures of a loop by slot; a table is two arrays."""
    given: dict[Given, Any] = {}
    for slot, (x, its) in enumerate(zip(shared, inputs, strict=False)):
        if not isinstance(its, TableInput):
            given[Given(slot)] = x
            continue
        table = as_table(context, x, its)
        given[Given(slot)] = context.xp.ascontiguousarray(table.rows)
        given[Given(slot, is_marks=True)] = table.marks
    return given


def array_buffers(context: Context, its: CarriedArray, carry: list[Any], position: int) -> list[Any]:
    """The two buffers of a carried array, the first with what it is; twice the same where there is one."""
    library, holder = context.library, [carry[position]]
    carry[position] = None
    try:
        array, was_copied = own_array(holder, library)
    except MemoryError:
        carry[position] = holder[0]
        raise
    context.counts.calls += was_copied
    carry[position] = array  # until all of it is had
    if tuple(array.strides) != contiguous(its.shape, its.dtype):
        ordered = library.empty(its.shape, its.dtype)
        ordered[...] = array
        context.counts.calls += 1
        array = ordered
    other = library.empty(its.shape, its.dtype) if its.is_double else array
    carry[position] = None
    return [array, other]


def table_buffers(
    context: Context, its: CarriedTable, given: Input, carry: list[Any], position: int
) -> tuple[list[Any], list[Any]]:
    """Buffers of the rows and of the marks. If memory runs out, the previous table is still carried."""
    assert isinstance(given, TableInput)
    table = as_table(context, carry[position], given)
    marks = table.marks
    if marks is None:
        context.counts.calls += 1
        marks = context.xp.ones(its.marks.shape, its.marks.dtype)
    held, buffers = [table.rows, marks], list[list[Any]]()
    # These names are dropped, so that an array with no other reference becomes a buffer.
    del table, marks
    carry[position] = None
    try:
        for number, part in enumerate((its.rows, its.marks)):
            buffers.append(array_buffers(context, part, held, number))
    except MemoryError:
        carry[position] = Table(*(array for array, _ in buffers), *held[len(buffers) :])
        raise
    return buffers[0], buffers[1]
