"""Find kernels that may be cut into parts that run in parallel, in any order, and the axes to cut along."""

from __future__ import annotations

from collections.abc import Sequence

from ctrlgrad.plan.model import Kernel
from ctrlgrad.plan.sizes import ONE, ZERO


def shared_axes(kernel: Kernel) -> tuple[int, ...]:
    """The axes along which no two points of a kernel write the same element.

    Placement lets a kernel write over what it reads only where each element is read by the point that writes it, so
    parts along these axes need nothing of each other. A reduction is not shared along what it reduces. Elements that
    are scattered may meet along the axes that their indices depend on, where the last one is meant to stay; along the
    other axes they differ by their places in the rows that the indices choose.
    """
    indices = [output for write in kernel.writes for output in write.indices]
    return tuple(
        axis
        for axis, size in enumerate(kernel.space)
        if size != ONE
        and all(write.view.strides[axis] != ZERO for write in kernel.writes)
        and not (indices and _varies(kernel, axis, indices))
    )


def _varies(kernel: Kernel, axis: int, outputs: Sequence[int]) -> bool:
    """Return true if one of some outputs of a kernel's expression depends on the position along an axis."""
    found: list[bool] = []
    for instruction in kernel.expression.instructions:
        varies = any(found[a] for a in instruction.args)
        if instruction.op == "load":
            varies |= kernel.operands[instruction.value[0]].view.strides[axis] != ZERO
        elif instruction.op == "index":
            varies |= instruction.value == axis
        found.append(varies)
    return any(found[kernel.expression.outputs[output]] for output in outputs)
