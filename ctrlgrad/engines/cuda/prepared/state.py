"""State of a loop between two iterations, and the ways in which earlier iterations ran."""

from __future__ import annotations

from dataclasses import dataclass, field

from ctrlgrad.engines.cuda.program import Values


@dataclass(frozen=True)
class Way:
    """So many iterations, from a list or step by step."""

    iterations: int
    is_listed: bool


@dataclass
class LoopState:
    """A loop between two iterations."""

    shared: Values
    carry: Values
    trips: int = 0
    # Ways in which iterations ran since this was last cleared.
    ways: list[Way] = field(default_factory=list)

    def note(self, way: Way) -> None:
        """The next iterations ran so."""
        if self.ways and self.ways[-1].is_listed == way.is_listed:
            way = Way(self.ways.pop().iterations + way.iterations, way.is_listed)
        self.ways.append(way)
