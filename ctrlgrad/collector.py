"""Fewer garbage collections while modules are imported, graphs are made and code is compiled.

Nearly all objects made there are kept, and imported modules stay. A full collection in between takes a tenth of a first
call.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# Collections of the middle generation before a full one: infinitely many.
_NEVER = (1 << 31) - 1

_lock = threading.Lock()
# Number of running blocks of code that postpone full collections, and the thresholds from before.
_depth = 0
_before = gc.get_threshold()


@contextmanager
def only_new_objects() -> Iterator[None]:
    """In this block garbage is looked for among new objects only; where the collector is off, it stays off.

    >>> import gc
    >>> before = gc.get_threshold()
    >>> with only_new_objects():
    ...     gc.get_threshold()[:2] == before[:2], gc.get_threshold() == before
    (True, False)
    >>> gc.get_threshold() == before
    True
    """
    global _depth, _before
    with _lock:
        if _depth == 0:
            _before = gc.get_threshold()
            gc.set_threshold(*_before[:2], _NEVER)
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth = max(_depth - 1, 0)
            if _depth == 0:
                _restore()


@contextmanager
def kept_objects() -> Iterator[None]:
    """Disable garbage collection in a block of imports, and mark the objects that it makes as old.

    Modules and their contents stay alive. Scanning them twice as young objects takes a tenth of a first call.

    >>> with kept_objects():
    ...     import graphlib
    >>> gc.isenabled()
    True
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            if not gc.get_freeze_count():  # Objects that the program has frozen would be thawed.
                # Freezing and thawing makes all objects old without scanning them.
                gc.freeze()
                gc.unfreeze()
            gc.enable()


def _restore() -> None:
    # Thresholds that another library has set in the meantime stay.
    if gc.get_threshold() == (*_before[:2], _NEVER):
        gc.set_threshold(*_before)


def _begin_anew() -> None:
    """Reset lock and count in a forked child, which has none of the parent's other threads."""
    global _lock, _depth
    _lock, _depth = threading.Lock(), 0
    _restore()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
