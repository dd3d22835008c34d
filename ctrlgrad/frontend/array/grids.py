"""Arrays written with square brackets: `r_[a, b]`, `c_[a, b]`, `r_[0:1:5j]`."""

from __future__ import annotations

from typing import Any

from ctrlgrad.errors import UserInputError
from ctrlgrad.frontend.array.dims import expanded, rank_of
from ctrlgrad.frontend.array.joining import concatenate
from ctrlgrad.frontend.array.manipulation import moveaxis
from ctrlgrad.frontend.array.promote import operand
from ctrlgrad.frontend.array.ranges import arange, linspace
from ctrlgrad.source import here


class Joined:
    """What stands in the brackets, joined along an axis; slices are ranges, as in NumPy.

    A first item such as "0", "0,2" or "0,2,1" gives the axis, the rank that arrays of less are brought to, and where
    their own axes go there.
    """

    def __init__(self, axis: int, rank: int, start: int) -> None:
        self._defaults = (axis, rank, start)

    def __getitem__(self, key: Any) -> Any:
        items = list(key) if isinstance(key, tuple) else [key]
        axis, rank, start = self._defaults
        if isinstance(items[0], str):
            axis, rank, start = self._directive(items.pop(0))
        return concatenate([_placed(_item(x), x, rank, start) for x in items], axis)

    def _directive(self, text: str) -> tuple[int, int, int]:
        try:
            numbers = [int(part) for part in text.split(",")]
        except ValueError:
            numbers = []
        if not 1 <= len(numbers) <= 3:
            raise UserInputError(
                "r_ and c_: an unknown first item",
                source=here(),
                expected='up to three integers as text, such as "0,2"',
                got=repr(text),
            )
        return (*numbers, *self._defaults[len(numbers) :])  # type: ignore[return-value]


def _item(x: Any) -> Any:
    if not isinstance(x, slice):
        return operand("r_", x)
    start, step = 0 if x.start is None else x.start, 1 if x.step is None else x.step
    if isinstance(step, complex):
        return linspace(start, x.stop, int(abs(step)))
    return arange(start, x.stop, step)


def _placed(x: Any, given: Any, rank: int, start: int) -> Any:
    """x with as many axes as all have, its own from `start` on."""
    own = rank_of(x)
    if own == 0:
        return expanded(x, range(rank))
    missing = rank - own
    if missing <= 0:
        return x
    lifted = expanded(x, range(missing))
    if start < 0:
        start += missing + 1
    return (
        moveaxis(lifted, tuple(range(missing, rank)), tuple(range(start, start + own))) if start != missing else lifted
    )


r_ = Joined(0, 1, -1)
c_ = Joined(-1, 2, 0)


__all__ = [
    "c_",
    "r_",
]
