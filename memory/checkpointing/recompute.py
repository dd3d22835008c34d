"""What the manager asks of a loop whose chunks it may run again instead of keeping their blocks."""

from __future__ import annotations

from typing import Any, Protocol

from ctrlgrad.memory.chunk import Chunk


class Recompute(Protocol):
    """A loop that can run a chunk again from the state at its start."""

    def advance(self, state: Any, chunk: Chunk) -> Any:
        """Run one chunk from its entry state and give the state after it, which is the next chunk's entry state.

        It asks `chunk.block` for the same blocks in the same order as the first time, fills them and shrinks them
        alike. It does not seal the chunk, and it leaves `state` as it was: the state may be used again.
        """

    def copy_bytes(self, state: Any) -> int:
        """Bytes that holding a state costs."""


__all__ = ["Recompute"]
