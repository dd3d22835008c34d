"""The axes of a kernel's nest of loops: those of size 1 vanish, and those that lie side by side become one."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ctrlgrad.dtypes import REAL_OF, dtype_kind
from ctrlgrad.plan.model import Kernel, View
from ctrlgrad.plan.sizes import ONE, ZERO, Size
from ctrlgrad.records import record

BACK = Size(-1)


@record
class Axis:
    """An axis of the nest: how long it is, and the strides of operands and writes along it, in elements."""

    size: Size
    strides: tuple[Size, ...]
    # The axis of the kernel's space whose index this is; None where several became one.
    index: int | None
    # Axes of the kernel's space that it is made of.
    of: tuple[int, ...]


def axes_of(kernel: Kernel, views: Sequence[View]) -> list[Axis]:
    """The axes, from the outermost one, with the strides of these views over the kernel's space."""
    uses_index = {i.value for i in kernel.expression.instructions if i.op == "index"}
    merged: list[Axis] = []
    for number, size in enumerate(kernel.space):
        if size == ONE and number not in uses_index:
            continue
        index = number if number in uses_index else None
        axis = Axis(size, tuple(view.strides[number] for view in views), index, (number,))
        last = merged[-1] if merged else None
        if (
            last is not None
            and last.index is None
            and axis.index is None
            and all(outer == axis.size * inner for outer, inner in zip(last.strides, axis.strides, strict=True))
        ):
            merged[-1] = Axis(last.size * axis.size, axis.strides, None, (*last.of, number))
        else:
            merged.append(axis)
    return merged


def views_of(kernel: Kernel) -> list[View]:
    """The views of a kernel's operands and writes, then those of columns."""
    views = [operand.view for operand in kernel.operands] + [write.view for write in kernel.writes]
    return views + [operand.columns for operand in kernel.operands if operand.columns is not None]


def uniform_outputs(kernel: Kernel) -> set[int]:
    """Outputs that are one number for all lanes of a vector: what is checked, and where something goes."""
    found = {output for check in kernel.checks for output in (check.output, check.found)}
    return found | {output for write in kernel.writes for output in write.indices}


def addresses_stand_still(kernel: Kernel, axis: Axis, uniform: Collection[int]) -> bool:
    """Return true if the indices of gathers, and the `uniform` outputs, are constant along an axis."""
    varies: list[bool] = []
    for instruction in kernel.expression.instructions:
        found = any(varies[a] for a in instruction.args)
        if instruction.op == "load":
            if found:
                return False
            found = axis.strides[instruction.value[0]] != ZERO
        elif instruction.op == "index":
            found = instruction.value == axis.index
        varies.append(found)
    return not any(varies[kernel.expression.outputs[k]] for k in uniform)


def is_by_lane(kernel: Kernel, axis: Axis, uniform: Collection[int], reverses: bool = False) -> bool:
    """Return true if some lanes of a vector along an axis are read, written or checked one by one.

    With `reverses`, lanes that are turned round are not counted among them.
    """
    return not addresses_stand_still(kernel, axis, uniform) or any(
        stride not in (ZERO, ONE) and not (reverses and reads_backwards(kernel, axis, place))
        for place, stride in enumerate(axis.strides)
    )


def reads_backwards(kernel: Kernel, axis: Axis, place: int) -> bool:
    """Return true if a view is read from its last element to its first along an axis: a vector with its lanes turned
    round. Complex numbers are read lane by lane."""
    return (
        place < len(kernel.operands)
        and axis.strides[place] == BACK
        and (dtype_kind(kernel.operands[place].view.dtype) != "c")
    )


def lanes_along(kernel: Kernel, axis: Axis, uniform: Collection[int], still: Collection[int], lanes: int) -> int:
    """Number of elements of a vector along an axis, at most `lanes`; 1 where the loop goes element by element.

    `still` are the writes that stay in registers all along the axis.
    """
    # Lane-by-lane reads and writes pay only where vectorised elementary functions lie between them.
    if not has_calls(kernel) and is_by_lane(kernel, axis, uniform, reverses=True):
        return 1
    for k, write in enumerate(kernel.writes):
        if axis.strides[len(kernel.operands) + k] == ZERO and not (k in still or write.scattered):
            return 1
    if axis.size.is_known:
        while lanes > 1 and lanes // 2 >= axis.size.factor:
            lanes //= 2
    return lanes


def has_calls(kernel: Kernel) -> bool:
    """Return true if a kernel calls elementary functions."""
    return any(i.op == "call" for i in kernel.expression.instructions)


def has_parts(kernel: Kernel) -> bool:
    """Return true if a kernel reads or writes complex numbers, whose parts are interleaved in memory."""
    views = [*(operand.view for operand in kernel.operands), *(write.view for write in kernel.writes)]
    return any(dtype_kind(view.dtype) == "c" for view in views)


def lanes_of(kernel: Kernel, views: Sequence[View], vector_bytes: int) -> int:
    """Number of elements of a whole vector of a kernel; 1 where there are no vectors.

    Where elementary functions depend on each other's results, a vector is two registers: the instructions of one fill
    the time that the other one waits. With AVX2 a vector is two registers for any elementary function, since a call and
    its constants then serve 16 numbers; with SSE the registers for that are too few.
    """
    # Of complex numbers each part is a vector.
    dtypes = [REAL_OF.get(view.dtype, view.dtype) for view in views]
    floats = [i.dtype.itemsize for i in kernel.expression.instructions if dtype_kind(i.dtype) in "fiu"]
    # Positions are 64 bits wide and say nothing of what is computed; of bools alone a vector has one in each byte.
    narrow = [d.itemsize for d in dtypes if dtype_kind(d) != "b"] or floats or [1]
    lanes = vector_bytes // max(min(max(narrow), 8), 1)
    return 2 * lanes if lanes > 1 and _calls_in_a_row(kernel) > (vector_bytes != 32) else lanes


def _calls_in_a_row(kernel: Kernel) -> int:
    """Length of the longest dependent chain of elementary functions."""
    found: list[int] = []
    for instruction in kernel.expression.instructions:
        found.append(max((found[a] for a in instruction.args), default=0) + (instruction.op == "call"))
    return max(found, default=0)
