"""Waiting for a CUDA event with turns for Python: Ctrl-C is seen while the card works."""

from __future__ import annotations

import time
from typing import Any

# CUDA's answer as long as an event is not done.
NOT_READY = 600
# For so many seconds the host looks again and again; then it sleeps between two looks, at most so long.
SPINNING, LONGEST_PAUSE = 2e-4, 1e-3


def wait_for(cupy: Any, event: Any) -> None:
    """As `event.synchronize()`, which gives signals no turn until the card is done. Raises CuPy's errors."""
    end, pause = time.perf_counter() + SPINNING, LONGEST_PAUSE / 64
    # CuPy's `event.done` takes an error for work that is not done.
    while cupy.cuda.runtime.eventQuery(event.ptr) == NOT_READY:
        if time.perf_counter() > end:
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
    event.synchronize()


__all__ = ["NOT_READY", "wait_for"]
