"""The expression builder emits one instruction for each distinct operation, and compares constants by their bits."""

import numpy as np
import pytest

from ctrlgrad.plan.expression import ExpressionBuilder, call, fma, select


def _loads(builder, *dtypes):
    return [builder.emit("load", (), dtype, k) for k, dtype in enumerate(dtypes)]


def test_the_text_of_an_expression():
    builder = ExpressionBuilder()
    x, y = _loads(builder, np.float32, np.float32)
    expression = builder.finish(fma(x, 2, y), select(x < y, 0, call("exp", np.float32, x)))
    assert str(expression).splitlines() == [
        "%0 = load 0 : float32",
        "%1 = load 1 : float32",
        "%2 = constant 2.0 : float32",
        "%3 = fma %0 %2 %1 : float32",
        "%4 = less %0 %1 : bool",
        "%5 = call exp %0 : float32",
        "%6 = constant 0.0 : float32",
        "%7 = select %4 %6 %5 : float32",
        "yield %3, %7",
    ]


def test_equal_instructions_are_one():
    builder = ExpressionBuilder()
    x, y = _loads(builder, np.int32, np.int32)
    a, b = x * y + 1, x * y + 1
    assert a.number == b.number
    assert (y * x).number != (x * y).number
    assert x.convert(np.int32).number == x.number


def test_constants_are_equal_where_their_bits_are():
    builder = ExpressionBuilder()
    numbers = [builder.constant(value, np.float64).number for value in (0.0, -0.0, np.nan, np.nan, 0.0)]
    assert numbers == [0, 1, 2, 2, 0]
    assert builder.constant(1, np.int8).number != builder.constant(1, np.uint8).number


def test_operands_of_different_dtypes_are_refused():
    builder = ExpressionBuilder()
    x, y = _loads(builder, np.int32, np.float32)
    with pytest.raises(AssertionError, match="add of int32 and float32"):
        x + y
