"""What the step `Factorise` means, by NumPy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ctrlgrad.ir.attributes import Triangle
from ctrlgrad.plan.model import Factorise


def factorised(step: Factorise, operands: Sequence[np.ndarray]) -> np.ndarray | None:
    """The result for matrices and, of systems, right sides; None where there is none."""
    a = operands[0]
    if step.largest is not None and a.shape[-1] > step.largest:
        return None
    if step.how == "pivots":
        # Any numbers whose product is the determinant will do for what is computed from them.
        sign, size = np.linalg.slogdet(a)
        n = a.shape[-1]
        found = np.repeat(np.exp(size / max(n, 1))[..., None], n, -1)
        found[..., :1] *= sign[..., None]
        return np.where(np.isnan(a).any((-2, -1))[..., None], a.dtype.type(np.nan), found)
    try:
        if step.triangle is not None:
            a = _read(a, step.triangle)
        found = np.linalg.cholesky(a) if step.how == "cholesky" else np.linalg.solve(a, operands[1])
    except np.linalg.LinAlgError:
        return None
    return np.asarray(found)


def _read(a: np.ndarray, triangle: Triangle) -> np.ndarray:
    """The triangle of matrices that is read, zeros beside it."""
    part, inner = (np.tril, -1) if triangle.lower else (np.triu, 1)
    return part(a, inner) + np.eye(a.shape[-1], dtype=a.dtype) if triangle.unit_diagonal else part(a)
