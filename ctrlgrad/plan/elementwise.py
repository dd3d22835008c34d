"""The arithmetic of every elementwise op of the graph, as an expression of numbers.

A complex operand or result is a pair of real numbers. Functions of half floats and of bfloat16 are those of float32,
rounded; each other operation on them rounds to 16 bits, as in NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ctrlgrad.dtypes import BFLOAT16, NAMES, REAL_OF, computed_dtype, dtype_kind
from ctrlgrad.plan.elementary import complex as of_complex
from ctrlgrad.plan.elementary import table
from ctrlgrad.plan.elementary.complex import Pair
from ctrlgrad.plan.elementary.notation import absolute, is_nan
from ctrlgrad.plan.elementary.table import MAX_ULP
from ctrlgrad.plan.expression import ExpressionBuilder, Number, call, select

Operand = Number | Pair

DTYPES = frozenset(map(np.dtype, NAMES))
"""The dtypes that expressions have numbers of, or pairs."""


class NoExpression(Exception):
    """An elementwise op has no form as an expression on these dtypes; its text says why."""


def elementwise_expression(
    name: str,
    operand_dtypes: Sequence[np.dtype],
    result_dtype: np.dtype,
    builder: ExpressionBuilder,
    operands: Sequence[Operand],
) -> Operand:
    """The result of an elementwise op at one position, from the operands' elements. Raises `NoExpression`.

    `operands` holds numbers of `builder` of the operands' dtypes, or pairs where these are complex.
    """
    for dtype in (*operand_dtypes, result_dtype):
        if dtype not in DTYPES:
            raise NoExpression(f"compiled code has no numbers of dtype {dtype.name}")
    if name == "cast":
        return _cast(operands[0], result_dtype)
    function = TABLES[dtype_kind(operand_dtypes[-1])].get(name)
    if function is None:
        raise NoExpression(f"{name} of {operand_dtypes[-1].name} has no form as an expression")
    result: Operand = function(*operands)
    return result


def has_expression(name: str, operand_dtypes: Sequence[np.dtype], result_dtype: np.dtype) -> bool:
    """Return true if an elementwise op has a form as an expression on these dtypes."""
    builder = ExpressionBuilder()

    def element(position: int, dtype: np.dtype) -> Operand:
        if dtype_kind(dtype) != "c":
            return builder.emit("load", (), dtype, position)
        re, im = (builder.emit("load", (), REAL_OF[dtype], (position, part)) for part in (0, 1))
        return re, im

    if not DTYPES.issuperset(operand_dtypes):
        return False
    operands = [element(position, dtype) for position, dtype in enumerate(operand_dtypes)]
    try:
        elementwise_expression(name, operand_dtypes, result_dtype, builder, operands)
    except NoExpression:
        return False
    return True


def failure(name: str, operands: Sequence[Operand]) -> Number | None:
    """Condition under which an elementwise op fails for these elements; None where it never fails."""
    if name != "integer_power":
        return None
    exponent = operands[1]
    assert isinstance(exponent, Number)
    return exponent < 0 if may_fail(name, [exponent.dtype]) else None


def may_fail(name: str, operand_dtypes: Sequence[np.dtype]) -> bool:
    """Return true if an elementwise op fails for some elements of these dtypes."""
    return name == "integer_power" and dtype_kind(operand_dtypes[-1]) == "i"


def _cast(x: Operand, dtype: np.dtype) -> Operand:
    """To a real dtype the imaginary part is dropped, but a bool tells whether either part is not 0."""
    if isinstance(x, Number):
        if dtype_kind(dtype) != "c":
            return x.convert(dtype)
        re = x.convert(REAL_OF[dtype])
        return re, re.builder.constant(0, re.dtype)
    if dtype_kind(dtype) == "c":
        return x[0].convert(REAL_OF[dtype]), x[1].convert(REAL_OF[dtype])
    return x[0].convert(dtype) | x[1].convert(dtype) if dtype_kind(dtype) == "b" else x[0].convert(dtype)


# A function per op, for the kinds of its last operand's dtype.

_Table = dict[str, Callable[..., Any]]


def _primitives(names: str) -> _Table:
    return {name: (lambda *args, _op=name: args[0].builder.emit(_op, args, args[0].dtype)) for name in names.split()}


def _through_single(function: Callable[..., Number]) -> Callable[..., Number]:
    """Compute float16 arguments in float32; leave other dtypes as they are."""

    def wide(*args: Number) -> Number:
        dtype = args[0].dtype
        computed = computed_dtype(dtype)
        return function(*(x.convert(computed) for x in args)).convert(dtype)

    return wide


def _calls(*names: str) -> _Table:
    """Elementary functions, by their names."""
    return {name: _through_single(lambda *args, _name=name: call(_name, args[0].dtype, *args)) for name in names}


def _fmod(x: Number, y: Number) -> Number:
    return call("fmod", x.dtype, x, y)


_ARITHMETIC = _primitives("add subtract multiply") | {"square": lambda x: x * x}
_COMPARISONS: _Table = {
    "less": lambda x, y: x < y,
    "less_equal": lambda x, y: x <= y,
    "greater": lambda x, y: x > y,
    "greater_equal": lambda x, y: x >= y,
    "equal": lambda x, y: x.equals(y),
    "not_equal": lambda x, y: x.differs(y),
}
_WHERE: _Table = {"where": select}

_BOOLEAN = _COMPARISONS | _WHERE
_BOOLEAN |= {
    "abs": lambda x: x,
    "logical_not": lambda x: ~x,
    "logical_and": lambda x, y: x & y,
    "logical_or": lambda x, y: x | y,
    "logical_xor": lambda x, y: x ^ y,
}

_INTEGER = _ARITHMETIC | _COMPARISONS | _WHERE | _calls("integer_power")
_INTEGER |= {
    "negative": lambda x: 0 - x,
    "abs": lambda x: x if dtype_kind(x.dtype) == "u" else absolute(x),
    "sign": table.integer_sign,
    "maximum": lambda x, y: select(x >= y, x, y),
    "minimum": lambda x, y: select(x <= y, x, y),
    "floor_divide": table.integer_floor_divide,
    "remainder": table.integer_remainder,
    "bitwise_invert": lambda x: ~x,
    "bitwise_and": lambda x, y: x & y,
    "bitwise_or": lambda x, y: x | y,
    "bitwise_xor": lambda x, y: x ^ y,
    "bitwise_left_shift": table.shifted_left,
    "bitwise_right_shift": table.shifted_right,
    "bits_to_bfloat16": lambda x: x.bits(BFLOAT16),
    "bits_to_float": lambda x: x.bits(f"f{x.dtype.itemsize}"),
}

_FLOAT = _ARITHMETIC | _COMPARISONS | _WHERE | _primitives("negative divide abs sqrt floor ceil trunc rint copysign")
_FLOAT |= _calls(*MAX_ULP)
_FLOAT |= {
    "strong_multiply": lambda x, y: select(x.equals(0), 0, x * y),
    "reciprocal": lambda x: 1.0 / x,
    "sign": table.sign,
    "signbit": table.signbit,
    "maximum": table.maximum,
    "minimum": table.minimum,
    "nextafter": table.nextafter,
    "float_to_bits": lambda x: x.bits(f"u{x.dtype.itemsize}"),
    "remainder": _through_single(lambda x, y: table.remainder(x, y, _fmod(x, y))),
    "floor_divide": _through_single(lambda x, y: table.floor_divide(x, y, _fmod(x, y))),
    "isnan": is_nan,
    "isinf": lambda x: absolute(x).equals(math.inf),
    "isfinite": lambda x: absolute(x) < math.inf,
    "complex": lambda re, im: (re, im),
}

_COMPLEX: _Table = {
    "real": lambda z: z[0],
    "imag": lambda z: z[1],
    "conj": lambda z: (z[0], -z[1]),
    "negative": lambda z: (-z[0], -z[1]),
    "abs": of_complex.modulus,
    "where": lambda c, a, b: (select(c, a[0], b[0]), select(c, a[1], b[1])),
    "log2": of_complex.log_to(2),
    "log10": of_complex.log_to(10),
}
_OF_COMPLEX = """add subtract multiply strong_multiply divide square reciprocal power equal not_equal isnan isinf
isfinite exp expm1 log log1p sqrt sigmoid sin cos tan sinh cosh tanh arcsin arccos arctan arcsinh arccosh arctanh"""
_COMPLEX |= {name: getattr(of_complex, name) for name in _OF_COMPLEX.split()}

TABLES: dict[str, _Table] = {"b": _BOOLEAN, "i": _INTEGER, "u": _INTEGER, "f": _FLOAT, "c": _COMPLEX}
"""What each op is on the dtypes of a kind; `cast`, which has two dtypes, stands apart."""
