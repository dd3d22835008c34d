"""Quick turns between the threads of several devices.

While one thread runs Python, another that has a message to act on waits for Python's global lock for the switch
interval, 5 ms unless set; a device's ops take microseconds.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager

from ctrlgrad.dataflow.shared_settings import SharedSetting, Undo

# Seconds.
INTERVAL = 5e-5


def _set() -> Undo:
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(INTERVAL, before))
    return lambda: sys.setswitchinterval(before)


_SHARED = SharedSetting(_set)


def quick_switches() -> AbstractContextManager[None]:
    """Let threads take turns every `INTERVAL` seconds, for a block of code."""
    return _SHARED.held()


__all__ = ["INTERVAL", "quick_switches"]
