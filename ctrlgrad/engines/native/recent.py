"""A bounded memory of what was made, for several threads."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """What was made for the keys that were asked for last; of several threads that ask for one key, one makes it."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._lock = threading.Lock()
        self._entries: OrderedDict[K, V] = OrderedDict()
        # Keys that are being made.
        self._pending: dict[K, threading.Event] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def values(self) -> list[V]:
        """What is kept now, what was asked for last at the end."""
        with self._lock:
            return list(self._entries.values())

    def get(self, key: K, make: Callable[[], V]) -> V:
        """What belongs to a key; `make` makes it where it is not kept."""
        while True:
            with self._lock:
                if key in self._entries:
                    self._entries.move_to_end(key)
                    return self._entries[key]
                waiting = self._pending.get(key)
                if waiting is None:
                    done = self._pending[key] = threading.Event()
                    break
            waiting.wait()
        try:
            made = make()
            with self._lock:
                self._entries[key] = made
                while len(self._entries) > self.most:
                    self._entries.popitem(last=False)
            return made
        finally:
            with self._lock:
                del self._pending[key]
            done.set()


__all__ = ["Recent"]
