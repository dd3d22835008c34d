"""Array functions for traced tensors and concrete arrays, by the names and rules of NumPy 2 and the Array API.

Called inside a traced function they record; called with concrete arrays they compute. `numpy.f(x)` on a traced
tensor finds the function `f` of this module, so either import serves.

    >>> import ctrlgrad.numpy as cnp
    >>> cnp.sqrt([1.0, 4.0])
    array([1., 2.])
"""

from __future__ import annotations

import sys
from typing import Any

from numpy import (
    bool_,
    complex64,
    complex128,
    e,
    float16,
    float32,
    float64,
    inf,
    int8,
    int16,
    int32,
    int64,
    nan,
    newaxis,
    pi,
    promote_types,
    uint8,
    uint16,
    uint32,
    uint64,
)

from ctrlgrad.frontend import array as behind
from ctrlgrad.frontend.array import fourier as fft
from ctrlgrad.frontend.array import matrices as linalg
from ctrlgrad.frontend.array.accumulation import *
from ctrlgrad.frontend.array.activation import *
from ctrlgrad.frontend.array.arithmetic import *
from ctrlgrad.frontend.array.arranging import *
from ctrlgrad.frontend.array.bits import *
from ctrlgrad.frontend.array.choosing import *
from ctrlgrad.frontend.array.complex import *
from ctrlgrad.frontend.array.composed import *
from ctrlgrad.frontend.array.creation import *
from ctrlgrad.frontend.array.dtypes import *
from ctrlgrad.frontend.array.einsum import *
from ctrlgrad.frontend.array.elementwise import *
from ctrlgrad.frontend.array.indexing import *
from ctrlgrad.frontend.array.joining import *
from ctrlgrad.frontend.array.linalg import *
from ctrlgrad.frontend.array.logic import *
from ctrlgrad.frontend.array.manipulation import *
from ctrlgrad.frontend.array.nans import *
from ctrlgrad.frontend.array.numerics import *
from ctrlgrad.frontend.array.polynomials import *
from ctrlgrad.frontend.array.ranges import *
from ctrlgrad.frontend.array.reduction import *
from ctrlgrad.frontend.array.repeating import *
from ctrlgrad.frontend.array.sorting import *
from ctrlgrad.frontend.array.statistics import *
from ctrlgrad.frontend.array.update import *
from ctrlgrad.frontend.functions import FUNCTIONS

# Further names of the same functions: NumPy's and the Array API's.
absolute = abs
acos, asin, atan, atan2 = arccos, arcsin, arctan, arctan2
acosh, asinh, atanh = arccosh, arcsinh, arctanh
left_shift, right_shift = bitwise_left_shift, bitwise_right_shift
cross = linalg.cross
amax, amin = max, min
around = round
bitwise_not = invert = bitwise_invert
concat = concatenate
conj = conjugate
mod = remainder
permute_dims = transpose
pow = power
true_divide = divide
bool = bool_


def _namespace() -> Any:
    return sys.modules[__name__]


# What a tensor's `__array_namespace__` returns.
FUNCTIONS["__namespace__"] = _namespace

# NumPy's own, and further names; then what the modules behind say that they offer.
__all__ = [
    "absolute",
    "acos",
    "acosh",
    "amax",
    "amin",
    "around",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "bitwise_not",
    "bool",
    "bool_",
    "complex64",
    "complex128",
    "concat",
    "conj",
    "cross",
    "e",
    "fft",
    "float16",
    "float32",
    "float64",
    "inf",
    "int8",
    "int16",
    "int32",
    "int64",
    "invert",
    "left_shift",
    "linalg",
    "mod",
    "nan",
    "newaxis",
    "permute_dims",
    "pi",
    "pow",
    "promote_types",
    "right_shift",
    "true_divide",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
]
__all__ += behind.accumulation.__all__
__all__ += behind.activation.__all__
__all__ += behind.arithmetic.__all__
__all__ += behind.arranging.__all__
__all__ += behind.bits.__all__
__all__ += behind.choosing.__all__
__all__ += behind.complex.__all__
__all__ += behind.composed.__all__
__all__ += behind.creation.__all__
__all__ += behind.dtypes.__all__
__all__ += behind.einsum.__all__
__all__ += behind.elementwise.__all__
__all__ += behind.indexing.__all__
__all__ += behind.joining.__all__
__all__ += behind.linalg.__all__
__all__ += behind.logic.__all__
__all__ += behind.manipulation.__all__
__all__ += behind.nans.__all__
__all__ += behind.numerics.__all__
__all__ += behind.polynomials.__all__
__all__ += behind.ranges.__all__
__all__ += behind.reduction.__all__
__all__ += behind.repeating.__all__
__all__ += behind.sorting.__all__
__all__ += behind.statistics.__all__
__all__ += behind.update.__all__
