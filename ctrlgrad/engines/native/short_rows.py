"""Short rows that are each reduced to a number: several are taken together, and their sums become vectors.

Each row has a vector of its own. What its length leaves over beside whole vectors comes first, as the first lanes of a
vector that begins the sum: a row of no more than a vector's elements then takes one vector and no addition. At the end,
where a row by itself would add up its lanes in halves, the halves of two rows become one vector, those of two such
vectors one again, until there is one number of each row: a step for all of them takes as long as for one.

Rows have the bits that each has by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.engines.native.axes import Axis
from ctrlgrad.engines.native.nest import Nest
from ctrlgrad.engines.native.reductions import Sums, element_parts
from ctrlgrad.engines.native.text import Writer, is_number, type_of
from ctrlgrad.plan.model import Kernel
from ctrlgrad.plan.reductions import EXTREMES
from ctrlgrad.plan.sizes import ONE, ZERO
from ctrlgrad.records import record

# Rows that are taken together where nothing else says how many; at most, instructions for an element and of all rows
# together, and vectors of a row.
ROWS, MOST_INSTRUCTIONS, MOST_TOGETHER, MOST_VECTORS = 4, 16, 96, 8


@record
class ShortRows:
    """Form of a reduction of short rows: rows taken together, and lanes of a vector (1 for scalar code)."""

    rows: int
    width: int
    # Of how many vectors a row has less.
    vectors: int
    # True if a part of a vector leads each row, before its whole vectors, and the sums of several rows become vectors.
    is_led: bool


def short_rows(
    kernel: Kernel, outer: Axis, inner: Axis, width: int, vector_bytes: int, has_masks: bool
) -> ShortRows | None:
    """Form in which short rows are reduced together; None where rows are long or have many instructions."""
    instructions = kernel.expression.instructions
    if kernel.checks or outer.index is not None or len(instructions) > MOST_INSTRUCTIONS or inner.size == ZERO:
        return None
    if any(i.op == "call" for i in instructions):
        return None
    if width > 1 and inner.size.is_known and inner.size.factor >= MOST_VECTORS * width:
        return None
    # Half of the registers are for sums.
    sums = 16 if vector_bytes == 64 else 8
    most = min(sums // len(kernel.writes), MOST_TOGETHER // max(len(instructions), 1), max(width, ROWS))
    if outer.size.is_known:
        most = min(most, outer.size.factor)
    rows = 1 << max(most, 1).bit_length() - 1
    has_numbers = all(dtype_kind(w.view.dtype) != "b" and w.how not in EXTREMES for w in kernel.writes)
    is_led = width > 1 and has_numbers and (inner.size.is_known or has_masks)
    return ShortRows(rows, width, MOST_VECTORS if is_led else MOST_VECTORS // 2, is_led)


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
