"""The array functions: `ctrlgrad.numpy` is their public face, and importing this package registers them.

Each works on traced tensors and on concrete arrays alike; see `ctrlgrad.frontend.apply.apply`.
"""

from ctrlgrad.frontend.array import (
    choosing,
    composed,
    creation,
    decompositions,
    elementwise,
    fourier,
    indexing,
    linalg,
    manipulation,
    matrices,
    numerics,
    ranges,
    reduction,
    sorting,
    statistics,
    ufunc_methods,
    windows,
)

__all__ = [
    "choosing",
    "composed",
    "creation",
    "decompositions",
    "elementwise",
    "fourier",
    "indexing",
    "linalg",
    "manipulation",
    "matrices",
    "numerics",
    "ranges",
    "reduction",
    "sorting",
    "statistics",
    "ufunc_methods",
    "windows",
]
