"""Every op's declaration, a file per family. Importing this package fills the registry `ctrlgrad.ir.OPS`."""

from ctrlgrad.ops import arrays, control, elementwise, linalg

__all__ = ["arrays", "control", "elementwise", "linalg"]
