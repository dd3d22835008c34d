"""Questions about dtypes and shapes, answered at once: nothing is recorded."""

from __future__ import annotations

from typing import Any

import numpy as np

from ctrlgrad import dtypes
from ctrlgrad.errors import ShapeError
from ctrlgrad.frontend.apply import result_dtype
from ctrlgrad.frontend.functions import array_function
from ctrlgrad.frontend.tensor import Tensor


def _dtype(x: Any) -> Any:
    return x.dtype if isinstance(x, Tensor | np.ndarray | np.generic) else x


class FloatLimits:
    """The limits of a floating-point dtype: the standard's attributes as Python's numbers, further ones as NumPy's."""

    def __init__(self, limits: Any) -> None:
        self._limits = limits
        self.bits, self.dtype = int(limits.bits), limits.dtype
        self.eps, self.max, self.min = float(limits.eps), float(limits.max), float(limits.min)
        self.smallest_normal = self.tiny = float(limits.smallest_normal)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._limits, name)

    def __repr__(self) -> str:
        return repr(self._limits)


def finfo(dtype: Any) -> FloatLimits:
    """The limits of a floating-point dtype, given itself or as an array of it; of a complex one, of its parts.

    >>> print(cnp.finfo(cnp.float32).bits)
    32
    """
    return FloatLimits(dtypes.finfo(_dtype(dtype)))


def iinfo(dtype: Any) -> Any:
    """The limits of an integer dtype, given itself or as an array of it.

    >>> print(cnp.iinfo(cnp.int8).max)
    127
    """
    return np.iinfo(_dtype(dtype))


def isdtype(dtype: Any, kind: Any) -> Any:
    """Return true if a dtype is of a kind: another dtype, a name such as "real floating", or a tuple of them.

    >>> cnp.isdtype(cnp.float32, "real floating")
    True
    """
    return dtypes.is_dtype(dtype, kind)


def issubdtype(arg1: Any, arg2: Any) -> bool:
    """True if a dtype is below another, or below an abstract one such as `floating`; bfloat16 is below `floating`.

    >>> cnp.issubdtype(cnp.bfloat16, cnp.floating), cnp.issubdtype(cnp.bfloat16, cnp.float16)
    (True, False)
    """
    return dtypes.is_subdtype(arg1, arg2)


def promote_types(type1: Any, type2: Any) -> np.dtype:
    """The smallest dtype that two dtypes promote to; as in JAX for bfloat16, as in NumPy for the rest.

    >>> cnp.promote_types(cnp.bfloat16, cnp.int32), cnp.promote_types(cnp.bfloat16, cnp.float16)
    (dtype(bfloat16), dtype('float32'))
    """
    return dtypes.result_type(np.dtype(type1), np.dtype(type2))


@array_function()
def can_cast(from_: Any, to: Any, /) -> Any:
    """Return true if a dtype, or an array's dtype, becomes another without loss by promotion.

    >>> cnp.can_cast(cnp.float32, cnp.float64)
    True
    """
    return dtypes.can_cast(_dtype(from_), to)


@array_function()
def broadcast_shapes(*shapes: Any) -> tuple[int, ...]:
    """The shape that known shapes broadcast to.

    Raises:
        ShapeError: they do not.

    >>> cnp.broadcast_shapes((2, 1), (3,))
    (2, 3)
    """
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError as error:
        raise ShapeError(
            "broadcast_shapes: the shapes do not broadcast", got=" and ".join(map(str, shapes)), source=None
        ) from error


@array_function()
def result_type(*arrays_and_dtypes: Any) -> np.dtype:
    """The dtype that arrays, numbers and dtypes promote to; Python numbers do not widen arrays.

    >>> cnp.result_type(cnp.float32, 1.0)
    dtype('float32')
    """
    named = [x for x in arrays_and_dtypes if isinstance(x, type | np.dtype | str)]
    arrays = [x for x in arrays_and_dtypes if not isinstance(x, type | np.dtype | str)]
    return result_dtype(*(np.empty(0, dtype) for dtype in named), *arrays)


def isscalar(element: Any) -> bool:
    """Return true if the argument is a Python number or an array of rank 0; as `jax.numpy.isscalar`.

    >>> cnp.isscalar(3.0), cnp.isscalar([3.0])
    (True, False)
    """
    return np.isscalar(element) or (isinstance(element, Tensor | np.ndarray) and element.ndim == 0)


def iterable(y: Any) -> bool:
    """Return true if the argument can be iterated over; an array can unless its rank is 0. As `numpy.iterable`.

    >>> cnp.iterable([1, 2]), cnp.iterable(1)
    (True, False)
    """
    return y.ndim > 0 if isinstance(y, Tensor) else np.iterable(y)


__all__ = [
    "broadcast_shapes",
    "can_cast",
    "finfo",
    "iinfo",
    "isdtype",
    "isscalar",
    "issubdtype",
    "iterable",
    "promote_types",
    "result_type",
]
