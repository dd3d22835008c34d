"""The axes of a kernel's nest of loops: those of size 1 vanish, and those that lie side by side become one."""

from __future__ import annotations

from collections.abc import Sequence

from ctrlgrad.plan.model import Kernel, View
from ctrlgrad.plan.sizes import ONE, Size, product
from ctrlgrad.records import record

# A nest of at most so many points, and of so many instructions for all of them, is written without loops: then LLVM
# sees which element is meant, and keeps small arrays in registers.
MOST_POINTS, MOST_INSTRUCTIONS = 16, 256


@record
class Axis:
    """An axis of the nest: how long it is, and the strides of operands and writes along it, in elements."""

    size: Size
    strides: tuple[Size, ...]
    # The axis of the kernel's space whose index this is; None where several became one.
    index: int | None


def axes_of(kernel: Kernel, views: Sequence[View]) -> list[Axis]:
    """The axes, from the outermost one, with the strides of these views over the kernel's space."""
    uses_index = {i.value for i in kernel.expression.instructions if i.op == "index"}
    merged: list[Axis] = []
    for number, size in enumerate(kernel.space):
        if size == ONE and number not in uses_index:
            continue
        axis = Axis(size, tuple(view.strides[number] for view in views), number if number in uses_index else None)
        last = merged[-1] if merged else None
        if (
            last is not None
            and last.index is None
            and axis.index is None
            and all(outer == axis.size * inner for outer, inner in zip(last.strides, axis.strides, strict=True))
        ):
            merged[-1] = Axis(last.size * axis.size, axis.strides, None)
        else:
            merged.append(axis)
    return merged


def is_small(kernel: Kernel) -> bool:
    """Whether a nest is written without loops."""
    points = product(kernel.space)
    work = points.factor * len(kernel.expression.instructions)
    return points.is_known and points.factor <= MOST_POINTS and work <= MOST_INSTRUCTIONS


__all__ = ["Axis", "axes_of", "is_small"]
