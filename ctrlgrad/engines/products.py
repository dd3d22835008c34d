"""Matrix products outside of compiled loops, by the BLAS that compiled loops call.

NumPy may have another BLAS, with threads of its own; two such pools that take turns keep each other from the cores.
Large products therefore go to the one that compiled loops use; small ones stay with NumPy.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from ctrlgrad.engines.account import empty

# Multiplications from which a product counts as large.
LARGE = 1 << 18
_ROUTINES = {"f": ("sgemm", ctypes.c_float), "d": ("dgemm", ctypes.c_double)}


def matmul(a: Any, b: Any) -> Any:
    """`a @ b`, by the BLAS of compiled loops where both are large matrices of one float dtype."""
    routine = _ROUTINES.get(a.dtype.char)
    if routine is None or a.ndim != 2 or b.ndim != 2 or a.shape[0] * a.shape[1] * b.shape[1] < LARGE:
        return np.matmul(a, b)
    return _gemm(*routine, a, b)


def _gemm(name: str, number: Any, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Row-major C = A B is column-major C^T = B^T A^T."""
    from ctrlgrad.engines.native.compiler import blas_address

    (m, k), n = a.shape, b.shape[1]
    a, flag_a, leading_a = _laid_out(a)
    b, flag_b, leading_b = _laid_out(b)
    c = empty((m, n), a.dtype, "a matrix product")
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 13)(blas_address(name))
    # A routine that takes integers of four bytes reads the lower half.
    sizes = (ctypes.c_int64 * 6)(n, m, k, leading_b, leading_a, n)
    start, step = ctypes.addressof(sizes), ctypes.sizeof(ctypes.c_int64)
    flags, one, zero = (ctypes.c_char * 2)(flag_b, flag_a), number(1), number(0)
    first = ctypes.addressof(flags)
    call(
        first,
        first + 1,
        start,
        start + step,
        start + 2 * step,
        ctypes.addressof(one),
        b.ctypes.data,
        start + 3 * step,
        a.ctypes.data,
        start + 4 * step,
        ctypes.addressof(zero),
        c.ctypes.data,
        start + 5 * step,
    )
    return c


def _laid_out(x: np.ndarray) -> tuple[np.ndarray, bytes, int]:
    """A matrix as BLAS takes it: its memory, whether it lies in rows (b"N" of the transposed product), its stride."""
    size = x.itemsize
    down, across = x.strides
    if across == size and down >= size * x.shape[1] and down % size == 0:
        return x, b"N", down // size
    if down == size and across >= size * x.shape[0] and across % size == 0:
        return x, b"T", across // size
    x = np.ascontiguousarray(x)
    return x, b"N", x.shape[1]


__all__ = ["LARGE", "matmul"]
