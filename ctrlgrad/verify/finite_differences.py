"""Derivatives of a function of one real variable by central differences, with an estimate of their error.

Central differences at steps h, h/2, h/4, ... are extrapolated to step zero by Richardson's scheme; the entry
of the tableau whose neighbours agree best is the answer (Ridders, Advances in Engineering Software 4, 1982).
The error estimate is the larger of that disagreement and of what rounding of the function's values does
to a difference at the step used.

A program with data-dependent control flow is smooth only as long as its trip counts and branches stay the
same. A sample therefore comes with its path, and steps that leave the path of the centre are not used. Where no
steps are left there is no answer, but the reason why.

At a kink on one path (`where`, `maximum`) the differences to the left and to the right have different limits; half
their distance is told with the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace

import numpy as np

LEVELS = 12
SHRINK = 2.0
# Ratio of the second difference over the step from one level to the next: 1/2 or less for a smooth function, 1 at a
# kink.
_KINK = 0.75


@dataclass(frozen=True)
class Sample:
    """The function at one point, and the control-flow path that it took."""

    value: float
    path: Hashable = None


@dataclass(frozen=True)
class Slope:
    """A derivative. `error` estimates its distance from the truth, `noise` is what rounding does at the largest step.

    `kink` is half the distance of the one-sided derivatives where they differ. `evaluations` counts calls of the
    function; `reason` says why there is no answer, and is empty where there is one.
    """

    value: float
    error: float
    step: float
    noise: float = 0.0
    kink: float = 0.0
    evaluations: int = 0
    reason: str = ""

    @property
    def is_conclusive(self) -> bool:
        """True if the function kept its path and was finite on at least one step."""
        return bool(np.isfinite(self.error))


NOT_FINITE = "the function is not finite nearby"
OTHER_PATH = "every step changes a trip count or a branch"
_NOTHING = Slope(float("nan"), float("inf"), 0.0, reason=OTHER_PATH)


def slope(function: Callable[[float], Sample], first_step: float, rounding: float) -> Slope:
    """The derivative of `function` at zero.

    Args:
        function: gives a sample at a distance from zero.
        first_step: the largest step.
        rounding: the error of one value of the function, as an absolute number.
    """
    centre = function(0.0)
    evaluations = 1
    if not np.isfinite(centre.value):
        return replace(_NOTHING, evaluations=evaluations, reason="the function is not finite here")
    best = _NOTHING
    above: list[float] = []
    bend = 0.0
    for level in range(LEVELS):
        step = first_step / SHRINK**level
        noise = rounding / step
        if noise > best.error:
            # From here on smaller steps only lose digits.
            break
        right, left = function(step), function(-step)
        evaluations += 2
        if not all(s.path == centre.path and np.isfinite(s.value) for s in (right, left)):
            # A larger step that kept the path by chance says nothing about what lies between.
            is_finite = np.isfinite(right.value) and np.isfinite(left.value)
            above, best = [], replace(_NOTHING, reason=OTHER_PATH if is_finite else NOT_FINITE)
            continue
        bend, previous_bend = abs(right.value - 2.0 * centre.value + left.value) / step, bend
        has_kink = bool(above) and bend > max(_KINK * previous_bend, 10.0 * noise)
        row = [(right.value - left.value) / (2.0 * step)]
        factor = 1.0
        for previous in above:
            factor *= SHRINK**2
            row.append((row[-1] * factor - previous) / (factor - 1.0))
            error = max(abs(row[-1] - row[-2]), abs(row[-1] - previous), noise)
            if error < best.error:
                best = Slope(row[-1], float(error), step, kink=bend / 2.0 if has_kink else 0.0)
        above = row
    return replace(best, noise=rounding / first_step, evaluations=evaluations)
