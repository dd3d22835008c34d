"""SciPy's functions that programs with derivatives use, by its names: `special` and `linalg`."""

from typing import Any

from ctrlgrad.advice import no_such_name
from ctrlgrad.scipy import linalg, special

__all__ = ["linalg", "special"]


def __getattr__(name: str) -> Any:
    raise no_such_name("ctrlgrad.scipy", name, globals())


def __dir__() -> list[str]:
    return sorted(__all__)
