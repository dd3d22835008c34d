"""Array functions for traced tensors and concrete arrays, by the names and rules of NumPy 2 and the Array API.

Called inside a traced function they record; called with concrete arrays they compute. `numpy.f(x)` on a traced
tensor finds the function `f` of this module, so either import serves.

    >>> cnp.sqrt([1.0, 4.0])
    array([1., 2.])
"""

from __future__ import annotations

import sys

from numpy import array_repr as array_repr
from numpy import array_str as array_str
from numpy import bool_ as bool_
from numpy import cdouble as cdouble
from numpy import character as character
from numpy import complex64 as complex64
from numpy import complex128 as complex128
from numpy import complexfloating as complexfloating
from numpy import csingle as csingle
from numpy import double as double
from numpy import dtype as dtype
from numpy import e as e
from numpy import euler_gamma as euler_gamma
from numpy import flexible as flexible
from numpy import float16 as float16
from numpy import float32 as float32
from numpy import float64 as float64
from numpy import floating as floating
from numpy import frombuffer as frombuffer
from numpy import fromfile as fromfile
from numpy import fromfunction as fromfunction
from numpy import fromiter as fromiter
from numpy import fromstring as fromstring
from numpy import generic as generic
from numpy import get_printoptions as get_printoptions
from numpy import index_exp as index_exp
from numpy import inexact as inexact
from numpy import inf as inf
from numpy import int8 as int8
from numpy import int16 as int16
from numpy import int32 as int32
from numpy import int64 as int64
from numpy import int_ as int_
from numpy import integer as integer
from numpy import load as load
from numpy import mgrid as mgrid
from numpy import nan as nan
from numpy import newaxis as newaxis
from numpy import number as number
from numpy import object_ as object_
from numpy import ogrid as ogrid
from numpy import pi as pi
from numpy import printoptions as printoptions
from numpy import s_ as s_
from numpy import save as save
from numpy import savez as savez
from numpy import set_printoptions as set_printoptions
from numpy import signedinteger as signedinteger
from numpy import single as single
from numpy import trim_zeros as trim_zeros
from numpy import uint as uint
from numpy import uint8 as uint8
from numpy import uint16 as uint16
from numpy import uint32 as uint32
from numpy import uint64 as uint64
from numpy import unsignedinteger as unsignedinteger

from ctrlgrad.dtypes import bfloat16 as bfloat16
from ctrlgrad.frontend.array import fourier as _fourier
from ctrlgrad.frontend.array import matrices as _matrices
from ctrlgrad.frontend.array.choosing import *
from ctrlgrad.frontend.array.composed import *
from ctrlgrad.frontend.array.creation import *
from ctrlgrad.frontend.array.creation import VERSIONS
from ctrlgrad.frontend.array.creation import __array_namespace_info__ as __array_namespace_info__
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
from ctrlgrad.frontend.functions import FUNCTIONS, publish
from ctrlgrad.transforms.vmap import apply_along_axis as apply_along_axis
from ctrlgrad.transforms.vmap import frompyfunc as frompyfunc
from ctrlgrad.transforms.vmap import vectorize as vectorize

fft, linalg = _fourier, _matrices

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


FUNCTIONS["apply_along_axis"] = apply_along_axis
# Result of a tensor's `__array_namespace__`.
FUNCTIONS["__namespace__"] = lambda: sys.modules[__name__]

_MORE = ["fft", "linalg", "__array_api_version__", "__array_namespace_info__"]
publish(__name__, "FUNCTIONS", "VERSIONS", more=_MORE, is_facade=True)
