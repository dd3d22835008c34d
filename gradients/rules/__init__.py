"""Derivative rules; importing them fills `ctrlgrad.gradients.table`.

`arrays` has those of elementwise, shape, reduction, sorting, indexing and stack operations, `linalg` those of products,
linear systems and eigenvalue decompositions.
"""

from ctrlgrad.gradients.rules import arrays, linalg

__all__ = ["arrays", "linalg"]
