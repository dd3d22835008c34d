"""Elementwise functions composed of other array functions."""

from __future__ import annotations

from typing import Any

import numpy as np

from ctrlgrad.dtypes import dtype_kind, finfo
from ctrlgrad.frontend.apply import cast, result_dtype
from ctrlgrad.frontend.array.arithmetic import (
    copysign,
    divide,
    logaddexp,
    maximum,
    minimum,
    multiply,
    nextafter,
    power,
    remainder,
)
from ctrlgrad.frontend.array.creation import ones_like, zeros, zeros_like
from ctrlgrad.frontend.array.dims import dtype_of
from ctrlgrad.frontend.array.elementwise import abs as absolute
from ctrlgrad.frontend.array.elementwise import (
    exp,
    floor,
    isinf,
    isnan,
    log,
    log2,
    signbit,
    sin,
    sqrt,
    stop_gradient,
    trunc,
)
from ctrlgrad.frontend.array.logic import where
from ctrlgrad.frontend.array.promote import double_dtype, floats, loop_dtypes, operand, operands
from ctrlgrad.frontend.functions import array_function


def _pair(ufunc: np.ufunc, x1: Any, x2: Any) -> list[Any]:
    """Two operands in the dtypes that NumPy's function takes them in."""
    xs = operands(ufunc.__name__, (x1, x2))
    return [cast(x, dtype) for x, dtype in zip(xs, loop_dtypes(ufunc, xs), strict=True)]


@array_function()
def fmax(x1: Any, x2: Any) -> Any:
    """The larger of two, the other one where one is nan; as `numpy.fmax`.

    >>> cnp.fmax([1.0, cnp.nan], 0.5)
    array([1. , 0.5])
    """
    x1, x2 = _pair(np.fmax, x1, x2)
    return where(isnan(x1), x2, where(isnan(x2), x1, maximum(x1, x2)))


@array_function()
def fmin(x1: Any, x2: Any) -> Any:
    """The smaller of two, the other one where one is nan; as `numpy.fmin`.

    >>> cnp.fmin([1.0, cnp.nan], 0.5)
    array([0.5, 0.5])
    """
    x1, x2 = _pair(np.fmin, x1, x2)
    return where(isnan(x1), x2, where(isnan(x2), x1, minimum(x1, x2)))


@array_function()
def cbrt(x: Any) -> Any:
    """The cube root; as `numpy.cbrt`.

    >>> print(cbrt(27.0))
    3.0
    """
    x = floats("cbrt", x)
    is_negative = signbit(x)
    size = where(is_negative, -x, x)
    is_ordinary = (size > 0) & (size < np.inf)
    number = dtype_of(x).type
    # Of small numbers the derivatives of what follows would overflow: 8^k x is taken, whose root is 2^k times as large.
    k = finfo(dtype_of(x)).maxexp * 7 // 24
    is_small = size < 2.0 ** (-1.5 * k)
    safe = where(is_ordinary, where(is_small, size * number(8.0**k), size), 1)
    root = exp(log(safe) * number(1 / 3))
    # A step of Newton's method brings the last digits.
    root = root - (root - safe / (root * root)) * number(1 / 3)
    root = where(is_small, root * number(0.5**k), root)
    # The square root has the values and slopes of the cube root at 0 and at infinity.
    root = where(is_ordinary, root, sqrt(where(is_ordinary, 1, size)))
    return where(is_negative, -root, root)


@array_function()
def sinc(x: Any) -> Any:
    """sin(pi x) / (pi x), and 1 at 0; as `numpy.sinc`. Its derivatives at 0 are those of the series, to order 3.

    >>> float(cnp.sinc(0.0))
    1.0
    """
    x = floats("sinc", x)
    turned = x * dtype_of(x).type(np.pi)
    near = absolute(turned) < 1e-4
    safe = where(near, 1, turned)
    square = where(near, turned, 0) ** 2
    return where(near, 1 - square / 6 * (1 - square / 20), sin(safe) / safe)


@array_function("radians")
def deg2rad(x: Any) -> Any:
    """Degrees as radians; as `numpy.deg2rad`.

    >>> float(cnp.radians(180.0))
    3.141592653589793
    """
    return multiply(floats("deg2rad", x), np.pi / 180)


@array_function("degrees")
def rad2deg(x: Any) -> Any:
    """Radians as degrees; as `numpy.rad2deg`.

    >>> float(cnp.rad2deg(cnp.pi))
    180.0
    """
    return multiply(floats("rad2deg", x), 180 / np.pi)


radians, degrees = deg2rad, rad2deg


@array_function()
def fmod(x1: Any, x2: Any) -> Any:
    """The remainder with the sign of x1; as `numpy.fmod`.

    >>> print(fmod(-7.0, 3.0))
    -1.0
    """
    x1, x2 = _pair(np.fmod, x1, x2)
    if dtype_kind(dtype_of(x1)) in "iu":
        rest = remainder(x1, x2)
        return where((rest != 0) & ((rest < 0) ^ (x1 < 0)), rest - x2, rest)
    # Of numbers that are not negative the remainder is exact; a zero has the sign of x1.
    is_negative = signbit(x1)
    rest = remainder(where(is_negative, -x1, x1), absolute(x2))
    return where(is_negative, -rest, rest)


@array_function()
def heaviside(x1: Any, x2: Any) -> Any:
    """0 below 0, x2 at 0, 1 above; as `numpy.heaviside`.

    >>> cnp.heaviside([-1.0, 0.0, 1.0], 0.5)
    array([0. , 0.5, 1. ])
    """
    x1, x2 = _pair(np.heaviside, x1, x2)
    return where(isnan(x1), x1, where(x1 == 0, x2, where(x1 < 0, zeros_like(x2), ones_like(x2))))


@array_function()
def logaddexp2(x1: Any, x2: Any) -> Any:
    """log2(2**x1 + 2**x2); as `numpy.logaddexp2`.

    >>> float(cnp.logaddexp2(3.0, 3.0))
    4.0
    """
    scale = np.log(2.0)
    return divide(
        logaddexp(multiply(floats("logaddexp2", x1), scale), multiply(floats("logaddexp2", x2), scale)), scale
    )


@array_function()
def float_power(x1: Any, x2: Any) -> Any:
    """x1 ** x2 in double precision, or the default dtype's; as `numpy.float_power`.

    >>> cnp.float_power([2, 3], 2)
    array([4., 9.])
    """
    x1, x2 = operands("float_power", (x1, x2))
    dtype = double_dtype(result_dtype(x1, x2))
    return power(cast(x1, dtype), cast(x2, dtype))


@array_function()
def isneginf(x: Any) -> Any:
    """True where an element is -inf; as `numpy.isneginf`.

    >>> cnp.isneginf([-cnp.inf, 1.0])
    array([ True, False])
    """
    x = floats("isneginf", x)
    return isinf(x) & signbit(x)


@array_function()
def isposinf(x: Any) -> Any:
    """True where an element is inf; as `numpy.isposinf`.

    >>> cnp.isposinf([cnp.inf, 1.0])
    array([ True, False])
    """
    x = floats("isposinf", x)
    return isinf(x) & ~signbit(x)


@array_function()
def isreal(x: Any) -> Any:
    """True where the imaginary part of an element is 0; as `numpy.isreal`.

    >>> cnp.isreal([1.0, 1j])
    array([ True, False])
    """
    return operand("isreal", x).imag == 0


@array_function()
def iscomplex(x: Any) -> Any:
    """True where the imaginary part of an element is not 0; as `numpy.iscomplex`.

    >>> cnp.iscomplex([1.0, 1j])
    array([False,  True])
    """
    return operand("iscomplex", x).imag != 0


@array_function()
def modf(x: Any) -> tuple[Any, Any]:
    """The fraction and the whole part; as `numpy.modf`.

    >>> [float(part) for part in cnp.modf(2.5)]
    [0.5, 2.0]
    """
    x = floats("modf", x)
    whole = trunc(x)
    return where(isinf(x), zeros((), dtype_of(x)), x - whole), whole


@array_function()
def ldexp(x1: Any, x2: Any) -> Any:
    """x1 times 2 to the power of integers x2; as `numpy.ldexp`, in two steps that do not overflow on the way.

    >>> cnp.ldexp([1.0, 2.0], 3)
    array([ 8., 16.])
    """
    x1, x2 = floats("ldexp", x1), operand("ldexp", x2)
    half = x2 // 2
    two = np.asarray(2.0, dtype_of(x1))
    return x1 * power(two, half.astype(dtype_of(x1))) * power(two, (x2 - half).astype(dtype_of(x1)))


@array_function()
def frexp(x: Any) -> tuple[Any, Any]:
    """x as m * 2**e with 0.5 <= abs(m) < 1 and an int32 e; as `numpy.frexp`. The derivative is that of m.

    0, nan and infinities are their own m, with e = 0.

    >>> [float(part) for part in cnp.frexp(6.0)]
    [0.75, 3.0]
    """
    x = floats("frexp", x)
    size = absolute(x)
    plain = (size > 0) & (size < np.inf)
    safe = where(plain, size, 1)
    e = cast(floor(log2(stop_gradient(safe))), np.int64) + 1
    m = ldexp(safe, -e)
    # The logarithm may be rounded to the next whole number.
    above, below = m >= 1, m < 0.5
    m = where(above, m * 0.5, where(below, m * 2, m))
    e = e + above - below
    return where(plain, copysign(m, x), x), cast(where(plain, e, 0), np.int32)


@array_function()
def spacing(x: Any) -> Any:
    """The distance to the next number away from 0, with the sign of x; as `numpy.spacing`. It has no derivative.

    >>> print(cnp.spacing(1.0) == cnp.finfo(cnp.float64).eps)
    True
    """
    x = stop_gradient(floats("spacing", x))
    return nextafter(x, copysign(dtype_of(x).type(np.inf), x)) - x


__all__ = [
    "cbrt",
    "deg2rad",
    "degrees",
    "float_power",
    "fmax",
    "fmin",
    "fmod",
    "frexp",
    "heaviside",
    "iscomplex",
    "isneginf",
    "isposinf",
    "isreal",
    "ldexp",
    "logaddexp2",
    "modf",
    "rad2deg",
    "radians",
    "sinc",
    "spacing",
]
