"""Elementwise ops as expressions on scalars, as text; what has no operator calls a function of `scalars`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ctrlgrad.engines.native.elementary_table import KERNELS
from ctrlgrad.engines.native.layout import NotNative
from ctrlgrad.ir import Node

_COMPARISONS = {
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
    "equal": "==",
    "not_equal": "!=",
}
_ARITHMETIC = {"add": "+", "subtract": "-", "multiply": "*"}
_BITS = {"bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^"}
_LOGIC = {"logical_and": "and", "logical_or": "or"}
# Functions of `scalars`, for floats and complex numbers: the op's name is the function's.
_FUNCTIONS = frozenset(
    [
        "exp",
        "exp2",
        "expm1",
        "log",
        "log1p",
        "log2",
        "log10",
        "sqrt",
        "sin",
        "cos",
        "tan",
        "tanh",
        "sinh",
        "cosh",
        "arcsin",
        "arccos",
        "arctan",
        "arcsinh",
        "arccosh",
        "arctanh",
        "floor",
        "ceil",
        "trunc",
        "rint",
        "power",
        "maximum",
        "minimum",
        "floor_divide",
        "remainder",
        "arctan2",
        "logaddexp",
        "hypot",
        "copysign",
        "isnan",
        "isinf",
        "isfinite",
        "signbit",
        "sign",
    ]
)
_COMPLEX = frozenset(["exp", "log", "sqrt", "sin", "cos", "tan", "tanh", "sinh", "cosh"])
_INTEGER = frozenset({"maximum", "minimum", "sign"})


def type_name(dtype: np.dtype) -> str:
    """How a dtype is called in generated code; a bool is a bool there, and a byte in memory."""
    return "bool" if dtype.kind == "b" else dtype.name


def literal(value: np.ndarray | np.generic) -> str:
    """A scalar constant of its dtype."""
    kind = value.dtype.kind
    if kind == "b":
        return str(bool(value))
    if kind in "iu":
        return f"{value.dtype.name}({int(value)})"
    if kind == "c":
        return f"{value.dtype.name}(complex({_number(value.real)}, {_number(value.imag)}))"
    return f"{value.dtype.name}({_number(value)})"


def _number(x: float | np.ndarray | np.generic) -> str:
    value = float(x)
    if np.isnan(value):
        return "nan"
    if np.isinf(value):
        return "inf" if value > 0 else "-inf"
    return repr(value)


def expression(node: Node, args: Sequence[str], in_array: bool = False) -> str:
    """The value of an elementwise node's element from those of its operands'. Raises `NotNative`.

    In a loop over arrays functions are the vectorisable ones of `elementary`, outside of one the C library's.
    """
    name, result = node.op.name, node.result.tensor.dtype
    first = node.operands[0].tensor.dtype if node.operands else result
    if name in _COMPARISONS:
        return f"{args[0]} {_COMPARISONS[name]} {args[1]}"
    if name in _LOGIC:
        return f"{args[0]} {_LOGIC[name]} {args[1]}"
    if in_array and (name, first.name) in KERNELS and name != "abs":
        return f"{KERNELS[name, first.name].name}({', '.join(args)})"
    if name in _SPECIAL:
        return _SPECIAL[name](node, args, first, result)
    if name in _ARITHMETIC or name in _BITS:
        return _typed(f"{args[0]} {(_ARITHMETIC | _BITS)[name]} {args[1]}", result)
    if (first.kind == "f" and name in _FUNCTIONS) or (first.kind == "c" and name in _COMPLEX):
        prefix = "complex_" if first.kind == "c" else ""
        return f"{type_name(result)}({prefix}{name}({', '.join(args)}))"
    if first.kind in "iu" and name in _INTEGER:
        return _typed(f"integer_{name}({', '.join(args)})", result)
    raise NotNative(f"{name} of {first.name} has no native form")


def has_expression(node: Node) -> bool:
    """Whether an elementwise node has a native form."""
    try:
        expression(node, ["x"] * len(node.operands))
    except NotNative:
        return False
    return True


def _typed(text: str, dtype: np.dtype) -> str:
    """Integers narrower than a word are widened by arithmetic: bring them back."""
    return f"{dtype.name}({text})" if dtype.kind in "iu" else text


_Special = Callable[[Node, Sequence[str], np.dtype, np.dtype], str]


def _cast(node: Node, args: Sequence[str], first: np.dtype, result: np.dtype) -> str:
    if result == first:
        return args[0]
    if result.kind == "b":
        return f"{args[0]} != 0"
    if first.kind == "c" and result.kind != "c":
        return f"{result.name}({args[0]}.real)"
    if first.kind == "b":
        return f"{result.name}(1 if {args[0]} else 0)"
    return f"{result.name}({args[0]})"


def _shift(node: Node, args: Sequence[str], first: np.dtype, result: np.dtype) -> str:
    name = "shifted_left" if node.op.name == "bitwise_left_shift" else "shifted_right"
    if first.kind == "u" and name == "shifted_right":
        name = f"unsigned_{name}"
    return _typed(f"{name}({args[0]}, {args[1]}, {8 * first.itemsize})", result)


def _division(node: Node, args: Sequence[str], first: np.dtype, result: np.dtype) -> str:
    prefix = {"f": "", "i": "integer_", "u": "unsigned_"}[first.kind]
    return f"{result.name}({prefix}{node.op.name}({args[0]}, {args[1]}))"


def _abs(node: Node, args: Sequence[str], first: np.dtype, result: np.dtype) -> str:
    return args[0] if first.kind == "u" else _typed(f"abs({args[0]})", result)


def _sigmoid(node: Node, args: Sequence[str], first: np.dtype, result: np.dtype) -> str:
    """By the hyperbolic tangent, as the reference engine has it: no overflow at either end."""
    if first.kind != "f":
        raise NotNative("sigmoid of a complex number has no native form")
    half = literal(first.type(0.5))
    return f"{first.name}(tanh({args[0]} * {half})) * {half} + {half}"


_SPECIAL: dict[str, _Special] = {
    "sigmoid": _sigmoid,
    "negative": lambda node, args, first, result: _typed(f"-{args[0]}", result),
    "square": lambda node, args, first, result: _typed(f"{args[0]} * {args[0]}", result),
    "reciprocal": lambda node, args, first, result: f"{literal(first.type(1))} / {args[0]}",
    "divide": lambda node, args, first, result: f"{args[0]} / {args[1]}",
    "where": lambda node, args, first, result: f"{args[1]} if {args[0]} else {args[2]}",
    "logical_not": lambda node, args, first, result: f"not {args[0]}",
    "logical_xor": lambda node, args, first, result: f"{args[0]} != {args[1]}",
    "bitwise_invert": lambda node, args, first, result: _typed(f"~{args[0]}", result),
    "abs": _abs,
    "bitwise_left_shift": _shift,
    "bitwise_right_shift": _shift,
    "floor_divide": _division,
    "remainder": _division,
    "cast": _cast,
    "complex": lambda node, args, first, result: f"{result.name}(complex({args[0]}, {args[1]}))",
    "real": lambda node, args, first, result: f"{args[0]}.real",
    "imag": lambda node, args, first, result: f"{args[0]}.imag",
    "conj": lambda node, args, first, result: f"{args[0]}.conjugate()",
}
