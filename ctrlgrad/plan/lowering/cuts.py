"""Sizes that slices by fixed numbers leave of sizes that only a run knows.

`x[1:]` and `y[:-1]` are of one size where x and y are, and a kernel over both needs to know; so does what joins `x[:1]`
and `x[1:]` again. A size is cut in two at a number: the least of both, and the rest.
"""

from __future__ import annotations

from typing import Literal

from ctrlgrad.plan.expression import Number, select
from ctrlgrad.plan.sizes import Size
from ctrlgrad.records import record

CutPart = Literal["least", "rest"]


@record
class Cut:
    """Part of a size that is cut in two at a number: as much as there is up to there, or what is beyond."""

    part: CutPart
    size: Size
    at: int

    def of(self, n: Number) -> Number:
        if self.part == "least":
            return select(n < self.at, n, self.at)
        return select(n < self.at, n - n, n - self.at)

    @property
    def known(self) -> Size | None:
        """The size, where nothing has to be computed for it."""
        n = self.size.factor
        if self.size.is_known:
            return Size(min(n, self.at) if self.part == "least" else max(n - self.at, 0))
        if self.at == 0:
            return Size(0) if self.part == "least" else self.size
        return None

    def joins(self, other: Cut) -> bool:
        """Whether both are the two parts of one size."""
        return (self.size, self.at) == (other.size, other.at) and self.part != other.part
