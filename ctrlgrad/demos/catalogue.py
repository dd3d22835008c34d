"""All demos by name."""

from __future__ import annotations

from importlib import import_module

from ctrlgrad.demos.finding import Finding
from ctrlgrad.errors import UserInputError

# In the order of `docs/recipes`.
NAMES = (
    "variable_length",
    "implicit_layers",
    "adaptive_solvers",
    "decoding",
    "rollouts",
    "alignments",
    "contacts",
)


def titles() -> dict[str, str]:
    """Title of each demo, by its name."""
    return {name: (import_module(f"ctrlgrad.demos.{name}").__doc__ or "").partition("\n")[0] for name in NAMES}


def show(name: str) -> Finding:
    """Run a demo. Raises `UserInputError` where there is none of that name."""
    if name not in NAMES:
        raise UserInputError("there is no such demo", expected=", ".join(NAMES), got=repr(name))
    finding: Finding = import_module(f"ctrlgrad.demos.{name}").show()
    return finding
