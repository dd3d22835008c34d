"""Kernels as loop nests: explicit vectors along the innermost axis, and part of one for what is left over; one element
at a time where only the run knows how many that are.

Reductions along the innermost axes stay in registers until these loops are over. The remaining reductions add to
memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

import numpy as np

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.engines.native.elements import Elements, First
from ctrlgrad.engines.native.expressions import emit_expression
from ctrlgrad.engines.native.loops import counted_loop
from ctrlgrad.engines.native.reductions import Sums, advance, combine, element_parts
from ctrlgrad.engines.native.sum_blocks import held, held_in_registers, in_blocks
from ctrlgrad.engines.native.text import Writer, constant, is_number, memory_type_of
from ctrlgrad.forks import once
from ctrlgrad.plan.axes import Axis, addresses_stand_still, axes_of, reads_backwards, uniform_outputs, views_of
from ctrlgrad.plan.expression import Instruction
from ctrlgrad.plan.model import Array, Check, Kernel, Register, Vectors, Write
from ctrlgrad.plan.reductions import EXTREMES, neutral_of
from ctrlgrad.plan.sizes import ONE, ZERO, Size

if TYPE_CHECKING:
    from ctrlgrad.engines.native.extremes import Extremes
    from ctrlgrad.engines.native.nest import Known
    from ctrlgrad.engines.native.sections import Sections
from ctrlgrad.engines.native.nest import Nest
from ctrlgrad.engines.native.text import type_of
from ctrlgrad.records import record

# Vectors whose lanes lie apart: by indices of their own, or by a stride; and what is checked of each lane.
#
# What is computed is computed as vectors. Elements are read and written lane by lane, in order, so that of several
# writes to one place the last one stays, and sums come in the order of the elements.


_INDEX = np.dtype(np.int64)

Part = tuple[str, bool]
"""A part of a position: its name, and whether it is a vector."""


@record
class Lanes:
    """The lanes of a vector along an axis, from `further` elements on, of which only the first may be meant."""

    axis: Axis
    width: int
    further: int
    first: First | None

    @property
    def meant(self) -> range:
        # A mask is for lanes that lie side by side: see `KernelWriter.takes_part`.
        assert not isinstance(self.first, str)
        return range(self.width if self.first is None else self.first)


def read_lanes(
    nest: Nest, lanes: Lanes, place: int, at: str, indices: Sequence[Part], strides: Sequence[Size], part: int = 0
) -> str:
    """A vector of what is read from the view of this number, gathered by indices; lanes that are not meant are 0. Of
    complex numbers a part."""
    w, width = nest.w, lanes.width
    dtype, _ = element_parts(nest.views[place].dtype)
    kind, one, value = memory_type_of(dtype, width), memory_type_of(dtype), "zeroinitializer"
    for lane, address in enumerate(_addresses(nest, lanes, place, at, indices, strides)):
        address = _part(nest, dtype, address, part)
        loaded = w.op(f"load {one}, ptr {address}, align {dtype.itemsize}")
        value = w.op(f"insertelement {kind} {value}, {one} {loaded}, i64 {lane}")
    return w.op(f"trunc {kind} {value} to {type_of(dtype, width)}") if dtype_kind(dtype) == "b" else value


def write_lanes(nest: Nest, lanes: Lanes, k: int, at: str, indices: Sequence[Part], values: Sequence[str]) -> None:
    """Write a vector, or add it to what is there, by the kernel's write of this number."""
    w, write = nest.w, nest.kernel.writes[k]
    (dtype, parts), is_bool = element_parts(write.view.dtype), dtype_kind(write.view.dtype) == "b"
    kind, in_memory, vector = type_of(dtype), memory_type_of(dtype), type_of(dtype, lanes.width)
    place = len(nest.kernel.operands) + k
    for lane, address in enumerate(_addresses(nest, lanes, place, at, indices, write.scattered)):
        every = [w.op(f"extractelement {vector} {value}, i64 {lane}") for value in values]
        for part, given in enumerate([every] if parts == 1 else [[value] for value in every]):
            value, own = given[0], _part(nest, dtype, address, part)
            if write.how != "store":
                before = w.op(f"load {in_memory}, ptr {own}, align {dtype.itemsize}")
                before = w.op(f"trunc {in_memory} {before} to {kind}") if is_bool else before
                value = advance(w, write.how, dtype, before, given, 1)
            value = w.op(f"zext {kind} {value} to {in_memory}") if is_bool else value
            w.line(f"store {in_memory} {value}, ptr {own}, align {dtype.itemsize}")


def check_lanes(
    writer: Writer,
    checks: Sequence[Check],
    outputs: Sequence[str],
    width: int,
    first: First | None,
    fail: Callable[[str, Check, str], None],
) -> None:
    """End the run where one of the lanes that are meant does not hold what is checked: the first such lane is told."""
    w, kind, bits = writer, type_of(np.dtype(bool), width), f"i{width}"
    held = [outputs[check.output] for check in checks]
    if isinstance(first, int):
        beyond = ", ".join(f"i1 {constant(lane >= first, np.dtype(bool))}" for lane in range(width))
        held = [w.op(f"or {kind} {one}, <{beyond}>") for one in held]
    holds = held[0]
    for one in held[1:]:
        holds = w.op(f"and {kind} {holds}, {one}")
    with w.when(w.op(f"icmp ne {bits} {w.op(f'bitcast {kind} {holds} to {bits}')}, -1")):
        for check, one in zip(checks, held, strict=True):
            bad = w.op(f"xor {bits} {w.op(f'bitcast {kind} {one} to {bits}')}, -1")
            found = "0"
            if check.status == "index":
                w.declare(f"{bits} @llvm.cttz.{bits}({bits}, i1 immarg)")
                lane = w.op(f"call {bits} @llvm.cttz.{bits}({bits} {bad}, i1 false)")
                # Where all lanes hold it, this is the width: any lane will do.
                lane = w.op(f"and {bits} {lane}, {width - 1}")
                found = w.op(f"extractelement {type_of(_INDEX, width)} {outputs[check.found]}, {bits} {lane}")
            fail(w.op(f"icmp eq {bits} {bad}, 0"), check, found)


def _addresses(
    nest: Nest, lanes: Lanes, place: int, at: str, indices: Sequence[Part], strides: Sequence[Size]
) -> Iterator[str]:
    """Yield the address of each selected lane, emitted on demand; of a complex number that of its first part."""
    w, width = nest.w, lanes.width
    dtype, parts = element_parts(nest.views[place].dtype)
    one = memory_type_of(dtype) if parts == 1 else f"[{parts} x {memory_type_of(dtype)}]"
    offsets = ""
    for (text, is_vector), stride in zip(indices, strides, strict=True):
        if is_vector:
            moved = _times(nest, text, stride, width)
            offsets = w.op(f"add {type_of(_INDEX, width)} {offsets}, {moved}") if offsets else moved
        else:
            at = w.add(at, nest.times(text, stride))
    step = nest.size(lanes.axis.strides[place])
    start = w.op(f"getelementptr {one}, ptr {nest.base(place)}, i64 {at}")
    for lane in lanes.meant:
        beyond = w.multiply(str(lanes.further + lane), step)
        if offsets:
            beyond = w.add(beyond, w.op(f"extractelement {type_of(_INDEX, width)} {offsets}, i64 {lane}"))
        yield w.op(f"getelementptr {one}, ptr {start}, i64 {beyond}")


def _part(nest: Nest, dtype: np.dtype, address: str, part: int) -> str:
    """The address of a part of an element."""
    return address if part == 0 else nest.w.op(f"getelementptr {memory_type_of(dtype)}, ptr {address}, i64 {part}")


def _times(nest: Nest, vector: str, stride: Size, width: int) -> str:
    if stride == ONE:
        return vector
    number = nest.size(stride)
    number = f"splat (i64 {number})" if is_number(number) else nest.w.in_all_lanes(number, "i64", width)
    return nest.w.op(f"mul {type_of(_INDEX, width)} {vector}, {number}")


INDEX = np.dtype(np.int64)


def cannot_fail(holds: str, check: Check, found: str) -> None:
    """The `fail` of a kernel without checks, whose text stands in a function of its own."""
    raise AssertionError("a kernel with checks is written where it stands")


class KernelWriter:
    """Writes one kernel into a function. `place` gives the address of an array, `number` a register, `size` a size."""

    def __init__(
        self,
        writer: Writer,
        kernel: Kernel,
        place: Callable[[Array], str],
        number: Callable[[Register], str],
        size: Callable[[Size], str],
        fail: Callable[[str, Check, str], None],
        vectors: Vectors,
    ) -> None:
        self.w, self.kernel, self.vectors = writer, kernel, vectors
        self.place, self.number, self.size, self.fail = place, number, size, fail
        # The name of a value of a type in the function that is being written.
        self.captured: Callable[[str, str], str] = lambda text, kind: text
        self.uniform, self.views = uniform_outputs(kernel), views_of(kernel)
        # The view through which each operand is read now: its own, or that of its columns.
        self.through = [*range(len(kernel.operands))]
        self.bases = [place(view.array) for view in self.views]
        self.indices: dict[int, str] = {}
        # Variables of the reductions that are in registers.
        self.sums: dict[int, Sums | Extremes] = {}
        self.elements = Elements(writer)

    def each(self, start: str, end: str, step: int = 1) -> Iterator[str]:
        """The numbers start, start + step, ... below end: one after the other where they are few, else in a loop."""
        if start == end:
            return
        if is_number(start) and is_number(end) and (self.vectors.style == "points" or int(end) <= int(start) + step):
            yield from map(str, range(int(start), int(end), step))
            return
        with counted_loop(self.w, start, end, step) as i:
            yield i

    # The shape of the nest.

    def axes(self) -> list[Axis]:
        return axes_of(self.kernel, self.views)

    def write(self) -> None:
        axes = self.axes()
        for k in sorted(self.vectors.in_memory):
            self.start_in_memory(k, self.kernel.writes[k], axes)
        offsets = [self.offset(view.offset) for view in self.views]
        self.nest(axes, 0, offsets)

    def offset(self, terms: Sequence[Size]) -> str:
        total = "0"
        for term in terms:
            total = self.w.add(total, self.size(term))
        return total

    def times(self, i: str, stride: Size) -> str:
        return i if stride == ONE else self.w.multiply(i, self.size(stride))

    def start_in_memory(self, k: int, write: Write, axes: Sequence[Axis]) -> None:
        """A reduction that adds to memory begins with its neutral number everywhere."""
        if write.base is not None:
            return
        array = write.view.array
        dtype, parts = element_parts(array.dtype)
        neutral = constant(neutral_of(write.how, dtype), dtype)
        if dtype_kind(dtype) == "b":
            neutral = "1" if neutral == "true" else "0"
        total = self.size(array.count * Size(parts))
        kind = memory_type_of(dtype)
        for i in self.each("0", total):
            address = self.w.op(f"getelementptr {kind}, ptr {self.bases[len(self.kernel.operands) + k]}, i64 {i}")
            self.w.line(f"store {kind} {neutral}, ptr {address}")

    # Loops.

    def nest(self, axes: Sequence[Axis], depth: int, offsets: list[str]) -> None:
        starting = [k for k, d in self.vectors.registers.items() if d == depth]
        for k in starting:
            self.begin(k, axes)
        if depth == len(axes):
            with self.elements.turn():
                self.point(offsets, 1)
        elif depth == len(axes) - 1:
            axis = axes[depth]
            self.innermost(axis, [offsets], *self.ends(depth, axis))
        else:
            start, end = self.ends(depth, axes[depth])
            if depth == len(axes) - 2 and self.vectors.rows:
                # Kernels over vectors are written without knowing how rows are.
                from ctrlgrad.engines.native.short_rows import take_several

                start = take_several(self, axes, offsets, start, end)
            for first, last in in_blocks(self.w, held(self, axes, depth, offsets), start, end, size=axes[depth].size):
                for i in self.each(first, last):
                    self.nest(axes, depth + 1, self.moved(axes[depth], offsets, i))
        for k in starting:
            self.finish(k, offsets)

    def moved(self, axis: Axis, offsets: list[str], i: str) -> list[str]:
        """The offsets at a position along an axis, which is that axis's index from now on."""
        if axis.index is not None:
            self.indices[axis.index] = i
        steps = {stride: self.times(i, stride) for stride in dict.fromkeys(axis.strides)}
        pairs = list(zip(offsets, axis.strides, strict=True))
        found = {(o, stride): self.w.add(o, steps[stride]) for o, stride in dict.fromkeys(pairs)}
        return [found[pair] for pair in pairs]

    def have_addresses(self, axis: Axis | None) -> bool:
        """Return true if the lanes of a vector along an axis gather, scatter or are checked by indices of their own."""
        return axis is not None and not addresses_stand_still(self.kernel, axis, self.uniform)

    def ends(self, depth: int, axis: Axis) -> tuple[str, str]:
        """Bounds of the loop over an axis."""
        return "0", self.size(axis.size)

    def innermost(self, axis: Axis, rows: Sequence[list[str]], start: str, total: str) -> None:
        """Along the innermost axis, for one row or several, whose offsets are given."""
        width = self.vectors.width
        if width > 1:
            unroll = self.vectors.unroll if len(rows) == 1 else 1
            if unroll > 1:
                start = self.strip(axis, rows, start, total, width, unroll)
            start = self.strip(axis, rows, start, total, width, 1)
            if not self.has_rest(axis, width):
                return
            if self.takes_part(start, total):
                self.part_of_vector(axis, rows, start, total, width)
                return
        for begin, last in in_blocks(self.w, held_in_registers(self.sums.values()), start, total, size=axis.size):
            for i in self.each(begin, last):
                with self.elements.turn():
                    for row, offsets in enumerate(rows):
                        self.point(self.moved(axis, offsets, i), 1, row, axis)

    def has_rest(self, axis: Axis, width: int) -> bool:
        """Return true if whole vectors may leave a remainder along an axis."""
        return not (axis.size.is_known and axis.size.factor % width == 0)

    def strip(self, axis: Axis, rows: Sequence[list[str]], start: str, total: str, width: int, unroll: int) -> str:
        """Vectors from start on, as long as whole ones are left; where they end."""
        end = self.whole(start, total, width * unroll)
        step = width * unroll
        for first, last in in_blocks(self.w, held_in_registers(self.sums.values()), start, end, step, axis.size):
            for i in self.each(first, last, step):
                with self.elements.turn():
                    places = [self.moved(axis, offsets, i) for offsets in rows]
                    for k in range(unroll):
                        for row, offsets in enumerate(places):
                            self.point(offsets, width, k + row, axis, k * width)
        return end

    def takes_part(self, start: str, total: str) -> bool:
        """Return true if the remainder after whole vectors is computed as part of one vector."""
        return (is_number(start) and is_number(total)) or self.vectors.masks

    def part_of_vector(self, axis: Axis, rows: Sequence[list[str]], start: str, total: str, width: int) -> None:
        """Emit the remainder after whole vectors as one vector, whose first lanes are read and written."""
        w, is_known = self.w, is_number(start) and is_number(total)
        with nullcontext() if is_known else w.when(w.op(f"icmp slt i64 {start}, {total}")), self.elements.turn():
            left = int(total) - int(start) if is_known else w.op(f"sub i64 {total}, {start}")
            first = self.elements.first(width, left)
            for row, offsets in enumerate(rows):
                self.point(self.moved(axis, offsets, start), width, row, axis, first=first)

    def whole(self, start: str, total: str, step: int) -> str:
        """End of the last whole step from start on."""
        w = self.w
        if is_number(start) and is_number(total):
            length = str(int(total) - int(start))
        else:
            length = total if start == "0" else w.op(f"sub i64 {total}, {start}")
        if is_number(length):
            return str(int(start) + int(length) // step * step)
        return w.op(f"sub i64 {total}, {w.op(f'urem i64 {length}, {step}')}")

    # One point, or a vector of them.

    def point(
        self,
        offsets: list[str],
        width: int,
        lane: int = 0,
        axis: Axis | None = None,
        further: int = 0,
        known: Known | None = None,
        first: First | None = None,
    ) -> None:
        """At the offsets, or a number of elements further along the axis; of a vector all lanes, or the first ones."""
        kernel = self.kernel
        outputs = self.evaluated(offsets, width, axis, further, known, first)
        if width > 1 and kernel.checks and self.have_addresses(axis):
            check_lanes(self.w, kernel.checks, outputs, width, first, self.fail)
        else:
            for check in kernel.checks:
                self.fail(outputs[check.output], check, outputs[check.found])

        def write(k: int) -> None:
            self.write_to_memory(k, outputs, offsets, width, axis, further, first)

        in_memory = []
        for k, each in enumerate(kernel.writes):
            if k in self.vectors.registers:
                self.sums[k].add([outputs[o] for o in each.outputs], width, lane, first)
            else:
                in_memory.append(k)
        if self.vectors.style == "sections":
            self.sections.write(in_memory, write)
        else:
            for k in in_memory:
                write(k)

    def write_to_memory(
        self,
        k: int,
        outputs: Sequence[str],
        offsets: list[str],
        width: int,
        axis: Axis | None,
        further: int,
        first: First | None,
    ) -> None:
        """Write, or add to memory, what a point's outputs have for one of the kernel's writes."""
        w, write, place = self.w, self.kernel.writes[k], len(self.kernel.operands) + k
        base, at, first = self.base(place), self.captured(offsets[place], "i64"), self.lanes(first, width)
        dtype, parts = element_parts(write.view.dtype)
        values = [outputs[output] for output in write.outputs]
        differ = bool(write.indices) and self.have_addresses(axis)
        if width > 1 and axis is not None and (differ or axis.strides[place] != ONE):
            indices = [(outputs[output], differ) for output in write.indices]
            write_lanes(self, Lanes(axis, width, further, first), k, at, indices, values)
            return
        for output, stride in zip(write.indices, write.scattered, strict=True):
            at = w.add(at, self.times(outputs[output], stride))
        if write.how != "store":
            each = [values] if write.how == "dot" else [[value] for value in values]
            before = [
                self.elements.load(base, at, write.view.dtype, part, width, further, first) for part in range(parts)
            ]
            values = [advance(w, write.how, dtype, *pair, width) for pair in zip(before, each, strict=True)]
        self.elements.store_parts(base, at, dtype, values[:parts], width, further, first)

    def base(self, place: int) -> str:
        """Address of the array of a view."""
        return self.captured(self.bases[place], "ptr")

    def lanes(self, first: First | None, width: int) -> First | None:
        """The selection of a vector's first lanes, in the function that is being written."""
        return self.captured(first, f"<{width} x i1>") if isinstance(first, str) else first

    @once
    def sections(self) -> Sections:
        """Functions of a long kernel, with their table."""
        from ctrlgrad.engines.native.sections import Sections  # most plans have no long kernel

        return Sections(self)

    def evaluated(
        self,
        offsets: list[str],
        width: int,
        axis: Axis | None = None,
        further: int = 0,
        known: Known | None = None,
        first: First | None = None,
    ) -> Sequence[str]:
        """The outputs of the expression at a point, or of a vector of them.

        `known` gives values of some operands. All other operands of a vector are contiguous or constant along the axis.
        """
        kernel = self.kernel

        def leaf(instruction: Instruction, arguments: list[Part]) -> tuple[str, bool]:
            w = self.w
            if instruction.op == "scalar":
                return self.number(kernel.numbers[instruction.value]), False
            if instruction.op == "index":
                at = self.captured(self.indices.get(instruction.value, "0"), "i64")
                if width == 1 or axis is None or axis.index != instruction.value:
                    return at, False
                lanes = ", ".join(f"i64 {further + n}" for n in range(width))
                return w.op(f"add <{width} x i64> {w.in_all_lanes(at, 'i64', width)}, <{lanes}>"), True
            place, part = instruction.value
            found = known and known(place)
            if found:
                return found
            operand, place = kernel.operands[place], self.through[place]
            moved = width > 1 and (axis is None or axis.strides[place] == ONE)
            at, meant = self.captured(offsets[place], "i64"), self.lanes(first, width)
            differ = any(is_vector for _, is_vector in arguments)
            backwards = axis is not None and meant is None and not differ and reads_backwards(kernel, axis, place)
            if width > 1 and axis is not None and (differ or axis.strides[place] not in (ZERO, ONE)) and not backwards:
                apart = Lanes(axis, width, further, meant)
                return read_lanes(self, apart, place, at, arguments, operand.gathered, part), True
            for (argument, _), stride in zip(arguments, operand.gathered, strict=True):
                at = w.add(at, self.times(argument, stride))
            if backwards and width > 1:
                return self.elements.load_backwards(self.base(place), at, operand.view.dtype, width, further), True
            if not moved:
                return self.elements.load(self.base(place), at, operand.view.dtype, part, 1), False
            return self.elements.load(self.base(place), at, operand.view.dtype, part, width, further, meant), True

        uniform = () if width > 1 and self.have_addresses(axis) else self.uniform
        if self.vectors.style == "sections":
            return self.sections.point(leaf, width, uniform)
        return emit_expression(self.w, kernel.expression, leaf, width, uniform)

    # Reductions in registers.

    def begin(self, k: int, axes: Sequence[Axis], rows: int = 1) -> None:
        """Sums for each vector of a turn, or for each row of several."""
        width, forms = self.vectors.width, []
        if width == 1 or not self.takes_part(*self.ends(len(axes) - 1, axes[-1])):
            forms += [(1, row) for row in range(rows)]
        if width > 1:
            lanes = rows if rows > 1 else self.vectors.unroll
            forms += [(width, lane) for lane in range(lanes)]
        self.sums[k] = self.gathered(k, forms)

    def gathered(self, k: int, forms: Iterable[tuple[int, int]]) -> Sums | Extremes:
        """Accumulator of a reduction, with variables of these forms."""
        write = self.kernel.writes[k]
        if write.how in EXTREMES:
            from ctrlgrad.engines.native.extremes import Extremes

            return Extremes(self.w, EXTREMES[write.how], self.kernel.expression.dtype_of(write.outputs[0]), forms)
        return Sums(self.w, write, forms)

    def finish(self, k: int, offsets: list[str], row: int | None = None) -> None:
        """Write what a reduction has come to, all of it or that of one row."""
        write = self.kernel.writes[k]
        dtype, parts = element_parts(write.view.dtype)
        base, at = self.target(k, offsets)
        totals = [self.sums[k].total(part, row) for part in range(parts)]
        if k in self.vectors.in_memory:
            before = [self.elements.load(base, at, write.view.dtype, part, 1) for part in range(parts)]
            totals = [combine(self.w, write.how, dtype, *pair, 1) for pair in zip(before, totals, strict=True)]
        self.elements.store_parts(base, at, dtype, totals, 1)

    def target(self, k: int, offsets: list[str]) -> tuple[str, str]:
        """Target of a reduction: base address and offset."""
        place = len(self.kernel.operands) + k
        return self.bases[place], offsets[place]
