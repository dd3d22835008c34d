"""cuBLAS's product by its manual: matrices by columns, in memory at addresses."""

from __future__ import annotations

import ctypes

import numpy as np

from ctrlgrad.dtypes import computed_dtype

NAMES = {0: "float32", 1: "float64", 2: "float16", 14: "bfloat16", 4: "complex64", 5: "complex128"}
# cublasComputeType_t of the dtypes that factors and sum may have with it.
COMPUTED = {
    **{compute: {"float16", "bfloat16", "float32", "complex64"} for compute in (68, 69)},
    **{compute: {"float32", "complex64"} for compute in (74, 75, 77)},
    70: {"float64", "complex128"},
}


def memory(address: int, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
    size = np.dtype(dtype).itemsize
    last = sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    raw = np.frombuffer((ctypes.c_char * (size * (last + 1))).from_address(address), dtype)
    return np.lib.stride_tricks.as_strided(raw, shape, tuple(size * step for step in strides))


class Cublas:
    """`cublasGemmStridedBatchedEx` as in its manual: matrices by columns, `leading` apart."""

    def __init__(self) -> None:
        self.computed: list[int] = []

    def gemmStridedBatchedEx(
        self, handle: int, ta: int, tb: int, m: int, n: int, k: int, alpha: int, a: int, a_type: int, lda: int,
        a_stride: int, b: int, b_type: int, ldb: int, b_stride: int, beta: int, c: int, c_type: int, ldc: int,
        c_stride: int, count: int, compute: int, algorithm: int,
    ) -> None:  # fmt: skip
        # Integers of 32 bits, but for the distances of matrices.
        assert all(0 <= x < 1 << 31 for x in (m, n, k, lda, ldb, ldc, count))
        assert lda >= (k if ta else m) and ldb >= (n if tb else k) and ldc >= m and count >= 1
        # CUBLAS_GEMM_DEFAULT: the engine chooses no algorithm.
        assert algorithm == -1
        self.computed.append(compute)
        dtype = NAMES[a_type]
        scale = computed_dtype(np.dtype(dtype)).name
        assert a_type == b_type == c_type and dtype in COMPUTED[compute]
        factors = [memory(at, scale, (1,), (1,))[0] for at in (alpha, beta)]
        given_a = memory(a, dtype, (count, k, m) if ta else (count, m, k), (a_stride, 1, lda))
        given_b = memory(b, dtype, (count, n, k) if tb else (count, k, n), (b_stride, 1, ldb))
        op_a = given_a.swapaxes(1, 2) if ta else given_a
        op_b = given_b.swapaxes(1, 2) if tb else given_b
        out = memory(c, dtype, (count, m, n), (c_stride, 1, ldc))
        found = factors[0] * (op_a.astype(scale) @ op_b.astype(scale))
        # The destination is not read unless the product is added to it.
        out[...] = (found + factors[1] * out if factors[1] else found).astype(dtype)


__all__ = ["NAMES", "Cublas", "memory"]
