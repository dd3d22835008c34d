"""CuPy's pool of device memory by its rules, for the fake in `fake_cupy.py`: memory is cut into chunks, and joined."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Chunk:
    """A part of memory that was taken from the card at once, between its neighbours in it."""

    def __init__(self, memory: Any, offset: int, size: int) -> None:
        self.memory, self.offset, self.size = memory, offset, size
        self.before: Chunk | None = None
        self.behind: Chunk | None = None

    def join(self) -> None:
        """Become one with what lies behind it."""
        other = self.behind
        assert other is not None
        self.size, self.behind = self.size + other.size, other.behind
        if self.behind is not None:
            self.behind.before = self


class Pooled:
    """A chunk of a pool: it goes back to the arena of its stream."""

    def __init__(self, free: list[Chunk], chunk: Chunk) -> None:
        self._free, self._chunk = free, chunk
        self.data = chunk.memory.mem.data[chunk.offset : chunk.offset + chunk.size]
        self.ptr = chunk.memory.ptr + chunk.offset

    def __del__(self) -> None:
        chunk = self._chunk
        if chunk.behind in self._free:
            self._free.remove(chunk.behind)
            chunk.join()
        if chunk.before in self._free:
            chunk = chunk.before
            self._free.remove(chunk)
            chunk.join()
        self._free.append(chunk)


def pool_class(
    card: Any, make: Callable[[int], Any], out_of_memory: type[MemoryError], pointer: Callable[..., Any]
) -> type[Any]:
    """The class `MemoryPool`, which takes memory from the card by `make`."""

    class MemoryPool:
        """As CuPy's: what is asked for is rounded up to 512 bytes and cut off the smallest free chunk of the stream's
        that is large enough. What was taken from the card at once goes back at once, when all of it is free. The limit
        is for all that was taken from the card, used and free."""

        def __init__(self) -> None:
            self.free: dict[Any, list[Chunk]] = {}
            self.limit, self.taken = 0, 0

        def malloc(self, size: int) -> Any:
            size = -(-size // 512) * 512
            free = self.free.setdefault(card.stream(), [])
            chunk = min((c for c in free if c.size >= size), key=lambda c: c.size, default=None)
            if chunk is None:
                chunk = Chunk(self._taken(size), 0, size)
            else:
                free.remove(chunk)
            if chunk.size > size:
                rest = Chunk(chunk.memory, chunk.offset + size, chunk.size - size)
                rest.before, rest.behind, chunk.behind, chunk.size = chunk, chunk.behind, rest, size
                if rest.behind is not None:
                    rest.behind.before = rest
                free.append(rest)
            return pointer(Pooled(free, chunk), 0)

        def _taken(self, size: int) -> Any:
            if self.limit and self.taken + size > self.limit:
                self.free_all_blocks()
            if self.limit and self.taken + size > self.limit:
                raise out_of_memory(f"out of memory allocating {size} bytes (limit {self.limit})")
            try:
                memory = make(size)
            except out_of_memory:
                self.free_all_blocks()
                memory = make(size)
            self.taken += size
            return memory

        def total_bytes(self) -> int:
            return self.taken

        def free_bytes(self) -> int:
            return sum(chunk.size for free in self.free.values() for chunk in free)

        def set_limit(self, size: int) -> None:
            self.limit = size

        def free_all_blocks(self) -> None:
            for free in self.free.values():
                whole = [chunk for chunk in free if chunk.before is None and chunk.behind is None]
                self.taken -= sum(chunk.size for chunk in whole)
                free[:] = [chunk for chunk in free if chunk not in whole]

    return MemoryPool


__all__ = ["pool_class"]
