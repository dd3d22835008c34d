"""Rows that are each reduced to a number, side by side: a lane of a vector for each row.

Then no lanes have to be added up at the end. That needs the elements of a column side by side: as they lie anyway, or
as `Columns` of the plan has laid them out, if the rows are short, which a run may be the first to know.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

from ctrlgrad.engines.native.axes import Axis, addresses_stand_still, has_parts
from ctrlgrad.engines.native.loops import counted_loop, hidden
from ctrlgrad.engines.native.nest import Nest
from ctrlgrad.engines.native.reductions import element_parts
from ctrlgrad.engines.native.stack_text import StackText
from ctrlgrad.engines.native.sum_blocks import held_in_registers, in_blocks
from ctrlgrad.engines.native.text import Writer, is_number, memory_type_of
from ctrlgrad.plan.columns import LONGEST, matrix_of
from ctrlgrad.plan.model import Columns, Kernel, View
from ctrlgrad.plan.sizes import ONE, ZERO, Size
from ctrlgrad.records import record

# Vectors of rows that are taken together.
TOGETHER = 4


@record
class RowsAcross:
    """Rows of a vector, number of vectors taken together, and a flag: operands are read by columns."""

    width: int
    together: int
    by_columns: bool


def rows_across(
    kernel: Kernel, axes: Sequence[Axis], row_width: int, width: int, uniform: Collection[int]
) -> RowsAcross | None:
    """Form in which the rows of the last two axes are taken side by side. None where that is impossible, or where
    vectors along a row (of `row_width` elements) are as good."""
    outer, inner = axes[-2:]
    reads, rows = kernel.operands, outer.size.factor if outer.size.is_known else None
    if (
        has_parts(kernel)
        or kernel.checks
        or width == 1
        or inner.size == ZERO
        or not addresses_stand_still(kernel, outer, uniform)
    ):
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


def are_across(nest: Nest, form: RowsAcross, start: str, end: str) -> str:
    """Emit the test that the rows from start to end are taken side by side."""
    w, holds = nest.w, []
    if form.by_columns:
        holds += [_has(nest, operand.columns) for operand in nest.kernel.operands if operand.columns is not None]
    if not (is_number(start) and is_number(end)):
        count = end if start == "0" else w.op(f"sub i64 {end}, {start}")
        holds.append(w.op(f"icmp sge i64 {count}, {form.width}"))
    return _all(w, holds)


def reduce_across(nest: Nest, form: RowsAcross, axes: Sequence[Axis], offsets: list[str], start: str, end: str) -> None:
    """Write the reductions of the rows from start to end side by side: of none, or of as many as a vector has lanes.

    What whole turns leave over comes first, a vector at a time, and nothing waits for it at the end. Of its last vector
    some rows come again: those before it, where there is no whole turn, or else those behind it.
    """
    w, width, step = nest.w, form.width, form.together * form.width
    w.declare("i64 @llvm.smin.i64(i64, i64)")
    latest, rest = w.add(end, str(-width)), end
    if form.together > 1:
        whole = nest.whole(start, end, step)
        is_known = is_number(end) and is_number(whole)
        rest = w.add(start, str(int(end) - int(whole)) if is_known else w.op(f"sub i64 {end}, {whole}"))
    with _by_columns(nest) if form.by_columns else nullcontext():
        for i in nest.each(start, rest, width):
            is_known = is_number(i) and is_number(latest)
            at = str(min(int(i), int(latest))) if is_known else w.op(f"call i64 @llvm.smin.i64(i64 {i}, i64 {latest})")
            _reduce(nest, form, axes, offsets, at, 1)
        if form.together > 1:
            for i in nest.each(rest, end, step):
                _reduce(nest, form, axes, offsets, i, form.together)


def _has(nest: Nest, columns: View) -> str:
    rows, terms = matrix_of(columns)
    return fits(nest.w, nest.size, rows, terms, columns.array.count.factor)


@contextmanager
def _by_columns(nest: Nest) -> Iterator[None]:
    """Context in which operands are read by columns where these are laid out."""
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
    """Reduce `vectors` vectors of rows from row `at` on, and store the results."""
    width, (outer, inner), count = form.width, axes[-2:], len(nest.kernel.writes)
    for k in range(count):
        nest.sums[k] = nest.gathered(k, [(width, number) for number in range(vectors)])
    with _read_from(nest, nest.moved(outer, offsets, at)) as rows:
        for elements in _along(nest, inner, rows):
            with nest.elements.turn():
                for number in range(vectors):
                    nest.point(elements, width, number, outer, number * width)
    rows = nest.moved(outer, offsets, at)
    for number in range(vectors):
        for k, write in enumerate(nest.kernel.writes):
            dtype, parts = element_parts(write.view.dtype)
            base, place = nest.target(k, rows)
            found = nest.sums[k].lanes(width, number)
            nest.elements.store(base, place, dtype, parts, 0, found, width, number * width)


@contextmanager
def _read_from(nest: Nest, offsets: list[str]) -> Iterator[list[str]]:
    """Context in which each operand's base is moved to its offset; yields the offsets from there."""
    w, before, offsets = nest.w, nest.bases, [*offsets]
    nest.bases = [*before]
    for place in dict.fromkeys(nest.through):
        if offsets[place] != "0":
            kind = memory_type_of(nest.views[place].dtype)
            address = w.op(f"getelementptr {kind}, ptr {before[place]}, i64 {offsets[place]}")
            nest.bases[place], offsets[place] = hidden(w, address), "0"
    yield offsets
    nest.bases = before


def _along(nest: Nest, axis: Axis, offsets: list[str]) -> Iterator[list[str]]:
    """The offsets at each position along an axis; strides are added up from one to the next, not multiplied."""
    w = nest.w
    far = {stride: w.alloca("i64") for stride in dict.fromkeys(axis.strides) if stride not in (ZERO, ONE)}
    for variable in far.values():
        w.line(f"store i64 0, ptr {variable}")
    held = held_in_registers(nest.sums.values())
    for first, last in in_blocks(w, held, "0", nest.size(axis.size), size=axis.size):
        for j in nest.each(first, last):
            if axis.index is not None:
                nest.indices[axis.index] = j
            steps = {ZERO: "0", ONE: j}
            for stride, variable in far.items():
                steps[stride] = w.op(f"load i64, ptr {variable}")
                w.line(f"store i64 {w.add(steps[stride], nest.size(stride))}, ptr {variable}")
            yield [w.add(offset, steps[stride]) for offset, stride in zip(offsets, axis.strides, strict=True)]


def fits(w: Writer, size: Callable[[Size], str], rows: Size, terms: Size, capacity: int) -> str:
    """Emit the run-time part of `is_laid_out`; sizes known at planning were checked then."""
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
    """Emit the conjunction of some conditions."""
    found = "true"
    for condition in conditions:
        found = condition if found == "true" else found if condition == "true" else w.op(f"and i1 {found}, {condition}")
    return found
