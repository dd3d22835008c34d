"""Ctrl-C, and every other signal, in a loop inside compiled code, which may run for hours without a chunk's end.

Who sets what: the system's handler notes a signal wherever the process is; Python runs its own handler on the main
thread, at the next instruction of Python there. Compiled code has none. So a loop inside counts its iterations down,
and at zero calls back: Python handles what has come. A handler that raises, as that of Ctrl-C does, ends the run: the
exception is kept here, the code returns with `Status.RAISED` and the place and iterations that it stopped at, and the
driver raises it. After one that does not raise, or where nothing came, the loop goes on, for as many iterations as keep
looks about `SECONDS` apart: a look costs microseconds.

The callback is a generator's: it resumes within its `try`, where a function would run the handler before it has one,
and an exception that leaves a callback is lost.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator

# Iterations before the first look of a call; each call of a compiled function begins with as many.
FIRST = 1024
SECONDS = 0.02
_MOST = 1 << 40
_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int64)


class Looking:
    """The callback of one run, at `address`; `error` is what a signal's handler raised."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.looks = 0
        # The generator holds this object and the callback the generator: a cycle, which Python's collector ends.
        looks = self._looks()
        next(looks)
        self._callback = _CALLBACK(looks.__next__)
        self.address: int = ctypes.cast(self._callback, ctypes.c_void_p).value or 0

    def _looks(self) -> Iterator[int]:
        patience, before = FIRST, time.perf_counter()
        while True:
            try:
                yield patience
                self.looks += 1
                now = time.perf_counter()
                patience = min(2 * patience, _MOST) if now - before < SECONDS else max(patience // 2, 1)
                before = now
            except GeneratorExit:
                return
            except BaseException as error:
                self.error, patience = error, 0


__all__ = ["FIRST", "Looking"]
