"""Quick turns between the threads of several devices.

While one thread runs Python, another that has a message to act on waits for Python's global lock for the switch
interval, 5 ms unless set; a device's ops take microseconds. The interval is one per process, so it is set for as long
as any run over several devices lasts and put back at the end.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# Seconds.
INTERVAL = 5e-5


class _Shared:
    """How many runs hold the interval, and what it was before."""

    lock = threading.Lock()
    holders = 0
    before = 0.0


@contextmanager
def quick_switches() -> Iterator[None]:
    """Let threads take turns every `INTERVAL` seconds, for a block of code."""
    with _Shared.lock:
        if not _Shared.holders:
            _Shared.before = sys.getswitchinterval()
            sys.setswitchinterval(min(INTERVAL, _Shared.before))
        _Shared.holders += 1
    try:
        yield
    finally:
        with _Shared.lock:
            _Shared.holders -= 1
            if not _Shared.holders:
                sys.setswitchinterval(_Shared.before)


__all__ = ["INTERVAL", "quick_switches"]
