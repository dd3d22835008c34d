"""The pool of a session: unused memory can always go back to the card.

A pool of CuPy cuts small arrays off large pieces of the card's memory. A piece goes back only when nothing in it is
used, so one number can keep megabytes from a larger array. Under a limit such an array is refused though the budget
has room for it. So a session with a budget for the device has a pool for each size. These pools never split a
piece; where one must grow, the least recently used ones give back their free memory. Without a budget one pool is
enough.
"""

from __future__ import annotations

import gc
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from ctrlgrad.memory.devices.cuda import GRANULE
from ctrlgrad.memory.sizes import rounded_up


class SessionPool:
    """As CuPy's `MemoryPool`, as far as a session needs it, and for the device that is current."""

    def __init__(self, cupy: Any) -> None:
        self._make, self._out_of_memory = cupy.cuda.MemoryPool, cupy.cuda.memory.OutOfMemoryError
        # One pool for sessions without a limit; else one pool for each size, the most recently used at the end.
        self._any = self._make()
        self._sized: OrderedDict[int, Any] = OrderedDict()
        self._limit: int | None = None
        # Release memory that is kept for later.
        self.give_back: Callable[[], object] = lambda: None
        # Where Python looks for garbage in the middle of it, a finalizer may ask for memory.
        self._lock = threading.RLock()

    def malloc(self, nbytes: int) -> Any:
        """Memory for the current stream. Raises CuPy's `OutOfMemoryError` where the limit or the card has none."""
        with self._lock:
            if self._limit is None or not nbytes:
                return self._any.malloc(nbytes)
            size = rounded_up(nbytes, GRANULE)
            if size not in self._sized:
                self._sized[size] = self._make()
            self._sized.move_to_end(size)
            pool = self._sized[size]
            if pool.free_bytes() < size:
                self._let_grow(pool, size, self._limit)
            try:
                return pool.malloc(size)
            except self._out_of_memory:
                # The pool's free memory belonged to another stream; or the card is full by now.
                self.free_all_blocks()
                self._let_grow(pool, size, self._limit)
                return pool.malloc(size)

    def total_bytes(self) -> int:
        """Bytes taken from the card, used and free."""
        return sum(pool.total_bytes() for pool in self._pools())

    def set_limit(self, size: int | None) -> None:
        """The most that is ever taken from the card from now on; None: all that there is."""
        with self._lock:
            self._limit = size
            # Sizes of sessions before, of which nothing is left, are looked through no more.
            self._sized = OrderedDict((n, pool) for n, pool in self._sized.items() if pool.total_bytes())

    def free_all_blocks(self) -> None:
        """Give back all that is free."""
        for pool in self._pools():
            pool.free_all_blocks()

    def _pools(self) -> list[Any]:
        """All pools, the least recently used first."""
        return [self._any, *self._sized.values()]

    def _let_grow(self, pool: Any, size: int, limit: int) -> None:
        """Have a pool take so many bytes from the card and no more. Raises CuPy's error where they are not there."""
        for free_more in (lambda: None, self.give_back, gc.collect):
            free_more()
            taken = self.total_bytes()
            for other in self._pools():
                if taken + size <= limit:
                    break
                before = other.total_bytes()
                other.free_all_blocks()
                taken -= before - other.total_bytes()
            if taken + size <= limit:
                pool.set_limit(size=pool.total_bytes() + size)
                return
        raise self._out_of_memory(size, taken, limit)
