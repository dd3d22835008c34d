"""The index of where blocks are: which slot has the bytes of each in which tier, and which chunks lie in a tier.

Nothing else writes a block's `slots`. There may be very many chunks, of which few are on the device; who looks for
something to copy, evict or fetch must not go through all of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from ctrlgrad.memory.arena.arena import Slot
from ctrlgrad.memory.arena.ordered import OrderedNumbers
from ctrlgrad.memory.chunk import BlockRecord, ChunkRecord


class ResidencyIndex:
    """Places of the blocks of all chunks that hold bytes. The manager's lock is held."""

    def __init__(self, levels: int) -> None:
        self._chunks: dict[int, ChunkRecord] = {}
        self._in_level = [OrderedNumbers() for _ in range(levels)]
        self._away = OrderedNumbers()
        # Chunks that no copy was started of, with their bytes, and the sum of these.
        self._uncopied = OrderedNumbers()
        self._uncopied_by_chunk: dict[int, int] = {}
        self.uncopied_bytes = 0

    def add(self, chunk: ChunkRecord) -> None:
        self._chunks[chunk.number] = chunk
        if chunk.blocks:
            self._update(chunk)

    def remove(self, chunk: ChunkRecord) -> None:
        """A chunk holds nothing any more."""
        if self._chunks.pop(chunk.number, None) is not None:
            self._update(chunk)
            self.put_uncopied(chunk, 0)

    def put(self, block: BlockRecord, slot: Slot) -> None:
        """A block lies in a slot from now on."""
        block.slots[slot.level] = slot
        self._update(block.chunk)

    def take(self, block: BlockRecord, *levels: int) -> list[Slot]:
        """A block lies in these tiers no longer; gives the slots that it had there."""
        slots = []
        for level in levels:
            slot, block.slots[level] = block.slots[level], None
            if slot is not None:
                slots.append(slot)
        self._update(block.chunk)
        return slots

    def _update(self, chunk: ChunkRecord) -> None:
        """A block of a chunk has come to a tier or left it, or has no holder any more; or the chunk itself is gone."""
        places = [False] * (len(self._in_level) + 1)
        for block in chunk.blocks if chunk.number in self._chunks else ():
            for level, slot in enumerate(block.slots):
                if slot is not None:
                    places[level] = True
            if block.slots[0] is None and block.holders:
                places[-1] = True
        if places == chunk.places:
            return
        for level, numbers in enumerate((*self._in_level, self._away)):
            if places[level] != (level < len(chunk.places) and chunk.places[level]):
                numbers.put(chunk.number, places[level])
        chunk.places = places

    def __len__(self) -> int:
        return len(self._chunks)

    def all(self) -> list[ChunkRecord]:
        return list(self._chunks.values())

    def put_uncopied(self, chunk: ChunkRecord, nbytes: int) -> None:
        """A chunk waits for copies of so many bytes; 0: it waits for none. One that holds nothing does not wait."""
        nbytes = nbytes if chunk.number in self._chunks else 0
        self.uncopied_bytes += nbytes - self._uncopied_by_chunk.pop(chunk.number, 0)
        self._uncopied.put(chunk.number, nbytes > 0)
        if nbytes:
            self._uncopied_by_chunk[chunk.number] = nbytes

    def uncopied(self) -> Iterator[ChunkRecord]:
        """Chunks that no copy was started of, the oldest first."""
        return (self._chunks[number] for number in self._uncopied.rising())

    @property
    def has_copies(self) -> bool:
        """Return true if a tier behind the device has a block."""
        return any(map(len, self._in_level[1:]))

    def in_level(self, level: int) -> Iterator[ChunkRecord]:
        """Chunks with a block in a tier."""
        return (self._chunks[number] for number in self._in_level[level].rising())

    def away(self, newest: ChunkRecord) -> Iterator[ChunkRecord]:
        """Chunks with a block that is wanted and not on the device: a given one and older ones, the newest first."""
        return (self._chunks[number] for number in self._away.falling_from(newest.number))


__all__ = ["ResidencyIndex"]
