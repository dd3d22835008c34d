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

import numpy as np
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

from ctrlgrad.errors import ShapeError
from ctrlgrad.frontend.apply import result_dtype
from ctrlgrad.frontend.array import fourier as fft
from ctrlgrad.frontend.array import matrices as linalg
from ctrlgrad.frontend.array.accumulation import cumprod, cumsum, cumulative_prod, cumulative_sum, diff, prod
from ctrlgrad.frontend.array.activation import log_softmax, logsumexp, relu, sigmoid, softmax
from ctrlgrad.frontend.array.arithmetic import (
    add,
    arctan2,
    clip,
    copysign,
    divide,
    floor_divide,
    hypot,
    logaddexp,
    maximum,
    minimum,
    multiply,
    nextafter,
    power,
    remainder,
    subtract,
)
from ctrlgrad.frontend.array.bits import (
    bitwise_and,
    bitwise_invert,
    bitwise_left_shift,
    bitwise_or,
    bitwise_right_shift,
    bitwise_xor,
)
from ctrlgrad.frontend.array.complex import angle, conjugate, imag, iscomplexobj, make_complex, real
from ctrlgrad.frontend.array.creation import (
    array,
    asarray,
    empty,
    empty_like,
    full,
    full_like,
    ones,
    ones_like,
    zeros,
    zeros_like,
)
from ctrlgrad.frontend.array.einsum import einsum
from ctrlgrad.frontend.array.elementwise import (
    abs,
    arccos,
    arccosh,
    arcsin,
    arcsinh,
    arctan,
    arctanh,
    astype,
    ceil,
    copy,
    cos,
    cosh,
    exp,
    exp2,
    expm1,
    fabs,
    floor,
    isfinite,
    isinf,
    isnan,
    log,
    log1p,
    log2,
    log10,
    negative,
    positive,
    reciprocal,
    rint,
    round,
    sign,
    signbit,
    sin,
    sinh,
    sqrt,
    square,
    stop_gradient,
    tan,
    tanh,
    trunc,
)
from ctrlgrad.frontend.array.indexing import getitem, nonzero, take, take_along_axis
from ctrlgrad.frontend.array.joining import array_split, concatenate, hstack, pad, roll, split, stack, unstack, vstack
from ctrlgrad.frontend.array.linalg import dot, inner, matmul, outer, tensordot, vdot, vecdot
from ctrlgrad.frontend.array.logic import (
    allclose,
    array_equal,
    equal,
    greater,
    greater_equal,
    isclose,
    less,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    not_equal,
    where,
)
from ctrlgrad.frontend.array.manipulation import (
    broadcast_arrays,
    broadcast_to,
    expand_dims,
    flatten,
    flip,
    matrix_transpose,
    moveaxis,
    ndim,
    ravel,
    reshape,
    shape,
    size,
    squeeze,
    swapaxes,
    transpose,
)
from ctrlgrad.frontend.array.ranges import arange, diagonal, eye, linspace, tril, triu
from ctrlgrad.frontend.array.reduction import (
    all,
    any,
    argmax,
    argmin,
    count_nonzero,
    max,
    mean,
    min,
    std,
    sum,
    trace,
    var,
)
from ctrlgrad.frontend.array.repeating import meshgrid, repeat, tile
from ctrlgrad.frontend.array.sorting import (
    argsort,
    searchsorted,
    sort,
    unique_all,
    unique_counts,
    unique_inverse,
    unique_values,
)
from ctrlgrad.frontend.array.update import at
from ctrlgrad.frontend.functions import FUNCTIONS, array_function
from ctrlgrad.frontend.tensor import Tensor

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


def _dtype(x: Any) -> Any:
    return x.dtype if isinstance(x, Tensor | np.ndarray | np.generic) else x


def finfo(dtype: Any) -> Any:
    """The limits of a floating-point dtype, given itself or as an array of it.

    >>> import ctrlgrad.numpy as cnp
    >>> print(cnp.finfo(cnp.float32).bits)
    32
    """
    return np.finfo(_dtype(dtype))


def iinfo(dtype: Any) -> Any:
    """The limits of an integer dtype, given itself or as an array of it.

    >>> import ctrlgrad.numpy as cnp
    >>> print(cnp.iinfo(cnp.int8).max)
    127
    """
    return np.iinfo(_dtype(dtype))


def isdtype(dtype: Any, kind: Any) -> Any:
    """Whether a dtype is of a kind: another dtype, a name such as "real floating", or a tuple of them.

    >>> import ctrlgrad.numpy as cnp
    >>> cnp.isdtype(cnp.float32, "real floating")
    True
    """
    return np.isdtype(np.dtype(dtype), kind)


@array_function()
def can_cast(from_: Any, to: Any, /) -> Any:
    """Whether a dtype, or an array's, becomes another without loss by promotion.

    >>> import ctrlgrad.numpy as cnp
    >>> cnp.can_cast(cnp.float32, cnp.float64)
    True
    """
    return np.can_cast(_dtype(from_), to)


@array_function()
def broadcast_shapes(*shapes: Any) -> tuple[int, ...]:
    """The shape that known shapes broadcast to.

    Raises:
        ShapeError: they do not.

    >>> import ctrlgrad.numpy as cnp
    >>> cnp.broadcast_shapes((2, 1), (3,))
    (2, 3)
    """
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError as error:
        raise ShapeError("broadcast_shapes: the shapes do not broadcast", got=" and ".join(map(str, shapes))) from error


@array_function()
def result_type(*arrays_and_dtypes: Any) -> np.dtype:
    """The dtype that arrays, numbers and dtypes promote to; Python numbers do not widen arrays.

    >>> import ctrlgrad.numpy as cnp
    >>> cnp.result_type(cnp.float32, 1.0)
    dtype('float32')
    """
    dtypes = [x for x in arrays_and_dtypes if isinstance(x, type | np.dtype | str)]
    arrays = [x for x in arrays_and_dtypes if not isinstance(x, type | np.dtype | str)]
    return result_dtype(*(np.empty(0, dtype) for dtype in dtypes), *arrays)


def _namespace() -> Any:
    return sys.modules[__name__]


# What a tensor's `__array_namespace__` returns.
FUNCTIONS["__namespace__"] = _namespace

__all__ = [
    "abs",
    "absolute",
    "acos",
    "acosh",
    "add",
    "all",
    "allclose",
    "amax",
    "amin",
    "angle",
    "any",
    "arange",
    "arccos",
    "arccosh",
    "arcsin",
    "arcsinh",
    "arctan",
    "arctan2",
    "arctanh",
    "argmax",
    "argmin",
    "argsort",
    "around",
    "array",
    "array_equal",
    "array_split",
    "asarray",
    "asin",
    "asinh",
    "astype",
    "at",
    "atan",
    "atan2",
    "atanh",
    "bitwise_and",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_not",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "bool",
    "bool_",
    "broadcast_arrays",
    "broadcast_shapes",
    "broadcast_to",
    "can_cast",
    "ceil",
    "clip",
    "complex64",
    "complex128",
    "concat",
    "concatenate",
    "conj",
    "conjugate",
    "copy",
    "copysign",
    "cos",
    "cosh",
    "count_nonzero",
    "cross",
    "cumprod",
    "cumsum",
    "cumulative_prod",
    "cumulative_sum",
    "diagonal",
    "diff",
    "divide",
    "dot",
    "e",
    "einsum",
    "empty",
    "empty_like",
    "equal",
    "exp",
    "exp2",
    "expand_dims",
    "expm1",
    "eye",
    "fabs",
    "fft",
    "finfo",
    "flatten",
    "flip",
    "float16",
    "float32",
    "float64",
    "floor",
    "floor_divide",
    "full",
    "full_like",
    "getitem",
    "greater",
    "greater_equal",
    "hstack",
    "hypot",
    "iinfo",
    "imag",
    "inf",
    "inner",
    "int8",
    "int16",
    "int32",
    "int64",
    "invert",
    "isclose",
    "iscomplexobj",
    "isdtype",
    "isfinite",
    "isinf",
    "isnan",
    "left_shift",
    "less",
    "less_equal",
    "linalg",
    "linspace",
    "log",
    "log1p",
    "log2",
    "log10",
    "log_softmax",
    "logaddexp",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "logsumexp",
    "make_complex",
    "matmul",
    "matrix_transpose",
    "max",
    "maximum",
    "mean",
    "meshgrid",
    "min",
    "minimum",
    "mod",
    "moveaxis",
    "multiply",
    "nan",
    "ndim",
    "negative",
    "newaxis",
    "nextafter",
    "nonzero",
    "not_equal",
    "ones",
    "ones_like",
    "outer",
    "pad",
    "permute_dims",
    "pi",
    "positive",
    "pow",
    "power",
    "prod",
    "promote_types",
    "ravel",
    "real",
    "reciprocal",
    "relu",
    "remainder",
    "repeat",
    "reshape",
    "result_type",
    "right_shift",
    "rint",
    "roll",
    "round",
    "searchsorted",
    "shape",
    "sigmoid",
    "sign",
    "signbit",
    "sin",
    "sinh",
    "size",
    "softmax",
    "sort",
    "split",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "std",
    "stop_gradient",
    "subtract",
    "sum",
    "swapaxes",
    "take",
    "take_along_axis",
    "tan",
    "tanh",
    "tensordot",
    "tile",
    "trace",
    "transpose",
    "tril",
    "triu",
    "true_divide",
    "trunc",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "unique_all",
    "unique_counts",
    "unique_inverse",
    "unique_values",
    "unstack",
    "var",
    "vdot",
    "vecdot",
    "vstack",
    "where",
    "zeros",
    "zeros_like",
]
