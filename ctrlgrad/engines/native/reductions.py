"""The arithmetic of reductions: what each starts with, and one step of it on numbers or vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from ctrlgrad.dtypes import REAL_OF, computed_dtype, dtype_kind
from ctrlgrad.engines.native.expressions import convert
from ctrlgrad.engines.native.text import Writer, constant, splat, type_of
from ctrlgrad.plan.model import Write
from ctrlgrad.plan.reductions import neutral_of


def element_parts(dtype: np.dtype) -> tuple[np.dtype, int]:
    """The real dtype in memory, and how many of it an element has."""
    return REAL_OF.get(dtype, dtype), 1 + (dtype in REAL_OF)


def combine(w: Writer, how: str, dtype: np.dtype, a: str, b: str, width: int) -> str:
    """One step of a reduction; of floats of 16 bits rounded after it."""
    computed = computed_dtype(dtype)
    if computed != dtype:
        a, b = (convert(w, x, dtype, computed, width) for x in (a, b))
        return convert(w, combine(w, how, computed, a, b, width), computed, dtype, width)
    kind = type_of(dtype, width)
    if dtype_kind(dtype) == "b":
        return w.op(f"{'or' if how in ('max', 'sum') else 'and'} {kind} {a}, {b}")
    if how in ("sum", "dot", "product"):
        op = "mul" if how == "product" else "add"
        return w.op(f"{'f' if dtype_kind(dtype) == 'f' else ''}{op} {kind} {a}, {b}")
    condition = f"<{width} x i1>" if width > 1 else "i1"
    if dtype_kind(dtype) == "f":
        # The comparison and its select are one instruction (`maxps`); `freeze` keeps LLVM from joining both selects to
        # one, which would become a masked store (see `expressions`). A NaN before stays: nothing is beyond it.
        beyond = w.op(f"fcmp {'ogt' if how == 'max' else 'olt'} {kind} {b}, {a}")
        extreme = w.op(f"select {condition} {beyond}, {kind} {b}, {kind} {a}")
        extreme = w.op(f"freeze {kind} {extreme}")
        nan = w.op(f"fcmp uno {kind} {b}, {b}")
        return w.op(f"select {condition} {nan}, {kind} {b}, {kind} {extreme}")
    sign = "s" if dtype_kind(dtype) == "i" else "u"
    # Frozen for the same reason: of a position that counts only where an extreme is, LLVM would blend with it.
    a = w.op(f"freeze {kind} {a}")
    replaces = w.op(f"icmp {sign}{'gt' if how == 'max' else 'lt'} {kind} {b}, {a}")
    return w.op(f"select {condition} {replaces}, {kind} {b}, {kind} {a}")


# Of integers, with the letter of their sign.
_BY_LLVM = {"sum": "add", "product": "mul", "max": "{}max", "min": "{}min"}


def advance(w: Writer, how: str, dtype: np.dtype, before: str, values: Sequence[str], width: int) -> str:
    """A reduction after another element: of one number, or of the two whose product is added."""
    if how != "dot":
        return combine(w, how, dtype, before, values[0], width)
    kind, suffix = type_of(dtype, width), f"f{8 * dtype.itemsize}"
    name = f"llvm.fmuladd.{suffix}" if width == 1 else f"llvm.fmuladd.v{width}{suffix}"
    w.declare(f"{kind} @{name}({kind}, {kind}, {kind})")
    return w.op(f"call {kind} @{name}({kind} {values[0]}, {kind} {values[1]}, {kind} {before})")


Join = Callable[[str, str, int], str]
"""Writes one step of a reduction on two vectors of a width, or two numbers."""


def in_halves(w: Writer, dtype: np.dtype, vectors: Sequence[str], width: int, join: Join) -> str:
    """A vector with one number for each vector: the first half of its lanes is joined with the second one, until
    there is one left. While there are several vectors, two become one, whose lanes are those of both in turn."""
    order = [0]
    while len(order) < len(vectors):
        order = [*(2 * k for k in order), *(2 * k + 1 for k in order)]
    found, lanes = [vectors[k] for k in order], width
    while lanes > 1:
        kind, half = type_of(dtype, width), lanes // 2
        # Where the halves of each vector's parts begin.
        parts = range(0, width, lanes)
        if len(found) == 1:
            starts, others, width = list(parts), ["poison"], width // 2
        else:
            starts = [start + other for start in parts for other in (0, width)]
            others, found = found[1::2], found[::2]
        if width == 1:
            low, high = (w.op(f"extractelement {kind} {found[0]}, i64 {k}") for k in (0, 1))
            return join(low, high, 1)
        paired = []
        for vector, other in zip(found, others, strict=True):
            low, high = (
                w.op(f"shufflevector {kind} {vector}, {kind} {other}, {_lanes(starts, first, half)}")
                for first in (0, half)
            )
            paired.append(join(low, high, width))
        found, lanes = paired, half
    return found[0]


class Sums:
    """Accumulator of a reduction in registers: variables for vectors and for single elements. There are several of each
    where they would wait for each other or belong to different rows. A form is a width and a number among the variables
    of that width.

    Where `is_led`, the first step written for each variable runs before all other steps, and initialises it.
    """

    def __init__(self, writer: Writer, write: Write, forms: Iterable[tuple[int, int]], is_led: bool = False) -> None:
        self.w, self.how, self.write = writer, write.how, write
        self.dtype, parts = element_parts(write.view.dtype)
        self.variables: dict[tuple[int, int], list[str]] = {}
        self.unled: set[str] = set()
        for form in forms:
            kind = type_of(self.dtype, form[0])
            self.variables[form] = [writer.alloca(kind) for _ in range(parts)]
            if is_led:
                self.unled.update(self.variables[form])
                continue
            for variable in self.variables[form]:
                writer.line(f"store {kind} {self.start(form[0])}, ptr {variable}")

    def start(self, width: int) -> str:
        """The neutral number, in every lane."""
        neutral = constant(neutral_of(self.how, self.dtype), self.dtype)
        return neutral if width == 1 else splat(neutral, self.dtype, width)

    def add(self, values: Sequence[str], width: int, which: int, first: int | str | None = None) -> None:
        """One step, for an element's parts or a vector of them, of which all lanes count, or so many, or a mask's."""
        kind = type_of(self.dtype, width)
        each = [values] if self.how == "dot" else [[value] for value in values]
        for variable, given in zip(self.variables[width, which], each, strict=True):
            start = self.start(width)
            if variable not in self.unled:
                before = self.w.op(f"load {kind}, ptr {variable}")
            elif self.how == "dot":
                before = start
            else:
                before = ""
            self.unled.discard(variable)
            if first is not None:
                mask = mask_of(first, width)
                given = [self.w.op(f"select <{width} x i1> {mask}, {kind} {value}, {kind} {start}") for value in given]
            value = advance(self.w, self.how, self.dtype, before, given, width) if before else given[0]
            self.w.line(f"store {kind} {value}, ptr {variable}")

    def join(self, a: str, b: str, width: int) -> str:
        return combine(self.w, self.how, self.dtype, a, b, width)

    def lanes(self, width: int, which: int) -> str:
        """Value of each lane of a vector accumulator."""
        kind = type_of(self.dtype, width)
        return self.w.op(f"load {kind}, ptr {self.variables[width, which][0]}")

    def total(self, part: int, row: int | None = None) -> str:
        """All variables in one number, or those of one row."""
        w, one = self.w, type_of(self.dtype)
        single = ""
        if (1, row or 0) in self.variables:
            single = w.op(f"load {one}, ptr {self.variables[1, row or 0][part]}")
        vectors = []
        for (width, which), variables in self.variables.items():
            if width > 1 and row in (None, which):
                vectors.append((width, w.op(f"load {type_of(self.dtype, width)}, ptr {variables[part]}")))
        if not vectors:
            return single
        width, vector = vectors[-1]
        # The first one comes last: what whole turns leave over went there.
        for _, other in reversed(vectors[:-1]):
            vector = combine(w, self.how, self.dtype, vector, other, width)
        if dtype_kind(self.dtype) == "f":
            vector = in_halves(w, self.dtype, [vector], width, self.join)
        else:
            vector = self.at_once(vector, width)
        return combine(w, self.how, self.dtype, single, vector, 1) if single else vector

    def totals(self, part: int, rows: int) -> list[str]:
        """Totals of several rows: vectors whose lanes are one row's total each, as many as a vector has, or all rows
        where those are fewer."""
        width = next(width for width, _ in self.variables)
        kind = type_of(self.dtype, width)
        loaded = [self.w.op(f"load {kind}, ptr {self.variables[width, row][part]}") for row in range(rows)]
        return [in_halves(self.w, self.dtype, loaded[k : k + width], width, self.join) for k in range(0, rows, width)]

    def at_once(self, vector: str, width: int) -> str:
        """The lanes of a vector in one number, where their order is of no matter: LLVM has a word for it."""
        w, kind, one = self.w, type_of(self.dtype, width), type_of(self.dtype)
        if dtype_kind(self.dtype) == "b":
            bits = w.op(f"bitcast {kind} {vector} to i{width}")
            return w.op(f"icmp ne i{width} {bits}, 0" if self.how in ("max", "sum") else f"icmp eq i{width} {bits}, -1")
        how = _BY_LLVM[self.how].format("s" if dtype_kind(self.dtype) == "i" else "u")
        reduce = f"{one} @llvm.vector.reduce.{how}.v{width}{one}"
        w.declare(f"{reduce}({kind})")
        return w.op(f"call {reduce}({kind} {vector})")


def mask_of(first: int | str, width: int) -> str:
    """A mask of a vector's first lanes: so many, or the mask itself."""
    return first if isinstance(first, str) else f"<{', '.join(f'i1 {int(k < first)}' for k in range(width))}>"


def _lanes(starts: Sequence[int], first: int, count: int) -> str:
    """Shuffle mask of `count` lanes from each start + `first` on."""
    lanes = [f"i32 {start + first + k}" for start in starts for k in range(count)]
    return f"<{len(lanes)} x i32> <{', '.join(lanes)}>"
