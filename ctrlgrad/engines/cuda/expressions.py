"""Expressions as statements of CUDA C++: the printer of `ctrlgrad.plan.expression` for the card.

An instruction is a statement, `float64 v3 = v1 * v2;`; constants stand where they are used. The text is valid Python
too, but for the dtype before the name: it has neither C's `?:` nor Python's `if`, but `np_select`, and what the two
languages compute otherwise (division of integers, say) is a call of a function of `functions`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ctrlgrad.dtypes import BFLOAT16, dtype_kind
from ctrlgrad.engines.cuda.functions import KERNEL_DTYPES
from ctrlgrad.ir import Node, TensorType, Trait, Value
from ctrlgrad.plan.elementary.table import Elementary, elementary
from ctrlgrad.plan.elementwise import has_expression, may_fail
from ctrlgrad.plan.expression import Expression, Instruction

# Whole numbers up to here are written into a kernel; larger ones are passed to it.
_LARGEST_LITERAL = 2**31 - 1

_HALF, _FLOAT32, _FLOAT64 = (np.dtype(f"f{size}") for size in (2, 4, 8))

_OPERATORS = {
    "add": "+",
    "subtract": "-",
    "multiply": "*",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
    "equal": "==",
    "not_equal": "!=",
    "and": "&",
    "or": "|",
    "xor": "^",
    "shift_right": ">>",
}
_CALLS = {
    "remainder": "np_remainder",
    "fma": "np_fma",
    "sqrt": "sqrt",
    "abs": "np_abs",
    "floor": "floor",
    "ceil": "ceil",
    "trunc": "trunc",
    "rint": "rint",
    "copysign": "copysign",
}

Leaf = Callable[[Instruction], str]
"""The text of a leaf that is no constant."""


@dataclass(frozen=True)
class Statements:
    """An expression's text: statements, a line each, the names of its outputs, and the functions that it calls."""

    lines: tuple[str, ...]
    outputs: tuple[str, ...]
    functions: tuple[Elementary, ...]


def statements(expression: Expression, leaf: Leaf) -> Statements:
    """The statements that compute an expression's outputs, and none besides."""
    instructions = expression.instructions
    needed = set(expression.outputs)
    for number in range(len(instructions) - 1, -1, -1):
        if number in needed:
            needed.update(instructions[number].args)
    lines: list[str] = []
    names: dict[int, str] = {}
    functions: dict[tuple[str, np.dtype], Elementary] = {}
    for number in sorted(needed):
        instruction = instructions[number]
        if instruction.op == "constant":
            names[number] = literal(instruction.value, instruction.dtype)
        elif instruction.op in ("load", "scalar", "index", "argument"):
            names[number] = leaf(instruction)
        else:
            dtypes = [instructions[a].dtype for a in instruction.args]
            if instruction.op == "call":
                functions.setdefault((instruction.value, dtypes[0]), elementary(instruction.value, dtypes[0]))
            text = _operation(instruction, [names[a] for a in instruction.args], dtypes)
            names[number] = f"v{len(lines)}"
            lines.append(f"{instruction.dtype.name} {names[number]} = {text};")
    return Statements(tuple(lines), tuple(names[o] for o in expression.outputs), tuple(functions.values()))


def _operation(instruction: Instruction, names: list[str], dtypes: list[np.dtype]) -> str:
    op, dtype = instruction.op, instruction.dtype
    if op == "select":
        return f"np_select({', '.join(names)})"
    if op == "bits":
        return f"bits_{dtype.name}({names[0]})"
    if op != "convert" or dtype not in (_FLOAT32, _FLOAT64):
        # Floats of 16 bits are computed with as single ones, and rounded: to half floats by what initialises them.
        names = [f"float32({x})" if its in (_HALF, BFLOAT16) else x for x, its in zip(names, dtypes, strict=True)]
    text = _computation(instruction, names, dtypes)
    return rounded(dtype.name, text) if dtype == BFLOAT16 else text


def rounded(dtype: str, text: str) -> str:
    """A number of the dtype, of one that it is computed in, or of its parts."""
    return f"np_bfloat16({text})" if dtype == BFLOAT16.name else f"{dtype}({text})"


def _computation(instruction: Instruction, names: list[str], dtypes: list[np.dtype]) -> str:
    op, dtype = instruction.op, instruction.dtype
    if op in _OPERATORS:
        return f"{names[0]} {_OPERATORS[op]} {names[1]}"
    if op == "negative":
        return f"-{names[0]}"
    if op == "divide":
        return f"{names[0]} / {names[1]}" if dtype_kind(dtype) == "f" else f"np_quotient({names[0]}, {names[1]})"
    if op == "not":
        return f"{names[0]} == false" if dtype.kind == "b" else f"~{names[0]}"
    if op == "shift_left":
        unsigned = f"uint{8 * dtype.itemsize}"
        return f"{dtype.name}({unsigned}({names[0]}) << {unsigned}({names[1]}))"
    if op == "convert":
        if dtype == BFLOAT16:
            # Rounded to a float first, as in JAX.
            return names[0] if dtypes[0] in (_FLOAT32, _HALF) else f"float32({names[0]})"
        if dtype == _HALF and dtype_kind(dtypes[0]) != "f":
            return f"float16(float32({names[0]}))"
        if dtype_kind(dtype) in "iu" and dtype_kind(dtypes[0]) == "f":
            return f"saturated_{dtype.name}({names[0]})"
        return f"{names[0]} != 0" if dtype.kind == "b" else f"{dtype.name}({names[0]})"
    name = function_name(instruction.value, dtypes[0]) if op == "call" else _CALLS[op]
    return f"{name}({', '.join(names)})"


def function_name(name: str, dtype: np.dtype) -> str:
    """Name of an elementary function in kernels."""
    return f"{name}_{dtype.name}"


def literal(value: np.generic, dtype: np.dtype) -> str:
    """A constant: in C++ and in Python one number of the dtype."""
    if dtype.kind == "b":
        return "true" if bool(value) else "false"
    if dtype_kind(dtype) == "f":
        if math.isfinite(float(value)):
            return f"np_bfloat16(float32({float(value)!r}))" if dtype == BFLOAT16 else f"{dtype.name}({float(value)!r})"
        bits = int(np.asarray(value, dtype).view(f"u{dtype.itemsize}"))
        return f"bits_{dtype.name}(uint{8 * dtype.itemsize}({bits:#x}))"
    number = int(value)
    if abs(number) <= _LARGEST_LITERAL:
        return f"{dtype.name}({number})"
    # C++ has no negative literals, and none beyond a long without a letter, but in hexadecimal.
    return f"{dtype.name}({number % 2**64:#x})"


def kernel_constant(value: np.ndarray) -> tuple[np.generic, ...] | None:
    """The parts of a constant of rank 0 as kernels have it in their text; None where it is passed.

    Large numbers and those that are not finite are passed: kernels that differ in such a number share their text.
    """
    kind = value.dtype.kind
    if value.dtype.name not in KERNEL_DTYPES:
        return None
    if abs(int(value)) > _LARGEST_LITERAL if kind in "iu" else not np.isfinite(value):
        return None
    number: np.generic = value.dtype.type(value)
    return (number.real, number.imag) if kind == "c" else (number,)


def has_kernel_type(value: Value) -> bool:
    """Return true if kernels can compute with a value's dtype."""
    return isinstance(value.type, TensorType) and value.type.dtype.name in KERNEL_DTYPES


def is_fusible(node: Node) -> bool:
    """Return true if a node can be part of a kernel: elementwise, and no element makes it fail."""
    if Trait.ELEMENTWISE not in node.op.traits or not all(map(has_kernel_type, (*node.operands, *node.results))):
        return False
    return _is_computed(node.op.name, tuple(v.tensor.dtype for v in node.operands), node.result.tensor.dtype)


@functools.cache
def _is_computed(name: str, operand_dtypes: tuple[np.dtype, ...], result_dtype: np.dtype) -> bool:
    return has_expression(name, operand_dtypes, result_dtype) and not may_fail(name, operand_dtypes)
