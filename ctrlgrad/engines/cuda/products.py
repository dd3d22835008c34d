"""Products of matrices by cuBLAS, each told how exactly to compute.

CuPy's own products take TF32 or not by a variable of the environment; here the precision that the user asked for is an
argument of every call. Matrices that are transposed or lie in larger ones are read where they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctrlgrad.engines.precision import Precision

# cudaDataType_t of the dtypes, and the dtype of the factors of product and sum.
_TYPES = {
    "float16": (2, "float32"),
    "float32": (0, "float32"),
    "float64": (1, "float64"),
    "complex64": (4, "complex64"),
    "complex128": (5, "complex128"),
}
# cublasComputeType_t.
_COMPUTE_64F = 70
_COMPUTE_32F: dict[Precision, int] = {"ieee": 68, "tf32": 77, "bf16": 75}
_DEFAULT_ALGORITHM = -1
# What cuBLAS takes beside the pool for each stream of a handle: sizes in KiB and how many of each. By itself it would
# take four times as much on a Hopper. CuPy tells the handle its stream at every product, which takes back any other
# workspace that it was given, so it is said in cuBLAS's own variable of the environment.
WORKSPACE_VARIABLE, WORKSPACE = "CUBLAS_WORKSPACE_CONFIG", ":4096:2:16:8"


def workspace_bytes(configuration: str) -> int:
    """The bytes of a workspace that is configured so.

    >>> workspace_bytes(":4096:2:16:8")
    8519680
    """
    numbers = [int(part) for part in configuration.split(":") if part]
    return 1024 * sum(size * count for size, count in zip(numbers[::2], numbers[1::2], strict=True))


@dataclass(frozen=True)
class _Stored:
    """Matrices as cuBLAS reads them, by columns: the transposes of what lies there by rows.

    `transposed` is 1 where they lie by columns; `leading` counts elements from one row, or column, to the next, and
    `stride` from one matrix to the next.
    """

    array: Any
    transposed: int
    leading: int
    stride: int


def product(cupy: Any, a: Any, b: Any, precision: Precision, total: Any = None) -> Any:
    """`a @ b`, or that added to `total` in place: matrices of one dtype.

    Args:
        total: `[m, n]`, where a and b are of rank 2.
    """
    if a.dtype.name not in _TYPES:
        return cupy.matmul(a, b)
    if a.ndim == 1:
        return product(cupy, a.reshape(1, -1), b, precision).reshape(b.shape[:-2] + b.shape[-1:] if b.ndim > 1 else ())
    if b.ndim == 1:
        return product(cupy, a, b.reshape(-1, 1), precision).reshape(a.shape[:-1])
    if a.ndim > 2 and b.ndim == 2:
        # One product of all rows.
        found = product(cupy, a.reshape(-1, a.shape[-1]), b, precision)
        return found.reshape(*a.shape[:-1], b.shape[-1])
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    shape = (*batch, a.shape[-2], b.shape[-1])
    if not math.prod(shape) * a.shape[-1]:
        return cupy.zeros(shape, a.dtype) if total is None else total
    if total is not None and not total.flags.c_contiguous:
        total += product(cupy, a, b, precision)
        return total
    result = cupy.empty(shape, a.dtype) if total is None else total
    _multiply(cupy, _stored(cupy, a, batch), _stored(cupy, b, batch), result, total is not None, precision)
    return result


def _stored(cupy: Any, x: Any, batch: tuple[int, ...]) -> _Stored:
    if x.ndim > 2 and (x.shape[:-2] != batch or x.ndim > 3):
        x = cupy.ascontiguousarray(cupy.broadcast_to(x, batch + x.shape[-2:])).reshape(-1, *x.shape[-2:])
    rows, columns = x.shape[-2:]
    down, along = (step // x.dtype.itemsize for step in x.strides[-2:])
    down, along = (down if rows > 1 else columns), (along if columns > 1 else rows)
    stride = x.strides[0] // x.dtype.itemsize if x.ndim > 2 else 0
    if (along == 1 or columns == 1) and down >= columns:
        return _Stored(x, 0, down, stride)
    if (down == 1 or rows == 1) and along >= rows:
        return _Stored(x, 1, along, stride)
    return _stored(cupy, cupy.ascontiguousarray(x), batch)


def _multiply(cupy: Any, a: _Stored, b: _Stored, result: Any, adds: bool, precision: Precision) -> None:
    kind, scale = _TYPES[result.dtype.name]
    (m, n), k = result.shape[-2:], a.array.shape[-1]
    compute = _COMPUTE_64F if scale in ("float64", "complex128") else _COMPUTE_32F[precision]
    one, beta = np.ones((), scale), np.asarray(float(adds), scale)
    # By columns: the transpose of the result is the product of the transposes, in the other order.
    cupy.cuda.cublas.gemmStridedBatchedEx(
        cupy.cuda.get_cublas_handle(),
        b.transposed,
        a.transposed,
        n,
        m,
        k,
        one.ctypes.data,
        b.array.data.ptr,
        kind,
        b.leading,
        b.stride,
        a.array.data.ptr,
        kind,
        a.leading,
        a.stride,
        beta.ctypes.data,
        result.data.ptr,
        kind,
        n,
        m * n,
        result.size // (m * n),
        compute,
        _DEFAULT_ALGORITHM,
    )


__all__ = ["WORKSPACE", "WORKSPACE_VARIABLE", "product", "workspace_bytes"]
