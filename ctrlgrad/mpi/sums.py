"""Sums over ranks in the background of this process's computation.

MPI lets a non-blocking sum progress only inside its calls, and a process that computes makes none. So a thread calls it
every `PAUSE` seconds as long as there are sums, and sleeps otherwise. A computation in machine code does not hold
Python's lock, and goes on meanwhile.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from mpi4py import MPI

    from ctrlgrad.mpi.world import World

# Seconds between calls of MPI that let the sums under way progress.
PAUSE = 2e-4
# Seconds of active waiting for the end of the sums: an exchange within a machine takes as long. After them another rank
# is still computing, perhaps on this core, so this process naps between its calls of MPI for a tenth of its wait.
ACTIVE, NAP = 2e-4, 0.1


class Sums:
    """Numbered sums of arrays over all ranks: `begin` each of them, then `finish` all.

    All ranks begin the same numbers, in the same order, with arrays of the same shapes and dtypes.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._arrays: dict[int, np.ndarray] = {}
        self._requests: list[MPI.Request] = []
        # Held by the thread that tests the requests; two threads must not test one.
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def begin(self, number: int, array: np.ndarray, *, is_beside: bool = True) -> None:
        """Begin to overwrite a contiguous array with its sum over all ranks; do not touch it until `finish`.

        With `is_beside` this rank goes on computing, and the thread is woken. Otherwise `finish` comes soon: the
        thread would take longer to get Python's lock than the exchange takes.
        """
        with self._changed:
            self._arrays[number] = array
            self._requests.append(self._world.start_sum(array))
            if is_beside:
                self._changed.notify()
        if is_beside and self._thread is None:
            self._thread = threading.Thread(target=self._progress, name="ctrlgrad sums", daemon=True)
            self._thread.start()

    def has_begun(self, number: int) -> bool:
        return number in self._arrays

    def finish(self) -> dict[int, np.ndarray]:
        """Wait for all sums that have begun; the arrays by their numbers."""
        with self._changed:
            start = time.perf_counter()
            while not self._world.have_ended(self._requests):
                if (waited := time.perf_counter() - start) > ACTIVE:
                    time.sleep(NAP * waited)
            self._requests = []
            arrays, self._arrays = self._arrays, {}
        return arrays

    def _progress(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._requests)
                if self._world.have_ended(self._requests):
                    self._requests = []
            time.sleep(PAUSE)
