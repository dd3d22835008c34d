"""Every op's declaration, a file per family. Importing this package fills the registry `ctrlgrad.ir.OPS`."""

from ctrlgrad.ops import (
    call,
    collectives,
    complex,
    control,
    debug,
    decompositions,
    elementwise,
    fourier,
    indexing,
    linalg,
    reduction,
    shape,
    sorting,
)

__all__ = [
    "call",
    "collectives",
    "complex",
    "control",
    "debug",
    "decompositions",
    "elementwise",
    "fourier",
    "indexing",
    "linalg",
    "reduction",
    "shape",
    "sorting",
]
