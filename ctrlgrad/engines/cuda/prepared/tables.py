"""Tables in a prepared body: stacks of a fixed length whose rows are read and written by index.

The rows lie in one array, beside a mark for each: whether it was written. A row that was not is zeros where it is read,
and nothing where it is added to. An index that goes by steps makes a row a part of the array, whose address moves; by
any other the card looks for it. Where rows may be written once, the card notes in the run's flag which one is again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ctrlgrad.engines.cuda.indexing.keys import Chosen, chosen
from ctrlgrad.engines.cuda.kernel import KernelText, Parameter
from ctrlgrad.engines.cuda.prepared.indices import index_in
from ctrlgrad.engines.cuda.prepared.model import CannotPrepare
from ctrlgrad.engines.cuda.prepared.operands import (
    INT64,
    Affine,
    Fixed,
    Operand,
    Shape,
    View,
    word_view,
)
from ctrlgrad.engines.cuda.prepared.reading import LocalStack, Reading, TableValue
from ctrlgrad.engines.cuda.prepared.stack_forms import (
    BOOL,
    WRITTEN,
    as_table,
    chosen_rows,
    elementwise,
    marks_of,
    own_table,
)
from ctrlgrad.engines.cuda.prepared.views import part, viewed
from ctrlgrad.engines.cuda.program import NodeStep
from ctrlgrad.engines.cuda.sites import Site
from ctrlgrad.engines.cuda.texts import TextBuilder
from ctrlgrad.ir import Node, attributes
from ctrlgrad.ir.attributes import DYNAMIC

Index = Affine | View


@dataclass(frozen=True)
class _Row:
    """One row of an array: `place` where the index goes by steps, else what the index chooses."""

    shape: Shape
    place: View | None
    its: Chosen | None


def _row(reading: Reading, array: View, index: Index) -> _Row:
    if isinstance(index, Affine):
        place, bounds = part(array, (DYNAMIC,), [index])
        reading.bounds += bounds
        return _Row(array.shape[1:], place, None)
    its = chosen(len(array.shape), [index], lambda item: isinstance(item, View), lambda key: array)
    return _Row(array.shape[1:], None, its)


def _seen(reading: Reading, row: _Row, node: Node) -> View:
    """A row where it lies, or a copy of it."""
    if row.place is not None:
        return row.place
    assert row.its is not None
    return reading.launches.gather(row.its, node)


def _written(reading: Reading, row: _Row, value: Operand, node: Node) -> None:
    if row.place is not None:
        reading.launches.copied(value, row.place)
        return
    assert row.its is not None
    found = value if isinstance(value, View) else reading.launches.copy(value)
    reading.launches.scatter(row.its, found, None, node)


def read(reading: Reading, step: NodeStep) -> tuple[object, ...]:
    table, index = as_table(reading, reading.value(step.operands[0])), index_in(reading, step.operands[1])
    row = _seen(reading, _row(reading, table.rows, index), step.node)
    if table.marks is not None:
        mark = _seen(reading, _row(reading, table.marks, index), step.node)
        return (chosen_rows(reading, mark, row),)
    # The row is about to be overwritten, so it is copied first.
    return (reading.launches.copy(row) if reading.is_updated(table.rows) else row,)


def write(reading: Reading, step: NodeStep) -> tuple[object, ...]:
    how = attributes.Write.of(step.node)
    if how.grow:
        raise CannotPrepare("an array that may grow is written")
    value, index = reading.operand(step.operands[2]), index_in(reading, step.operands[1])
    table = own_table(reading, step.operands[0], step.operands[1:])
    assert table.marks is not None
    marks = _row(reading, table.marks, index)
    if how.once:
        _check(reading, _seen(reading, marks, step.node), index, len(table), step.node)
    _require_dtype(value, table)
    _written(reading, _row(reading, table.rows, index), value, step.node)
    _written(reading, marks, WRITTEN, step.node)
    return (table,)


def add(reading: Reading, step: NodeStep) -> tuple[object, ...]:
    value, index = reading.operand(step.operands[2]), index_in(reading, step.operands[1])
    table = own_table(reading, step.operands[0], step.operands[1:])
    assert table.marks is not None
    _require_dtype(value, table)
    rows, marks = _row(reading, table.rows, index), _row(reading, table.marks, index)
    before, mark = _seen(reading, rows, step.node), _seen(reading, marks, step.node)
    dtype = table.rows.dtype
    target = rows.place or reading.launches.buffer(rows.shape, dtype)
    builder = TextBuilder()
    old, new, is_written = builder.input(dtype), builder.input(dtype), builder.input(BOOL)
    total = builder.elementwise("add", [old, new], [dtype, dtype], dtype)
    found = builder.elementwise("where", [is_written, total, new], [BOOL, dtype, dtype], dtype)
    reading.launches.kernel(builder.text(found, dtype), rows.shape, [before, value, mark], [target])
    if rows.place is None:
        _written(reading, rows, target, step.node)
    _written(reading, marks, WRITTEN, step.node)
    return (table,)


def clear(reading: Reading, step: NodeStep) -> tuple[object, ...]:
    index = index_in(reading, step.operands[1])
    table = own_table(reading, step.operands[0], step.operands[1:])
    assert table.marks is not None
    _written(reading, _row(reading, table.marks, index), Fixed(BOOL, np.False_), step.node)
    return (table,)


def both(reading: Reading, step: NodeStep) -> tuple[object, ...]:
    """The sum of two tables, of which a row that was not written is nothing."""
    tables = [as_table(reading, reading.value(slot)) for slot in step.operands]
    a, b = tables
    if a.rows.shape != b.rows.shape:
        raise CannotPrepare("stacks are added that differ in shape")
    if a.marks is None and b.marks is None:
        return (TableValue(_sum(reading, a, b), None),)
    marks = elementwise(reading, "logical_or", [marks_of(a), marks_of(b)], [BOOL, BOOL], a.rows.shape[:1], BOOL)
    return (TableValue(_sum(reading, a, b), marks),)


def _sum(reading: Reading, a: TableValue, b: TableValue) -> View:
    dtype, builder = a.rows.dtype, TextBuilder()
    lead = (slice(None), *(None,) * (len(a.rows.shape) - 1))
    marks = [x if isinstance(x, Fixed) else viewed(x, lambda v: v[lead]) for x in map(marks_of, (a, b))]
    left, right = builder.input(dtype), builder.input(dtype)
    in_left, in_right = builder.input(BOOL), builder.input(BOOL)
    types = [BOOL, dtype, dtype]
    total = builder.elementwise("add", [left, right], [dtype, dtype], dtype)
    total = builder.elementwise("where", [in_right, total, left], types, dtype)
    total = builder.elementwise("where", [in_left, total, right], types, dtype)
    found = reading.launches.buffer(a.rows.shape, dtype)
    reading.launches.kernel(builder.text(total, dtype), found.shape, [a.rows, b.rows, *marks], [found])
    return found


def length(reading: Reading, step: NodeStep) -> tuple[object, ...]:
    stack = reading.value(step.operands[0])
    return (stack.length if isinstance(stack, LocalStack) else Affine(len(as_table(reading, stack))),)


def _require_dtype(value: Operand, table: TableValue) -> None:
    if (INT64 if isinstance(value, Affine) else value.dtype) != table.rows.dtype:
        raise CannotPrepare("a row is converted when it is written")


def _check(reading: Reading, mark: View, index: Index, size: int, node: Node) -> None:
    """Note a row that is written again: what is noted first stays."""
    around = reading.launches.around(node)
    assert isinstance(around.site, Site)
    told: list[Operand] = [around.site, index, *map(word_view, around.noted)]
    names = [f"int64(a{1 + k})" for k in range(len(told))]
    noted = [*names[:2], f"int64({size})", *names[2:]]
    words = [part(around.flag, (n,), ())[0] for n in range(len(noted))]
    first = 1 + len(told)
    lines = [f"o{n} = np_select(a0 & (a{first} == int64(0)), {x}, a{first + n});" for n, x in enumerate(noted)]
    dtypes = ["bool", *(INT64.name if isinstance(x, Affine) else x.dtype.name for x in told), *["int64"] * len(words)]
    inputs = tuple(Parameter(name, f"a{n}") for n, name in enumerate(dtypes))
    text = KernelText(inputs, tuple(Parameter("int64", f"o{n}") for n in range(len(words))), "\n".join(lines))
    reading.launches.kernel(text, (), [mark, *told, *words], words)


TABLES: dict[str, Callable[[Reading, NodeStep], tuple[object, ...]]] = {
    "stack_read": read,
    "stack_write": write,
    "stack_add": add,
    "stack_clear": clear,
    "stack_sum": both,
    "stack_length": length,
}
