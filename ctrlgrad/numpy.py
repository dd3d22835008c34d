"""Array functions for traced tensors and concrete arrays, by the names and rules of NumPy 2 and the Array API.

Called inside a traced function they record; called with concrete arrays they compute. `numpy.f(x)` on a traced
tensor finds the function `f` of this module, so either import serves.

    >>> cnp.sqrt([1.0, 4.0])
    array([1., 2.])
"""

from __future__ import annotations

import sys
from typing import Any

from numpy import (
    array_repr,
    array_str,
    bool_,
    cdouble,
    character,
    complex64,
    complex128,
    complexfloating,
    csingle,
    double,
    dtype,
    e,
    euler_gamma,
    flexible,
    float16,
    float32,
    float64,
    floating,
    frombuffer,
    fromfile,
    fromfunction,
    fromiter,
    fromstring,
    generic,
    get_printoptions,
    index_exp,
    inexact,
    inf,
    int8,
    int16,
    int32,
    int64,
    int_,
    integer,
    load,
    mgrid,
    nan,
    newaxis,
    number,
    object_,
    ogrid,
    pi,
    printoptions,
    s_,
    save,
    savez,
    set_printoptions,
    signedinteger,
    single,
    trim_zeros,
    uint,
    uint8,
    uint16,
    uint32,
    uint64,
    unsignedinteger,
)

from ctrlgrad.dtypes import bfloat16
from ctrlgrad.frontend import array as behind
from ctrlgrad.frontend.array import fourier as fft
from ctrlgrad.frontend.array import matrices as linalg
from ctrlgrad.frontend.array.choosing import *
from ctrlgrad.frontend.array.composed import *
from ctrlgrad.frontend.array.creation import *
from ctrlgrad.frontend.array.creation import VERSIONS, __array_namespace_info__
from ctrlgrad.frontend.array.elementwise import *
from ctrlgrad.frontend.array.indexing import *
from ctrlgrad.frontend.array.linalg import *
from ctrlgrad.frontend.array.manipulation import *
from ctrlgrad.frontend.array.numerics import *
from ctrlgrad.frontend.array.ranges import *
from ctrlgrad.frontend.array.reduction import *
from ctrlgrad.frontend.array.sorting import *
from ctrlgrad.frontend.array.statistics import *
from ctrlgrad.frontend.array.ufunc_methods import *
from ctrlgrad.frontend.array.windows import *
from ctrlgrad.frontend.functions import FUNCTIONS
from ctrlgrad.transforms.vectorize import apply_along_axis, frompyfunc, vectorize

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
complex_, float_ = complex128, float64
bool = bool_

__array_api_version__ = VERSIONS[-1]


def _namespace() -> Any:
    return sys.modules[__name__]


FUNCTIONS["apply_along_axis"] = apply_along_axis
# Result of a tensor's `__array_namespace__`.
FUNCTIONS["__namespace__"] = _namespace

# NumPy's own, and further names; then what the modules behind say that they offer.
__all__ = [
    "__array_api_version__",
    "__array_namespace_info__",
    "absolute",
    "acos",
    "acosh",
    "amax",
    "amin",
    "apply_along_axis",
    "around",
    "array_repr",
    "array_str",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "bfloat16",
    "bitwise_not",
    "bool",
    "bool_",
    "cdouble",
    "character",
    "complex64",
    "complex128",
    "complex_",
    "complexfloating",
    "concat",
    "conj",
    "cross",
    "csingle",
    "double",
    "dtype",
    "e",
    "euler_gamma",
    "fft",
    "flexible",
    "float16",
    "float32",
    "float64",
    "float_",
    "floating",
    "frombuffer",
    "fromfile",
    "fromfunction",
    "fromiter",
    "frompyfunc",
    "fromstring",
    "generic",
    "get_printoptions",
    "index_exp",
    "inexact",
    "inf",
    "int8",
    "int16",
    "int32",
    "int64",
    "int_",
    "integer",
    "invert",
    "left_shift",
    "linalg",
    "load",
    "mgrid",
    "mod",
    "nan",
    "newaxis",
    "number",
    "object_",
    "ogrid",
    "permute_dims",
    "pi",
    "pow",
    "printoptions",
    "right_shift",
    "s_",
    "save",
    "savez",
    "set_printoptions",
    "signedinteger",
    "single",
    "trim_zeros",
    "true_divide",
    "uint",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "unsignedinteger",
    "vectorize",
]
__all__ += behind.reduction.__all__
__all__ += behind.choosing.__all__
__all__ += behind.composed.__all__
__all__ += behind.creation.__all__
__all__ += behind.ranges.__all__
__all__ += behind.manipulation.__all__
__all__ += behind.elementwise.__all__
__all__ += behind.statistics.__all__
__all__ += behind.indexing.__all__
__all__ += behind.numerics.__all__
__all__ += behind.linalg.__all__
__all__ += behind.windows.__all__
__all__ += behind.sorting.__all__
__all__ += behind.ufunc_methods.__all__


def __dir__() -> list[str]:
    return sorted(__all__)
