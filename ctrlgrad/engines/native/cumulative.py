"""Cumulative sums and products in machine code.

Elements lie as rows, positions and columns, densely. Along positions of one column a vector's lanes are totals within
the vector, found by shifts of 1, 2, 4, ... lanes, to which the total before the vector is added: only that addition
waits for the vector before. Of several columns each has a lane, and its total lies in memory of the function.

Threads share rows, columns or positions, as the plan says (`Plan.shares`). Where they share positions, each part's
totals are found first; a table of them becomes the totals that each part begins with. Parts follow from the sizes
alone, so results have the same bits for any number of threads. Source: Blelloch, "Prefix sums and their applications"
(1990); Hillis and Steele, "Data parallel algorithms" (1986), of the lanes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.engines.native.elements import Elements
from ctrlgrad.engines.native.expressions import convert
from ctrlgrad.engines.native.loops import counted_loop
from ctrlgrad.engines.native.reductions import combine, element_parts, in_halves
from ctrlgrad.engines.native.shared_nests import call_parts, joined_parts
from ctrlgrad.engines.native.stack_text import StackText
from ctrlgrad.engines.native.text import Captures, Writer, constant, is_number, splat, type_of
from ctrlgrad.plan.model import Cumulate
from ctrlgrad.plan.reductions import neutral_of
from ctrlgrad.plan.sharing import work_of_cumulate
from ctrlgrad.plan.sizes import Size

# Columns whose totals lie in memory at the same time, and the most that are written without loops: registers have them.
STRIP, HELD = 512, 8
# The most lanes of a vector: of more, the shifts would take longer than the additions that they save.
MOST_LANES = 16
# Vectors in a turn of a part's total, which would wait for each other.
UNROLL = 4

Range = tuple[str, str]
"""A first number, and the first one after the last."""


class _Writer:
    """Writes loops over some rows, positions and columns. `sizes` are of real numbers, of which a complex one has two,
    one beside the other as two columns."""

    def __init__(
        self, w: Writer, step: Cumulate, vector_bytes: int, source: str, target: str, sizes: Sequence[str]
    ) -> None:
        self.w, self.how, self.reverse, self.source, self.target = w, step.how, step.reverse, source, target
        self.dtype, self.total = (element_parts(dtype)[0] for dtype in (step.view.dtype, step.total))
        self.rows, self.length, self.columns = sizes
        self.width = min(vector_bytes // self.total.itemsize, MOST_LANES)
        self.elements = Elements(w)
        # 0 and -0 are 0, and -0 and -0 are -0: a sum of floats begins with -0, so that the first total is the first
        # element to the sign of a zero.
        neutral = neutral_of(self.how, self.total)
        self.neutral = constant(-0.0 if self.how == "sum" and dtype_kind(self.total) == "f" else neutral, self.total)

    def start(self, width: int) -> str:
        return self.neutral if width == 1 else splat(self.neutral, self.total, width)

    def combine(self, a: str, b: str, width: int) -> str:
        return combine(self.w, self.how, self.total, a, b, width)

    def load(self, at: str, width: int) -> str:
        found = self.elements.load(self.source, at, self.dtype, 0, width)
        return convert(self.w, found, self.dtype, self.total, width)

    def store(self, at: str, value: str, width: int) -> None:
        value = convert(self.w, value, self.total, self.dtype, width)
        self.elements.store(self.target, at, self.dtype, 1, 0, value, width)

    def minus(self, a: str, b: str) -> str:
        return (
            str(int(a) - int(b)) if is_number(a) and is_number(b) else a if b == "0" else self.w.op(f"sub i64 {a}, {b}")
        )

    def smaller(self, a: str, b: int) -> str:
        if is_number(a):
            return str(min(int(a), b))
        self.w.declare("i64 @llvm.smin.i64(i64, i64)")
        return self.w.op(f"call i64 @llvm.smin.i64(i64 {a}, i64 {b})")

    def each(self, count: str, held: bool = False) -> Iterator[tuple[str, int]]:
        """Numbers below a count by vectors, then one by one, with the width of each; without loops where `held`."""
        w, width = self.w, self.width
        if held:
            end = int(count) // width * width
            yield from ((str(k), width) for k in range(0, end, width))
            yield from ((str(k), 1) for k in range(end, int(count)))
            return
        whole = self.whole(count, width)
        with counted_loop(w, "0", whole, width) as k:
            yield k, width
        with counted_loop(w, whole, count) as k:
            yield k, 1

    def whole(self, count: str, step: int) -> str:
        """The largest multiple of a step that is at most a count."""
        if is_number(count):
            return str(int(count) // step * step)
        return self.minus(count, self.w.op(f"urem i64 {count}, {step}"))

    def cumulate(self, rows: Range, positions: Range, columns: Range, table: str | None) -> None:
        """Write the totals. Each row's begin with those in a table, for each column, or with the neutral number."""
        with counted_loop(self.w, *rows) as row:
            if self.columns == "1":
                self.positions(row, positions, table)
            else:
                self.beside(row, positions, columns, table, self.store)

    def totals(self, positions: Range, table: str) -> None:
        """Write the totals of some positions, of all rows and columns, to a table."""
        with counted_loop(self.w, "0", self.rows) as row:
            if self.columns == "1":
                self.total_of(row, positions, table)
            else:
                self.beside(row, positions, ("0", self.columns), table, None)

    # Lanes along positions.

    def positions(self, row: str, positions: Range, table: str | None) -> None:
        w, kind, vector = self.w, type_of(self.total), type_of(self.total, self.width)
        first, count = w.add(w.multiply(row, self.length), positions[0]), self.minus(positions[1], positions[0])
        last = w.add(first, w.add(count, "-1"))
        before, lanes = w.alloca(kind), w.alloca(vector)
        begin = self.entry(table, row, 1) if table else self.neutral
        w.line(f"store {vector} {w.in_all_lanes(begin, kind, self.width)}, ptr {lanes}")
        whole = self.whole(count, self.width)
        with counted_loop(w, "0", whole, self.width) as k, self.elements.turn():
            at = self.minus(self.minus(last, k), str(self.width - 1)) if self.reverse else w.add(first, k)
            inside = self.load(at, self.width)
            shift = 1
            while shift < self.width:
                inside = self.combine(inside, self.shifted(inside, shift), self.width)
                shift *= 2
            carried = w.op(f"load {vector}, ptr {lanes}")
            self.store(at, self.combine(carried, inside, self.width), self.width)
            end = 0 if self.reverse else self.width - 1
            ends = w.op(f"shufflevector {vector} {inside}, {vector} poison, <{self.width} x i32> splat (i32 {end})")
            w.line(f"store {vector} {self.combine(carried, ends, self.width)}, ptr {lanes}")
        after = w.op(f"extractelement {vector} {w.op(f'load {vector}, ptr {lanes}')}, i64 0")
        w.line(f"store {kind} {after}, ptr {before}")
        with counted_loop(w, whole, count) as k, self.elements.turn():
            at = self.minus(last, k) if self.reverse else w.add(first, k)
            value = self.combine(w.op(f"load {kind}, ptr {before}"), self.load(at, 1), 1)
            self.store(at, value, 1)
            w.line(f"store {kind} {value}, ptr {before}")

    def shifted(self, vector: str, by: int) -> str:
        """Lanes moved on, towards the first for `reverse`; neutral numbers come after them."""
        width, kind = self.width, type_of(self.total, self.width)
        lanes = [k + by if self.reverse else k - by for k in range(width)]
        mask = ", ".join(f"i32 {k if 0 <= k < width else width}" for k in lanes)
        return self.w.op(f"shufflevector {kind} {vector}, {kind} {self.start(width)}, <{width} x i32> <{mask}>")

    def total_of(self, row: str, positions: Range, table: str) -> None:
        """The total of a row's positions."""
        w, width, kind, vector = self.w, self.width, type_of(self.total), type_of(self.total, self.width)
        first, count = w.add(w.multiply(row, self.length), positions[0]), self.minus(positions[1], positions[0])
        sums = [w.alloca(vector) for _ in range(UNROLL)]
        for each in sums:
            w.line(f"store {vector} {self.start(width)}, ptr {each}")
        turns, whole = (self.whole(count, n * width) for n in (UNROLL, 1))
        for start, end, some in (("0", turns, sums), (turns, whole, sums[:1])):
            with counted_loop(w, start, end, len(some) * width) as k, self.elements.turn():
                for number, each in enumerate(some):
                    value = self.load(w.add(first, w.add(k, str(number * width))), width)
                    w.line(
                        f"store {vector} {self.combine(w.op(f'load {vector}, ptr {each}'), value, width)}, ptr {each}"
                    )
        found = w.op(f"load {vector}, ptr {sums[0]}")
        for each in sums[1:]:
            found = self.combine(found, w.op(f"load {vector}, ptr {each}"), width)
        if width > 1:
            found = in_halves(w, self.total, [found], width, self.combine)
        rest = w.alloca(kind)
        w.line(f"store {kind} {found}, ptr {rest}")
        with counted_loop(w, whole, count) as k:
            value = self.combine(w.op(f"load {kind}, ptr {rest}"), self.load(w.add(first, k), 1), 1)
            w.line(f"store {kind} {value}, ptr {rest}")
        self.put(table, row, w.op(f"load {kind}, ptr {rest}"), 1)

    # Lanes along columns.

    def beside(
        self,
        row: str,
        positions: Range,
        columns: Range,
        table: str | None,
        store: Callable[[str, str, int], None] | None,
    ) -> None:
        """Go through a row's positions with a total for each column. `store` takes every total; without it the last
        ones go to the table, else those before the first come from there."""
        w = self.w
        held = is_number(self.columns) and int(self.columns) <= HELD
        room = self.columns if held else str(STRIP)
        totals = w.alloca(f"[{room} x {type_of(self.total)}]", 64)
        with counted_loop(w, *columns, STRIP) as left:
            left = columns[0] if held else left
            count = room if held else self.smaller(self.minus(columns[1], left), STRIP)
            entries = w.add(w.multiply(row, self.columns), left)
            for column, width in self.each(count, held):
                given = self.entry(table, w.add(entries, column), width) if table and store else self.start(width)
                self.put(totals, column, given, width)
            with counted_loop(w, "0", self.minus(positions[1], positions[0])) as k:
                position = self.minus(self.minus(positions[1], "1"), k) if self.reverse else w.add(positions[0], k)
                start = w.add(w.multiply(w.add(w.multiply(row, self.length), position), self.columns), left)
                for column, width in self.each(count, held):
                    at = w.add(start, column)
                    value = self.combine(self.entry(totals, column, width), self.load(at, width), width)
                    self.put(totals, column, value, width)
                    if store:
                        store(at, value, width)
            if table and not store:
                for column, width in self.each(count, held):
                    self.put(table, w.add(entries, column), self.entry(totals, column, width), width)

    def entry(self, table: str, at: str, width: int) -> str:
        """Totals in memory."""
        return self.elements.load(table, at, self.total, 0, width)

    def put(self, table: str, at: str, value: str, width: int) -> None:
        self.elements.store(table, at, self.total, 1, 0, value, width)


def write_cumulate(plan: StackText, step: Cumulate) -> None:
    """Write a cumulative operation: a function, or one for each of its parts, and its call."""
    w, share, pieces = plan.w, plan.plan.shares.get(step), element_parts(step.view.dtype)[1]
    target, source = plan.define(step.result), plan.view_address(step.view)
    rows, length, columns = step.view.shape
    sizes = [plan.size(size) for size in (rows, length, columns * Size(pieces))]
    if share is None:
        given, inner = Captures(), Writer(w)
        kinds = [("ptr", source), ("ptr", target), *(("i64", size) for size in sizes)]
        places = [given.take(k, kind, functools.partial(str, text)) for k, (kind, text) in enumerate(kinds)]
        part = _Writer(inner, step, plan.vector_bytes, places[0], places[1], places[2:])
        part.cumulate(("0", part.rows), ("0", part.length), ("0", part.columns), None)
        w.call("cumulate", inner, given, plan.vector_bytes)
        return
    (axis,), dtype = share.axes, element_parts(step.total)[0]
    kind = type_of(dtype)
    count = int(sizes[0]) * int(sizes[2])
    # One row of totals for each part, and before them, in the order of the operation, the neutral numbers.
    table = w.passing((share.parts + 1) * count * dtype.itemsize) if share.has_results else "null"

    def parts(fills: bool) -> None:
        inner = Writer(w)
        count_of_parts, unit = str(share.parts), str(share.unit)
        if not share.has_results:
            count_of_parts, unit = joined_parts(w, count_of_parts, unit)
        captured = [*(("ptr", text) for text in (source, target, table)), ("i64", unit)]
        places = []
        for k, (its, _) in enumerate(captured):
            slot = inner.at_entry(f"getelementptr i64, ptr %table, i64 {k}")
            places.append(inner.at_entry(f"load {its}, ptr {slot}"))
        part = _Writer(inner, step, plan.vector_bytes, places[0], places[1], sizes)
        ranges: list[Range] = [("0", size) for size in sizes]
        its_unit = inner.multiply(places[3], str(pieces if axis == 2 else 1))
        first = inner.op(f"mul i64 %part, {its_unit}")
        ranges[axis] = first, part.smaller(inner.op(f"add i64 {first}, {its_unit}"), int(sizes[axis]))
        row = inner.op(f"add i64 %part, {int(fills != step.reverse)}")
        totals = inner.op(f"getelementptr {kind}, ptr {places[2]}, i64 {inner.multiply(row, str(count))}")
        if fills:
            part.totals(ranges[1], totals)
        else:
            part.cumulate(ranges[0], ranges[1], ranges[2], totals if share.has_results else None)
        inner.line("ret void")
        name = f"part{len(plan.parts)}"
        call_parts(w, name, captured, count_of_parts, str(work_of_cumulate(step)))
        signature = f"internal void @{name}(ptr %table, i64 %part, i64 %worker)"
        plan.parts.append(inner.function(signature, plan.vector_bytes))

    if share.has_results:
        parts(True)
        outer = _Writer(w, step, plan.vector_bytes, source, target, sizes)
        start = str(share.parts * count if step.reverse else 0)
        for at, width in outer.each(str(count)):
            outer.put(table, w.add(start, at), outer.start(width), width)
        with counted_loop(w, "1", str(share.parts)) as k:
            after = w.op(f"sub i64 {share.parts}, {k}") if step.reverse else k
            here = w.multiply(after, str(count))
            for at, width in outer.each(str(count)):
                place = w.add(here, at)
                before = outer.entry(table, w.add(place, str(count if step.reverse else -count)), width)
                outer.put(table, place, outer.combine(before, outer.entry(table, place, width), width), width)
    parts(False)
