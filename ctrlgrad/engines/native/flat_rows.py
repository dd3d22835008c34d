"""Short rows taken end to end: vectors go on from one row into the next.

Of rows of 3 elements and vectors of 4, 4 rows are 3 vectors. What lies end to end itself is read and written as whole
vectors. What is the same all along a row is read once a row, what is the same for all rows once for all of them, and
vectors are put together of that. So are rows that are whole vectors taken, where something is the same for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ctrlgrad.engines.native.axes import Axis, has_parts
from ctrlgrad.engines.native.nest import Nest
from ctrlgrad.engines.native.text import Writer, type_of
from ctrlgrad.plan.model import Kernel
from ctrlgrad.plan.sizes import ONE, ZERO
from ctrlgrad.records import record

# Vectors that a row has at most, and instructions of all vectors that are written together.
MOST_VECTORS, MOST_TOGETHER = 4, 256

Load = Callable[[int, Sequence[str], int, int, int], str]
"""Loads elements: of which operand, the offsets of the first row, in which row and from which column on, how many."""


@record
class FlatRows:
    """Number of rows taken together, elements of each row, and lanes of a vector."""

    rows: int
    columns: int
    width: int

    @property
    def vectors(self) -> int:
        return self.rows * self.columns // self.width


def flat_rows(kernel: Kernel, outer: Axis, inner: Axis, width: int) -> FlatRows | None:
    """Form in which rows are taken end to end; None where that is impossible or no better than row by row.

    All that is written must lie end to end. So must what is read, unless it is the same along one of the axes.
    """
    if width == 1 or not inner.size.is_known or inner.size == ZERO or kernel.checks or has_parts(kernel):
        return None
    columns = inner.size.factor
    form = FlatRows(width // math.gcd(width, columns), columns, width)
    if columns > MOST_VECTORS * width or (outer.size.is_known and outer.size.factor < 2 * form.rows):
        return None
    if form.vectors * len(kernel.expression.instructions) > MOST_TOGETHER:
        return None
    if outer.index is not None or inner.index is not None or any(o.gathered for o in kernel.operands):
        return None
    if any(w.how != "store" or w.scattered for w in kernel.writes):
        return None
    strides = list(zip(outer.strides, inner.strides, strict=True))
    if form.rows == 1 and (ZERO, ONE) not in strides and all(stride in (ZERO, ONE) for stride in inner.strides):
        return None
    lies_flat = [pair == (inner.size, ONE) for pair in strides]
    count = len(kernel.operands)
    reads = zip(lies_flat[:count], strides[:count], strict=True)
    return form if all(lies_flat[count:]) and all(flat or ZERO in pair for flat, pair in reads) else None


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

    def begin_rows(self) -> None:
        """Before each turn."""
        self.numbers, self.spread = {}, {}

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
            lanes.begin_rows()
            for k in range(form.vectors):
                nest.point(at, form.width, further=k * form.width, known=partial(lanes.value, k, at))
    return stop
