"""A failure of compiled code, as the error that the reference engine would raise."""

from __future__ import annotations

from ctrlgrad.engines.native import frame as words
from ctrlgrad.engines.native.frame import Status
from ctrlgrad.engines.native.positions import noted
from ctrlgrad.engines.native.refusals import NeedsAnotherPlan, SizesDoNotFit
from ctrlgrad.engines.native.stacks import Frame
from ctrlgrad.engines.reference.control_kernels import too_many_iterations
from ctrlgrad.engines.reference.interpreter import explained
from ctrlgrad.engines.reference.stack_kernels import beyond_the_slots, written_twice
from ctrlgrad.ir import Trait
from ctrlgrad.plan.model import Assumption, Site

_ASSUMPTIONS: dict[Status, Assumption] = {Status.EQUAL: "equal", Status.ROWS: "rows"}


def failure(frame: Frame, status: Status) -> BaseException:
    """The error of a run that ended early."""
    number, found, bound = (int(frame.words[k]) for k in (words.SITE, words.FOUND, words.BOUND))
    positions = frame.program.positions
    if status in _ASSUMPTIONS:
        return NeedsAnotherPlan(_ASSUMPTIONS[status], frame.outside.callbacks)
    if status is Status.SIZE:
        return SizesDoNotFit(f"{found} and {bound}", frame.outside.callbacks)
    if status is Status.ITERATIONS:
        loop = frame.layout.loops[number]
        too_many = too_many_iterations(loop.node, bound, found)
        noted(too_many, frame, positions.steps[loop])
        return too_many
    error = _error(frame.plan.sites[number], status, found, bound)
    noted(error, frame, positions.sites[number])
    return error


def _error(site: Site, status: Status, found: int, bound: int) -> BaseException:
    error: Exception
    if status is Status.TWICE:
        error = written_twice(found)
    elif status is Status.VALUE:
        error = ValueError("Integers to negative integer powers are not allowed.")
    elif Trait.STACK in site.node.op.traits:
        error = beyond_the_slots(found, bound)
    else:
        error = IndexError(f"index {found} is out of bounds for axis {site.axis} with size {bound}")
    return explained(error, site.node)
