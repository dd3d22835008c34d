"""Bounded, thread-safe caches: by a key, and by a graph."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from ctrlgrad import forks

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """LRU cache of made values; of several threads that ask for one key, one makes the value and the rest wait.

    It keeps `most` values, which weigh at most `heaviest` together, each what `weigh` says; the newest one always.
    """

    def __init__(self, most: int, heaviest: int = 0, weigh: Callable[[V], int] = lambda _: 0) -> None:
        self.most, self.heaviest, self.weigh = most, heaviest, weigh
        self._lock = forks.lock()
        self._entries: OrderedDict[K, V] = OrderedDict()
        # Keys that are being made: each with a lock that its maker has.
        self._making: dict[K, Any] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def values(self) -> list[V]:
        """The kept values, the most recently used one last."""
        with self._lock:
            return list(self._entries.values())

    def get(self, key: K, make: Callable[[], V]) -> V:
        """Return the value of a key; `make` makes it if it is not kept."""
        while True:
            with self._lock:
                if key in self._entries:
                    self._entries.move_to_end(key)
                    return self._entries[key]
                making = self._making.setdefault(key, forks.recursive_lock())
            with making:
                # A thread that waited for a maker looks again. The first thread is the maker; in a forked child, where
                # a maker's thread is gone, the next one is.
                # the value.
                if self._making.get(key) is making:
                    return self._made(key, make)

    def forget(self, key: K) -> None:
        """Drop the entry of a key."""
        with self._lock:
            self._entries.pop(key, None)

    def clear(self) -> None:
        """Empty the cache."""
        with self._lock:
            self._entries.clear()

    def _made(self, key: K, make: Callable[[], V]) -> V:
        try:
            value = make()
            with self._lock:
                self._entries[key] = value
                weight = sum(map(self.weigh, self._entries.values())) if self.heaviest else 0
                while len(self._entries) > self.most or (weight > self.heaviest and len(self._entries) > 1):
                    weight -= self.weigh(self._entries.popitem(last=False)[1])
            return value
        finally:
            with self._lock:
                self._making.pop(key, None)


class _Held(Protocol):
    @property
    def caches(self) -> dict[Cache[Any, Any], Recent[Any, Any]]: ...


class Cache(Generic[K, V]):
    """Results that an owner derives from graphs: an LRU cache of `most` results for each graph.

    The graph holds its cache, so both are freed together, even if the results refer to the graph.
    """

    def __init__(self, most: int) -> None:
        self.most = most

    def of(self, graph: _Held) -> Recent[K, V]:
        """The results for one graph."""
        found = graph.caches.get(self)
        # `setdefault` is one step, also where several threads come at once.
        return graph.caches.setdefault(self, Recent(self.most)) if found is None else found

    def get(self, graph: _Held, key: K, make: Callable[[], V]) -> V:
        """The graph's result for a key; `make` makes it where it is not kept."""
        return self.of(graph).get(key, make)
