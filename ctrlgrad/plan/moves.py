"""Copies from place to place that happen at once, as at the end of a loop body, in an order that keeps all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from ctrlgrad.plan.model import Array, Move
from ctrlgrad.plan.places import Place


def ordered(moves: Iterable[tuple[Array, Place, Place]], spare_for: Callable[[Array], Place]) -> tuple[Move, ...]:
    """Copies in an order in which nothing is overwritten before it was copied; a circle goes by a spare place."""
    pending = [Move(array, source, target) for array, source, target in moves if source != target]
    done: list[Move] = []
    while pending:
        ready = next((m for m in pending if not any(o.source == m.target for o in pending if o is not m)), None)
        if ready is None:
            first = pending[0]
            spare = spare_for(first.array)
            done.append(Move(first.array, first.source, spare))
            pending = [replace(m, source=spare) if m.source == first.source else m for m in pending]
            continue
        pending.remove(ready)
        done.append(ready)
    return tuple(done)


__all__ = ["ordered"]
