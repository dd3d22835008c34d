"""Every op's declaration, a file per family. Importing this package fills the registry `ctrlgrad.ir.OPS`.

`elementwise`, `arrays`, `linalg` and `control` are the families; the ops on stacks are in `ctrlgrad.stacks.ops`. `term`
gives values of a builder Python's operators, so that derivative rules read as mathematics.
"""

from ctrlgrad.ops import arrays, control, elementwise, linalg

__all__ = ["arrays", "control", "elementwise", "linalg"]
