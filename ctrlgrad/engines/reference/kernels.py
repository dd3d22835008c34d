"""NumPy kernels of the ops, a file per family; importing this module fills the tables."""

from ctrlgrad.engines.reference import array_kernels, linalg_kernels, stack_kernels
from ctrlgrad.engines.reference.table import IN_PLACE, PURE

__all__ = ["IN_PLACE", "PURE", "array_kernels", "linalg_kernels", "stack_kernels"]
