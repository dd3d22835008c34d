"""Result of a demo: some lines of text, and some panels of a picture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# Draws into one pair of axes of matplotlib's.
Panel = Callable[[Any], None]


@dataclass(frozen=True)
class Finding:
    """`lines` are printed, one below the other; `panels` are drawn, side by side."""

    lines: tuple[str, ...]
    panels: tuple[Panel, ...]
