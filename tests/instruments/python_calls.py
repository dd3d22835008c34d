"""Count of the engine's Python calls."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from instruments.driver import Driver


def calls_of_the_engine(run: Callable[[], Any]) -> int:
    """The functions of the package that are called, but for those that the stand-in calls to compute."""
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
