"""What went wrong in compiled code, as the error that the reference engine would raise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ctrlgrad.engines.llvm import frame as words
from ctrlgrad.engines.llvm.frame import Status
from ctrlgrad.engines.reference.control_kernels import too_many_iterations
from ctrlgrad.errors import CtrlgradError, ExecutionError, IndexOutOfRangeError

if TYPE_CHECKING:
    from ctrlgrad.engines.llvm.runtime import Frame


class NeedsAnotherPlan(Exception):
    """Sizes turned out otherwise than the plan assumes."""


def failure(frame: Frame, status: Status) -> Exception:
    """The error of a run that ended early."""
    number, found, bound = (int(frame.words[k]) for k in (words.SITE, words.FOUND, words.BOUND))
    if status is Status.ITERATIONS:
        return too_many_iterations(frame.layout.loops[number].node, bound, found)
    if status is Status.SIZE:
        return NeedsAnotherPlan(f"sizes {found} and {bound}")
    site = frame.plan.sites[number]
    source = site.node.source
    error: CtrlgradError
    if status is Status.TWICE:
        error = ExecutionError(f"TensorArray: slot {found} is written twice", source=source)
    elif site.node.op.name.startswith("stack"):
        error = IndexOutOfRangeError(
            f"TensorArray: index {found} is out of range",
            source=source,
            expected=f"-{bound} <= index < {bound}",
            got=str(found),
        )
    else:
        error = IndexOutOfRangeError(
            f"{site.node.op.name}: index {found} is out of bounds for axis {site.axis} with size {bound}",
            source=source,
            expected=f"-{bound} <= index < {bound}",
            got=f"index {found}",
            hint="clip the index, or let the loop end before it leaves the array",
        )
    return error
