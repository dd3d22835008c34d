"""SciPy's functions that programs with derivatives use, by its names: `special` and `linalg`."""

from ctrlgrad.scipy import linalg, special

__all__ = ["linalg", "special"]
