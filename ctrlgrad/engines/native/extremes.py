"""Extreme of a row and its position in one pass: each lane keeps its own extreme and position.

A lane takes only a number that is strictly beyond its own, so the first of equal numbers stays; a NaN is beyond all
numbers. At the end the lanes are reduced to the extreme of all lanes, and to the least position among the lanes that
hold it. A lane that has taken no number has position 0: all of its numbers are the neutral one. If that is the extreme
of the row, the row's first number equals it too.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.engines.native.reductions import Join, combine, mask_of
from ctrlgrad.engines.native.text import Writer, constant, splat, type_of
from ctrlgrad.plan.reductions import neutral_of

INDEX, BOOL = np.dtype(np.int64), np.dtype(bool)
# Beyond all positions.
NONE = np.iinfo(INDEX).max


class Extremes:
    """The extremes so far and their positions, in variables for vectors and for single elements, as `Sums` has sums."""

    def __init__(self, writer: Writer, how: str, dtype: np.dtype, forms: Iterable[tuple[int, int]]) -> None:
        self.w, self.how, self.dtype = writer, how, dtype
        self.neutral = constant(neutral_of(how, dtype), dtype)
        self.furthest, self.has_nan = dict[int, str](), ""
        self.variables: dict[tuple[int, int], tuple[str, str]] = {}
        for form in forms:
            width = form[0]
            extreme, position = writer.alloca(type_of(dtype, width)), writer.alloca(type_of(INDEX, width))
            writer.line(f"store {type_of(dtype, width)} {self.everywhere(self.neutral, width)}, ptr {extreme}")
            writer.line(f"store {type_of(INDEX, width)} zeroinitializer, ptr {position}")
            self.variables[form] = extreme, position

    def everywhere(self, number: str, width: int) -> str:
        return number if width == 1 else splat(number, self.dtype, width)

    def add(self, values: Sequence[str], width: int, which: int, first: int | str | None = None) -> None:
        """One step, for a number and its position, or vectors of them, of which all lanes count or the first ones."""
        w, number = self.w, values[0]
        kind = type_of(self.dtype, width)
        if first is not None:
            start = self.everywhere(self.neutral, width)
            number = w.op(f"select <{width} x i1> {mask_of(first, width)}, {kind} {number}, {kind} {start}")
        extreme, position = self.variables[width, which]
        before = w.op(f"load {kind}, ptr {extreme}")
        takes = self.is_beyond(number, before, width)
        for variable, value, dtype in ((extreme, number, self.dtype), (position, values[1], INDEX)):
            of = type_of(dtype, width)
            old = before if variable == extreme else w.op(f"load {of}, ptr {variable}")
            w.line(f"store {of} {self.chosen(takes, value, old, dtype, width)}, ptr {variable}")

    def chosen(self, condition: str, yes: str, no: str, dtype: np.dtype, width: int) -> str:
        kind = type_of(dtype, width)
        return self.w.op(f"select {type_of(BOOL, width)} {condition}, {kind} {yes}, {kind} {no}")

    def is_beyond(self, number: str, before: str, width: int) -> str:
        """Emit the test that a number is beyond the previous extreme."""
        w, kind, bools = self.w, type_of(self.dtype, width), type_of(BOOL, width)
        above = self.how == "max"
        if dtype_kind(self.dtype) != "f":
            sign = "s" if dtype_kind(self.dtype) == "i" else "u"
            return w.op(f"icmp {sign}{'gt' if above else 'lt'} {kind} {number}, {before}")
        # An unordered comparison: true if the number is beyond, or if either side is a NaN.
        beyond = w.op(f"fcmp {'ugt' if above else 'ult'} {kind} {number}, {before}")
        return w.op(f"and {bools} {w.op(f'fcmp ord {kind} {before}, {before}')}, {beyond}")

    def lanes(self, width: int, which: int) -> str:
        """The positions in each lane of a vector."""
        kind = type_of(INDEX, width)
        return self.w.op(f"load {kind}, ptr {self.variables[width, which][1]}")

    def total(self, part: int, row: int | None = None) -> str:
        """The position of the extreme of all variables, or of those of one row."""
        w = self.w
        found = {form: places for form, places in self.variables.items() if row in (None, form[1])}
        if dtype_kind(self.dtype) == "f":
            self.has_nan = self.put_nans_first({extreme: width for (width, _), (extreme, _) in found.items()})
        numbers, positions = list[tuple[int, str]](), list[tuple[int, str]]()
        for (width, _), (extreme, _) in found.items():
            numbers.append((width, w.op(f"load {type_of(self.dtype, width)}, ptr {extreme}")))
        self.furthest = furthest = self.in_all_lanes(self.dtype, self.further, numbers)
        equal = "fcmp oeq" if dtype_kind(self.dtype) == "f" else "icmp eq"
        for (width, number), (_, variable) in zip(numbers, found.values(), strict=True):
            position = w.op(f"load {type_of(INDEX, width)}, ptr {variable}")
            has = w.op(f"{equal} {type_of(self.dtype, width)} {number}, {furthest[width]}")
            none = str(NONE) if width == 1 else splat(str(NONE), INDEX, width)
            positions.append((width, self.chosen(has, position, none, INDEX, width)))
        least = self.in_all_lanes(INDEX, lambda a, b, width: combine(w, "min", INDEX, a, b, width), positions)
        if 1 in least:
            return least[1]
        ((width, vector),) = least.items()
        return w.op(f"extractelement {type_of(INDEX, width)} {vector}, i64 0")

    def extreme(self) -> str:
        """The extreme whose position `total` has found last; a NaN where there is one."""
        w, (width, number) = self.w, min(self.furthest.items())
        if width > 1:
            number = w.op(f"extractelement {type_of(self.dtype, width)} {number}, i64 0")
        if dtype_kind(self.dtype) != "f":
            return number
        return self.chosen(self.has_nan, constant(np.nan, self.dtype), number, self.dtype, 1)

    def put_nans_first(self, variables: Mapping[str, int]) -> str:
        """In variables that hold a NaN, replace NaNs by the furthest number and all other lanes by the nearest one.

        NaNs are rare, so the common path only tests for one: the result. `variables` have their widths.
        """
        w = self.w
        beyond = constant(np.inf if self.how == "max" else -np.inf, self.dtype)
        some = []
        for variable, width in variables.items():
            nan = self.is_nan(variable, width)
            if width > 1:
                nan = w.op(f"icmp ne i{width} {w.op(f'bitcast <{width} x i1> {nan} to i{width}')}, 0")
            some.append(nan)
        has_nan = functools.reduce(lambda a, b: w.op(f"or i1 {a}, {b}"), some)
        with w.when(has_nan):
            for variable, width in variables.items():
                yes, no = self.everywhere(beyond, width), self.everywhere(self.neutral, width)
                value = self.chosen(self.is_nan(variable, width), yes, no, self.dtype, width)
                w.line(f"store {type_of(self.dtype, width)} {value}, ptr {variable}")
        return has_nan

    def is_nan(self, variable: str, width: int) -> str:
        kind = type_of(self.dtype, width)
        number = self.w.op(f"load {kind}, ptr {variable}")
        return self.w.op(f"fcmp uno {kind} {number}, {number}")

    def further(self, a: str, b: str, width: int) -> str:
        """The one of two numbers that is further out."""
        compare = "fcmp o" if dtype_kind(self.dtype) == "f" else f"icmp {'s' if dtype_kind(self.dtype) == 'i' else 'u'}"
        above = "gt" if self.how == "max" else "lt"
        beyond = self.w.op(f"{compare}{above} {type_of(self.dtype, width)} {b}, {a}")
        return self.chosen(beyond, b, a, self.dtype, width)

    def in_all_lanes(self, dtype: np.dtype, join: Join, values: Sequence[tuple[int, str]]) -> dict[int, str]:
        """Join of some vectors and scalars, in every lane, by width.

        Neighbours are joined until there is one vector, whose lanes are then joined with those half as far away, and so
        on: to spread one number over all lanes again would take as long as to join some.
        """
        w, found = self.w, dict[int, str]()
        for width in dict.fromkeys(width for width, _ in values):
            mine = [value for other, value in values if other == width]
            while len(mine) > 1:
                pairs = zip(mine[::2], mine[1::2], strict=False)
                mine = [join(a, b, width) for a, b in pairs] + mine[len(mine) // 2 * 2 :]
            found[width] = mine[0]
        width = max(found)
        kind, lanes = type_of(dtype, width), width
        while lanes > 1:
            lanes //= 2
            order = ", ".join(f"i32 {k ^ lanes}" for k in range(width))
            other = w.op(f"shufflevector {kind} {found[width]}, {kind} poison, <{width} x i32> <{order}>")
            found[width] = join(found[width], other, width)
        if len(found) > 1:
            single = w.in_all_lanes(found[1], type_of(dtype), width)
            found[width] = join(found[width], single, width)
            found[1] = w.op(f"extractelement {kind} {found[width]}, i64 0")
        return found
