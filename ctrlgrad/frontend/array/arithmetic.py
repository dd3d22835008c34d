"""Arithmetic of two arrays, powers, and clipping."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ctrlgrad.dtypes import dtype_kind, result_type
from ctrlgrad.errors import TypeMismatchError
from ctrlgrad.frontend.apply import apply, cast, is_weak, result_dtype
from ctrlgrad.frontend.array.creation import ones_like, zeros_like
from ctrlgrad.frontend.array.dims import dtype_of
from ctrlgrad.frontend.array.elementwise import reciprocal, sqrt
from ctrlgrad.frontend.array.promote import elementwise, loop_dtypes, operand, operands, rest_weak, shown
from ctrlgrad.frontend.functions import array_function
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.options import default_float

# Complex numbers and their parts.


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
    """Return true if the dtype is complex.

    >>> cnp.iscomplexobj(1j)
    True
    """
    return dtype_kind(dtype_of(operand("iscomplexobj", x))) == "c"


@array_function()
def isrealobj(x: Any) -> bool:
    """Return true if the dtype is not complex; as `numpy.isrealobj`.

    >>> cnp.isrealobj([1.0, 2.0])
    True
    """
    return not iscomplexobj(x)


# Operations on the bits of integers; on booleans they are the logical ones.


BitBinary = Callable[[Any, Any], Any]


def _bits(name: str, logical: str | None, summary: str, example: str, *aliases: str) -> BitBinary:
    """A function named and promoted as NumPy's ufunc; `logical` is the op that stands for it on booleans."""
    ufunc = getattr(np, name)

    def function(x1: Any, x2: Any) -> Any:
        xs = operands(name, (x1, x2))
        booleans = logical is not None and all(dtype_kind(dtype) == "b" for dtype in loop_dtypes(ufunc, xs))
        return elementwise(logical if booleans and logical else name, ufunc, *xs, keep_weak=True)

    call, result = example.split(" -> ")
    function.__name__ = function.__qualname__ = name
    function.__doc__ = (
        f"{summary}\n\n    x1 and x2 are integers or booleans and broadcast together; floats are a TypeMismatchError.\n"
        "    It has no derivative.\n\n"
        f"    >>> import ctrlgrad.numpy as cnp\n    >>> print(cnp.{call})\n    {result}\n    "
    )
    return array_function(*aliases)(function)


bitwise_and = _bits("bitwise_and", "logical_and", "The bits that are set in both.", "bitwise_and(6, 3) -> 2")
bitwise_or = _bits("bitwise_or", "logical_or", "The bits that are set in one.", "bitwise_or(6, 3) -> 7")
bitwise_xor = _bits("bitwise_xor", "logical_xor", "The bits that are set in exactly one.", "bitwise_xor(6, 3) -> 5")
bitwise_left_shift = _bits("bitwise_left_shift", None, "x1 * 2 ** x2.", "bitwise_left_shift(3, 2) -> 12", "left_shift")
bitwise_right_shift = _bits(
    "bitwise_right_shift", None, "x1 // 2 ** x2.", "bitwise_right_shift(12, 2) -> 3", "right_shift"
)


@array_function("invert", "bitwise_not")
def bitwise_invert(x: Any) -> Any:
    """Every bit of an integer, or a boolean, turned. It has no derivative.

    >>> print(cnp.bitwise_invert(5))
    -6
    """
    (x,) = operands("bitwise_invert", (x,))
    return elementwise("logical_not" if dtype_kind(dtype_of(x)) == "b" else "bitwise_invert", np.invert, x)


Binary = Callable[[Any, Any], Any]

# A power with a constant whole exponent up to here is a product: exact at zero, and cheaper than exp and log.
LARGEST_PRODUCT = 8


def _binary(
    name: str, summary: str, example: str, *aliases: str, operator: bool = False, boolean: str | None = None
) -> Binary:
    """A function named and promoted as NumPy's ufunc; `boolean` is the op that stands for it on booleans."""
    ufunc = getattr(np, name)

    def function(x1: Any, x2: Any) -> Any:
        xs = operands(name, (x1, x2))
        on_booleans = boolean is not None and all(dtype_kind(dtype) == "b" for dtype in loop_dtypes(ufunc, xs))
        return elementwise(boolean if on_booleans and boolean else name, ufunc, *xs, keep_weak=operator)

    call, result = example.split(" -> ")
    function.__name__ = function.__qualname__ = name
    function.__doc__ = (
        f"{summary}\n\n    x1 and x2 broadcast together; the dtype is the one that numpy.{name} gives, and one that\n"
        "    NumPy refuses is a TypeMismatchError; shapes that do not broadcast are a ShapeError.\n\n"
        f"    >>> import ctrlgrad.numpy as cnp\n    >>> print(cnp.{call})\n    {result}\n    "
    )
    return array_function(*aliases)(function)


add = _binary("add", "x1 + x2.", "add(1.0, 2.0) -> 3.0", operator=True, boolean="logical_or")
subtract = _binary("subtract", "x1 - x2.", "subtract(1.0, 2.0) -> -1.0", operator=True)
multiply = _binary("multiply", "x1 * x2.", "multiply(3.0, 2.0) -> 6.0", operator=True, boolean="logical_and")
divide = _binary("divide", "x1 / x2.", "divide(1, 2) -> 0.5", "true_divide", operator=True)
floor_divide = _binary("floor_divide", "The whole number below x1 / x2.", "floor_divide(7, 2) -> 3", operator=True)
remainder = _binary("remainder", "x1 - x2 * floor(x1 / x2).", "remainder(7, 2) -> 1", "mod", operator=True)
maximum = _binary("maximum", "The larger one.", "maximum(1.0, 2.0) -> 2.0", boolean="logical_or")
minimum = _binary("minimum", "The smaller one.", "minimum(1.0, 2.0) -> 1.0", boolean="logical_and")
arctan2 = _binary("arctan2", "The angle of the point (x2, x1).", "arctan2(0.0, 1.0) -> 0.0", "atan2")
logaddexp = _binary("logaddexp", "log(exp(x1) + exp(x2)).", "logaddexp(0.0, -1e9) -> 0.0")
hypot = _binary("hypot", "The length of the vector (x1, x2).", "hypot(3.0, 4.0) -> 5.0")
copysign = _binary("copysign", "x1 with the sign of x2.", "copysign(2.0, -1.0) -> -2.0")
nextafter = _binary("nextafter", "The next number after x1 towards x2.", "nextafter(1.0, 1.0) -> 1.0")


@array_function()
def divmod(x1: Any, x2: Any) -> tuple[Any, Any]:
    """The whole number below x1 / x2, and what remains: `divmod(x1, x2)` and `numpy.divmod` of traced tensors.

    >>> cg.function(lambda x: divmod(x, 2.0))(7.0)
    (array(3.), array(1.))
    """
    return floor_divide(x1, x2), remainder(x1, x2)


@array_function()
def clip(x: Any, min: Any = None, max: Any = None, *, a_min: Any = None, a_max: Any = None) -> Any:
    """x where it lies between `min` and `max`, else the nearer of the two; None is no bound.

    All three broadcast together and promote as in NumPy. `a_min` and `a_max` are NumPy's older names.

    >>> print(cnp.clip(5.0, 0.0, 1.0))
    1.0
    """
    low, high = min if a_min is None else a_min, max if a_max is None else a_max
    result = operand("clip", x)
    if low is not None:
        result = maximum(result, low)
    return result if high is None else minimum(result, high)


@array_function("pow")
def power(x1: Any, x2: Any) -> Any:
    """x1 to the power of x2.

    A constant whole exponent up to 8 becomes a product, 0.5 a square root. Integers to a negative integer power
    are an error: a TypeMismatchError where the exponent is known, else an ExecutionError at run time.

    >>> print(cnp.power(2.0, 3))
    8.0
    """
    base, exponent = operands("power", (x1, x2))
    if not isinstance(base, Tensor) and not isinstance(exponent, Tensor):
        return _concrete_power(base, exponent)
    dtype = loop_dtypes(np.power, (base, exponent))[0]
    constant = _constant(exponent)
    if dtype_kind(dtype) in "iu":
        if constant is not None and constant < 0:
            raise TypeMismatchError(
                "power: an integer to a negative integer power",
                got=f"{shown(base)} to the power {constant}",
                hint="convert one operand with .astype(float)",
            )
        if constant is None or constant > LARGEST_PRODUCT:
            return elementwise("integer_power", np.power, base, exponent, keep_weak=True)
        return rest_weak(_product(cast(base, dtype), int(constant)), (base, exponent))
    if isinstance(constant, int | float):
        simple = _simple_power(cast(base, dtype, "power"), constant)
        if simple is not None:
            return rest_weak(simple, (base, exponent))
    return elementwise("power", np.power, base, exponent, keep_weak=True)


def _concrete_power(base: Any, exponent: Any) -> Any:
    try:
        with np.errstate(all="ignore"):
            found = np.power(base, exponent)
    except (TypeError, ValueError) as error:
        raise TypeMismatchError(
            f"power: {error}", got=f"{shown(base)}, {shown(exponent)}", hint="convert with .astype(float)"
        ) from error
    return found.astype(result_dtype(base, exponent)) if dtype_kind(found.dtype) in "fc" else found


def _constant(exponent: Any) -> Any:
    """The exponent as a Python number where it is known and a scalar, else None."""
    if isinstance(exponent, Tensor) or np.ndim(exponent) != 0:
        return None
    return np.asarray(exponent).item()


def _simple_power(base: Any, exponent: float) -> Any:
    if exponent == 0.5:
        return sqrt(base)
    if exponent == -1:
        return reciprocal(base)
    if float(exponent).is_integer() and 0 <= exponent <= LARGEST_PRODUCT:
        return _product(base, int(exponent))
    return None


def _product(base: Any, exponent: int) -> Any:
    """base ** exponent by repeated squaring."""
    if exponent == 0:
        return 1 if is_weak(base) else ones_like(base)
    result = None
    while True:
        if exponent & 1:
            result = base if result is None else apply("multiply", [result, base])
        exponent >>= 1
        if not exponent:
            return result
        base = apply("square", [base])


__all__ = [
    "add",
    "angle",
    "arctan2",
    "bitwise_and",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "clip",
    "conjugate",
    "copysign",
    "divide",
    "divmod",
    "floor_divide",
    "hypot",
    "imag",
    "iscomplexobj",
    "isrealobj",
    "logaddexp",
    "make_complex",
    "maximum",
    "minimum",
    "multiply",
    "nextafter",
    "power",
    "real",
    "remainder",
    "subtract",
]
