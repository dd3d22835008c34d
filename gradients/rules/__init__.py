"""Derivative rules, file by file as in `ctrlgrad.ops`; importing them fills `ctrlgrad.gradients.table`."""

from ctrlgrad.gradients.rules import (
    collectives,
    complex,
    debug,
    decompositions,
    eigenvalues,
    elementwise,
    fourier,
    indexing,
    linalg,
    reduction,
    shape,
    sorting,
    stack,
    systems,
)

__all__ = [
    "collectives",
    "complex",
    "debug",
    "decompositions",
    "eigenvalues",
    "elementwise",
    "fourier",
    "indexing",
    "linalg",
    "reduction",
    "shape",
    "sorting",
    "stack",
    "systems",
]
