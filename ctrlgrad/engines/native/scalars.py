"""The functions that generated expressions call, with NumPy's meaning; each is compiled when it is first used.

Those with a vectorisable kernel (`elementary`) replace the ones of the same name here.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

_jit = numba.njit(error_model="numpy")
FUNCTIONS: dict[str, Any] = {}


def _scalar(fn: Callable[..., Any]) -> Any:
    FUNCTIONS[fn.__name__] = _jit(fn)
    return FUNCTIONS[fn.__name__]


def _from_library(name: str, function: Any) -> None:
    """A function of one argument as the library has it."""
    FUNCTIONS[name] = _jit(lambda x: function(x))


for _name in ["exp", "expm1", "log", "log1p", "log2", "log10", "sqrt", "sin", "cos", "tan", "tanh", "sinh", "cosh"]:
    _from_library(_name, getattr(np, _name))
for _name in ["exp2", "arcsin", "arccos", "arctan", "arcsinh", "arccosh", "arctanh", "floor", "ceil", "trunc", "rint"]:
    _from_library(_name, getattr(np, _name))
for _name in ["exp", "log", "sqrt", "sin", "cos", "tan", "tanh", "sinh", "cosh"]:
    _from_library(f"complex_{_name}", getattr(cmath, _name))


@_scalar
def power(x: Any, y: Any) -> Any:
    return x**y


@_scalar
def maximum(a: Any, b: Any) -> Any:
    return a if a >= b or a != a else b


@_scalar
def minimum(a: Any, b: Any) -> Any:
    return a if a <= b or a != a else b


@_scalar
def floor_divide(a: Any, b: Any) -> Any:
    return np.floor_divide(a, b)


@_scalar
def remainder(a: Any, b: Any) -> Any:
    return np.remainder(a, b)


@_scalar
def arctan2(a: Any, b: Any) -> Any:
    return math.atan2(a, b)


@_scalar
def hypot(a: Any, b: Any) -> Any:
    return math.hypot(a, b)


@_scalar
def copysign(a: Any, b: Any) -> Any:
    return math.copysign(a, b)


@_scalar
def logaddexp(a: Any, b: Any) -> Any:
    return np.logaddexp(a, b)


@_scalar
def isnan(x: Any) -> Any:
    return x != x


@_scalar
def isinf(x: Any) -> Any:
    return abs(x) == math.inf


@_scalar
def isfinite(x: Any) -> Any:
    return abs(x) < math.inf


@_scalar
def signbit(x: Any) -> Any:
    return math.copysign(1.0, x) < 0.0


@_scalar
def sign(x: Any) -> Any:
    return x if x != x else x - x + (1 if x > 0 else 0) - (1 if x < 0 else 0)


@_scalar
def integer_maximum(a: Any, b: Any) -> Any:
    return a if a >= b else b


@_scalar
def integer_minimum(a: Any, b: Any) -> Any:
    return a if a <= b else b


@_scalar
def integer_sign(x: Any) -> Any:
    return (1 if x > 0 else 0) - (1 if x < 0 else 0)


@_scalar
def integer_floor_divide(a: Any, b: Any) -> Any:
    """Division by zero gives 0, as in NumPy; by -1 the negative, which wraps."""
    if b == 0:
        return a - a
    if b == -1:
        return -a
    return a // b


@_scalar
def unsigned_floor_divide(a: Any, b: Any) -> Any:
    return a // b if b != 0 else a - a


@_scalar
def integer_remainder(a: Any, b: Any) -> Any:
    return a % b if b != 0 and b != -1 else a - a


@_scalar
def unsigned_remainder(a: Any, b: Any) -> Any:
    return a % b if b != 0 else a - a


@_scalar
def shifted_left(a: Any, b: Any, bits: Any) -> Any:
    """Nothing is left of a number that is shifted by its width or more, or by a negative count, as in NumPy."""
    return a << b if 0 <= b < bits else a - a


@_scalar
def shifted_right(a: Any, b: Any, bits: Any) -> Any:
    """But its sign is."""
    return a >> b if 0 <= b < bits else a >> (bits - 1)


@_scalar
def unsigned_shifted_right(a: Any, b: Any, bits: Any) -> Any:
    return a >> b if b < bits else a - a


@numba.njit(error_model="numpy", fastmath={"reassoc"})
def sum_of(pointer: Any, count: Any, total: Any) -> Any:
    """The sum of elements that lie side by side, in any order, so that it vectorises."""
    for i in range(count):
        total += pointer[i]
    return total


FUNCTIONS["sum_of"] = sum_of
