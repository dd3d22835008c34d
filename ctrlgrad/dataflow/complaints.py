"""What an executor says where a run fails or cannot go on: the user's line, the iteration, and who waits for what."""

from __future__ import annotations

from ctrlgrad.dataflow.running import FrameRun, Iteration
from ctrlgrad.dataflow.steps import Step
from ctrlgrad.engines.reference.interpreter import explained
from ctrlgrad.errors import MaximumIterationsError, locate


def waiting_in(frame: FrameRun, found: list[str], device: str) -> None:
    """Add, a line each, which step of a frame or of one inside waits for which operand, in which iteration."""
    iteration: Iteration | None = frame.oldest
    while iteration is not None:
        for step in frame.plan.steps:
            if iteration.pending[step.index] > 0:
                found.append(f"{step.name} on {device} waits for {_missing(step, iteration)} at {iteration.describe()}")
        for child in iteration.children.values():
            waiting_in(child, found, device)
        iteration = iteration.next
    for edge, done in frame.reported.items():
        if frame.total is not None and frame.reports != frame.reports_in_all:
            found.append(
                f"{frame.plan.name} on {device} waits for reports on edge {edge}: {done} of {frame.total} done"
            )


def _missing(step: Step, iteration: Iteration) -> str:
    missing = [
        f"operand {k}{f' ({value.hint})' if value.hint else ''}"
        for k, value in enumerate(step.node.operands)
        if iteration.slots[step.first + k] is None
    ]
    if step.node.op == "Recv" and iteration.slots[step.first] is None:
        missing.append(f"a message on edge {step.node.attrs['edge']}")
    return ", ".join(missing) or "a control"


def noted(error: BaseException, step: Step, iteration: Iteration, is_late: bool) -> BaseException:
    """The error with the place in the user's code and the iterations that it happened in.

    Where it was seen late, the iterations are those of another step, and are left out.
    """
    node = next(iter(step.node.regions[0].nodes), None) if step.node.regions else None
    found = error
    if node is None:
        locate(error, step.name, step.source)
    else:
        found = explained(error, node)
    if is_late:
        return found
    notes = iteration.loops()
    if isinstance(error, MaximumIterationsError) and not step.node.regions:
        # The loop itself says in its error how far it came.
        notes = notes[1:]
    for text in notes:
        found.add_note(text)
    return found


__all__ = ["noted", "waiting_in"]
