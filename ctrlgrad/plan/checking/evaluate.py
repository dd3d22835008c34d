"""Expressions computed by NumPy, at all points at once: the meaning of each primitive, checked for its dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ctrlgrad.dtypes import converted, dtype_kind
from ctrlgrad.plan.expression import Expression, Instruction

# The value of a leaf, by its instruction and its arguments.
Leaf = Callable[[Instruction, list[Any]], Any]


def evaluate(expression: Expression, leaf: Leaf) -> list[Any]:
    """The outputs of an expression. Raises TypeError where an instruction does not give the dtype that it says."""
    values: list[Any] = []
    with np.errstate(all="ignore"):
        for number, instruction in enumerate(expression.instructions):
            args = [values[a] for a in instruction.args]
            if instruction.op == "constant":
                value = instruction.value
            elif instruction.op in ("load", "scalar", "index"):
                value = leaf(instruction, args)
            elif instruction.op == "call":
                value = _called(instruction.value)(*args)
            elif instruction.op in ("convert", "bits"):
                value = np.asarray(args[0])
                is_number = instruction.op == "convert"
                value = converted(value, instruction.dtype) if is_number else value.view(instruction.dtype)
            else:
                value = _PRIMITIVES[instruction.op](*args)
            if np.asarray(value).dtype != instruction.dtype:
                raise TypeError(f"%{number} is {np.asarray(value).dtype} in place of {instruction.dtype}")
            values.append(value)
    return [values[output] for output in expression.outputs]


def _divide(a: Any, b: Any) -> Any:
    if dtype_kind(np.asarray(a).dtype) == "f":
        return np.divide(a, b)
    return np.floor_divide(np.subtract(a, np.fmod(a, b)), b)


def _fma(a: Any, b: Any, c: Any) -> Any:
    """Rounded twice, the first time far below the dtype's precision."""
    dtype = np.asarray(a).dtype
    wide: Any = np.longdouble if dtype.itemsize == 8 else np.float64
    a, b, c = (np.asarray(x).astype(wide) for x in (a, b, c))
    return np.asarray(a * b + c).astype(dtype)


def _sigmoid(x: Any) -> Any:
    one = np.asarray(x).dtype.type(1)
    return np.where(np.less(x, 0), np.exp(x) / (one + np.exp(x)), one / (one + np.exp(np.negative(x))))


def _called(name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = _CALLS[name] if name in _CALLS else getattr(np, name)
    return found


_PRIMITIVES: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": _divide,
    "remainder": np.fmod,
    "negative": np.negative,
    "fma": _fma,
    "sqrt": np.sqrt,
    "abs": np.abs,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "rint": np.rint,
    "copysign": np.copysign,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "select": np.where,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
    "shift_left": np.left_shift,
    "shift_right": np.right_shift,
}
_CALLS: dict[str, Callable[..., Any]] = {
    "sigmoid": _sigmoid,
    "integer_power": lambda x, y: np.power(x, np.maximum(y, 0)),
}
