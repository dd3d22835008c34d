"""What the step `Factorise` means, by NumPy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def factorised(how: str, largest: int, operands: Sequence[np.ndarray]) -> np.ndarray | None:
    """The result for matrices and, for "solve", right sides; None where there is none."""
    a = operands[0]
    if a.shape[-1] > largest:
        return None
    if how == "pivots":
        # Any numbers whose product is the determinant will do for what is computed from them.
        sign, size = np.linalg.slogdet(a)
        n = a.shape[-1]
        found = np.repeat(np.exp(size / max(n, 1))[..., None], n, -1)
        found[..., :1] *= sign[..., None]
        return np.where(np.isnan(a).any((-2, -1))[..., None], a.dtype.type(np.nan), found)
    try:
        found = np.linalg.solve(*operands) if how == "solve" else np.linalg.cholesky(a)
    except np.linalg.LinAlgError:
        return None
    return np.asarray(found)


__all__ = ["factorised"]
