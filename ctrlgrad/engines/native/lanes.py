"""Vectors whose lanes lie apart: by indices of their own, or by a stride; and what is checked of each lane.

What is computed is computed as vectors. Elements are read and written lane by lane, in order, so that of several
writes to one place the last one stays, and sums come in the order of the elements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.engines.native.axes import Axis
from ctrlgrad.engines.native.elements import First
from ctrlgrad.engines.native.nest import Nest
from ctrlgrad.engines.native.reductions import advance, element_parts
from ctrlgrad.engines.native.text import Writer, constant, is_number, memory_type_of, type_of
from ctrlgrad.plan.model import Check
from ctrlgrad.plan.sizes import ONE, Size
from ctrlgrad.records import record

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
