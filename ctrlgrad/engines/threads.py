"""Number of threads that a computation may use."""

from __future__ import annotations

import os

from ctrlgrad.errors import UserInputError

MOST_THREADS = 256


def default_threads() -> int:
    """Return `$CTRLGRAD_THREADS`, or the number of processors that the process may use."""
    if given := os.environ.get("CTRLGRAD_THREADS"):
        if given.isdecimal() and 1 <= int(given) <= MOST_THREADS:
            return int(given)
        raise UserInputError(
            "CTRLGRAD_THREADS is not a number of threads", expected=f"1 to {MOST_THREADS}", got=repr(given)
        )
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(available, MOST_THREADS)
