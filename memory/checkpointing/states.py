"""The entry states that a loop's chunks may be run again from.

With a limit on their number they are kept by `OnlineStates`. Without one they lie a number of chunks apart, all chunks
between two being computed again as one: the distance doubles whenever the states take more bytes than the blocks of
such a group, so both grow with the square root of the length, and every chunk is run again once.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import field
from typing import Any

from ctrlgrad.memory.arena.order import Mark
from ctrlgrad.memory.arena.ordered import OrderedNumbers
from ctrlgrad.memory.checkpointing.binomial import OnlineStates
from ctrlgrad.records import record


@record(eq=False, frozen=False)
class Kept:
    """A state, the bytes that holding it costs, and a mark after the last computation that uses it."""

    state: Any
    nbytes: int
    last_use: Mark


def most_state_bytes(limit: int, fixed: int, state: int, chunk: int) -> int:
    """Bytes of a device budget that states may take before every second one goes; `fixed` bytes are of other kinds.

    Half of it, since the groups between dense states are small; but a run from one of them needs two more states, and
    blocks of a chunk beside those that are being read.
    """
    return max(limit // 8, min(limit // 2, limit - fixed - 2 * state - 2 * chunk))


@record(eq=False, frozen=False)
class States:
    """States by the index of the chunk that starts from them, which `indexes` has in order."""

    limit: int | None = None
    kept: dict[int, Kept] = field(default_factory=dict)
    indexes: OrderedNumbers = field(default_factory=OrderedNumbers)
    nbytes: int = 0
    # Without a limit: one state every so many chunks.
    distance: int = 1
    # A mark after the last run from one of the states.
    last_run: Mark | None = None
    # How many states have each number of bytes.
    _sizes: Counter[int] = field(default_factory=Counter)
    _online: OnlineStates | None = None

    def __post_init__(self) -> None:
        if self.limit is not None:
            self._online = OnlineStates(self.limit)

    def put(self, index: int, kept: Kept) -> None:
        """Keep the state at a chunk's start."""
        self.kept[index] = kept
        self.indexes.put(index, True)
        self.nbytes += kept.nbytes
        self._sizes[kept.nbytes] += 1

    def pop(self, index: int) -> Kept:
        """Let a state go. Its `last_use` is after the runs that began from it."""
        kept = self.kept.pop(index)
        self.indexes.put(index, False)
        self.nbytes -= kept.nbytes
        self._sizes[kept.nbytes] -= 1
        if not self._sizes[kept.nbytes]:
            del self._sizes[kept.nbytes]
        if self.last_run is not None and self.last_run.number > kept.last_use.number:
            kept.last_use = self.last_run
        return kept

    @property
    def largest(self) -> int:
        """Bytes of the largest state; 0 where there is none."""
        return max(self._sizes, default=0)

    def wants(self, index: int) -> bool:
        """Return true if the state at a chunk's start is to be kept."""
        if self.limit is not None:
            return index == 0 or self.limit > 1
        return index % self.distance == 0

    def displaced_by(self, index: int) -> list[int]:
        """States to drop before the one at a chunk's start is kept."""
        if self._online is None:
            return []
        gone = self._online.reach(index)
        return [] if gone is None else [gone]

    def thin(self, most_bytes: float) -> list[int]:
        """States to drop where they take more than a number of bytes: every second one, the distance doubles."""
        if self._online is not None:
            return []
        if len(self.kept) < 2 or self.nbytes <= most_bytes:
            return []
        gone: list[int] = []
        while not gone:
            self.distance *= 2
            gone = [i for i in self.indexes if i % self.distance]
        return gone

    def nearest(self, index: int) -> int | None:
        """The last chunk up to `index` whose entry state is kept."""
        return self.indexes.last_before(index + 1)
