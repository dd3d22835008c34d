"""The times of CUDA events on the host's clock.

CUDA says how many milliseconds after another event one was done, as a float32. After hours that is no finer than the
copies whose times the planner compares. So an event is measured from an origin that is fresh: an event on a stream of
its own, where nothing ever waits, whose time on the host's clock is known within the microseconds that it takes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# Up to here neighbouring float32 milliseconds are at most a microsecond apart.
MOST_SECONDS = 8.0
# Origins that are remembered, for events that are done long after they were recorded.
_REMEMBERED = 64


@dataclass(frozen=True)
class Origin:
    """An event that is done, and when it was."""

    raw: Any
    time: float


class EventClock:
    """`record` puts an event on the clock's stream; `elapsed` gives the milliseconds from one event to another."""

    def __init__(
        self, record: Callable[[], Any], elapsed: Callable[[Any, Any], float], now: Callable[[], float]
    ) -> None:
        self._record, self._elapsed, self._now = record, elapsed, now
        self._lock = threading.Lock()
        self._origins: deque[Origin] = deque(maxlen=_REMEMBERED)
        self.origin()

    def origin(self) -> Origin:
        """Origin from which an event that is recorded now is measured."""
        with self._lock:
            before = self._now()
            if not self._origins or before - self._origins[-1].time > MOST_SECONDS:
                raw = self._record()
                raw.synchronize()
                # It was done somewhere in between, microseconds apart.
                self._origins.append(Origin(raw, (before + self._now()) / 2))
            return self._origins[-1]

    def time_of(self, raw: Any, origin: Origin) -> float:
        """Time at which an event was done, on the host's clock; `origin` is the one from when it was recorded."""
        time = origin.time + self._elapsed(origin.raw, raw) / 1e3
        with self._lock:
            nearer = [o for o in self._origins if origin.time < o.time <= time]
        if nearer:
            return nearer[-1].time + self._elapsed(nearer[-1].raw, raw) / 1e3
        return time


__all__ = ["MOST_SECONDS", "EventClock", "Origin"]
