"""Dtypes: their kinds, limits and promotion, bfloat16 among them.

NumPy has no bfloat16. `ml_dtypes` registers one with it, of kind "V", which NumPy's own tests of dtypes (`dtype.kind`,
`finfo`, `result_type`, `issubdtype`) do not recognise as a number. All modules use these functions in their place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from ctrlgrad.advice import nearest
from ctrlgrad.errors import TypeMismatchError

bfloat16: Any = ml_dtypes.bfloat16
"""Floats of 16 bits with the exponent of float32 and 8 bits of precision: the type of its numbers."""

BFLOAT16: np.dtype = np.dtype(bfloat16)

REAL_NAMES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "bfloat16", "float32", "float64",
)  # fmt: skip
"""The names of the real dtypes that a graph holds."""

NAMES = (*REAL_NAMES, "complex64", "complex128")
"""The names of all dtypes that a graph holds."""

COMPLEX_OF: dict[np.dtype, np.dtype] = {
    np.dtype(np.float32): np.dtype(np.complex64),
    np.dtype(np.float64): np.dtype(np.complex128),
}
"""The complex dtype whose parts have a real dtype."""
REAL_OF: dict[np.dtype, np.dtype] = {c: r for r, c in COMPLEX_OF.items()}
"""The dtype of a complex number's parts."""

_FLOAT16, _FLOAT32, _FLOAT64 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)
_COMPLEX128, _INT8 = np.dtype(np.complex128), np.dtype(np.int8)


def dtype_kind(dtype: np.dtype) -> str:
    """NumPy's letter for what a dtype holds: "b", "i", "u", "f" (bfloat16 too) or "c"; another one for all else."""
    kind = dtype.kind
    return "f" if kind == "V" and dtype == BFLOAT16 else kind


def native(dtype: np.dtype) -> np.dtype:
    """The dtype with its bytes in the machine's order: files and networks have other orders, graphs have not."""
    return dtype if dtype.isnative else dtype.newbyteorder("=")


def as_dtype(operation: str, dtype: Any) -> np.dtype:
    """The dtype that a user names, by what NumPy takes for one."""
    try:
        return native(np.dtype(dtype))
    except TypeError as error:
        close = nearest(str(dtype).rpartition(".")[2], NAMES)
        raise TypeMismatchError(
            f"{operation}: there is no such dtype",
            expected="a dtype or the name of one, such as 'float32' or numpy.float32",
            got=repr(dtype),
            hint=repr(close)
            if close
            else "where it stands in the place of another argument, name the arguments: dtype=...",
        ) from error


def finfo(dtype: Any) -> Any:
    """The limits of a floating-point dtype; of a complex one, of its parts. As `numpy.finfo`."""
    dtype = as_dtype("finfo", dtype)
    limits: Any = ml_dtypes.finfo if dtype == BFLOAT16 else np.finfo
    return limits(dtype)


def computed_dtype(dtype: np.dtype) -> np.dtype:
    """Dtype that functions and sums of a dtype are computed in, to be rounded once: float32 for floats of 16 bits."""
    return _FLOAT32 if dtype in (_FLOAT16, BFLOAT16) else dtype


def running_dtype(dtype: np.dtype) -> np.dtype:
    """Dtype that carries a running total: float64 for floats, complex128 for complex numbers.

    A float32 that has grown to 2**24 would not grow by 1 any more.
    """
    kind = dtype_kind(dtype)
    return _FLOAT64 if kind == "f" else _COMPLEX128 if kind == "c" else dtype


def converted(x: Any, dtype: np.dtype) -> Any:
    """An array of real numbers in another dtype, as every engine casts.

    A float becomes the nearest integer towards zero. Beyond the integers of the dtype it becomes the least or the
    largest of them, and NaN becomes 0, as in JAX: NumPy leaves both to the processor.
    """
    if dtype_kind(dtype) not in "iu" or dtype_kind(x.dtype) != "f":
        return x.astype(dtype)
    limits, wide = np.iinfo(dtype), x.astype(np.float64)
    is_low, is_high = wide <= float(limits.min - 1), wide >= float(limits.max + 1)
    is_outside = is_low | is_high | np.isnan(wide)
    if not is_outside.any():
        return wide.astype(dtype)
    ends = np.where(is_high, dtype.type(limits.max), np.where(is_low, dtype.type(limits.min), dtype.type(0)))
    return np.where(is_outside, ends, np.where(is_outside, 0.0, wide).astype(dtype))[()]


class Promotion:
    """NumPy's promotion of dtypes, extended to bfloat16 as in JAX.

    With booleans, integers and Python's numbers, bfloat16 acts as NumPy's float16, but no integer widens it. With any
    other float or complex dtype, float16 too, it acts as float32. `kinds` are the dtypes to pass to NumPy, and `result`
    converts NumPy's answer.
    """

    def __init__(self, kinds: Sequence[Any]) -> None:
        self.kinds = tuple(kinds)
        self._stands_in = False
        if BFLOAT16 in self.kinds:
            others = {k for k in self.kinds if isinstance(k, np.dtype) and k != BFLOAT16 and k.kind in "fc"}
            self._stands_in = not others
            self.kinds = tuple(self._seen(kind) for kind in self.kinds)

    def _seen(self, kind: Any) -> Any:
        if kind == BFLOAT16:
            return _FLOAT16 if self._stands_in else _FLOAT32
        if not isinstance(kind, np.dtype):
            return kind
        return _INT8 if kind.kind in "iu" else _FLOAT32 if kind == _FLOAT16 else kind

    def result(self, dtype: np.dtype) -> np.dtype:
        """The dtype that NumPy's answer stands for."""
        return BFLOAT16 if self._stands_in and dtype == _FLOAT16 else dtype


def result_type(*kinds: Any) -> np.dtype:
    """The dtype that dtypes, arrays and Python numbers promote to. As `numpy.result_type`."""
    promotion = Promotion([kind if type(kind) in (bool, int, float, complex) else _dtype(kind) for kind in kinds])
    return promotion.result(np.result_type(*promotion.kinds))


def _dtype(x: Any) -> np.dtype:
    return x.dtype if isinstance(x, np.ndarray | np.generic) else as_dtype("result_type", x)


def can_cast(source: Any, target: Any, casting: Any = "safe") -> bool:
    """Return true if a dtype can be converted to another by a rule of casting. As `numpy.can_cast`."""
    given = [as_dtype("can_cast", source), as_dtype("can_cast", target)]
    if casting == "same_kind" and given[0] != given[1]:
        given = [_FLOAT16 if dtype == BFLOAT16 else dtype for dtype in given]
    return np.can_cast(given[0], given[1], casting)


def is_subdtype(dtype: Any, other: Any) -> bool:
    """True if a dtype equals another, or is below one of NumPy's abstract dtypes. As `numpy.issubdtype`."""
    if np.dtype(dtype) != BFLOAT16:
        return np.issubdtype(dtype, other)
    return np.issubdtype(np.floating, other) if _is_abstract(other) else np.dtype(other) == BFLOAT16


def _is_abstract(other: Any) -> bool:
    return isinstance(other, type) and other in (np.floating, np.inexact, np.number, np.generic)


def is_dtype(dtype: Any, kind: Any) -> bool:
    """True if a dtype equals another, is of a kind by name, or any of a tuple of them. As `numpy.isdtype`."""
    dtype = as_dtype("isdtype", dtype)
    if isinstance(kind, tuple):
        return any(is_dtype(dtype, each) for each in kind)
    if dtype != BFLOAT16:
        return bool(np.isdtype(dtype, kind))
    return np.isdtype(_FLOAT32, kind) if isinstance(kind, str) else np.dtype(kind) == BFLOAT16


def dtype_code(dtype: np.dtype) -> str:
    """At most eight letters that `numpy.dtype` reads back: NumPy's own, which say nothing of bfloat16, or its name."""
    return dtype.name if dtype == BFLOAT16 else dtype.str
