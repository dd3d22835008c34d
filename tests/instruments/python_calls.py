"""Count of the engine's Python calls."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from instruments.driver import Driver


def calls_of_the_engine(run: Callable[[], Any], *, warm: bool = True) -> int:
    """Count of calls of the package's functions in `run`, without the calls by which the stand-in computes.

    With `warm`, a run before fills the caches of the process, which tests before may have filled or not.
    """
    if warm:
        run()
    calls = depth = 0
    inside = Driver._guarded.__code__.co_consts

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls, depth
        if frame.f_code in inside:
            depth += (event == "call") - (event == "return")
        elif event == "call" and not depth and "/ctrlgrad/" in frame.f_code.co_filename.replace("\\", "/"):
            calls += "/tests/" not in frame.f_code.co_filename.replace("\\", "/")

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return calls


__all__ = ["calls_of_the_engine"]
