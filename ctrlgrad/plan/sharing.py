"""Find kernels that may be cut into parts that run in parallel, in any order, and the axes to cut along."""

from __future__ import annotations

from ctrlgrad.plan.model import Kernel
from ctrlgrad.plan.sizes import ONE, ZERO


def shared_axes(kernel: Kernel) -> tuple[int, ...]:
    """The axes along which no two points of a kernel write the same element.

    Placement lets a kernel write over what it reads only where each element is read by the point that writes it, so
    parts along these axes need nothing of each other. A reduction is not shared along what it reduces; elements that
    are scattered may meet anywhere, and the last one is meant to stay.
    """
    if any(write.scattered for write in kernel.writes):
        return ()
    return tuple(
        axis
        for axis, size in enumerate(kernel.space)
        if size != ONE and all(write.view.strides[axis] != ZERO for write in kernel.writes)
    )
