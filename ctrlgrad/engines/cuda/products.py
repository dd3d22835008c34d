"""Products of matrices by cuBLAS, each told how exactly to compute.

CuPy's own products take TF32 or not by a variable of the environment; here the precision that the user asked for is an
argument of every call. Matrices that are transposed or lie in larger ones are read where they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from ctrlgrad.engines.precision import Precision

# cudaDataType_t of the dtypes, and the dtype of the factors of product and sum.
_TYPES = {
    "float16": (2, "float32"),
    "bfloat16": (14, "float32"),
    "float32": (0, "float32"),
    "float64": (1, "float64"),
    "complex64": (4, "complex64"),
    "complex128": (5, "complex128"),
}
PRODUCT_DTYPES = frozenset(_TYPES)
"""The dtypes that cuBLAS multiplies, by NumPy's names."""
# cublasComputeType_t. Those that round operands are for float32 and complex64 alone, and so is here the pedantic one,
# CUBLAS_COMPUTE_32F_PEDANTIC: the plain one leaves it to the handle's math mode, and to variables of the environment,
# whether operands are rounded to TF32. Half floats have no such mode; the plain one has tensor cores for them.
_COMPUTE_64F, _COMPUTE_32F = 70, 68
_ROUNDING: dict[Precision, int] = {"ieee": 69, "tf32": 77, "bf16": 75}
_DEFAULT_ALGORITHM = -1
# cuBLAS counts rows, columns, matrices, and elements from one row to the next, in integers of 32 bits.
MOST_COUNTED = (1 << 31) - 1
# Workspace that cuBLAS allocates beside the pool for each stream of a handle: sizes in KiB and counts. The default on a
# Hopper is four times as much. CuPy sets the handle's stream at every product, which resets any workspace that was set
# by a call, so the size goes into cuBLAS's own environment variable.
WORKSPACE_VARIABLE, WORKSPACE = "CUBLAS_WORKSPACE_CONFIG", ":4096:2:16:8"


def workspace_bytes(configuration: str) -> int:
    """The bytes of a workspace that is configured so.

    >>> workspace_bytes(":4096:2:16:8")
    8519680
    """
    numbers = [int(part) for part in configuration.split(":") if part]
    return 1024 * sum(size * count for size, count in zip(numbers[::2], numbers[1::2], strict=True))


def largest_piece(configuration: str) -> int:
    """The bytes of the largest piece of such a workspace, which is the most that one product uses.

    >>> largest_piece(":4096:2:16:8")
    4194304
    """
    return 1024 * max([int(part) for part in configuration.split(":") if part][::2], default=0)


def layout(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> tuple[int, int] | None:
    """Storage of a matrix as cuBLAS reads it: (is transposed, leading dimension); None where cuBLAS cannot read it.

    >>> layout((2, 3), (24, 8), 8), layout((3, 2), (8, 24), 8), layout((2, 3), (48, 16), 8)
    ((0, 3), (1, 3), None)
    """
    rows, columns = shape
    down, along = (step // itemsize for step in strides)
    down, along = (down if rows > 1 else columns), (along if columns > 1 else rows)
    if (along == 1 or columns == 1) and columns <= down <= MOST_COUNTED:
        return 0, down
    if (down == 1 or rows == 1) and rows <= along <= MOST_COUNTED:
        return 1, along
    return None


def is_one_product(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Return true if matrices times one matrix are one product of all their rows. False where cuBLAS cannot count the
    rows."""
    return len(a) > 2 and len(b) == 2 and math.prod(a[:-1]) <= MOST_COUNTED


def too_large(a: tuple[int, ...], b: tuple[int, ...], count: int) -> str | None:
    """Why cuBLAS cannot multiply matrices of these shapes, so many times; None where it can."""
    counted = {"rows": a[-2], "columns": b[-1], "elements in a sum": a[-1], "matrices": count}
    for what, number in counted.items():
        if number > MOST_COUNTED:
            return f"a product with {number} {what}, of which cuBLAS takes {MOST_COUNTED} at most"
    return None


Address = TypeVar("Address")
"""An address, or what stands for one that is set later."""


@dataclass(frozen=True)
class Factor(Generic[Address]):
    """Matrices as cuBLAS reads them, by columns: the transposes of what lies there by rows.

    `transposed` is 1 where they lie by columns; `leading` counts elements from one row, or column, to the next, and
    `stride` from one matrix to the next.
    """

    address: Address
    transposed: int
    leading: int
    stride: int = 0


# Of each dtype one and zero, where they stay.
_NUMBERS = {scale: np.array([0, 1], scale) for _, scale in _TYPES.values()}


def parameters(
    dtype: np.dtype,
    sizes: tuple[int, int, int],
    a: Factor[Address],
    b: Factor[Address],
    result: Address,
    count: int,
    adds: bool,
    precision: Precision,
) -> tuple[int | Address, ...]:
    """Arguments of `cublasGemmStridedBatchedEx` after the handle, for `count` row-major products written to the
    address `result`.

    Args:
        sizes: m, n and k of `[m, k] @ [k, n]`.
    """
    kind, scale = _TYPES[dtype.name]
    m, n, k = sizes
    compute = _COMPUTE_64F if scale in ("float64", "complex128") else _COMPUTE_32F
    if scale == dtype.name and compute == _COMPUTE_32F:
        compute = _ROUNDING[precision]
    zero = _NUMBERS[scale].ctypes.data
    one = zero + _NUMBERS[scale].itemsize
    # By columns: the transpose of the result is the product of the transposes, in the other order.
    factors = (b.address, kind, b.leading, b.stride, a.address, kind, a.leading, a.stride, one if adds else zero)
    out = (result, kind, n, m * n, count)
    return (b.transposed, a.transposed, n, m, k, one, *factors, *out, compute, _DEFAULT_ALGORITHM)
