"""Sizes drawn evenly in their logarithm from 0 to ten million, with more weight beside thresholds."""

from __future__ import annotations

import math
import random

MOST = 10_000_000
# Numbers of elements, of instructions, of bytes and of rows that code compares with: see `thresholds` in tests/native.
BESIDE = [
    *(1 << k for k in range(1, 24)),
    *(3 << k for k in range(1, 22)),
    *(6, 12, 20, 50, 100, 200, 250, 500, 1000, 4096 + 64, 10_000, 100_000, 1_000_000),
]


def size(draw: random.Random, most: int = MOST) -> int:
    """A size of at most so many."""
    if most <= 1:
        return draw.randint(0, most)
    chance = draw.random()
    if chance < 0.03:
        return 0
    if chance < 0.06:
        return 1
    if chance < 0.45:
        below = [n for n in BESIDE if n <= most]
        return min(most, max(0, draw.choice(below) + draw.choice((-1, 0, 1))))
    return min(most, int(math.exp(draw.uniform(0, math.log(most + 1)))))


def split(draw: random.Random, parts: int, most: int = MOST) -> tuple[int, ...]:
    """Sizes of so many axes of an array of at most so many elements, in any order."""
    left, found = size(draw, most), []
    for _ in range(parts - 1):
        side = size(draw, max(left, 1))
        found.append(side)
        left = left // max(side, 1)
    found.append(left)
    draw.shuffle(found)
    return tuple(found)


def short(draw: random.Random, most: int = 300) -> int:
    """A size of at least one, and seldom many."""
    return max(1, size(draw, draw.choice((4, 17, 70, most))))
