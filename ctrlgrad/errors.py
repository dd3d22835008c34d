"""Errors that tell the user what happened, where in his code, and what to do.

Every error of the library is a `CtrlgradError`. It is built from five parts: the operation and what went
wrong (`problem`), the user's file and line (`source`), what was `expected`, what was `got`, and what to
do about it (`hint`). Each subclass also inherits the built-in exception a Python user would expect, so
`except TypeError` keeps working.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from traceback import walk_tb
from types import TracebackType
from typing import Any

from ctrlgrad.source import here, is_users_frame

_DEFAULT: Any = object()


class CtrlgradError(Exception):
    """Base of all errors of the library; see the module's docstring for the five parts.

    Errors in the user's program (`is_in_program`) are placed at the user's current line where no `source` is given;
    all other errors have a place only where one is given.
    """

    is_in_program = False

    def __init__(
        self,
        problem: str,
        *,
        source: Any = _DEFAULT,
        expected: str | None = None,
        got: str | None = None,
        hint: str | None = None,
    ) -> None:
        self.problem = problem
        self.source: Any = (here() if self.is_in_program else None) if source is _DEFAULT else source
        self.expected = expected
        self.got = got
        self.hint = hint
        self.notes: list[str] = []
        super().__init__(problem)

    def add_note(self, note: str) -> None:
        """Add to the message, as on any exception: a line below the place, several lines at the end."""
        self.notes.append(note)

    def __str__(self) -> str:
        lines = [self.problem]
        if self.source is not None:
            lines.append(f"  at: {self.source}")
        lines += [f"  {note}" for note in self.notes if "\n" not in note]
        for label, text in (("expected", self.expected), ("got", self.got), ("try", self.hint)):
            if text is not None:
                head, *rest = text.split("\n")
                lines.append(f"  {label}: {head}")
                lines += [f"    {line}" for line in rest]
        return "\n".join([*lines, *(note for note in self.notes if "\n" in note)])


def locate(error: BaseException, what: str, source: Any) -> None:
    """Add the user's line to an exception, which keeps its type and text. An exception that has a line keeps it."""
    if isinstance(error, CtrlgradError):
        if error.source is None:
            error.source = source
    elif not getattr(error, "_ctrlgrad_located", False):
        error._ctrlgrad_located = True  # type: ignore[attr-defined]
        error.add_note(f"in {what}" + (f", at: {source}" if source is not None else ""))


class TypeMismatchError(CtrlgradError, TypeError):
    """Operands, a carry or branches do not have the types that an operation needs."""

    is_in_program = True


class NumberOverflowError(TypeMismatchError, OverflowError):
    """A Python number lies outside of the dtype that it has to take."""


class ShapeError(CtrlgradError, ValueError):
    """Shapes do not fit together."""

    is_in_program = True


class UnknownSizeError(ShapeError):
    """A function needs a size when it is traced that only a run knows."""


class TracingError(CtrlgradError, TypeError):
    """A traced tensor was used where Python needs a concrete value.

    `refused` are the operands of which a value was asked for; empty where another mistake was made. A transform that is
    applied to values may answer once it traces over these: `asks_for_values`.
    """

    is_in_program = True
    refused: tuple[Any, ...] = ()
    asks_for_values = False


class MissingAttributeError(CtrlgradError, AttributeError):
    """A traced tensor has no such method or attribute."""

    is_in_program = True


class LeakedValueError(CtrlgradError, RuntimeError):
    """A traced tensor was used outside the function or region that it belongs to."""

    is_in_program = True


class DifferentiationError(CtrlgradError, TypeError):
    """A derivative was asked for that does not exist."""

    is_in_program = True


class NoForwardRuleError(DifferentiationError):
    """Forward mode met a function that has a reverse rule only."""


class ExecutionError(CtrlgradError, RuntimeError):
    """An operation failed while a graph was running."""


class IndexOutOfRangeError(ExecutionError, IndexError):
    """An index was out of range while a graph was running."""


class NonFiniteError(ExecutionError, ArithmeticError):
    """An operation made a NaN or an Inf while `check_nans` was on."""


class MaximumIterationsError(ExecutionError):
    """A loop's condition still held after `maximum_iterations` iterations."""


class VerificationError(CtrlgradError, AssertionError):
    """A graph breaks a rule of `ctrlgrad.ir.verifier`: a defect of the library or of a hand-built graph."""


class GradientMismatch(CtrlgradError, AssertionError):
    """`check_grads` found a derivative that disagrees with one of its judges."""


class UserInputError(CtrlgradError, ValueError):
    """A file, an option or an argument that the command or a public function cannot use."""

    is_in_program = True


class UnsupportedPrimitiveError(CtrlgradError, NotImplementedError):
    """A program of another framework uses an operation that has no translation."""

    is_in_program = True


class MemoryBudgetError(CtrlgradError, MemoryError):
    """A budget cannot be met: the request, what is used and the limit of each tier are in the message.

    `needed` is a lower bound of the device budget: the bytes of the request with all that could not leave for it; None
    where another tier is too small. A later request may need more: `ctrlgrad.memory.plan` finds the exact least budget.
    `limit` is the budget of the tier that was too small.
    """

    needed: int | None = None
    limit: int | None = None


class TierRefusedError(CtrlgradError, MemoryError):
    """A tier of memory has no bytes left, whatever the budget says: the disk is full, pinned memory was refused."""


class BlockLostError(CtrlgradError, OSError):
    """A block that was copied away cannot be read back, or its bytes have changed."""


def forget_values(error: BaseException) -> None:
    """Clear the frames of an error's traceback: an error that is kept must not keep values in counted memory."""
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        found = waiting.pop()
        # An error may be its own cause.
        if found is None or id(found) in seen:
            continue
        seen.add(id(found))
        waiting += [found.__cause__, found.__context__]
        for frame, _ in walk_tb(found.__traceback__):
            if frame.f_globals.get("__name__", "").startswith("ctrlgrad."):
                # The frames that are still running stay as they are.
                with suppress(RuntimeError):
                    frame.clear()


# Tracebacks of errors, without the library's own frames.
#
# An error that nothing catches is shown with the frames of the user's code alone; `CTRLGRAD_TRACEBACK=full` in the
# environment shows all. An error that the library does not expect, a defect, keeps every frame. The hook stands
# before Python's own and no other, and IPython's shell is asked in its way.


def of_user(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback reduced to the user's frames; unchanged if it has none."""
    kept = [part for part in parts(traceback) if is_users_frame(part.tb_frame)]
    found: TracebackType | None = None
    for part in reversed(kept):
        found = TracebackType(found, part.tb_frame, part.tb_lasti, part.tb_lineno)
    return found or traceback


def parts(traceback: TracebackType | None) -> Iterator[TracebackType]:
    """The frames of a traceback, the outermost first."""
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _is_raised_by_user(error: BaseException) -> bool:
    """Return true if the innermost frame runs the user's code."""
    *_, last = parts(error.__traceback__) if error.__traceback__ is not None else (None,)
    return last is None or is_users_frame(last.tb_frame)


def shorten(error: BaseException) -> None:
    """Take the library's frames out of an error's traceback, and of those of its causes."""
    if os.environ.get("CTRLGRAD_TRACEBACK") == "full":
        return
    seen: set[int] = set()
    chain: BaseException | None = error
    while chain is not None and id(chain) not in seen:
        seen.add(id(chain))
        if isinstance(chain, CtrlgradError) or _is_raised_by_user(chain):
            chain.__traceback__ = of_user(chain.__traceback__)
        below = chain.__cause__ or (None if chain.__suppress_context__ else chain.__context__)
        is_shown = below is not None and (isinstance(below, CtrlgradError) or _is_raised_by_user(below))
        if isinstance(chain, CtrlgradError) and not is_shown:
            # An error of the library's own, which this one explains.
            chain.__cause__, chain.__suppress_context__, below = None, True, None
        chain = below


def _hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    shorten(error)
    sys.__excepthook__(kind, error, error.__traceback__)


def _in_shell(shell: Any, kind: Any, error: BaseException, traceback: Any, tb_offset: int | None = None) -> None:
    shorten(error)
    shell.showtraceback((kind, error, error.__traceback__), tb_offset=tb_offset)


def install() -> None:
    """Have errors that nothing catches shown without the library's frames."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _hook
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is not None and not shell.custom_exceptions:
        shell.set_custom_exc((CtrlgradError,), _in_shell)
