"""Source of a random program's decisions: a seed, or a list of decisions that is repeated and changed.

A program is a function of its decisions, all of them numbers in which less is simpler. So a program that fails shrinks
without a word about programs: leave decisions out, lower them, and write the program anew as long as it still fails.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")


@dataclass
class Choices:
    """Numbers, drawn or repeated, and which of them belong together; what was not recorded is the simplest there is."""

    source: random.Random | None
    given: list[int] = field(default_factory=list)
    made: list[int] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)

    def number(self, low: int, high: int) -> int:
        """A number of a range, both ends included."""
        position = len(self.made)
        if self.source is not None:
            drawn = self.source.randint(0, high - low)
        else:
            drawn = min(self.given[position], high - low) if position < len(self.given) else 0
        self.made.append(drawn)
        return low + drawn

    @contextmanager
    def span(self) -> Iterator[None]:
        """Decisions drawn inside may be left out as a whole."""
        first = len(self.made)
        yield
        self.spans.append((first, len(self.made)))


def shrunk(choices: Choices, write: Callable[[Choices], T], fails: Callable[[T], bool], most: int = 400) -> T:
    """A simpler value that still fails, after so many attempts at most."""
    best, attempts = choices, 0

    def attempt(given: list[int]) -> bool:
        nonlocal best, attempts
        attempts += 1
        again = Choices(None, given)
        value = write(again)
        if (len(again.made), again.made) >= (len(best.made), best.made) or not fails(value):
            return False
        best = again
        return True

    improved = True
    while improved and attempts < most:
        improved = False
        # Whole statements, the last first: what stands before one may be used by it.
        rank = 0
        while rank < len(best.spans) and attempts < most:
            first, last = sorted(best.spans, reverse=True)[rank]
            if attempt(best.made[:first] + best.made[last:]):
                improved = True
            else:
                rank += 1
        position = len(best.made) - 1
        while position >= 0 and attempts < most:
            now = best.made[position] if position < len(best.made) else 0
            for lower in sorted({0, now // 2, now - 1} - {now, -1}):
                if attempt([*best.made[:position], lower, *best.made[position + 1 :]]):
                    improved = True
                    break
            position -= 1
    return write(Choices(None, best.made))
