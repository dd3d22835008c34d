"""Operations on the bits of integers; on booleans they are the logical ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.frontend.array.dims import dtype_of
from ctrlgrad.frontend.array.promote import elementwise, loop_dtypes, operands
from ctrlgrad.frontend.functions import array_function

Binary = Callable[[Any, Any], Any]


def _bits(name: str, logical: str | None, summary: str, example: str, *aliases: str) -> Binary:
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


__all__ = [
    "bitwise_and",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
]
