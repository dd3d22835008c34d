"""The outcome of a check as data, and as a table of plain text."""

from __future__ import annotations

from dataclasses import dataclass

HEADER = ("argument", "order", "mode", "judge", "absolute error", "relative error", "tolerance", "")


@dataclass(frozen=True)
class Row:
    """One derivative compared with one judge.

    `absolute` is the largest error of any element (for finite differences: of any directional derivative);
    `relative` is that over `scale`, the size of the judge's own numbers; `tolerance` bounds `absolute`.
    """

    path: str
    order: int
    mode: str
    judge: str
    absolute: float
    scale: float
    tolerance: float
    note: str = ""

    @property
    def relative(self) -> float:
        if self.absolute == 0.0:
            return 0.0
        return self.absolute / self.scale if self.scale else float("inf")

    @property
    def ok(self) -> bool:
        """Whether the error is within the tolerance; never for NaN."""
        return self.absolute <= self.tolerance

    def cells(self) -> tuple[str, ...]:
        """The row as text, in the order of `HEADER`."""
        verdict = ("ok" if self.ok else "WRONG") + (f": {self.note}" if self.note else "")
        errors = (f"{self.absolute:.1e}", f"{self.relative:.1e}", f"{self.tolerance:.1e}")
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
        return all(row.ok for row in self.rows)

    @property
    def failures(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if not row.ok)

    def __str__(self) -> str:
        lines = [HEADER, *(row.cells() for row in self.rows)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(HEADER))]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
        )
