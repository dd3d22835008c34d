"""Complex numbers and their parts."""

from __future__ import annotations

from typing import Any

import numpy as np

from ctrlgrad.dtypes import dtype_kind, result_type
from ctrlgrad.errors import TypeMismatchError
from ctrlgrad.frontend.apply import apply, cast, result_dtype
from ctrlgrad.frontend.array.arithmetic import arctan2
from ctrlgrad.frontend.array.creation import zeros_like
from ctrlgrad.frontend.array.dims import dtype_of
from ctrlgrad.frontend.array.promote import operand, operands, shown
from ctrlgrad.frontend.functions import array_function
from ctrlgrad.options import default_float


@array_function("conj")
def conjugate(x: Any) -> Any:
    """The complex conjugate; real numbers are their own.

    >>> print(cnp.conjugate(1 + 2j))
    (1-2j)
    """
    x = operand("conjugate", x)
    return apply("conj", [x]) if dtype_kind(dtype_of(x)) == "c" else x


@array_function()
def real(x: Any) -> Any:
    """The real part: float32 for complex64, float64 for complex128; real numbers are their own.

    >>> print(cnp.real(1 + 2j))
    1.0
    """
    x = operand("real", x)
    return apply("real", [x]) if dtype_kind(dtype_of(x)) == "c" else x


@array_function()
def imag(x: Any) -> Any:
    """The imaginary part, of the dtype of the real one; zero for real numbers.

    >>> print(cnp.imag(1 + 2j))
    2.0
    """
    x = operand("imag", x)
    return apply("imag", [x]) if dtype_kind(dtype_of(x)) == "c" else zeros_like(x)


@array_function()
def angle(x: Any) -> Any:
    """The angle of a complex number in radians, in (-pi, pi]; 0 or pi for real ones.

    >>> print(round(float(cnp.angle(1j)), 6))
    1.570796
    """
    x = operand("angle", x)
    return arctan2(imag(x), real(x))


@array_function()
def make_complex(real: Any, imag: Any) -> Any:
    """real + 1j * imag, without the arithmetic: infinities and nans stay in their part.

    Args:
        real, imag: real numbers that broadcast together; float32 makes complex64, everything else complex128.

    Raises:
        TypeMismatchError: an operand is complex.

    >>> print(cnp.make_complex(1.0, 2.0))
    (1+2j)
    """
    parts = operands("make_complex", (real, imag))
    if any(dtype_kind(dtype_of(x)) == "c" for x in parts):
        raise TypeMismatchError(
            "make_complex: a part is complex", got=", ".join(shown(x) for x in parts), hint="take real(x)"
        )
    dtype = result_dtype(*parts)
    dtype = default_float() if dtype_kind(dtype) in "biu" else result_type(dtype, np.float32)
    return apply("complex", [cast(x, dtype, "make_complex") for x in parts])


@array_function()
def iscomplexobj(x: Any) -> bool:
    """Whether the dtype is complex.

    >>> cnp.iscomplexobj(1j)
    True
    """
    return dtype_kind(dtype_of(operand("iscomplexobj", x))) == "c"


@array_function()
def isrealobj(x: Any) -> bool:
    """Whether the dtype is not complex; as `numpy.isrealobj`.

    >>> cnp.isrealobj([1.0, 2.0])
    True
    """
    return not iscomplexobj(x)


__all__ = [
    "angle",
    "conjugate",
    "imag",
    "iscomplexobj",
    "isrealobj",
    "make_complex",
    "real",
]
