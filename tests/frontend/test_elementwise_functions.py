"""Elementwise functions against NumPy, on every dtype; what NumPy refuses is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from array_cases.running import assert_same, data, reference, run, trace

import ctrlgrad.numpy as cnp
from ctrlgrad.errors import (
    TypeMismatchError,
)

pytestmark = pytest.mark.usefixtures("evaluated_by_reference")

DTYPES = ["bool", "int8", "uint8", "int32", "int64", "float16", "float32", "float64", "complex128"]
UNARY = """exp expm1 log log1p log2 log10 sqrt sin cos tan sinh cosh tanh arcsin arccos arctan asin acos atan square
sign negative positive abs absolute fabs floor ceil trunc rint isnan isinf isfinite logical_not""".split()  # noqa: SIM905
# NumPy takes these; no op does.
REFUSED = {("rint", "complex128")}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str, dtype: str) -> None:
    x = data(dtype, (3, 4))
    if np.dtype(dtype).kind == "f":
        x[0, 0], x[0, 1], x[0, 2] = np.nan, np.inf, 0
    ours, theirs = getattr(cnp, name), getattr(np, name)
    try:
        expected = reference(theirs, [x])
        refused = (name, dtype) in REFUSED
    except TypeError:
        refused = True
    if refused:
        for call in (lambda: ours(x), lambda: run(lambda t: ours(t), [x])):
            with pytest.raises(TypeMismatchError) as caught:
                call()
            assert caught.value.source.file == __file__
        return
    assert_same([ours(x)], expected, "eager")
    assert_same(run(ours, [x]), expected, "traced")
    assert_same(run(ours, [x], unknown=True), expected, "unknown sizes")
    assert_same(run(theirs, [x]), expected, "protocol")


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_inverse_error_function(dtype: str) -> None:
    x = np.array([0, 0.1, -0.5, 0.75, -0.9, 0.96875], dtype)
    (found,) = run(cnp.erfinv, [x])
    assert found.dtype == x.dtype
    np.testing.assert_allclose([math.erf(y) for y in found.tolist()], x, rtol=4 * float(np.finfo(dtype).eps))
    assert_same([cnp.erfinv(x)], [found], "eager")
    ends = cnp.erfinv(np.array([1, -1, 1.5, -2, np.inf, np.nan], dtype))
    np.testing.assert_array_equal(ends, np.array([np.inf, -np.inf, *[np.nan] * 4], dtype))


def test_the_inverse_error_function_takes_whole_numbers_and_no_complex_ones() -> None:
    assert cnp.erfinv(np.array([0, 1])).dtype == np.float64
    with pytest.raises(TypeMismatchError, match="erfinv"):
        cnp.erfinv(0.5j)


@pytest.mark.parametrize("decimals", [-1, 0, 2])
def test_round(decimals: int) -> None:
    x = data("float64", (5,)) * 100
    assert_same(run(lambda t: cnp.round(t, decimals), [x]), [np.round(x, decimals)], "traced")
    assert_same(run(lambda t: np.round(t, decimals), [x]), [np.round(x, decimals)], "protocol")
    assert_same(run(lambda t: t.round(decimals), [x]), [np.round(x, decimals)], "method")


ARITHMETIC = """add subtract multiply divide floor_divide remainder maximum minimum arctan2 logaddexp equal not_equal
less less_equal greater greater_equal logical_and logical_or logical_xor""".split()  # noqa: SIM905
OPERANDS = [*(data(d, (3,), 1) for d in DTYPES), True, 3, 2.5]


# NumPy orders complex numbers too; the library does not.
ORDERED = {"maximum", "minimum", "less", "less_equal", "greater", "greater_equal"}


@pytest.mark.parametrize("name", ARITHMETIC)
def test_binary_promotes_as_numpy(name: str) -> None:
    ours, theirs = getattr(cnp, name), getattr(np, name)
    checked = 0
    for left in [data(d, (2, 3), 2) for d in DTYPES]:
        for right in OPERANDS:
            if name in ORDERED and any(np.asarray(x).dtype.kind == "c" for x in (left, right)):
                continue
            for pair in ((left, right), (right, left)):
                label = f"{name}({', '.join(repr(np.asarray(x).dtype) for x in pair)})"
                try:
                    expected = reference(theirs, pair)
                except TypeError:
                    with pytest.raises(TypeMismatchError):
                        run(ours, pair)
                    continue
                assert_same([ours(*pair)], expected, label + " eager")
                assert_same(run(ours, pair), expected, label + " traced")
                assert_same(run(lambda x, y=pair[1]: theirs(x, y), pair[:1]), expected, label + " protocol, constant")
                checked += 1
    assert checked > 100


def test_binary_with_unknown_sizes_broadcasts() -> None:
    x, y = data("float64", (4, 1)), data("float64", (3,))
    for name in ARITHMETIC:
        ours, theirs = getattr(cnp, name), getattr(np, name)
        assert_same(run(ours, [x, y], unknown=True), reference(theirs, [x, y]), name)


OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "**": lambda a, b: a**b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}


@pytest.mark.parametrize("symbol", OPERATORS)
def test_operators_keep_python_numbers_weak(symbol: str) -> None:
    f = OPERATORS[symbol]
    x = np.array([1.5, 2.5], np.float32)
    for a, b in [(2.0, 3.0), (3, 2.0), (2.0, 3)]:
        # A Python number made of two must not widen float32.
        assert_same(run(lambda s, t, y: f(s, t) * y, [a, b, x]), [np.asarray(f(a, b) * x)], "weak")
    assert_same(run(lambda y: f(y, 2), [x]), [f(x, 2)], "right number")
    assert_same(run(lambda y: f(2, y), [x]), [f(2, x)], "left number")
    assert_same(run(lambda y: f(x, y), [x]), [f(x, x)], "left array")


def test_functions_make_arrays_of_python_numbers_as_numpy_does() -> None:
    x = np.ones(2, np.float32)
    for f in (
        lambda xp, s: xp.exp(s),
        lambda xp, s: xp.maximum(s, 1.0),
        lambda xp, s: xp.reshape(s, (1,)),
        lambda xp, s: xp.sum(s),
    ):
        expected = f(np, 2.0) * x
        assert expected.dtype == np.float64
        assert_same(run(lambda s, y, f=f: f(cnp, s) * y, [2.0, x]), [expected], "strong")


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int64", "float16", "float32", "float64", "complex128"])
@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 7, 8, 13, 0.5, 2.0, -1.0, 1.7, np.float64(2)])
def test_power_with_a_constant(dtype: str, exponent: Any) -> None:
    x = np.abs(data(dtype, (3, 2))) + np.asarray(1, dtype)
    x = x.astype(dtype)
    # numpy.power, not `**`, whose shortcut for booleans squared differs from it.
    expected = reference(lambda a: np.power(a, exponent), [x])
    assert_same(run(lambda a: a**exponent, [x]), expected, "operator")
    assert_same(run(lambda a: cnp.power(a, exponent), [x], unknown=True), expected, "unknown sizes")
    assert_same(run(lambda a: np.power(a, exponent), [x]), expected, "protocol")
    assert_same([cnp.pow(x, exponent)], expected, "eager")


def test_power_lowers_to_products() -> None:
    x = np.array([0.0, -2.0])

    def ops(exponent: Any) -> list[str]:
        return [node.op.name for node in trace(lambda a: a**exponent, [x]).nodes]

    assert ops(2) == ["square"]
    assert ops(3) == ["square", "multiply"]
    assert ops(4.0) == ["square", "square"]
    assert ops(0.5) == ["sqrt"]
    assert ops(-1) == ["reciprocal"]
    assert "power" in ops(2.5) and "power" in ops(9)


def test_power_of_arrays() -> None:
    x, y = np.abs(data("float64", (3, 1))), data("float64", (2,))
    assert_same(run(lambda a, b: a**b, [x, y]), [x**y], "traced")
    assert_same(run(lambda b: 2.0**b, [y]), [2.0**y], "number to array")
    assert_same([cnp.power(np.array([1, 2]), np.array([3, 4]))], [np.array([1, 16])], "eager integers")
