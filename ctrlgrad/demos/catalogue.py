"""All demos by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from ctrlgrad.advice import check_choice

# Result of a demo: some lines of text, and some panels of a picture.


# Draws into one pair of axes of matplotlib's.
Panel = Callable[[Any], None]


@dataclass(frozen=True)
class Finding:
    """`lines` are printed, one below the other; `panels` are drawn, side by side."""

    lines: tuple[str, ...]
    panels: tuple[Panel, ...]


# In the order of `docs/recipes`.
NAMES = ("variable_length", "implicit_layers", "adaptive_solvers", "decoding", "rollouts", "alignments", "contacts")


def titles() -> dict[str, str]:
    """Title of each demo, by its name."""
    return {name: (import_module(f"ctrlgrad.demos.{name}").__doc__ or "").partition("\n")[0] for name in NAMES}


def show(name: str) -> Finding:
    """Run a demo. Raises `UserInputError` for an unknown name."""
    check_choice("ctrlgrad", "demo", name, NAMES)
    finding: Finding = import_module(f"ctrlgrad.demos.{name}").show()
    return finding
