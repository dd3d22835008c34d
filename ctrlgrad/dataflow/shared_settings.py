"""Settings of the whole process that runs over several devices hold together.

The first run that begins sets them, the last one that ends puts them back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Undo = Callable[[], None]


class SharedSetting:
    """A setting of the process: `enter` makes it and gives what puts it back."""

    def __init__(self, enter: Callable[[], Undo]) -> None:
        self._enter = enter
        self._lock = threading.Lock()
        self._holders = 0
        self._undo: Undo | None = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """The setting holds for a block of code, and for those of other threads that hold it too."""
        with self._lock:
            if not self._holders:
                self._undo = self._enter()
            self._holders += 1
        try:
            yield
        finally:
            with self._lock:
                self._holders -= 1
                if not self._holders and self._undo is not None:
                    self._undo()


__all__ = ["SharedSetting", "Undo"]
