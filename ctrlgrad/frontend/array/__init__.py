"""The array functions: `ctrlgrad.numpy` is their public face, and importing this package registers them.

Each works on traced tensors and on concrete arrays alike; see `ctrlgrad.frontend.tensor.apply`.
"""

from ctrlgrad.frontend.array import (
    accumulation,
    activation,
    arithmetic,
    bits,
    complex,
    creation,
    decompositions,
    einsum,
    elementwise,
    fourier,
    indexing,
    joining,
    linalg,
    logic,
    manipulation,
    matrices,
    norms,
    ranges,
    reduction,
    repeating,
    sorting,
    update,
)

__all__ = [
    "accumulation",
    "activation",
    "arithmetic",
    "bits",
    "complex",
    "creation",
    "decompositions",
    "einsum",
    "elementwise",
    "fourier",
    "indexing",
    "joining",
    "linalg",
    "logic",
    "manipulation",
    "matrices",
    "norms",
    "ranges",
    "reduction",
    "repeating",
    "sorting",
    "update",
]
