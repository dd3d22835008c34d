"""The axes of a nest: those of a kernel's space, without what no loop is needed for."""

from __future__ import annotations

from collections.abc import Sequence

from ctrlgrad.plan.model import Kernel, View
from ctrlgrad.plan.sizes import ONE, Size
from ctrlgrad.records import record


@record
class Axis:
    """An axis of the nest: how long it is, and the strides of operands and writes along it, in elements."""

    size: Size
    strides: tuple[Size, ...]
    # The axis of the kernel's space whose index this is; None where several became one.
    index: int | None


def axes_of(kernel: Kernel, views: Sequence[View]) -> list[Axis]:
    """Axes of size 1 vanish, axes that lie side by side for all views become one."""
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


__all__ = ["Axis", "axes_of"]
