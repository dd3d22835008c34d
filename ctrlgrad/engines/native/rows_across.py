"""Rows that are each reduced to a number, side by side: a lane of a vector for each row.

Then no lanes have to be added up at the end. That needs the elements of a column side by side: as they lie anyway, or
as `Columns` of the plan has laid them out, if the rows are short, which a run may be the first to know.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

from ctrlgrad.engines.native.axes import Axis, addresses_stand_still
from ctrlgrad.engines.native.loops import counted_loop
from ctrlgrad.engines.native.nest import Nest
from ctrlgrad.engines.native.reductions import element_parts
from ctrlgrad.engines.native.stack_text import StackText
from ctrlgrad.engines.native.text import Writer, is_number, memory_type_of
from ctrlgrad.plan.columns import LONGEST, matrix_of
from ctrlgrad.plan.model import Columns, Kernel, View
from ctrlgrad.plan.sizes import ONE, ZERO, Size
from ctrlgrad.records import record

# Vectors of rows that are taken together.
TOGETHER = 4


@record
class RowsAcross:
    """How many rows a vector has, how many vectors are taken together, and whether operands are read by columns."""

    width: int
    together: int
    by_columns: bool


def rows_across(
    kernel: Kernel, axes: Sequence[Axis], row_width: int, width: int, uniform: Collection[int]
) -> RowsAcross | None:
    """How the rows of the last two axes are taken side by side; None where they cannot be, or where vectors along a row
    (of `row_width` elements) are as good."""
    outer, inner = axes[-2:]
    reads, rows = kernel.operands, outer.size.factor if outer.size.is_known else None
    if kernel.checks or width == 1 or inner.size == ZERO or not addresses_stand_still(kernel, outer, uniform):
        return None
    if any(outer.strides[len(reads) + k] != ONE for k in range(len(kernel.writes))) or (rows or width) < width:
        return None
    by_columns = any(operand.columns is not None for operand in reads)
    if any(s not in (ZERO, ONE) and o.columns is None for o, s in zip(reads, outer.strides, strict=False)):
        return None
    if not by_columns and (row_width > 1 or ONE not in outer.strides[: len(reads)]):
        return None
    together = max(TOGETHER // len(kernel.writes), 1)
    return RowsAcross(width, 1 if rows is not None and rows < together * width else together, by_columns)


def reduce_across(nest: Nest, form: RowsAcross, axes: Sequence[Axis], offsets: list[str], start: str, end: str) -> str:
    """Write the reductions of the rows from start to end side by side; where those that it does end.

    The last ones of a vector end where all do: some are reduced again then. Where there are fewer, it does none.
    """
    w, width = nest.w, form.width
    holds = []
    if form.by_columns:
        holds += [_has(nest, operand.columns) for operand in nest.kernel.operands if operand.columns is not None]
    if not (is_number(start) and is_number(end)):
        count = end if start == "0" else w.op(f"sub i64 {end}, {start}")
        holds.append(w.op(f"icmp sge i64 {count}, {width}"))
    does = _all(w, holds)
    if does != "true":
        end = w.op(f"select i1 {does}, i64 {end}, i64 {start}")
    w.declare("i64 @llvm.smin.i64(i64, i64)")
    latest, stop = w.add(end, str(-width)), start
    with _by_columns(nest) if form.by_columns else nullcontext():
        if form.together > 1:
            stop = nest.whole(start, end, form.together * width)
            for i in nest.each(start, stop, form.together * width):
                _reduce(nest, form, axes, offsets, i, form.together)
        for i in nest.each(stop, end, width):
            is_known = is_number(i) and is_number(latest)
            at = str(min(int(i), int(latest))) if is_known else w.op(f"call i64 @llvm.smin.i64(i64 {i}, i64 {latest})")
            _reduce(nest, form, axes, offsets, at, 1)
    return end


def _has(nest: Nest, columns: View) -> str:
    rows, terms = matrix_of(columns)
    return fits(nest.w, nest.size, rows, terms, columns.array.count.factor)


@contextmanager
def _by_columns(nest: Nest) -> Iterator[None]:
    """What is written inside reads columns where they are laid out."""
    operands = nest.kernel.operands
    before, nest.through = nest.through, [*nest.through]
    last = len(operands) + len(nest.kernel.writes)
    for k, operand in enumerate(operands):
        if operand.columns is not None:
            nest.through[k] = last
            last += 1
    yield
    nest.through = before


def _reduce(nest: Nest, form: RowsAcross, axes: Sequence[Axis], offsets: list[str], at: str, vectors: int) -> None:
    """So many vectors of rows, from one row on."""
    width, (outer, inner) = form.width, axes[-2:]
    rows = nest.moved(outer, offsets, at)
    for k in range(len(nest.kernel.writes)):
        nest.sums[k] = nest.gathered(k, [(width, number) for number in range(vectors)])
    for j in nest.each("0", nest.size(inner.size)):
        with nest.elements.turn():
            elements = nest.moved(inner, rows, j)
            for number in range(vectors):
                nest.point(elements, width, number, outer, number * width)
    for k, write in enumerate(nest.kernel.writes):
        dtype, parts = element_parts(write.view.dtype)
        base, place = nest.target(k, rows)
        for number in range(vectors):
            lanes = nest.sums[k].lanes(width, number)
            nest.elements.store(base, place, dtype, parts, 0, lanes, width, number * width)


def fits(w: Writer, size: Callable[[Size], str], rows: Size, terms: Size, capacity: int) -> str:
    """Whether a run lays a matrix out, as `is_laid_out`; what is known was asked when the plan was made."""
    unknown = [(n, most) for n, most in ((terms, LONGEST), (rows * terms, capacity)) if not n.is_known]
    return _all(w, [w.op(f"icmp sle i64 {size(n)}, {most}") for n, most in unknown])


def write_columns(plan: StackText, step: Columns) -> None:
    """Lay a matrix out, one element after the other, if it fits."""
    w, view = plan.w, step.view
    target, source = plan.define(step.result), plan.view_address(view)
    kind, (rows, terms) = memory_type_of(view.dtype), map(plan.size, view.shape)
    holds = fits(w, plan.size, view.shape[0], view.shape[1], step.result.count.factor)
    with nullcontext() if holds == "true" else w.when(holds), counted_loop(w, "0", rows) as i:
        row = w.multiply(i, plan.size(view.strides[0]))
        with counted_loop(w, "0", terms) as j:
            at = w.add(row, w.multiply(j, plan.size(view.strides[1])))
            element = w.op(f"load {kind}, ptr {w.op(f'getelementptr {kind}, ptr {source}, i64 {at}')}")
            place = w.op(f"getelementptr {kind}, ptr {target}, i64 {w.add(w.multiply(j, rows), i)}")
            w.line(f"store {kind} {element}, ptr {place}")


def _all(w: Writer, conditions: Iterable[str]) -> str:
    """Whether all of some conditions hold."""
    found = "true"
    for condition in conditions:
        found = condition if found == "true" else found if condition == "true" else w.op(f"and i1 {found}, {condition}")
    return found


__all__ = ["RowsAcross", "reduce_across", "rows_across", "write_columns"]
