"""Device kernels of the ops, a file per family; importing this package fills the table.

Elementwise ops are not here: they are parts of generated kernels. An op that has no entry goes through the host by
the reference engine's kernel.
"""

from ctrlgrad.engines.cuda.kernels import arrays, indexing, stacks
from ctrlgrad.engines.cuda.kernels.table import DEVICE, Factory, Kernel

__all__ = ["DEVICE", "Factory", "Kernel", "arrays", "indexing", "stacks"]
