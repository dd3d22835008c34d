"""Elementwise functions: of one array, comparisons, logic, and arithmetic of two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from ctrlgrad.dtypes import dtype_kind, result_type
from ctrlgrad.errors import TypeMismatchError
from ctrlgrad.frontend.apply import apply, cast, is_plain, result_dtype
from ctrlgrad.frontend.array.creation import check_device, ones_like, zeros_like
from ctrlgrad.frontend.array.promote import *
from ctrlgrad.frontend.functions import FUNCTIONS, MISSING, array_function, described, publish
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.options import default_float

Unary = Callable[[Any], Any]
Binary = Callable[[Any, Any], Any]
Fn = TypeVar("Fn", bound=Callable[..., Any])


def _finish(function: Fn, name: str, summary: str, note: str, example: str, *aliases: str) -> Fn:
    """Register an array function that was made by a factory, with its docstring."""
    shown_example = "print(cnp.{}) -> {}".format(*example.split(" -> "))
    return array_function(*aliases)(described(function, name, f"{summary}\n\n    {note}", shown_example))


def _finish_unary(function: Unary, name: str, summary: str, example: str, *aliases: str) -> Unary:
    note = (
        f"The result has the shape of x and the dtype that numpy.{name} gives; a dtype that NumPy\n"
        "    refuses is a TypeMismatchError."
    )
    return _finish(function, name, summary, note, example, *aliases)


def _unary(name: str, summary: str, example: str, *aliases: str) -> Unary:
    """A function named and promoted as NumPy's ufunc and computed by the op of the same name."""
    ufunc = getattr(np, name)

    def function(x: Any) -> Any:
        return elementwise(name, ufunc, x)

    return _finish_unary(function, name, summary, example, *aliases)


exp = _unary("exp", "e to the power of x.", "exp(0.0) -> 1.0")
expm1 = _unary("expm1", "exp(x) - 1, exact for small x.", "expm1(0.0) -> 0.0")
log = _unary("log", "The natural logarithm.", "log(1.0) -> 0.0")
log1p = _unary("log1p", "log(1 + x), exact for small x.", "log1p(0.0) -> 0.0")
log2 = _unary("log2", "The logarithm to base 2.", "log2(8.0) -> 3.0")
log10 = _unary("log10", "The logarithm to base 10.", "log10(100.0) -> 2.0")
exp2 = _unary("exp2", "2 to the power of x.", "exp2(3.0) -> 8.0")
signbit = _unary("signbit", "True where x is negative, -0.0 included.", "signbit(-0.0) -> True")
sqrt = _unary("sqrt", "The square root.", "sqrt(9.0) -> 3.0")
sin = _unary("sin", "The sine.", "sin(0.0) -> 0.0")
cos = _unary("cos", "The cosine.", "cos(0.0) -> 1.0")
tan = _unary("tan", "The tangent.", "tan(0.0) -> 0.0")
sinh = _unary("sinh", "The hyperbolic sine.", "sinh(0.0) -> 0.0")
cosh = _unary("cosh", "The hyperbolic cosine.", "cosh(0.0) -> 1.0")
tanh = _unary("tanh", "The hyperbolic tangent.", "tanh(0.0) -> 0.0")
arcsin = _unary("arcsin", "The inverse sine.", "arcsin(0.0) -> 0.0", "asin")
arccos = _unary("arccos", "The inverse cosine.", "arccos(1.0) -> 0.0", "acos")
arctan = _unary("arctan", "The inverse tangent.", "arctan(0.0) -> 0.0", "atan")
arcsinh = _unary("arcsinh", "The inverse hyperbolic sine.", "arcsinh(0.0) -> 0.0", "asinh")
arccosh = _unary("arccosh", "The inverse hyperbolic cosine.", "arccosh(1.0) -> 0.0", "acosh")
arctanh = _unary("arctanh", "The inverse hyperbolic tangent.", "arctanh(0.0) -> 0.0", "atanh")
square = _unary("square", "x * x.", "square(3.0) -> 9.0")
negative = _unary("negative", "-x.", "negative(2.0) -> -2.0")
abs = _unary("abs", "The absolute value.", "abs(-2.0) -> 2.0", "absolute")


@array_function()
def erfinv(x: Any) -> Any:
    """The inverse of the error function: y with erf(y) = x.

    Infinite at -1 and 1, NaN beyond. The result has the shape of x and its dtype; integers give float64. Complex
    numbers are a TypeMismatchError. The error is below 4 units in the last place in float32, and 5.5 in float64.

    >>> print(cnp.round(cnp.erfinv(0.5), 6))
    0.476936
    """
    # NumPy has no such function; `exp2` takes the same dtypes.
    return elementwise("erfinv", np.exp2, x)


@array_function()
def sign(x: Any) -> Any:
    """-1, 0 or 1; for complex x, x / abs(x), and 0 at 0.

    >>> print(cnp.sign(-2.0))
    -1.0
    """
    (x,) = operands("sign", (x,))
    if dtype_kind(dtype_of(x)) != "c":
        return elementwise("sign", np.sign, x)
    size = abs(x)
    at_zero = apply("equal", [size, np.zeros((), dtype_of(size))])
    safe = apply("where", [at_zero, np.ones((), dtype_of(size)), size])
    found = apply("divide", [x, apply("cast", [safe], {"dtype": dtype_of(x)})])
    # A zero without a sign in either part.
    return apply("where", [at_zero, np.zeros((), dtype_of(x)), found])


@array_function()
def fabs(x: Any) -> Any:
    """The absolute value as a floating-point number.

    >>> print(cnp.fabs(-2))
    2.0
    """
    return elementwise("abs", np.fabs, x)


@array_function()
def positive(x: Any) -> Any:
    """x itself; a TypeMismatchError for booleans, as in NumPy.

    >>> print(cnp.positive(-2.0))
    -2.0
    """
    (x,) = operands("positive", (x,))
    if dtype_kind(dtype_of(x)) == "b":
        raise TypeMismatchError("positive: booleans have no sign", got=shown(x), hint="use x.astype(int)")
    return operand("positive", x)


def _rounding(name: str, summary: str, example: str, *aliases: str) -> Unary:
    ufunc = getattr(np, name)

    def function(x: Any) -> Any:
        (x,) = operands(name, (x,))
        # Integers are whole already.
        return operand(name, x) if dtype_kind(dtype_of(x)) in "biu" else elementwise(name, ufunc, x)

    return _finish_unary(function, name, summary, example, *aliases)


floor = _rounding("floor", "The largest whole number that is not above x.", "floor(1.5) -> 1.0")
ceil = _rounding("ceil", "The smallest whole number that is not below x.", "ceil(1.5) -> 2.0")
trunc = _rounding("trunc", "The whole number next to x towards zero.", "trunc(-1.5) -> -1.0")
rint = _unary("rint", "The nearest whole number, the even one of two.", "rint(2.5) -> 2.0")


@array_function("around", of=operand)
def round(x: Any, decimals: int = 0) -> Any:
    """Round to a number of decimals, halves to even.

    Args:
        x: any shape; integers are returned as they are, complex numbers are rounded part by part.
        decimals: decimal places; negative counts places left of the point.

    >>> print(cnp.round(1.257, 2))
    1.26
    """
    if dtype_kind(dtype_of(x)) == "c":
        parts = (round(FUNCTIONS[part](x), decimals) for part in ("real", "imag"))
        return FUNCTIONS["make_complex"](*parts)
    if dtype_kind(dtype_of(x)) in "biu":
        if decimals < 0 or dtype_kind(dtype_of(x)) == "b":
            raise TypeMismatchError(
                "round: integers to a negative number of decimals, and booleans, are not supported",
                got=shown(x),
                hint="convert with .astype(float)",
            )
        return x
    if decimals == 0:
        return rint(x)
    scale = 10.0 ** (decimals if decimals > 0 else -decimals)
    if decimals > 0:
        return FUNCTIONS["divide"](rint(FUNCTIONS["multiply"](x, scale)), scale)
    return FUNCTIONS["multiply"](rint(FUNCTIONS["divide"](x, scale)), scale)


def _test(name: str, summary: str, example: str) -> Unary:
    def function(x: Any) -> Any:
        x = operand(name, x)
        return apply(name, [to_dtype(name, x, default_float()) if dtype_kind(dtype_of(x)) in "biu" else x])

    return _finish_unary(function, name, summary, example)


isnan = _test("isnan", "True where x is not a number.", "isnan(0.0) -> False")
isinf = _test("isinf", "True where x is infinite.", "isinf(0.0) -> False")
isfinite = _test("isfinite", "True where x is neither infinite nor not a number.", "isfinite(0.0) -> True")


@array_function(of=operand)
def reciprocal(x: Any) -> Any:
    """1 / x for floats and complex numbers; a TypeMismatchError for integers, whose reciprocals would all be cut to 0.

    >>> print(cnp.reciprocal(4.0))
    0.25
    """
    if dtype_kind(dtype_of(x)) in "biu":
        raise TypeMismatchError("reciprocal: integers are not supported", got=shown(x), hint="use 1 / x")
    return elementwise("reciprocal", np.reciprocal, x)


@array_function()
def stop_gradient(x: Any) -> Any:
    """x, taken as a constant by every derivative.

    >>> print(cnp.stop_gradient(2.0))
    2.0
    """
    (x,) = operands("stop_gradient", (x,))
    return apply("stop_gradient", [x])


@array_function()
def astype(x: Any, dtype: Any, *, copy: bool = True, device: Any = None) -> Any:
    """x with another dtype. `copy=False` may return x itself where it has that dtype.

    Raises:
        TypeMismatchError: complex to real, or a dtype that no graph holds.

    >>> print(cnp.astype(1.5, cnp.int64))
    1
    """
    check_device("astype", device)
    x = operand("astype", x)
    result = to_dtype("astype", x, dtype)
    return result.copy() if copy and result is x and isinstance(x, np.ndarray) else result


@array_function(of=operand)
def copy(x: Any) -> Any:
    """A copy; a traced tensor never changes, so it is its own.

    >>> cnp.copy([1, 2])
    array([1, 2])
    """
    return np.array(x) if isinstance(x, np.ndarray) else x


# Comparisons, logic, choice, and closeness.


_COMPARED = "The operands broadcast together (else a ShapeError); the result is boolean."


def _of_two(fn: Callable[[str, Any, Any], Any]) -> Callable[[str, str, str], Binary]:
    """Factory of boolean functions of two operands by name, summary and example."""
    return lambda name, summary, example: _finish(lambda x1, x2: fn(name, x1, x2), name, summary, _COMPARED, example)


_comparison = _of_two(lambda name, x1, x2: compared(name, getattr(np, name), x1, x2))
equal = _comparison("equal", "x1 == x2.", "equal(1, 1.0) -> True")
not_equal = _comparison("not_equal", "x1 != x2.", "not_equal(1, 1.0) -> False")
less = _comparison("less", "x1 < x2.", "less(1, 2) -> True")
less_equal = _comparison("less_equal", "x1 <= x2.", "less_equal(2, 2) -> True")
greater = _comparison("greater", "x1 > x2.", "greater(1, 2) -> False")
greater_equal = _comparison("greater_equal", "x1 >= x2.", "greater_equal(2, 2) -> True")

_logical = _of_two(lambda name, x1, x2: apply(name, [truth(name, x1), truth(name, x2)]))
logical_and = _logical("logical_and", "True where both are other than zero.", "logical_and(True, False) -> False")
logical_or = _logical("logical_or", "True where one is other than zero.", "logical_or(True, False) -> True")
logical_xor = _logical("logical_xor", "True where exactly one is other than zero.", "logical_xor(True, True) -> False")


@array_function()
def logical_not(x: Any) -> Any:
    """True where an element is zero.

    >>> print(cnp.logical_not(True))
    False
    """
    return apply("logical_not", [truth("logical_not", x)])


@array_function()
def where(
    condition: Any, x: Any = MISSING, y: Any = MISSING, *, size: int | None = None, fill_value: Any = None
) -> Any:
    """x where the condition holds, else y; all three broadcast together, and x and y promote.

    With the condition alone: the positions where it holds, as `nonzero` gives them, with its `size` and `fill_value`.

    >>> cnp.where([True, False], 1.0, [2.0, 3.0])
    array([1., 3.])
    """
    if x is MISSING and y is MISSING:
        return FUNCTIONS["nonzero"](condition, size=size, fill_value=fill_value)
    if x is MISSING or y is MISSING:
        raise TypeMismatchError("where: both x and y are needed, or none", hint="where(condition, x, y)")
    if size is not None or fill_value is not None:
        raise TypeMismatchError(
            "where: size and fill_value are for the condition alone",
            got="where(condition, x, y, size=...)",
            hint="where(condition, size=n) gives positions; where(condition, x, y) has the shape of its operands",
        )
    if not (is_plain(x) and is_plain(y) and x.dtype == y.dtype):
        x, y = operands("where", (x, y))
        dtype = result_dtype(x, y)
        x, y = cast(x, dtype, "where"), cast(y, dtype, "where")
    return apply("where", [truth("where", condition), x, y])


@array_function()
def isclose(a: Any, b: Any, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False) -> Any:
    """True where abs(a - b) <= atol + rtol * abs(b); equal infinities are close.

    >>> print(cnp.isclose(1.0, 1.0 + 1e-9))
    True
    """
    a, b = (operand("isclose", x) for x in (a, b))
    if dtype_kind(dtype_of(b)) in "biu":
        b = cast(b, result_type(dtype_of(b), np.float64), "isclose")
    bound = add(atol, multiply(rtol, abs(b)))
    result = logical_or(equal(a, b), logical_and(isfinite(b), less_equal(abs(subtract(a, b)), bound)))
    return logical_or(result, logical_and(isnan(a), isnan(b))) if equal_nan else result


@array_function()
def allclose(a: Any, b: Any, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False) -> Any:
    """True if `isclose` holds everywhere: a boolean scalar.

    >>> print(cnp.allclose([1.0, 2.0], [1.0, 2.0 + 1e-12]))
    True
    """
    return FUNCTIONS["all"](isclose(a, b, rtol, atol, equal_nan))


@array_function()
def array_equal(a1: Any, a2: Any) -> Any:
    """True if the shapes are equal and all elements are: a boolean scalar.

    >>> print(cnp.array_equal([1, 2], [1, 2]))
    True
    """
    a, b = (operand("array_equal", x) for x in (a1, a2))
    pairs = list(zip(shape_of(a), shape_of(b), strict=False))
    if len(shape_of(a)) != len(shape_of(b)) or any(m != n for m, n in pairs if m is not None and n is not None):
        return np.False_
    unknown = [axis for axis, pair in enumerate(pairs) if None in pair]
    if not unknown:
        return FUNCTIONS["all"](equal(a, b))
    # Sizes that may differ at run time: compare as many elements as both have, and the sizes.
    result = np.True_
    for axis in unknown:
        result = logical_and(result, equal(dim(a, axis), dim(b, axis)))
    sizes = [times([dim(x, axis) for axis in range(len(pairs))]) for x in (a, b)]
    flat = [sliced(reshaped(x, [size]), 0, 0, minimum(*sizes)) for x, size in zip((a, b), sizes, strict=True)]
    return logical_and(result, FUNCTIONS["all"](equal(*flat)))


@array_function()
def array_equiv(a1: Any, a2: Any) -> Any:
    """True if two arrays broadcast together and are equal then; as `numpy.array_equiv`.

    >>> print(cnp.array_equiv([1, 1], 1))
    True
    """
    a1, a2 = operand("array_equiv", a1), operand("array_equiv", a2)
    known = [tuple(1 if d is None else d for d in shape_of(x)) for x in (a1, a2)]
    try:
        np.broadcast_shapes(*known)
    except ValueError:
        return np.False_
    return FUNCTIONS["all"](equal(a1, a2))


# Complex numbers and their parts.


def _part(op: str, name: str, summary: str, example: str, of_real: Unary, *aliases: str) -> Unary:
    def function(x: Any) -> Any:
        x = operand(name, x)
        return apply(op, [x]) if dtype_kind(dtype_of(x)) == "c" else of_real(x)

    return array_function(*aliases)(described(function, name, summary, example))


conjugate = _part(
    "conj",
    "conjugate",
    "The complex conjugate; real numbers are their own.",
    "print(cnp.conjugate(1 + 2j)) -> (1-2j)",
    lambda x: x,
    "conj",
)
real = _part(
    "real",
    "real",
    "The real part: float32 for complex64, float64 for complex128; real numbers are their own.",
    "print(cnp.real(1 + 2j)) -> 1.0",
    lambda x: x,
)
imag = _part(
    "imag",
    "imag",
    "The imaginary part, of the dtype of the real one; zero for real numbers.",
    "print(cnp.imag(1 + 2j)) -> 2.0",
    zeros_like,
)


@array_function(of=operand)
def angle(x: Any) -> Any:
    """The angle of a complex number in radians, in (-pi, pi]; 0 or pi for real ones.

    >>> print(round(float(cnp.angle(1j)), 6))
    1.570796
    """
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


def _binary(
    name: str,
    summary: str,
    example: str,
    *aliases: str,
    boolean: str | None = None,
    note: str | None = None,
) -> Binary:
    """A function named and promoted as NumPy's ufunc; `boolean` is the op for booleans."""
    ufunc = getattr(np, name)
    note = note or (
        f"x1 and x2 broadcast together; the dtype is the one that numpy.{name} gives, and one that\n"
        "    NumPy refuses is a TypeMismatchError; shapes that do not broadcast are a ShapeError."
    )

    def function(x1: Any, x2: Any) -> Any:
        return elementwise(name, ufunc, x1, x2, boolean=boolean)

    return _finish(function, name, summary, note, example, *aliases)


def _bits(name: str, boolean: str | None, summary: str, example: str, *aliases: str) -> Binary:
    note = (
        "x1 and x2 are integers or booleans and broadcast together; floats are a TypeMismatchError.\n"
        "    It has no derivative."
    )
    return _binary(name, summary, example, *aliases, boolean=boolean, note=note)


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


# A power with a constant whole exponent up to here is a product: exact at zero, and cheaper than exp and log.
LARGEST_PRODUCT = 8


add = _binary("add", "x1 + x2.", "add(1.0, 2.0) -> 3.0", boolean="logical_or")
subtract = _binary("subtract", "x1 - x2.", "subtract(1.0, 2.0) -> -1.0")
multiply = _binary("multiply", "x1 * x2.", "multiply(3.0, 2.0) -> 6.0", boolean="logical_and")
divide = _binary("divide", "x1 / x2.", "divide(1, 2) -> 0.5", "true_divide")
floor_divide = _binary("floor_divide", "The whole number below x1 / x2.", "floor_divide(7, 2) -> 3")
remainder = _binary("remainder", "x1 - x2 * floor(x1 / x2).", "remainder(7, 2) -> 1", "mod")
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
        try:
            with np.errstate(all="ignore"):
                found = np.power(base, exponent)
        except (TypeError, ValueError) as error:
            raise TypeMismatchError(
                f"power: {error}", got=f"{shown(base)}, {shown(exponent)}", hint="convert with .astype(float)"
            ) from error
        return found.astype(result_dtype(base, exponent)) if dtype_kind(found.dtype) in "fc" else found
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
            return elementwise("integer_power", np.power, base, exponent)
        return _product(cast(base, dtype), int(constant))
    if isinstance(constant, int | float):
        simple = _simple_power(cast(base, dtype, "power"), constant)
        if simple is not None:
            return simple
    return elementwise("power", np.power, base, exponent)


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
        return ones_like(base)
    result = None
    while True:
        if exponent & 1:
            result = base if result is None else apply("multiply", [result, base])
        exponent >>= 1
        if not exponent:
            return result
        base = apply("square", [base])


publish(__name__, "Fn")
