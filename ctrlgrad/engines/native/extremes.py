"""Where the extreme of a row is, found together with it: each lane keeps its own extreme and where that was.

A lane takes a number that is beyond its own, so that of equal ones the first stays; a NaN is beyond all numbers. At the
end the extreme of all lanes is found, and of the positions of those that have it the least. A lane that has taken none
has position 0: all of its numbers are the neutral one, and where that is the extreme of all, so is the first number.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

import numpy as np

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.engines.native.reductions import Join, combine, in_halves, mask_of
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
        """Whether a number is further out than what came before."""
        w, kind, bools = self.w, type_of(self.dtype, width), type_of(BOOL, width)
        above = self.how == "max"
        if dtype_kind(self.dtype) != "f":
            sign = "s" if dtype_kind(self.dtype) == "i" else "u"
            return w.op(f"icmp {sign}{'gt' if above else 'lt'} {kind} {number}, {before}")
        # What is beyond a number, or is none.
        beyond = w.op(f"fcmp {'ugt' if above else 'ult'} {kind} {number}, {before}")
        return w.op(f"and {bools} {beyond}, {w.op(f'fcmp ord {kind} {before}, {before}')}")

    def lanes(self, width: int, which: int) -> str:
        """The positions in each lane of a vector."""
        kind = type_of(INDEX, width)
        return self.w.op(f"load {kind}, ptr {self.variables[width, which][1]}")

    def total(self, part: int, row: int | None = None) -> str:
        """The position of the extreme of all variables, or of those of one row."""
        w, is_float = self.w, dtype_kind(self.dtype) == "f"
        found: list[tuple[int, str, str]] = []
        for (width, which), (extreme, position) in self.variables.items():
            if row in (None, which):
                number = w.op(f"load {type_of(self.dtype, width)}, ptr {extreme}")
                found.append((width, number, w.op(f"load {type_of(INDEX, width)}, ptr {position}")))
        extreme = self.joined(self.dtype, self.further, [(width, number) for width, number, _ in found])
        nans = [self.nans(number, width) for width, number, _ in found] if is_float else []
        if nans:
            # Where there is a NaN, nothing is equal to the extreme.
            is_any = functools.reduce(lambda a, b: w.op(f"or i1 {a}, {b}"), (some for _, some in nans))
            kind = type_of(self.dtype)
            extreme = w.op(f"select i1 {is_any}, {kind} {constant(np.nan, self.dtype)}, {kind} {extreme}")
        positions = []
        for k, (width, number, position) in enumerate(found):
            best = extreme if width == 1 else w.in_all_lanes(extreme, type_of(self.dtype), width)
            has = w.op(f"{'fcmp oeq' if is_float else 'icmp eq'} {type_of(self.dtype, width)} {number}, {best}")
            if nans:
                has = w.op(f"or {type_of(BOOL, width)} {has}, {nans[k][0]}")
            none = str(NONE) if width == 1 else splat(str(NONE), INDEX, width)
            positions.append((width, self.chosen(has, position, none, INDEX, width)))
        return self.joined(INDEX, lambda a, b, width: combine(w, "min", INDEX, a, b, width), positions)

    def nans(self, number: str, width: int) -> tuple[str, str]:
        """Which lanes are no number, and whether any is."""
        found = self.w.op(f"fcmp uno {type_of(self.dtype, width)} {number}, {number}")
        if width == 1:
            return found, found
        bits = self.w.op(f"bitcast <{width} x i1> {found} to i{width}")
        return found, self.w.op(f"icmp ne i{width} {bits}, 0")

    def further(self, a: str, b: str, width: int) -> str:
        """The one of two numbers that is further out, whatever it is if one is a NaN."""
        compare = "fcmp o" if dtype_kind(self.dtype) == "f" else f"icmp {'s' if dtype_kind(self.dtype) == 'i' else 'u'}"
        above = "gt" if self.how == "max" else "lt"
        beyond = self.w.op(f"{compare}{above} {type_of(self.dtype, width)} {b}, {a}")
        return self.chosen(beyond, b, a, self.dtype, width)

    def joined(self, dtype: np.dtype, join: Join, values: Sequence[tuple[int, str]]) -> str:
        """One number of vectors and of single ones, neighbours being joined until there is one left."""
        singles = [value for width, value in values if width == 1]
        vectors = [value for width, value in values if width > 1]
        width = max(width for width, _ in values)
        while len(vectors) > 1:
            pairs = zip(vectors[::2], vectors[1::2], strict=False)
            vectors = [join(a, b, width) for a, b in pairs] + vectors[len(vectors) // 2 * 2 :]
        singles += [in_halves(self.w, dtype, [vector], width, join) for vector in vectors]
        return functools.reduce(lambda a, b: join(a, b, 1), singles)


__all__ = ["Extremes"]
