"""What a tensor refused, where another library has put an error of its own in its place."""

from __future__ import annotations

import re

from ctrlgrad.errors import CtrlgradError, TracingError
from ctrlgrad.source import raised_at

# NumPy's texts for what is no number to it.
_ELEMENT = "setting an array element with a sequence"
# The texts of JAX and PyTorch for what is no array to them: what stands before the tensor, and what behind.
_FOREIGN = (
    (
        "JAX",
        re.compile(r"'(Tensor\(.*?\))' of type '?<class 'ctrlgrad\..*is not a valid JAX type", re.DOTALL),
        "ctrlgrad.from_jax(fn) makes it one of this library; ctrlgrad.numpy and ctrlgrad.lax have JAX's functions",
    ),
    (
        "PyTorch",
        re.compile(r"must be (Tensor), not Tensor$|expected (Tensor) as element .* but got Tensor"),
        "ctrlgrad.numpy has NumPy's functions; ctrlgrad.to_torch(fn) makes a function of this library one of PyTorch",
    ),
)
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
    for library, refusal, hint in _FOREIGN:
        if (found := refusal.search(text)) is not None:
            return TracingError(
                f"a function of {library} was given a traced tensor of this library",
                source=raised_at(error),
                expected=f"an array of {library}",
                got=found[1] or "Tensor",
                hint=hint,
            )
    return None
