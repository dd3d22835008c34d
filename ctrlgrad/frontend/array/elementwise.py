"""Functions of one array, element by element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.errors import TypeMismatchError
from ctrlgrad.frontend.apply import apply
from ctrlgrad.frontend.array.array_api import check_device
from ctrlgrad.frontend.array.dims import dtype_of
from ctrlgrad.frontend.array.promote import elementwise, operand, operands, rest_weak, shown, to_dtype
from ctrlgrad.frontend.functions import FUNCTIONS, array_function
from ctrlgrad.options import default_float

Unary = Callable[[Any], Any]


def _unary(name: str, summary: str, example: str, *aliases: str, operator: bool = False) -> Unary:
    """A function named and promoted as NumPy's ufunc and computed by the op of the same name.

    `operator`: Python has an operator for it, so a Python number gives one again.
    """
    ufunc = getattr(np, name)

    def function(x: Any) -> Any:
        return elementwise(name, ufunc, x, keep_weak=operator)

    return _finish(function, name, summary, example, *aliases)


def _finish(function: Unary, name: str, summary: str, example: str, *aliases: str) -> Unary:
    call, result = example.split(" -> ")
    function.__name__ = function.__qualname__ = name
    function.__doc__ = (
        f"{summary}\n\n    The result has the shape of x and the dtype that numpy.{name} gives; a dtype that NumPy\n"
        "    refuses is a TypeMismatchError.\n\n"
        f"    >>> import ctrlgrad.numpy as cnp\n    >>> print(cnp.{call})\n    {result}\n    "
    )
    return array_function(*aliases)(function)


exp = _unary("exp", "e to the power of x.", "exp(0.0) -> 1.0")
expm1 = _unary("expm1", "exp(x) - 1, exact for small x.", "expm1(0.0) -> 0.0")
log = _unary("log", "The natural logarithm.", "log(1.0) -> 0.0")
log1p = _unary("log1p", "log(1 + x), exact for small x.", "log1p(0.0) -> 0.0")
log2 = _unary("log2", "The logarithm to base 2.", "log2(8.0) -> 3.0")
log10 = _unary("log10", "The logarithm to base 10.", "log10(100.0) -> 2.0")
exp2 = _unary("exp2", "2 to the power of x.", "exp2(3.0) -> 8.0")
signbit = _unary("signbit", "Whether x is negative, -0.0 included.", "signbit(-0.0) -> True")
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
negative = _unary("negative", "-x.", "negative(2.0) -> -2.0", operator=True)
abs = _unary("abs", "The absolute value.", "abs(-2.0) -> 2.0", "absolute", operator=True)


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
    return rest_weak(operand("positive", x), (x,))


def _rounding(name: str, summary: str, example: str, *aliases: str) -> Unary:
    ufunc = getattr(np, name)

    def function(x: Any) -> Any:
        (x,) = operands(name, (x,))
        # Integers are whole already.
        return operand(name, x) if dtype_kind(dtype_of(x)) in "biu" else elementwise(name, ufunc, x)

    return _finish(function, name, summary, example, *aliases)


floor = _rounding("floor", "The largest whole number that is not above x.", "floor(1.5) -> 1.0")
ceil = _rounding("ceil", "The smallest whole number that is not below x.", "ceil(1.5) -> 2.0")
trunc = _rounding("trunc", "The whole number next to x towards zero.", "trunc(-1.5) -> -1.0")
rint = _unary("rint", "The nearest whole number, the even one of two.", "rint(2.5) -> 2.0")


@array_function("around")
def round(x: Any, decimals: int = 0) -> Any:
    """Round to a number of decimals, halves to even.

    Args:
        x: any shape; integers are returned as they are, complex numbers are rounded part by part.
        decimals: decimal places; negative counts places left of the point.

    >>> print(cnp.round(1.257, 2))
    1.26
    """
    x = operand("round", x)
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

    return _finish(function, name, summary, example)


isnan = _test("isnan", "Whether x is not a number.", "isnan(0.0) -> False")
isinf = _test("isinf", "Whether x is infinite.", "isinf(0.0) -> False")
isfinite = _test("isfinite", "Whether x is neither infinite nor not a number.", "isfinite(0.0) -> True")


@array_function()
def reciprocal(x: Any) -> Any:
    """1 / x for floats and complex numbers; a TypeMismatchError for integers, whose reciprocals would all be cut to 0.

    >>> print(cnp.reciprocal(4.0))
    0.25
    """
    x = operand("reciprocal", x)
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


@array_function()
def copy(x: Any) -> Any:
    """A copy; a traced tensor never changes, so it is its own.

    >>> cnp.copy([1, 2])
    array([1, 2])
    """
    x = operand("copy", x)
    return np.array(x) if isinstance(x, np.ndarray) else x


__all__ = [
    "abs",
    "arccos",
    "arccosh",
    "arcsin",
    "arcsinh",
    "arctan",
    "arctanh",
    "astype",
    "ceil",
    "copy",
    "cos",
    "cosh",
    "erfinv",
    "exp",
    "exp2",
    "expm1",
    "fabs",
    "floor",
    "isfinite",
    "isinf",
    "isnan",
    "log",
    "log1p",
    "log2",
    "log10",
    "negative",
    "positive",
    "reciprocal",
    "rint",
    "round",
    "sign",
    "signbit",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "stop_gradient",
    "tan",
    "tanh",
    "trunc",
]
