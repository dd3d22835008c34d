"""Elementwise functions composed of other array functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ctrlgrad.dtypes import dtype_kind, finfo
from ctrlgrad.frontend.apply import apply, cast, result_dtype
from ctrlgrad.frontend.array.creation import ones_like, zeros, zeros_like
from ctrlgrad.frontend.array.elementwise import *
from ctrlgrad.frontend.array.elementwise import abs as absolute
from ctrlgrad.frontend.array.elementwise import where as choose
from ctrlgrad.frontend.array.promote import *
from ctrlgrad.frontend.array.reduction import sum as total
from ctrlgrad.frontend.functions import array_function, described, publish

# The nonlinear functions that losses and networks share.


@array_function()
def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x)), without overflow; integers give floats as in `exp`.

    >>> print(cnp.sigmoid(0.0))
    0.5
    """
    return elementwise("sigmoid", np.exp, x)


@array_function(of=operand)
def relu(x: Any) -> Any:
    """x where it is positive, else zero; its derivative at zero is zero.

    >>> print(cnp.relu(-1.0))
    0.0
    """
    return choose(less_equal(x, 0), zeros_like(x, shape=()), x)


def _shift(x: Any, axes: tuple[int, ...]) -> Any:
    """The largest element along axes, which keep size 1, constant; 0 of nothing, and where it is infinite or nan."""
    shape = shape_of(x)
    if any(shape[axis] == 0 for axis in axes):
        return total(x, axes, keepdims=True)
    top = stop_gradient(apply("max", [x], {"axes": axes, "keepdims": True}))
    return choose(isfinite(top), top, zeros_like(top, shape=()))


def _included(x: Any, where: Any) -> Any:
    """x with -inf, whose exponential is zero, in the places of excluded elements."""
    return x if where is None else choose(where, x, -np.inf)


@array_function()
def softmax(x: Any, axis: Any = -1, where: Any = None) -> Any:
    """exp(x) / sum(exp(x)) along an axis or several (None: all), without overflow. Entries of -inf get zero.

    Args:
        where: booleans that broadcast with x, true for elements that count; the other elements get zero.

    >>> cnp.softmax([0.0, 0.0])
    array([0.5, 0.5])
    """
    x = _included(floats("softmax", x), where)
    axes = axes_of("softmax", axis, rank_of(x))
    weights = exp(subtract(x, _shift(x, axes)))
    sums = total(weights, axes, keepdims=True)
    # If no element counts the sum is zero.
    return divide(weights, sums if where is None else choose(equal(sums, 0), 1, sums))


@array_function()
def log_softmax(x: Any, axis: Any = -1, where: Any = None) -> Any:
    """x - logsumexp(x) along an axis or several (None: all), without overflow.

    Args:
        where: booleans that broadcast with x, true for elements that count; the other elements get -inf.

    >>> print(cnp.log_softmax([0.0, -1e9])[0])
    0.0
    """
    x = _included(floats("log_softmax", x), where)
    axes = axes_of("log_softmax", axis, rank_of(x))
    shifted = subtract(x, _shift(x, axes))
    sums = total(exp(shifted), axes, keepdims=True)
    return subtract(shifted, log(sums if where is None else choose(equal(sums, 0), 1, sums)))


@array_function()
def logsumexp(
    a: Any, axis: Any = None, b: Any = None, keepdims: bool = False, return_sign: bool = False, where: Any = None
) -> Any:
    """log(sum(b * exp(x))) along axes, or of all elements, without overflow.

    Where all elements are -inf the result is -inf and its derivative zero.

    Args:
        b: weights, which broadcast with a; ones by default. An element of weight zero does not count, and b's
            derivative there is zero.
        return_sign: give a pair, the logarithm of the sum's absolute value and the sum's sign; otherwise the result
            is nan where the sum is negative.
        where: which elements count, booleans that broadcast with a.

    >>> print(cnp.logsumexp([1000.0, -cnp.inf]))
    1000.0
    >>> print(cnp.logsumexp([1000.0, 1000.0], b=0.5))
    1000.0
    """
    x = _included(floats("logsumexp", a), where)
    x = x if b is None else choose(not_equal(b, 0), x, -np.inf)
    axes = axes_of("logsumexp", axis, rank_of(x))
    shift = _shift(x, axes)
    terms = exp(subtract(x, shift))
    sums = total(terms if b is None else multiply(terms, b), axes, keepdims=True)
    signs = sign(sums) if b is not None or return_sign else None
    sums = sums if b is None else absolute(sums)
    nothing = equal(sums, 0)
    logs = choose(nothing, -np.inf, log(choose(nothing, 1, sums)))
    result = add(logs, shift)
    if b is not None and not return_sign:
        result = choose(less(signs, 0), np.nan, result)
    result = result if keepdims else squeezed(result, axes)
    if return_sign:
        return result, signs if keepdims else squeezed(signs, axes)
    return result


def _pair(ufunc: np.ufunc, x1: Any, x2: Any) -> list[Any]:
    """Two operands in the dtypes that NumPy's function takes them in."""
    xs = operands(ufunc.__name__, (x1, x2))
    return [cast(x, dtype) for x, dtype in zip(xs, loop_dtypes(ufunc, xs), strict=True)]


def _without_nan(ufunc: np.ufunc, fn: Callable[[Any, Any], Any], larger: str, example: str) -> Callable[..., Any]:
    def function(x1: Any, x2: Any) -> Any:
        x1, x2 = _pair(ufunc, x1, x2)
        return where(isnan(x1), x2, where(isnan(x2), x1, fn(x1, x2)))

    name = ufunc.__name__
    summary = f"The {larger} of two, the other one where one is nan; as `numpy.{name}`."
    return array_function()(described(function, name, summary, example))


fmax = _without_nan(np.fmax, maximum, "larger", "cnp.fmax([1.0, cnp.nan], 0.5) -> array([1. , 0.5])")
fmin = _without_nan(np.fmin, minimum, "smaller", "cnp.fmin([1.0, cnp.nan], 0.5) -> array([0.5, 0.5])")


@array_function(of=floats)
def cbrt(x: Any) -> Any:
    """The cube root; as `numpy.cbrt`.

    >>> print(cbrt(27.0))
    3.0
    """
    is_negative = signbit(x)
    size = where(is_negative, -x, x)
    is_ordinary = (size > 0) & (size < np.inf)
    number = dtype_of(x).type
    # The derivatives below would overflow for small x: take 8^k x, whose root is 2^k times as large.
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


@array_function(of=floats)
def sinc(x: Any) -> Any:
    """sin(pi x) / (pi x), and 1 at 0; as `numpy.sinc`. Its derivatives at 0 are those of the series, to order 3.

    >>> float(cnp.sinc(0.0))
    1.0
    """
    turned = x * dtype_of(x).type(np.pi)
    near = absolute(turned) < 1e-4
    safe = where(near, 1, turned)
    square = where(near, turned, 0) ** 2
    return where(near, 1 - square / 6 * (1 - square / 20), sin(safe) / safe)


def _turned(name: str, other: str, factor: float, summary: str, example: str) -> Callable[[Any], Any]:
    function: Callable[[Any], Any] = lambda x: multiply(floats(name, x), factor)
    return array_function(other)(described(function, name, f"{summary}; as `numpy.{name}`.", example))


_EXAMPLE = "float(cnp.radians(180.0)) -> 3.141592653589793"
radians = deg2rad = _turned("deg2rad", "radians", np.pi / 180, "Degrees as radians", _EXAMPLE)
_EXAMPLE = "float(cnp.rad2deg(cnp.pi)) -> 180.0"
degrees = rad2deg = _turned("rad2deg", "degrees", 180 / np.pi, "Radians as degrees", _EXAMPLE)


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


def _test(name: str, what: str, example: str, fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    function: Callable[[Any], Any] = lambda x: fn(operand(name, x))
    return array_function()(
        described(function, name, f"True where {what}; as `numpy.{name}`.", f"cnp.{name}({example}")
    )


_TRUE_FALSE = "array([ True, False])"
isneginf = _test(
    "isneginf", "an element is -inf", f"[-cnp.inf, 1.0]) -> {_TRUE_FALSE}", lambda x: isinf(x) & signbit(floats("", x))
)
isposinf = _test(
    "isposinf", "an element is inf", f"[cnp.inf, 1.0]) -> {_TRUE_FALSE}", lambda x: isinf(x) & ~signbit(floats("", x))
)
isreal = _test("isreal", "the imaginary part of an element is 0", f"[1.0, 1j]) -> {_TRUE_FALSE}", lambda x: x.imag == 0)
iscomplex = _test(
    "iscomplex",
    "the imaginary part of an element is not 0",
    "[1.0, 1j]) -> array([False,  True])",
    lambda x: x.imag != 0,
)


@array_function(of=floats)
def modf(x: Any) -> tuple[Any, Any]:
    """The fraction and the whole part; as `numpy.modf`.

    >>> [float(part) for part in cnp.modf(2.5)]
    [0.5, 2.0]
    """
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


@array_function(of=floats)
def frexp(x: Any) -> tuple[Any, Any]:
    """x as m * 2**e with 0.5 <= abs(m) < 1 and an int32 e; as `numpy.frexp`. The derivative is that of m.

    0, nan and infinities are their own m, with e = 0.

    >>> [float(part) for part in cnp.frexp(6.0)]
    [0.75, 3.0]
    """
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


publish(__name__)
