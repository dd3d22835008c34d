"""Comparisons, logic, choice, and closeness."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ctrlgrad.dtypes import dtype_kind, result_type
from ctrlgrad.errors import TypeMismatchError
from ctrlgrad.frontend.apply import apply, cast, result_dtype
from ctrlgrad.frontend.array.arithmetic import add, minimum, multiply, subtract
from ctrlgrad.frontend.array.dims import dim, dtype_of, reshaped, shape_of, sliced, times
from ctrlgrad.frontend.array.elementwise import abs as absolute
from ctrlgrad.frontend.array.elementwise import isfinite, isnan
from ctrlgrad.frontend.array.promote import compared, operand, operands, truth
from ctrlgrad.frontend.functions import FUNCTIONS, MISSING, array_function

Binary = Callable[[Any, Any], Any]


def _document(function: Any, name: str, summary: str, example: str) -> None:
    call, result = example.split(" -> ")
    function.__name__ = function.__qualname__ = name
    function.__doc__ = (
        f"{summary}\n\n    The operands broadcast together (else a ShapeError); the result is boolean.\n\n"
        f"    >>> import ctrlgrad.numpy as cnp\n    >>> print(cnp.{call})\n    {result}\n    "
    )


def _comparison(name: str, summary: str, example: str) -> Binary:
    ufunc = getattr(np, name)

    def function(x1: Any, x2: Any) -> Any:
        return compared(name, ufunc, x1, x2)

    _document(function, name, summary, example)
    return array_function()(function)


equal = _comparison("equal", "x1 == x2.", "equal(1, 1.0) -> True")
not_equal = _comparison("not_equal", "x1 != x2.", "not_equal(1, 1.0) -> False")
less = _comparison("less", "x1 < x2.", "less(1, 2) -> True")
less_equal = _comparison("less_equal", "x1 <= x2.", "less_equal(2, 2) -> True")
greater = _comparison("greater", "x1 > x2.", "greater(1, 2) -> False")
greater_equal = _comparison("greater_equal", "x1 >= x2.", "greater_equal(2, 2) -> True")


def _logical(name: str, summary: str, example: str) -> Binary:
    def function(x1: Any, x2: Any) -> Any:
        return apply(name, [truth(name, x1), truth(name, x2)])

    _document(function, name, summary, example)
    return array_function()(function)


logical_and = _logical("logical_and", "Whether both are other than zero.", "logical_and(True, False) -> False")
logical_or = _logical("logical_or", "Whether one is other than zero.", "logical_or(True, False) -> True")
logical_xor = _logical("logical_xor", "Whether exactly one is other than zero.", "logical_xor(True, True) -> False")


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
    x, y = operands("where", (x, y))
    dtype = result_dtype(x, y)
    return apply("where", [truth("where", condition), cast(x, dtype, "where"), cast(y, dtype, "where")])


@array_function()
def isclose(a: Any, b: Any, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False) -> Any:
    """True where abs(a - b) <= atol + rtol * abs(b); equal infinities are close.

    >>> print(cnp.isclose(1.0, 1.0 + 1e-9))
    True
    """
    a, b = (operand("isclose", x) for x in (a, b))
    if dtype_kind(dtype_of(b)) in "biu":
        b = cast(b, result_type(dtype_of(b), np.float64), "isclose")
    bound = add(atol, multiply(rtol, absolute(b)))
    result = logical_or(equal(a, b), logical_and(isfinite(b), less_equal(absolute(subtract(a, b)), bound)))
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


__all__ = [
    "allclose",
    "array_equal",
    "array_equiv",
    "equal",
    "greater",
    "greater_equal",
    "isclose",
    "less",
    "less_equal",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "not_equal",
    "where",
]
