"""Notice on the terminal of compilations that take more than a second, and their time."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ctrlgrad.engines.compiling import observed

PATIENCE = 1.0


@contextmanager
def compiling_shown(is_terminal: bool | None = None, patience: float = PATIENCE) -> Iterator[None]:
    """Say on stderr, where that is a terminal, what compiles in a block of code for longer than `patience` seconds."""

    @contextmanager
    def shown(name: str) -> Iterator[None]:
        begun = time.monotonic()
        timer = threading.Timer(patience, lambda: _say(f"compiling {name} ..."))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            seconds = time.monotonic() - begun
            if seconds > patience:
                _say(f"compiled {name} in {seconds:.1f} s")

    if sys.stderr.isatty() if is_terminal is None else is_terminal:
        with observed(shown):
            yield
    else:
        yield


def _say(text: str) -> None:
    # A bar that shows progress stands in place of stderr, and keeps below what is written.
    print(text, file=sys.stderr, flush=True)


__all__ = ["compiling_shown"]
