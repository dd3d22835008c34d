"""Number of threads that a computation may use, and the cost model that decides how work is shared among them.

Work is counted in units: a multiplication of a product, or an instruction for one element of a kernel, or as many bytes
as memory moves meanwhile; a unit takes about `UNIT` nanoseconds of one thread. Into how many parts work is cut follows
from the work alone, so that results have the same bits for any number of threads. How many sleeping threads are woken
for it follows from the work too: so a small program wakes as few of 64 threads as of 2. `benchmarks/cores.py` measures
the constants and predicts the time of each kind of kernel for 1 to 64 threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextvars import ContextVar

from ctrlgrad.errors import UserInputError

STOP: ContextVar[Callable[[], None] | None] = ContextVar("stop", default=None)
"""A function that a plan's loops call now and then; it raises an error if the call is to end. Python raises what Ctrl-C
asks for on the main thread alone."""

MOST_THREADS = 256
UNIT = 0.02
"""Nanoseconds of one thread for a unit of work: 16 or 32 lanes a cycle of three or two gigahertz."""
WORK_TO_SHARE = 1 << 19
"""Units from which work is shared with threads that are awake, and for each of which one more sleeping thread is
woken: about ten microseconds of one thread, more than waking one costs."""
WORK_OF_A_PART = 1 << 17
"""The least units of a part: about three microseconds, twenty times what claiming a part costs."""
WORK_AWAKE = 1 << 17
"""Units from which a kernel is shared, in parts of half as many, beside a product that threads share in each iteration
of a loop: they are awake between the two."""
MOST_PARTS = 256
"""The most parts of a job: more than 64 threads, so that those that start late or run slowly take fewer."""
WAKES_EACH = 2
"""Threads that the caller, and each thread that was woken, wake before they begin to work."""


def parts_of(work: int, are_awake: bool = False) -> int:
    """The most parts that work is worth, a power of 2 that threads share evenly; 1 where it is not shared."""
    if work >= WORK_TO_SHARE:
        least = WORK_OF_A_PART
    elif are_awake and work >= WORK_AWAKE:
        least = WORK_AWAKE // 2
    else:
        return 1
    return min(1 << (work // least).bit_length() - 1, MOST_PARTS)


def woken(work: int, parts: int, asleep: int) -> int:
    """Number of sleeping threads that are woken for a job."""
    return max(min(work // WORK_TO_SHARE - 1, parts - 1, asleep), 0)


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
