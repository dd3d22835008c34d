"""Turns for Python while compiled code runs: each loop asks for one after so many iterations, set by its clock."""

from __future__ import annotations

import time

import numpy as np

# Iterations of a loop before its first turn, and how long it then waits for the next, in seconds.
FIRST, BETWEEN = 1024, 0.05


class Turns:
    """The words of a frame that say how many iterations each loop has left until its turn."""

    def __init__(self, words: np.ndarray) -> None:
        # Python's memory views are copied quickly.
        self.words = words.data
        self.iterations = np.full(len(words), FIRST).data
        self.since = [0.0] * len(words)
        self.sizes: list[int] = []

    def start(self, sizes: list[int]) -> None:
        """A run begins: each loop has the iterations between its last two turns, if all sizes are those of then."""
        if not self.since:
            return
        if sizes != self.sizes:
            self.sizes, self.iterations[:] = sizes, np.full(len(self.since), FIRST).data
        self.words[:] = self.iterations
        self.since = [time.monotonic()] * len(self.since)

    def next(self, loop: int) -> None:
        """A loop has its turn: as many iterations as take the time between two turns, but no sudden jump."""
        now = time.monotonic()
        seconds = max(now - self.since[loop], 1e-6)
        found = min(max(self.iterations[loop] * min(BETWEEN / seconds, 16.0), 1), 1 << 40)
        self.iterations[loop] = self.words[loop] = int(found)
        self.since[loop] = now
