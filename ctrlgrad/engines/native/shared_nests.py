"""Nests that threads share (`Plan.shares`), as LLVM text: a function for each part, which the pool's threads call.

A function finds what it needs from around it in a table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

from ctrlgrad import threads
from ctrlgrad.engines.native.loops import counted_loop
from ctrlgrad.engines.native.nests import KernelWriter
from ctrlgrad.engines.native.reductions import combine, element_parts
from ctrlgrad.engines.native.stack_text import StackText
from ctrlgrad.engines.native.text import Writer, memory_type_of, type_of
from ctrlgrad.plan.axes import Axis
from ctrlgrad.plan.model import Array, Check, Kernel, Register, Share, Vectors, Write
from ctrlgrad.plan.reductions import EXTREMES
from ctrlgrad.plan.sharing import pitch, work_of, work_of_a_point
from ctrlgrad.plan.sizes import ZERO, Size, product

if TYPE_CHECKING:
    from ctrlgrad.engines.native.extremes import Extremes

# Parts for each thread where there are more: a thread that begins late or runs slowly takes fewer.
OF_A_THREAD = 8


class _Part(KernelWriter):
    """Writes the nest of a part: positions from `first` to `end` along the axis that is cut."""

    first, end, cut = "0", "0", -1
    # Results that each part has to itself; and where it puts the extremes at the positions among them.
    own: Sequence[int] = ()
    extremes: Mapping[int, str] = {}

    def ends(self, depth: int, axis: Axis) -> tuple[str, str]:
        return (self.first, self.end) if depth == self.cut else super().ends(depth, axis)

    def start_in_memory(self, k: int, write: Write, axes: Sequence[Axis]) -> None:
        """Begin a result of its own. What all parts add to was begun before them, since it begins everywhere."""
        if k in self.own:
            super().start_in_memory(k, write, axes)

    def finish(self, k: int, offsets: list[str], row: int | None = None) -> None:
        super().finish(k, offsets, row)
        if k in self.extremes:
            found, (_, at) = cast("Extremes", self.sums[k]), self.target(k, offsets)
            self.elements.store_parts(self.extremes[k], at, found.dtype, [found.extreme()], 1)


class SharedKernel:
    """Writes a kernel as a function for its parts, and a call of the pool."""

    def __init__(
        self,
        writer: Writer,
        kernel: Kernel,
        share: Share,
        place: Callable[[Array], str],
        number: Callable[[Register], str],
        size: Callable[[Size], str],
        fail: Callable[[str, Check, str], None],
        vectors: Vectors,
        name: str,
    ) -> None:
        self.w, self.kernel, self.share, self.name, self.size = writer, kernel, share, name, size
        self.outer = KernelWriter(writer, kernel, place, number, size, fail, vectors)
        self.inner = Writer(writer)
        self.table: list[tuple[str, str]] = []
        self.known: dict[str, str] = {}
        self.part = _Part(
            self.inner,
            kernel,
            lambda array: self.captured("ptr", place(array)),
            lambda register: self.captured(type_of(register.dtype), number(register)),
            lambda given: self.captured("i64", size(given)),
            self.failed,
            vectors,
        )
        # Two words of each part: the number of the check that does not hold, counted from 1, and what it has found.
        self.nbytes = 0
        self.failures = self.memory(16 * share.parts) if kernel.checks else ""

    def memory(self, nbytes: int) -> str:
        """Memory on the stack for this nest, which later steps use again: a function may have many nests."""
        at, self.nbytes = self.nbytes, self.nbytes + (nbytes + 63) // 64 * 64
        return self.w.passing(nbytes, at)

    def captured(self, kind: str, text: str) -> str:
        """A value of the function around, inside of a part."""
        if not text.startswith("%"):
            return text
        if text not in self.known:
            slot = self.inner.at_entry(f"getelementptr i64, ptr %table, i64 {len(self.table)}")
            self.known[text] = self.inner.at_entry(f"load {kind}, ptr {slot}")
            self.table.append((kind, text))
        return self.known[text]

    def failed(self, holds: str, check: Check, found: str) -> None:
        """End a part where a check does not hold."""
        inner = self.inner
        stop, on = inner.new_label("stop"), inner.new_label("on")
        inner.branch_if(holds, on, stop)
        inner.label(stop)
        behind = inner.op("mul i64 %part, 2")
        entry = inner.op(f"getelementptr i64, ptr {self.captured('ptr', self.failures)}, i64 {behind}")
        inner.line(f"store i64 {self.kernel.checks.index(check) + 1}, ptr {entry}")
        after = inner.op(f"getelementptr i64, ptr {entry}, i64 1")
        inner.line(f"store i64 {found if check.status == 'index' else '0'}, ptr {after}")
        inner.line("ret void")
        inner.label(on)

    def tell_failure(self, parts: str) -> None:
        """After all parts: end the run with the failure of the first part that has one."""
        w = self.w
        for part in self.outer.each("0", parts):
            entry = w.op(f"getelementptr i64, ptr {self.failures}, i64 {w.multiply(part, '2')}")
            number = w.op(f"load i64, ptr {entry}")
            found = w.op(f"load i64, ptr {w.op(f'getelementptr i64, ptr {entry}, i64 1')}")
            for k, check in enumerate(self.kernel.checks, 1):
                self.outer.fail(w.op(f"icmp ne i64 {number}, {k}"), check, found)

    def write(self) -> str:
        """The function for a part, after the call of all parts."""
        part, w, cut, count = self.part, self.w, self.share, len(self.kernel.operands)
        axes = part.axes()
        depth = next(depth for depth, axis in enumerate(axes) if axis.of == cut.axes)
        length, work = self.size(axes[depth].size), str(work_of(self.kernel))
        parts, unit = str(cut.parts), str(cut.unit)
        if cut.at_run_time:
            work = self.size(product(self.kernel.space) * Size(work_of_a_point(self.kernel)))
            parts, unit = parts_at_run_time(w, cut, length, work)
        own = [k for k, _ in enumerate(self.kernel.writes) if axes[depth].strides[count + k] == ZERO]
        inner = self.inner
        tables: dict[int, str] = {}
        extremes: dict[int, str] = {}

        def table_of(k: int, given: np.dtype) -> tuple[str, str]:
            """A table of a result of all parts, and where that of this part is."""
            dtype, pieces = element_parts(given)
            size, kind = pitch(self.kernel.writes[k].view.array.count.factor, given) * pieces, memory_type_of(dtype)
            table = self.memory(cut.parts * size * dtype.itemsize)
            behind, inside = inner.op(f"mul i64 %part, {size}"), self.captured("ptr", table)
            return table, inner.op(f"getelementptr {kind}, ptr {inside}, i64 {behind}")

        for k in own:
            write = self.kernel.writes[k]
            tables[k], part.bases[count + k] = table_of(k, write.view.dtype)
            if write.how in EXTREMES:
                extremes[k], place = table_of(k, self.kernel.expression.dtype_of(write.outputs[0]))
                part.extremes = {**part.extremes, k: place}
        inner.declare("i64 @llvm.smin.i64(i64, i64)")
        part.own, part.cut = own, depth
        parts, unit = (parts, unit) if own else joined_parts(w, parts, unit)
        inside = self.captured("i64", unit)
        part.first = inner.op(f"mul i64 %part, {inside}")
        after = inner.op(f"add i64 {part.first}, {inside}")
        part.end = inner.op(f"call i64 @llvm.smin.i64(i64 {after}, i64 {self.captured('i64', length)})")
        part.write()
        inner.line("ret void")
        for k in sorted(part.vectors.in_memory - set(own)):
            self.outer.start_in_memory(k, self.kernel.writes[k], axes)
        if self.kernel.checks:
            w.declare("void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
            w.line(f"call void @llvm.memset.p0.i64(ptr {self.failures}, i8 0, i64 {w.multiply(parts, '16')}, i1 false)")
        call_parts(w, self.name, self.table, parts, work)
        if self.kernel.checks:
            self.tell_failure(parts)
        for k, table in tables.items():
            if k in extremes:
                assert not cut.at_run_time
                self.choose_part(k, table, extremes[k], cut.parts)
            else:
                self.combine_parts(k, table, parts)
        signature = f"internal void @{self.name}(ptr %table, i64 %part, i64 %worker)"
        return inner.function(signature, part.vectors.nbytes)

    def choose_part(self, k: int, positions: str, extremes: str, parts: int) -> None:
        """The position of the extreme of the first part that has none beyond it."""
        w, write, outer = self.w, self.kernel.writes[k], self.outer
        rule = cast("Extremes", outer.gathered(k, ()))
        count, base = write.view.array.count.factor, outer.bases[len(self.kernel.operands) + k]
        for at in outer.each("0", str(count)):
            found = ["", ""]
            for number in range(parts):
                both = [(extremes, rule.dtype), (positions, write.view.dtype)]
                places = [w.add(at, str(number * pitch(count, dtype))) for _, dtype in both]
                values = [
                    outer.elements.load(table, place, dtype, 0, 1)
                    for place, (table, dtype) in zip(places, both, strict=True)
                ]
                if number:
                    takes = rule.is_beyond(values[0], found[0], 1)
                    values = [
                        rule.chosen(takes, value, before, dtype, 1)
                        for value, before, (_, dtype) in zip(values, found, both, strict=True)
                    ]
                found = values
            outer.elements.store_parts(base, at, write.view.dtype, [found[1]], 1)

    def combine_parts(self, k: int, table: str, parts: str) -> None:
        """The results of the parts become one, always in the same order."""
        w, view, outer = self.w, self.kernel.writes[k].view, self.outer
        dtype, pieces = element_parts(view.dtype)
        count, base = view.array.count.factor, outer.bases[len(self.kernel.operands) + k]
        width = max(outer.vectors.nbytes // dtype.itemsize, 1) if pieces == 1 and np.dtype(dtype).kind in "fiu" else 1
        whole, behind = count // width * width, str(pitch(count, view.dtype))

        def combined(number: str) -> None:
            """Part 0 is where the others are added."""
            start = w.multiply(number, behind)
            for first, end, lanes in (("0", str(whole), width), (str(whole), str(count), 1)):
                for at in outer.each(first, end, lanes):
                    totals = []
                    for piece in range(pieces):
                        total = outer.elements.load(table, w.add(at, start), view.dtype, piece, lanes)
                        if number != "0":
                            before = outer.elements.load(base, at, view.dtype, piece, lanes)
                            total = combine(w, self.kernel.writes[k].how, dtype, before, total, lanes)
                        totals.append(total)
                    outer.elements.store_parts(base, at, dtype, totals, lanes)

        combined("0")
        with counted_loop(w, "1", parts) as number:
            combined(number)


def parts_at_run_time(w: Writer, share: Share, length: str, work: str) -> tuple[str, str]:
    """Number of parts and positions of each, as `threads.parts_of` has them, for a length that only the run knows."""
    w.declare("i64 @llvm.ctlz.i64(i64, i1)")

    def least(a: str, b: str) -> str:
        w.declare("i64 @llvm.umin.i64(i64, i64)")
        return w.op(f"call i64 @llvm.umin.i64(i64 {a}, i64 {b})")

    def at_least_one(n: str) -> str:
        w.declare("i64 @llvm.umax.i64(i64, i64)")
        return w.op(f"call i64 @llvm.umax.i64(i64 {n}, i64 1)")

    worth = w.op(f"or i64 {w.op(f'udiv i64 {work}, {threads.WORK_OF_A_PART}')}, 1")
    power = w.op(f"sub i64 63, {w.op(f'call i64 @llvm.ctlz.i64(i64 {worth}, i1 false)')}")
    is_little = w.op(f"icmp ult i64 {work}, {threads.WORK_TO_SHARE}")
    parts = w.op(f"select i1 {is_little}, i64 1, i64 {least(w.op(f'shl i64 1, {power}'), str(share.parts))}")
    unit = str(share.unit)
    unit = w.multiply(shared_out(w, at_least_one(shared_out(w, length, parts)), unit), unit)
    return at_least_one(shared_out(w, length, unit)), unit


def shared_out(w: Writer, count: str, among: str) -> str:
    """The largest of so many equal shares."""
    more = w.op(f"sub i64 {among}, 1")
    return w.op(f"udiv i64 {w.op(f'add i64 {count}, {more}')}, {among}")


def joined_parts(w: Writer, parts: str, unit: str) -> tuple[str, str]:
    """Number of parts and positions of each, as many parts joined to one as leave some for each thread: a thread reads
    longer pieces then, and one thread all at once."""
    w.declare("i64 @cg_pool_threads()")
    count = w.op("call i64 @cg_pool_threads()")
    is_alone = w.op(f"icmp eq i64 {count}, 1")
    wanted = w.op(f"select i1 {is_alone}, i64 1, i64 {w.multiply(count, str(OF_A_THREAD))}")
    each = shared_out(w, parts, wanted)
    return shared_out(w, parts, each), w.multiply(each, unit)


def call_parts(w: Writer, name: str, captured: Sequence[tuple[str, str]], parts: int | str, work: str) -> None:
    """Have the pool call a function for each part, with a table of values of the function around."""
    table = w.alloca(f"[{max(len(captured), 1)} x i64]", 8)
    for k, (kind, text) in enumerate(captured):
        slot = w.op(f"getelementptr i64, ptr {table}, i64 {k}")
        w.line(f"store {kind} {text}, ptr {slot}")
    w.declare("void @cg_parallel(ptr, ptr, i64, i64)")
    w.line(f"call void @cg_parallel(ptr @{name}, ptr {table}, i64 {parts}, i64 {work})")


def call_ranges(
    plan: StackText,
    given: Sequence[str],
    scratch: str,
    length: str,
    unit: int,
    parts: int,
    work: int,
    write: Callable[[Writer, list[str], str, str, str], None],
) -> None:
    """Have the pool call a function for each `unit` of a length, which `write` writes.

    `write` takes the function's writer, the addresses that are `given`, the first element and the end of the part, and
    scratch memory: each thread but the caller's has its own. Of the plan's methods only those run inside that give
    known sizes.
    """
    inner, captured = Writer(plan.w), [("ptr", text) for text in (*given, scratch)]
    slots = [inner.op(f"getelementptr i64, ptr %table, i64 {k}") for k in range(len(captured))]
    *places, own = [inner.op(f"load ptr, ptr {slot}") for slot in slots]
    if scratch != "null":
        inner.declare("ptr @cg_pool_scratch(i64)")
        other, is_caller = inner.op("call ptr @cg_pool_scratch(i64 %worker)"), inner.op("icmp eq i64 %worker, 0")
        own = inner.op(f"select i1 {is_caller}, ptr {own}, ptr {other}")
    inner.declare("i64 @llvm.smin.i64(i64, i64)")
    first = inner.op(f"mul i64 %part, {unit}")
    end = inner.op(f"call i64 @llvm.smin.i64(i64 {inner.op(f'add i64 {first}, {unit}')}, i64 {length})")
    write(inner, places, first, end, own)
    inner.line("ret void")
    name = f"part{len(plan.parts)}"
    plan.parts.append(inner.function(f"internal void @{name}(ptr %table, i64 %part, i64 %worker)", plan.vector_bytes))
    call_parts(plan.w, name, captured, parts, str(work))
