"""Movement of addresses and numbers from iteration to iteration: by a word, and by counters."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ctrlgrad.engines.cuda.prepared.operands import Affine, Converted, Operand, Rows, View


@dataclass(frozen=True)
class Movement:
    """The word by which an address or a number moves, what each iteration adds, and by other counters what these do."""

    word: View | Affine
    step: int
    others: tuple[tuple[int, int], ...]


def movement(x: Operand) -> Movement | None:
    """Movement of an operand; None where it does not move."""
    if isinstance(x, View):
        # However the elements of rows lie, one word tells where they begin.
        word = replace(x, shape=(), strides=()) if isinstance(x.source, Rows) else x.moved
        return _by(word, x.moved) if x.is_moving else None
    number = x.number if isinstance(x, Converted) else x
    return _by(number, number) if isinstance(number, Affine) and number.is_moving else None


def _by(word: View | Affine, moved: Affine) -> Movement:
    return Movement(word, moved.step, tuple((counter, step) for counter, step in moved.steps if counter))
