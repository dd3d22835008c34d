"""Copies from place to place that happen at once, as at the end of a loop body, in an order that keeps all of them."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import replace

from ctrlgrad.plan.model import Array, Move
from ctrlgrad.plan.places import Place


def ordered(moves: Iterable[tuple[Array, Place, Place]], spare_for: Callable[[Array], Place]) -> tuple[Move, ...]:
    """Copies in an order in which nothing is overwritten before it was copied; a circle goes by a spare place."""
    pending = [Move(array, source, target) for array, source, target in moves if source != target]
    by_source: dict[Place, set[int]] = {}
    by_target: dict[Place, list[int]] = {}
    for number, move in enumerate(pending):
        by_source.setdefault(move.source, set()).add(number)
        by_target.setdefault(move.target, []).append(number)
    # The first of several that may go goes first.
    ready = [number for number, move in enumerate(pending) if move.target not in by_source]
    left, done = dict.fromkeys(range(len(pending))), []
    while left:
        if ready:
            number = heapq.heappop(ready)
            move = pending[number]
            del left[number]
            done.append(move)
            by_source[move.source].discard(number)
            if by_source[move.source]:
                continue
        else:
            move = pending[next(iter(left))]
            spare = spare_for(move.array)
            done.append(Move(move.array, move.source, spare))
            waiting = by_source[spare] = by_source[move.source]
            by_source[move.source] = set()
            for number in waiting:
                pending[number] = replace(pending[number], source=spare)
        for number in by_target.get(move.source, ()):
            if number in left:
                heapq.heappush(ready, number)
    return tuple(done)
