"""Tracebacks of errors, without the library's own frames.

An error that nothing catches is shown with the frames of the user's code alone; `CTRLGRAD_TRACEBACK=full` in the
environment shows all. An error that the library does not expect, a defect, keeps every frame. The hook stands before
Python's own and no other, and IPython's shell is asked in its way.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from ctrlgrad.errors import CtrlgradError
from ctrlgrad.source import is_users_frame


def of_user(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback with the user's frames alone; as it is where none of them is his."""
    kept = [part for part in _parts(traceback) if is_users_frame(part.tb_frame)]
    found: TracebackType | None = None
    for part in reversed(kept):
        found = TracebackType(found, part.tb_frame, part.tb_lasti, part.tb_lineno)
    return found or traceback


def _parts(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _is_raised_by_user(error: BaseException) -> bool:
    """Return true if the innermost frame runs the user's code."""
    *_, last = _parts(error.__traceback__) if error.__traceback__ is not None else (None,)
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
