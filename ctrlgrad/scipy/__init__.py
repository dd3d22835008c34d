"""SciPy's functions that programs with derivatives use, by its names.

`special` has special functions composed of the graph's own ops, `gamma_functions` the error, gamma and beta functions
among them, and `linalg` linear algebra.
"""

from typing import Any

from ctrlgrad.advice import no_such_name
from ctrlgrad.scipy import linalg, special

__all__ = ["linalg", "special"]


def __getattr__(name: str) -> Any:
    raise no_such_name("ctrlgrad.scipy", name, globals())


def __dir__() -> list[str]:
    return sorted(__all__)
