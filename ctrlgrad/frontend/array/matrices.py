"""The names of `ctrlgrad.numpy.linalg`: the Array API's linear algebra, and NumPy's."""

from __future__ import annotations

from typing import Any

from ctrlgrad.errors import ShapeError
from ctrlgrad.frontend.array.decompositions import (
    cholesky,
    det,
    eigh,
    eigvalsh,
    inv,
    matrix_power,
    matrix_rank,
    pinv,
    qr,
    slogdet,
    solve,
    svd,
    svdvals,
)
from ctrlgrad.frontend.array.dims import rank_of
from ctrlgrad.frontend.array.eigenvalues import eig, eigvals
from ctrlgrad.frontend.array.least_squares import cond, lstsq, multi_dot
from ctrlgrad.frontend.array.linalg import matmul, outer, tensordot, vecdot
from ctrlgrad.frontend.array.manipulation import matrix_transpose
from ctrlgrad.frontend.array.norms import cross, matrix_norm, norm, vector_norm
from ctrlgrad.frontend.array.promote import operand, shown
from ctrlgrad.frontend.array.ranges import diagonal as _diagonal
from ctrlgrad.frontend.array.reduction import sum as _sum


def diagonal(x: Any, /, *, offset: int = 0) -> Any:
    """The diagonals of matrices [..., m, n], `offset` above the main one: [..., k].

    >>> cnp.linalg.diagonal([[1, 2], [3, 4]])
    array([1, 4])
    """
    x = operand("diagonal", x)
    if rank_of(x) < 2:
        raise ShapeError("diagonal: needs rank 2 or more", got=shown(x))
    return _diagonal(x, offset, rank_of(x) - 2, rank_of(x) - 1)


def trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Any:
    """The sum of the diagonal of matrices [..., m, n]: [...].

    >>> print(cnp.linalg.trace([[1, 2], [3, 4]]))
    5
    """
    return _sum(diagonal(x, offset=offset), -1, dtype)


def __getattr__(name: str) -> Any:
    raise AttributeError(f"ctrlgrad.numpy.linalg has no {name!r}: see dir(ctrlgrad.numpy.linalg) for what there is")


__all__ = [
    "cholesky",
    "cond",
    "cross",
    "det",
    "diagonal",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "inv",
    "lstsq",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "matrix_transpose",
    "multi_dot",
    "norm",
    "outer",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "svd",
    "svdvals",
    "tensordot",
    "trace",
    "vecdot",
    "vector_norm",
]
