"""What a tensor refused, where NumPy has put an error of its own in its place."""

from __future__ import annotations

from ctrlgrad.errors import CtrlgradError, TracingError
from ctrlgrad.source import raised_at

# NumPy's texts for what is no number to it.
_ELEMENT = "setting an array element with a sequence"
_SHAPE = "expected a sequence of integers or a single integer, got 'Tensor("


def refused_inside(error: BaseException) -> TracingError | None:
    """The refusal that an error of NumPy's hides; None for any other error."""
    if isinstance(error, CtrlgradError):
        return None
    text, cause = str(error), error.__cause__
    if text.startswith(_ELEMENT) and isinstance(cause, TracingError):
        return cause
    if text.startswith(_SHAPE):
        return TracingError(
            "a traced size in a shape that NumPy makes: it needs a number, and has none until the program runs",
            source=raised_at(error),
            expected="a size that is known",
            got=text.split("got ", 1)[1].strip("'"),
            hint="ctrlgrad.numpy.zeros, ctrlgrad.numpy.ones and ctrlgrad.numpy.full take traced sizes",
        )
    return None
