"""`raise` under a traced condition, and `except`.

Both branches of an `if` on a traced tensor are traced, and the body of a `while` or `for` is traced whether it will run
or not. So a `raise` in one would fire whatever the condition will be. An exception that a `raise` statement of the
user's lets escape from such a block is refused, with the line of the `raise`; no handler around the block may take it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from ctrlgrad.errors import CtrlgradError, TracingError
from ctrlgrad.source import Source, here

_RAISED_AT = "__ctrlgrad_raised_at__"
_REFUSED = "__ctrlgrad_refuses_a_raise__"


def raised(error: Any) -> Any:
    """The exception of a `raise` statement, marked with the line."""
    if isinstance(error, type) and issubclass(error, BaseException):
        error = error()
    with suppress(AttributeError, TypeError):
        setattr(error, _RAISED_AT, here())
    return error


def handled() -> None:
    """At the beginning of each `except`: what refuses a `raise` is raised again."""
    error = sys.exc_info()[1]
    if error is not None and hasattr(error, _REFUSED):
        raise error


@contextmanager
def tracing(construct: str, source: Source | None) -> Iterator[None]:
    """Around the tracing of what a construct on a traced tensor runs."""
    try:
        yield
    except CtrlgradError:
        raise
    except Exception as error:
        if not hasattr(error, _RAISED_AT):
            error.add_note(
                f"raised when the {construct} on a traced tensor was traced, at: {source}\n"
                "Both branches are traced, and the bodies of loops, whatever the condition will be."
            )
            raise
        refused = TracingError(
            f"a `raise` inside the {construct} on a traced tensor",
            source=getattr(error, _RAISED_AT),
            expected="exceptions that Python can decide on while tracing: both branches are traced, and the bodies of\n"
            "loops, whatever the condition will be",
            got=f"{type(error).__name__}: {error}".rstrip(": "),
            hint="return the condition and raise outside of the function, or give ctrlgrad.debug.callback a function\n"
            "that raises when its values say so",
        )
        setattr(refused, _REFUSED, True)
        raise refused from error
