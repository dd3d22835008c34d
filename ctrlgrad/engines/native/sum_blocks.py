"""Sums over many elements, block by block: a total that has grown large does not swallow what is added to it.

A float32 of 2**24 stays as it is when 1 is added. So a loop that adds to a sum runs in blocks of `BLOCK` turns. Behind
each block but the last, what the sum has come to is added to a second one, in float64, and the sum begins anew; behind
the last block both are added up. Rounding errors grow with the length of a block, not with the length of the loop
(N. Higham, "The accuracy of floating point summation", 1993). A loop of no more than a block has no code for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.engines.native.expressions import convert
from ctrlgrad.engines.native.loops import counted_loop
from ctrlgrad.engines.native.reductions import Sums, element_parts
from ctrlgrad.engines.native.text import Writer, is_number, memory_type_of, type_of
from ctrlgrad.plan.model import Write
from ctrlgrad.plan.sizes import ZERO, Size, product

if TYPE_CHECKING:
    from ctrlgrad.engines.native.nest import Nest
    from ctrlgrad.plan.axes import Axis

# Turns of a loop that add to a sum before it begins anew.
BLOCK = 256
_WIDE = np.dtype(np.float64)


class Held(Protocol):
    """A sum in registers or in memory, with the second one beside it."""

    def begin(self) -> None: ...
    def put_aside(self) -> None: ...
    def take_back(self) -> None: ...


def is_rounded(write: Write, dtype: np.dtype) -> bool:
    """Return if a write adds up floats, of an element's real dtype."""
    return write.how in ("sum", "dot") and dtype_kind(dtype) == "f" and dtype.itemsize >= 4


def in_blocks(
    w: Writer, held: Sequence[Held], start: str, end: str, step: int = 1, size: Size | None = None
) -> Iterator[tuple[str, str]]:
    """The stretches of a loop from start to end, by `step`; `size`, where given, is the most that it goes through."""
    reach = BLOCK * step
    is_short = size is not None and size.is_known and size.factor <= reach
    if is_number(start) and is_number(end):
        is_short = int(end) - int(start) <= reach
    if is_short or not held:
        yield start, end
        return
    for each in held:
        each.begin()
    w.declare("i64 @llvm.smin.i64(i64, i64)")
    with counted_loop(w, start, end, reach) as first:
        last = w.op(f"call i64 @llvm.smin.i64(i64 {w.op(f'add i64 {first}, {reach}')}, i64 {end})")
        yield first, last
        with w.when(w.op(f"icmp slt i64 {last}, {end}")):
            for each in held:
                each.put_aside()
    length = end if start == "0" else w.op(f"sub i64 {end}, {start}")
    with w.when(w.op(f"icmp sgt i64 {length}, {reach}")):
        for each in held:
            each.take_back()


class InRegister:
    """A variable of vectors or numbers that a loop adds to."""

    def __init__(self, w: Writer, variable: str, dtype: np.dtype, width: int) -> None:
        self.w, self.variable, self.dtype, self.width = w, variable, dtype, width
        self.wide = w.alloca(type_of(_WIDE, width))

    def begin(self) -> None:
        self.w.line(f"store {type_of(_WIDE, self.width)} zeroinitializer, ptr {self.wide}")

    def put_aside(self) -> None:
        self.w.line(f"store {type_of(_WIDE, self.width)} {self._both()}, ptr {self.wide}")
        self.w.line(f"store {type_of(self.dtype, self.width)} zeroinitializer, ptr {self.variable}")

    def take_back(self) -> None:
        value = convert(self.w, self._both(), _WIDE, self.dtype, self.width)
        self.w.line(f"store {type_of(self.dtype, self.width)} {value}, ptr {self.variable}")

    def _both(self) -> str:
        w, wide = self.w, type_of(_WIDE, self.width)
        value = w.op(f"load {type_of(self.dtype, self.width)}, ptr {self.variable}")
        value = convert(w, value, self.dtype, _WIDE, self.width)
        return w.op(f"fadd {wide} {w.op(f'load {wide}, ptr {self.wide}')}, {value}")


class InMemory:
    """Elements in memory that a loop adds to. The second sums lie in memory that the first long loop asks for.

    Without memory for them the loop goes on as one block.
    """

    def __init__(
        self, w: Writer, dtype: np.dtype, count: Callable[[], str], addresses: Callable[[], Iterator[tuple[str, str]]]
    ) -> None:
        """`count` gives the number of elements, `addresses` a loop over them: a number below that and an address."""
        self.w, self.dtype, self.count, self.addresses = w, dtype, count, addresses
        self.wide = w.alloca("ptr")
        w.declare("ptr @calloc(i64, i64)")
        w.declare("void @free(ptr)")

    def begin(self) -> None:
        self.w.line(f"store ptr null, ptr {self.wide}")

    def put_aside(self) -> None:
        w = self.w
        with w.when(w.op(f"icmp eq ptr {w.op(f'load ptr, ptr {self.wide}')}, null")):
            made = w.op(f"call ptr @calloc(i64 {self.count()}, i64 {_WIDE.itemsize})")
            w.line(f"store ptr {made}, ptr {self.wide}")
        for address, second, total in self._totals():
            w.line(f"store double {total}, ptr {second}")
            w.line(f"store {type_of(self.dtype)} 0.0, ptr {address}")

    def take_back(self) -> None:
        w = self.w
        for address, _, total in self._totals():
            w.line(f"store {type_of(self.dtype)} {convert(w, total, _WIDE, self.dtype, 1)}, ptr {address}")
        w.line(f"call void @free(ptr {w.op(f'load ptr, ptr {self.wide}')})")

    def _totals(self) -> Iterator[tuple[str, str, str]]:
        """For each element its address, that of its second sum, and what both come to."""
        w = self.w
        base = w.op(f"load ptr, ptr {self.wide}")
        with w.when(w.op(f"icmp ne ptr {base}, null")):
            for number, address in self.addresses():
                second = w.op(f"getelementptr double, ptr {base}, i64 {number}")
                value = convert(w, w.op(f"load {type_of(self.dtype)}, ptr {address}"), self.dtype, _WIDE, 1)
                yield address, second, w.op(f"fadd double {w.op(f'load double, ptr {second}')}, {value}")


def held_in_registers(gathered: Iterable[object]) -> list[InRegister]:
    """The variables of the sums among reductions that are gathered in registers."""
    return [
        InRegister(sums.w, name, sums.dtype, width)
        for sums in gathered
        if isinstance(sums, Sums) and is_rounded(sums.write, sums.dtype)
        for (width, _), names in sums.variables.items()
        for name in names
    ]


def held(nest: Nest, axes: Sequence[Axis], depth: int, offsets: list[str]) -> list[Held]:
    """The sums to which a loop over the axis at a depth adds, in registers and in memory."""
    registers = nest.vectors.registers
    found: list[Held] = [*held_in_registers(nest.sums[k] for k, begun in registers.items() if begun <= depth)]
    for k in sorted(nest.vectors.in_memory):
        write, place = nest.kernel.writes[k], len(nest.kernel.operands) + k
        dtype, parts = element_parts(write.view.dtype)
        stands = axes[depth].strides[place] == ZERO and depth < registers.get(k, len(axes))
        if stands and is_rounded(write, dtype):
            kept = [n for n in range(depth + 1, len(axes)) if axes[n].strides[place] != ZERO]
            found.append(_held_in_memory(nest, place, axes, kept, offsets[place], dtype, parts))
    return found


def _held_in_memory(
    nest: Nest, place: int, axes: Sequence[Axis], kept: Sequence[int], offset: str, dtype: np.dtype, parts: int
) -> InMemory:
    """The elements of a sum along the axes that are not summed over, as far as the nest goes along them."""
    w, count = nest.w, product([axes[n].size for n in kept]) * Size(parts)

    def along(kept: Sequence[int], number: str, at: str) -> Iterator[tuple[str, str]]:
        if not kept:
            for part in range(parts):
                where = w.add(w.multiply(at, str(parts)), str(part))
                address = w.op(f"getelementptr {memory_type_of(dtype)}, ptr {nest.bases[place]}, i64 {where}")
                yield w.add(w.multiply(number, str(parts)), str(part)), address
            return
        axis = axes[kept[0]]
        for i in nest.each(*nest.ends(kept[0], axis)):
            inside = w.add(w.multiply(number, nest.size(axis.size)), i)
            yield from along(kept[1:], inside, w.add(at, nest.times(i, axis.strides[place])))

    return InMemory(w, dtype, lambda: nest.size(count), lambda: along(kept, "0", offset))
