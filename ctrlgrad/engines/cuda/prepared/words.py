"""A list of launches while it is written: words, of which some are addresses that are known only when a loop runs."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

import numpy as np

from ctrlgrad.engines.cuda.prepared.operands import wrapped

WORD = np.dtype(np.int64).itemsize


@dataclass(frozen=True)
class Known:
    """Word that is known when a loop runs, and an amount to add to it."""

    what: Hashable
    plus: int = 0


class Words:
    """Words in one array that must not be moved: `inner` words hold addresses of other words."""

    def __init__(self) -> None:
        self._words: list[int] = []
        self._inner: list[int] = []
        self._places: dict[Hashable, list[int]] = {}

    def __len__(self) -> int:
        return len(self._words)

    def add(self, *words: int | Known) -> int:
        """Add words; the number of the first."""
        first = len(self._words)
        for word in words:
            if isinstance(word, Known):
                self._places.setdefault(word.what, []).append(len(self._words))
                word = word.plus
            self._words.append(wrapped(word))
        return first

    def inner(self, *numbers: int) -> int:
        """Add the addresses of words of these numbers; the number of the first."""
        self._inner += range(len(self._words), len(self._words) + len(numbers))
        return self.add(*(WORD * number for number in numbers))

    def made(self) -> LaunchList:
        return LaunchList(self._words, self._inner, self._places)


class LaunchList:
    """The words, of which those that stand for something known later can be set again and again."""

    def __init__(self, words: list[int], inner: list[int], places: Mapping[Hashable, list[int]]) -> None:
        self.words = np.array(words, np.int64)
        self.words[inner] += self.address
        self._places = {what: (np.array(found), self.words[found]) for what, found in places.items()}
        self._now = dict.fromkeys(places, 0)

    @property
    def address(self) -> int:
        return int(self.words.ctypes.data)

    @property
    def named(self) -> tuple[Hashable, ...]:
        """All that is to be set."""
        return tuple(self._places)

    @property
    def state(self) -> tuple[int, ...]:
        """All that is set."""
        return tuple(self._now.values())

    def now(self, known: Known) -> int:
        """Current value of a known word."""
        return self._now[known.what] + known.plus

    def set(self, what: Hashable, word: int) -> None:
        """From now on this is its address, or its number."""
        if word != self._now[what]:
            places, plus = self._places[what]
            self.words[places] = plus + word
            self._now[what] = word
