"""Short rows of a kernel taken several at a time: end to end, side by side, or a few together.

Where there are too few rows for it, or they turn out to be long, they are left for the nest to take one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial

import numpy as np

from ctrlgrad.engines.native.loops import counted_loop, hidden
from ctrlgrad.engines.native.nest import Nest
from ctrlgrad.engines.native.reductions import Sums, element_parts
from ctrlgrad.engines.native.stack_text import StackText
from ctrlgrad.engines.native.sum_blocks import held_in_registers, in_blocks
from ctrlgrad.engines.native.text import Writer, is_number, memory_type_of, type_of
from ctrlgrad.plan.axes import Axis
from ctrlgrad.plan.columns import LONGEST, matrix_of
from ctrlgrad.plan.model import Columns, FlatRows, Kernel, RowsAcross, ShortRows, View
from ctrlgrad.plan.sizes import ONE, ZERO, Size


def take_several(nest: Nest, axes: Sequence[Axis], offsets: list[str], start: str, end: str) -> str:
    """Write what the rows from start to end do, as far as they are taken several at a time; where these end."""
    for form in nest.vectors.rows:
        if isinstance(form, FlatRows):
            start = take_end_to_end(nest, form, axes, offsets, start, end)
        elif isinstance(form, RowsAcross):
            does = are_across(nest, form, start, end)
            stop = end if does == "true" else nest.w.op(f"select i1 {does}, i64 {end}, i64 {start}")
            reduce_across(nest, form, axes, offsets, start, stop)
            start = stop
        else:
            start = reduce_rows(nest, form, axes, offsets, start, end)
    return start


# Short rows taken end to end: vectors go on from one row into the next.
#
# Of rows of 3 elements and vectors of 4, 4 rows are 3 vectors. What lies end to end itself is read and written as
# whole vectors. What is the same all along a row is read once a row, what is the same for all rows once for all of
# them, and vectors are put together of that. So are rows that are whole vectors taken, where something is the same
# for all of them.

Load = Callable[[int, Sequence[str], int, int, int], str]
"""Loads elements: of which operand, the offsets of the first row, in which row and from which column on, how many."""


class Lanes:
    """Operands of a kernel for vectors that span rows: an operand that does not lie end to end is broadcast, or has a
    value per lane."""

    def __init__(self, writer: Writer, kernel: Kernel, form: FlatRows, outer: Axis, inner: Axis, load: Load):
        self.w, self.kernel, self.form, self.load = writer, kernel, form, load
        self.outer, self.inner = outer.strides, inner.strides
        # By operand: vectors of what is the same for all rows; a row's number, and it in all lanes, of these rows.
        self.of_all: dict[tuple[int, int], tuple[str, bool]] = {}
        self.numbers: dict[tuple[int, int], str] = {}
        self.spread: dict[tuple[int, int], str] = {}

    def begin(self, offsets: Sequence[str]) -> None:
        """Before all rows: read what is the same for them. No kernel writes over what it reads at several points."""
        for place in {i.value[0]: None for i in self.kernel.expression.instructions if i.op == "load"}:
            if self.outer[place] == ZERO and self.inner[place] == ZERO:
                number = self.load(place, offsets, 0, 0, 1)
                self.of_all.update({(place, n): (number, False) for n in range(self.form.vectors)})
            elif self.outer[place] == ZERO and self.inner[place] == ONE and self.form.rows == 1:
                starts = [(n, self.elements(n).start) for n in range(self.form.vectors)]
                self.of_all |= {(place, n): (self.load(place, offsets, 0, k, self.form.width), True) for n, k in starts}
            elif self.outer[place] == ZERO:
                row = [self.load(place, offsets, 0, k, 1) for k in range(self.form.columns)]
                for n in range(self.form.vectors):
                    lanes = [row[k % self.form.columns] for k in self.elements(n)]
                    self.of_all[place, n] = self.inserted(lanes, self.dtype(place)), True

    def value(self, vector: int, offsets: Sequence[str], place: int) -> tuple[str, bool] | None:
        """An operand in a vector of rows, the first of which has these offsets; None where it is as it lies."""
        if self.outer[place] == ZERO:
            return self.of_all[place, vector]
        if self.inner[place] != ZERO:
            return None
        rows = [k // self.form.columns for k in self.elements(vector)]
        for row in dict.fromkeys(rows):
            if (place, row) not in self.numbers:
                self.numbers[place, row] = self.load(place, offsets, row, 0, 1)
        if rows[0] == rows[-1]:
            return self.numbers[place, rows[0]], False
        return self.blended(place, rows), True

    def elements(self, vector: int) -> range:
        """Range of elements of a vector, counted over the rows end to end."""
        return range(vector * self.form.width, (vector + 1) * self.form.width)

    def dtype(self, place: int) -> np.dtype:
        return self.kernel.operands[place].view.dtype

    def inserted(self, lanes: Sequence[str], dtype: np.dtype) -> str:
        """A vector of numbers."""
        kind, one, vector = type_of(dtype, len(lanes)), type_of(dtype), "poison"
        for k, number in enumerate(lanes):
            vector = self.w.op(f"insertelement {kind} {vector}, {one} {number}, i64 {k}")
        return vector

    def blended(self, place: int, rows: Sequence[int]) -> str:
        """A vector of the numbers of rows, which are in order: each in all lanes, then those that are its own."""
        width = self.form.width
        one, kind = type_of(self.dtype(place)), type_of(self.dtype(place), width)
        vector = ""
        for row in dict.fromkeys(rows):
            if (place, row) not in self.spread:
                self.spread[place, row] = self.w.in_all_lanes(self.numbers[place, row], one, width)
            other = self.spread[place, row]
            if vector:
                mask = ", ".join(f"i32 {k if of < row else k + width}" for k, of in enumerate(rows))
                other = self.w.op(f"shufflevector {kind} {vector}, {kind} {other}, <{width} x i32> <{mask}>")
            vector = other
        return vector


def take_end_to_end(nest: Nest, form: FlatRows, axes: Sequence[Axis], offsets: list[str], start: str, end: str) -> str:
    """Several short rows at a time, end to end, as long as there are so many; where they end."""
    w, (outer, inner) = nest.w, axes[-2:]

    def load(place: int, at: Sequence[str], row: int, column: int, width: int) -> str:
        further = w.add(nest.times(str(row), outer.strides[place]), nest.times(str(column), inner.strides[place]))
        return nest.elements.load(nest.bases[place], w.add(at[place], further), nest.views[place].dtype, 0, width)

    stop = nest.whole(start, end, form.rows)
    lanes = Lanes(w, nest.kernel, form, outer, inner, load)
    lanes.begin(offsets)
    for i in nest.each(start, stop, form.rows):
        with nest.elements.turn():
            at = nest.moved(outer, offsets, i)
            lanes.numbers, lanes.spread = {}, {}
            for k in range(form.vectors):
                nest.point(at, form.width, further=k * form.width, known=partial(lanes.value, k, at))
    return stop


# Rows that are each reduced to a number, side by side: a lane of a vector for each row.
#
# Then no lanes have to be added up at the end. That needs the elements of a column side by side: as they lie anyway, or
# as `Columns` of the plan has laid them out, if the rows are short, which a run may be the first to know.


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


# Short rows that are each reduced to a number: several are taken together, and their sums become vectors.
#
# Each row has a vector of its own. What its length leaves over beside whole vectors comes first, as the first lanes
# of a vector that begins the sum: a row of no more than a vector's elements then takes one vector and no addition. At
# the end, where a row by itself would add up its lanes in halves, the halves of two rows become one vector, those of
# two such vectors one again, until there is one number of each row: a step for all of them takes as long as for one.
#
# Rows have the bits that each has by itself.


def reduce_rows(nest: Nest, form: ShortRows, axes: Sequence[Axis], offsets: list[str], start: str, end: str) -> str:
    """Write the reductions of the rows from start to end, if they are short; where those that it does end.

    The last ones of several end where all do: some are reduced again then. Where there are so few, each is by itself.
    """
    w, inner, rows = nest.w, axes[-1], form.rows
    total = nest.size(inner.size)
    if form.width > 1 and not inner.size.is_known:
        before = w.op(f"add i64 {total}, -1")
        is_short = w.op(f"icmp ult i64 {before}, {form.vectors * form.width - 1}")
        end = w.op(f"select i1 {is_short}, i64 {end}, i64 {start}")
    group = _Group(nest, form, axes, offsets, total)
    together = end
    if not (is_number(start) and is_number(end)):
        count = end if start == "0" else w.op(f"sub i64 {end}, {start}")
        are_many = w.op(f"icmp sge i64 {count}, {rows}")
        together = w.op(f"select i1 {are_many}, i64 {end}, i64 {start}")
    is_even = is_number(start) and is_number(end) and (int(end) - int(start)) % rows == 0
    latest = together if is_even else w.add(together, str(-rows))
    for i in nest.each(start, together, rows):
        at = i if is_even or i == latest else w.op(f"call i64 @llvm.smin.i64(i64 {i}, i64 {latest})")
        group.write(at, rows)
    if form.width == 1:
        return together
    for i in nest.each(together, end):
        group.write(i, 1)
    return end


class _Group:
    """Writes rows that are reduced together."""

    def __init__(self, nest: Nest, form: ShortRows, axes: Sequence[Axis], offsets: list[str], total: str) -> None:
        self.nest, self.form, self.axes, self.offsets, self.total = nest, form, axes, offsets, total
        w, width = nest.w, form.width
        w.declare("i64 @llvm.smin.i64(i64, i64)")
        # The elements of the first vector, so that whole ones follow, and its lanes.
        self.lead, self.first = "0", None
        if form.is_led:
            self.lead = _lead(w, total, width)
            if self.lead != str(width):
                self.first = nest.elements.first(width, int(self.lead) if is_number(self.lead) else self.lead)

    def write(self, at: str, count: int) -> None:
        """Write the reductions of `count` rows from row `at` on."""
        nest, (outer, inner), width = self.nest, self.axes[-2:], self.form.width
        rows = [nest.moved(outer, self.offsets, at)]
        while len(rows) < count:
            rows.append(nest.moved(outer, rows[-1], "1"))
        writes = nest.kernel.writes
        if self.form.is_led:
            for k, write in enumerate(writes):
                nest.sums[k] = Sums(nest.w, write, [(width, row) for row in range(count)], is_led=True)
            with nest.elements.turn():
                for row, offsets in enumerate(rows):
                    nest.point(nest.moved(inner, offsets, "0"), width, row, inner, first=self.first)
            for i in nest.each(self.lead, self.total, width):
                with nest.elements.turn():
                    for row, offsets in enumerate(rows):
                        nest.point(nest.moved(inner, offsets, i), width, row, inner)
        else:
            for k in range(len(writes)):
                nest.begin(k, self.axes, count)
            nest.innermost(inner, rows, "0", self.total)
        for k in range(len(writes)):
            if self.form.is_led and count > 1:
                self.finish(k, rows)
            else:
                for row, offsets in enumerate(rows):
                    nest.finish(k, offsets, row if count > 1 else None)

    def finish(self, k: int, rows: Sequence[list[str]]) -> None:
        """Write what a reduction has come to for each row."""
        nest, write = self.nest, self.nest.kernel.writes[k]
        dtype, parts = element_parts(write.view.dtype)
        stride = self.axes[-2].strides[len(nest.kernel.operands) + k]
        lanes = min(self.form.width, len(rows))
        sums = nest.sums[k]
        assert isinstance(sums, Sums)
        of_parts = [sums.totals(part, len(rows)) for part in range(parts)]
        for number, totals in enumerate(zip(*of_parts, strict=True)):
            base, at = nest.target(k, rows[number * lanes])
            if stride == ONE:
                nest.elements.store_parts(base, at, dtype, totals, lanes)
                continue
            for lane in range(lanes):
                base, at = nest.target(k, rows[number * lanes + lane])
                ones = [nest.w.op(f"extractelement {type_of(dtype, lanes)} {x}, i64 {lane}") for x in totals]
                nest.elements.store_parts(base, at, dtype, ones, 1)


def _lead(writer: Writer, total: str, width: int) -> str:
    """Of how many elements the first vector of a row is, so that whole ones follow; a row has at least one."""
    if is_number(total):
        return str((int(total) - 1) % width + 1)
    before = writer.op(f"add i64 {total}, -1")
    return writer.add(writer.op(f"and i64 {before}, {width - 1}"), "1")
