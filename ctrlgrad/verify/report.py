"""The outcome of a check as data, and as a table of plain text."""

from __future__ import annotations

import math
from dataclasses import dataclass

HEADER = ("argument", "order", "mode", "judge", "absolute error", "relative error", "tolerance", "")


@dataclass(frozen=True)
class Row:
    """One derivative compared with one judge.

    `absolute` is the largest error of any element (for finite differences: of any directional derivative);
    `relative` is that over `scale`, the size of the judge's own numbers; `tolerance` bounds `absolute`. Where the judge
    could not judge, `is_judged` is False and `note` says why: the row is neither right nor wrong.
    """

    path: str
    order: int
    mode: str
    judge: str
    absolute: float
    scale: float
    tolerance: float
    note: str = ""
    is_judged: bool = True

    @property
    def relative(self) -> float:
        if self.absolute == 0.0:
            return 0.0
        return self.absolute / self.scale if self.scale else float("inf")

    @property
    def ok(self) -> bool:
        """True if the error is within the tolerance; never for NaN, nor for an unjudged row."""
        return self.is_judged and self.absolute <= self.tolerance

    @property
    def verdict(self) -> str:
        """ "ok", "WRONG" or "not judged"."""
        if not self.is_judged:
            return "not judged"
        return "ok" if self.ok else "WRONG"

    def cells(self) -> tuple[str, ...]:
        """The row as text, in the order of `HEADER`."""
        verdict = self.verdict + (f": {self.note}" if self.note else "")
        figures = (self.absolute, self.relative, self.tolerance)
        errors = ["-" if not (self.is_judged or math.isfinite(self.absolute)) else f"{x:.1e}" for x in figures]
        return (self.path, str(self.order), self.mode, self.judge, *errors, verdict)


@dataclass(frozen=True)
class GradientReport:
    """Every comparison that a check made; `str()` gives them as a table.

    >>> print(GradientReport((Row("args[0]", 1, "rev", "jax (scan)", 2e-12, 1.0, 1e-9),)))
    argument  order  mode  judge       absolute error  relative error  tolerance
    args[0]   1      rev   jax (scan)  2.0e-12         2.0e-12         1.0e-09    ok
    """

    rows: tuple[Row, ...]

    @property
    def ok(self) -> bool:
        """True if no comparison failed, and at least one of a derivative was judged."""
        return not self.failures and self.is_judged

    @property
    def is_judged(self) -> bool:
        """True if at least one derivative was judged, not the function's value alone."""
        return any(row.is_judged and row.order for row in self.rows)

    @property
    def failures(self) -> tuple[Row, ...]:
        """The comparisons that disagree."""
        return tuple(row for row in self.rows if row.is_judged and not row.ok)

    @property
    def not_judged(self) -> tuple[Row, ...]:
        """The comparisons in which the judge could not judge; each one's note says why."""
        return tuple(row for row in self.rows if not row.is_judged)

    @property
    def summary(self) -> str:
        """Number of comparisons, and their results, as text.

        >>> row = Row("args[0]", 1, "rev", "jax (scan)", 2e-12, 1.0, 1e-9)
        >>> GradientReport((row, row)).summary
        'all 2 comparisons agree'
        >>> other = Row("args[1]", 1, "rev", "jax (scan)", 0.0, 1.0, 1e-9, is_judged=False)
        >>> GradientReport((row, other)).summary
        '1 of 2 comparisons agree, 1 could not be judged'
        """
        count, wrong, unjudged = len(self.rows), len(self.failures), len(self.not_judged)
        suffix = f", {unjudged} could not be judged" if unjudged else ""
        if wrong:
            return f"{wrong} of {count} comparisons disagree{suffix}"
        if not self.is_judged:
            return f"no derivative could be judged: {unjudged} of {count} comparisons could not"
        return (
            f"{count - unjudged} of {count} comparisons agree{suffix}" if unjudged else f"all {count} comparisons agree"
        )

    def __str__(self) -> str:
        lines = [HEADER, *(row.cells() for row in self.rows)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(HEADER))]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
        )


def advice(report: GradientReport) -> tuple[str, str]:
    """Advice about a report that is not `ok`."""
    if report.failures:
        return (
            "a jump near the arguments misleads finite differences: try other arguments, or JAX alone;",
            "if JAX disagrees too, the derivative is wrong, and the wrong line with the lowest order is where to begin",
        )
    return (
        "at these arguments the judges have nothing to say, so nothing is known about the derivatives:",
        "try arguments away from where a trip count, a branch or the domain ends, or the other judge",
    )
