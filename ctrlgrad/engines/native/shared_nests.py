"""Nests with much work, cut along their outermost axis into parts that the pool's threads share.

How a nest is cut follows from its sizes alone, so results have the same bits whatever the number of threads. A part is
a function of its own, which finds what it needs from around it in a table. What is reduced to one number has one for
each part, brought together in their order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ctrlgrad.engines.native.axes import Axis
from ctrlgrad.engines.native.nests import KernelWriter, cannot_fail
from ctrlgrad.engines.native.reductions import combine, element_parts
from ctrlgrad.engines.native.text import Writer, memory_type_of, type_of
from ctrlgrad.plan.model import Array, Kernel, Register, Write
from ctrlgrad.plan.reductions import EXTREMES
from ctrlgrad.plan.sizes import ZERO, Size, product

# In instructions for one element, an elementary function being some tens of them: the least work of a nest to be shared
# with threads that are awake (about twenty microseconds), the least to wake sleeping threads too, and the least of a
# part. The most parts of a nest.
WORK_TO_SHARE, WORK_TO_WAKE, WORK_OF_A_PART, MOST_PARTS = 1 << 19, 1 << 20, 1 << 17, 64
CALL = 20
# Parts of the innermost axis begin at multiples of this many elements: then only the last one has a tail.
ALIGNMENT = 256


def parts_of(kernel: Kernel) -> int:
    """Into how many parts a nest is cut, a power of 2 that threads share evenly; 1 where it is not."""
    work = work_of(kernel)
    if work < WORK_TO_SHARE or kernel.checks or any(write.scattered for write in kernel.writes):
        return 1
    return min(1 << (work // WORK_OF_A_PART).bit_length() - 1, MOST_PARTS)


def work_of(kernel: Kernel) -> int:
    """The instructions of a nest; 0 where its size is not known."""
    points = product(kernel.space)
    each = sum(CALL if i.op == "call" else 1 for i in kernel.expression.instructions) + len(kernel.writes)
    return points.factor * each if points.is_known else 0


class _Part(KernelWriter):
    """Writes the nest of a part: positions from `first` to `end` along the outermost axis."""

    first, end = "0", "0"
    # For each result that is one number, the table with one for each part.
    tables: dict[int, str]

    def ends(self, depth: int, axis: Axis) -> tuple[str, str]:
        return (self.first, self.end) if depth == 0 else super().ends(depth, axis)

    def start_in_memory(self, k: int, write: Write, axes: Sequence[Axis]) -> None:
        """Nothing: what adds to memory was begun before all parts, since it begins everywhere at once."""

    def target(self, k: int, offsets: list[str]) -> tuple[str, str]:
        if k in self.tables:
            return self.tables[k], "%part"
        return super().target(k, offsets)


class SharedKernel:
    """Writes a kernel as a function for its parts, and a call of the pool. What cannot be cut is written as it is."""

    def __init__(
        self,
        writer: Writer,
        kernel: Kernel,
        place: Callable[[Array], str],
        number: Callable[[Register], str],
        size: Callable[[Size], str],
        vector_bytes: int,
        name: str,
    ) -> None:
        self.w, self.kernel, self.name = writer, kernel, name
        self.outer = KernelWriter(writer, kernel, place, number, size, cannot_fail, vector_bytes)
        self.inner = Writer(writer)
        self.table: list[tuple[str, str]] = []
        self.known: dict[str, str] = {}
        self.part = _Part(
            self.inner,
            kernel,
            lambda array: self.captured("ptr", place(array)),
            lambda register: self.captured(type_of(register.dtype), number(register)),
            lambda given: self.captured("i64", size(given)),
            cannot_fail,
            vector_bytes,
        )

    def captured(self, kind: str, text: str) -> str:
        """A value of the function around, inside of a part."""
        if not text.startswith("%"):
            return text
        if text not in self.known:
            slot = self.inner.at_entry(f"getelementptr i64, ptr %table, i64 {len(self.table)}")
            self.known[text] = self.inner.at_entry(f"load {kind}, ptr {slot}")
            self.table.append((kind, text))
        return self.known[text]

    def write(self, parts: int) -> str | None:
        """The function for a part; None, with nothing written, where parts would meet."""
        part, w, count = self.part, self.w, len(self.kernel.operands)
        axes = part.axes()
        length = axes[0].size.factor
        reduced = [k for k, _ in enumerate(self.kernel.writes) if axes[0].strides[count + k] == ZERO]
        for k in reduced:
            write = self.kernel.writes[k]
            is_one_number = all(axis.strides[count + k] == ZERO for axis in axes)
            if not (is_one_number and part.is_reduction(write) and write.base is None) or write.how in EXTREMES:
                return None
        unit = math.ceil(length / parts)
        if len(axes) == 1:
            unit = math.ceil(unit / ALIGNMENT) * ALIGNMENT
        parts = math.ceil(length / unit)
        if parts == 1:
            return None
        part.tables = {}
        tables: dict[int, str] = {}
        for k in reduced:
            dtype, pieces = element_parts(self.kernel.writes[k].view.dtype)
            tables[k] = w.alloca(f"[{parts * pieces} x {memory_type_of(dtype)}]", 64)
            part.tables[k] = self.captured("ptr", tables[k])
        inner = self.inner
        inner.declare("i64 @llvm.smin.i64(i64, i64)")
        part.first = inner.op(f"mul i64 %part, {unit}")
        after = inner.op(f"add i64 {part.first}, {unit}")
        part.end = inner.op(f"call i64 @llvm.smin.i64(i64 {after}, i64 {length})")
        part.write()
        inner.line("ret void")
        for k in sorted(part.in_memory):
            self.outer.start_in_memory(k, self.kernel.writes[k], axes)
        self.call(parts)
        for k, table in tables.items():
            self.combine_parts(k, table, parts)
        signature = f"internal void @{self.name}(ptr %table, i64 %part, i64 %worker)"
        return inner.function(signature, part.vector_bytes)

    def call(self, parts: int) -> None:
        w = self.w
        table = w.alloca(f"[{max(len(self.table), 1)} x i64]", 8)
        for k, (kind, text) in enumerate(self.table):
            slot = w.op(f"getelementptr i64, ptr {table}, i64 {k}")
            w.line(f"store {kind} {text}, ptr {slot}")
        w.declare("void @cg_parallel(ptr, ptr, i64, i64)")
        wake = int(work_of(self.kernel) >= WORK_TO_WAKE)
        w.line(f"call void @cg_parallel(ptr @{self.name}, ptr {table}, i64 {parts}, i64 {wake})")

    def combine_parts(self, k: int, table: str, parts: int) -> None:
        """The results of the parts become one, always in the same order."""
        w, write = self.w, self.kernel.writes[k]
        dtype, pieces = element_parts(write.view.dtype)
        outer = self.outer
        offset = outer.offset(write.view.offset)
        for piece in range(pieces):
            total = outer.elements.load(table, "0", write.view.dtype, piece, 1)
            for number in range(1, parts):
                other = outer.elements.load(table, str(number), write.view.dtype, piece, 1)
                total = combine(w, write.how, dtype, total, other, 1)
            outer.elements.store(outer.bases[len(self.kernel.operands) + k], offset, dtype, pieces, piece, total, 1)
