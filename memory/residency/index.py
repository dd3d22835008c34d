"""The index of where blocks are: which slot has the bytes of each in which tier, and which chunks lie in a tier.

Nothing else writes a block's `slots`. There may be very many chunks, of which few are on the device; who looks for
something to copy, evict or fetch must not go through all of them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator

from ctrlgrad.memory.arena.arena import Slot
from ctrlgrad.memory.chunk import BlockRecord, ChunkRecord


class _Numbers:
    """A set of numbers in order. It may change while one goes through it."""

    def __init__(self) -> None:
        self._sorted: list[int] = []
        self._known: set[int] = set()

    def put(self, number: int, is_in: bool) -> None:
        if is_in == (number in self._known):
            return
        if is_in:
            self._known.add(number)
            insort(self._sorted, number)
        else:
            self._known.remove(number)
            del self._sorted[bisect_left(self._sorted, number)]

    def rising(self) -> Iterator[int]:
        place = 0
        while place < len(self._sorted):
            number = self._sorted[place]
            yield number
            place = bisect_right(self._sorted, number)

    def falling_from(self, number: int) -> Iterator[int]:
        place = bisect_right(self._sorted, number)
        while place:
            number = self._sorted[place - 1]
            yield number
            place = bisect_left(self._sorted, number)


class ResidencyIndex:
    """Where the blocks are of all chunks that hold bytes. The manager's lock is held."""

    def __init__(self, levels: int) -> None:
        self._chunks: dict[int, ChunkRecord] = {}
        self._in_level = [_Numbers() for _ in range(levels)]
        self._away = _Numbers()

    def add(self, chunk: ChunkRecord) -> None:
        self._chunks[chunk.number] = chunk

    def remove(self, chunk: ChunkRecord) -> None:
        """A chunk holds nothing any more."""
        if self._chunks.pop(chunk.number, None) is not None:
            for numbers in (*self._in_level, self._away):
                numbers.put(chunk.number, False)

    def put(self, block: BlockRecord, slot: Slot) -> None:
        """A block lies in a slot from now on."""
        block.slots[slot.level] = slot
        self._update(block.chunk)

    def take(self, block: BlockRecord, *levels: int) -> list[Slot]:
        """A block lies in these tiers no longer; gives the slots that it had there."""
        slots = [slot for level in levels if (slot := block.slots[level]) is not None]
        for slot in slots:
            block.slots[slot.level] = None
        self._update(block.chunk)
        return slots

    def _update(self, chunk: ChunkRecord) -> None:
        """A block of a chunk has come to a tier or left it, or nobody wants it any more."""
        if chunk.number not in self._chunks:
            return
        for level, numbers in enumerate(self._in_level):
            numbers.put(chunk.number, any(block.slots[level] is not None for block in chunk.blocks))
        self._away.put(chunk.number, any(block.holders and block.slots[0] is None for block in chunk.blocks))

    def __len__(self) -> int:
        return len(self._chunks)

    def all(self) -> list[ChunkRecord]:
        return list(self._chunks.values())

    def in_level(self, level: int) -> Iterator[ChunkRecord]:
        """Chunks with a block in a tier."""
        return (self._chunks[number] for number in self._in_level[level].rising())

    def away(self, newest: ChunkRecord) -> Iterator[ChunkRecord]:
        """Chunks with a block that is wanted and not on the device: a given one and older ones, the newest first."""
        return (self._chunks[number] for number in self._away.falling_from(newest.number))


__all__ = ["ResidencyIndex"]
