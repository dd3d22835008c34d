"""The printer of expressions: its text, values hoisted out of the lanes, half floats, conversions, bits."""

import numpy as np
import pytest

pytest.importorskip("llvmlite")

from evaluating import evaluate

from ctrlgrad.dtypes import BFLOAT16
from ctrlgrad.engines.native.expressions import emit_expression
from ctrlgrad.engines.native.text import Writer, constant
from ctrlgrad.plan.expression import ExpressionBuilder, call, fma, select

HALF, SINGLE, DOUBLE = (np.dtype(f"f{size}") for size in (2, 4, 8))
WIDTHS = [1, 4, 8]


def load(builder, dtype, number=0):
    return builder.emit("load", (), dtype, number)


def lines_of(expression, width):
    """The printed lines; loads are vectors named after their operand, and scalars stay scalars."""
    writer = Writer()
    outputs = emit_expression(writer, expression, lambda i, given: (f"%{i.op}{i.value}", i.op == "load"), width)
    return [str(line).strip() for line in writer._lines], outputs


def test_values_shared_by_all_lanes_are_computed_once():
    builder = ExpressionBuilder()
    x, s = load(builder, SINGLE), builder.emit("scalar", (), SINGLE, 0)
    shared = call("exp", SINGLE, s * 2.0)
    lines, outputs = lines_of(builder.finish(x + shared, select(s < 1.0, x, 3.0), shared), 4)
    zeros = "<4 x i32> zeroinitializer"
    assert lines == [
        "%0 = fmul float %scalar0, 0x4000000000000000",
        "%1 = call float @cg_exp_float32(float %0)",
        "%2 = insertelement <4 x float> poison, float %1, i64 0",
        f"%3 = shufflevector <4 x float> %2, <4 x float> poison, {zeros}",
        "%4 = fadd <4 x float> %load0, %3",
        "%5 = fcmp olt float %scalar0, 0x3FF0000000000000",
        "%6 = freeze <4 x float> %load0",
        "%7 = select i1 %5, <4 x float> %6, <4 x float> splat (float 0x4008000000000000)",
    ]
    assert outputs == ["%4", "%7", "%3"]


def test_a_constant_output_is_a_vector():
    builder = ExpressionBuilder()
    lines, outputs = lines_of(builder.finish(builder.constant(True, bool), builder.constant(-1, np.int8)), 2)
    assert (lines, outputs) == ([], ["splat (i1 true)", "splat (i8 -1)"])


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (255, "uint8", "-1"),
        (2**64 - 1, "uint64", "-1"),
        (-(2**63), "int64", "-9223372036854775808"),
        (False, "bool", "false"),
        (0.1, "float32", "0x3FB99999A0000000"),
        (-0.0, "float64", "0x8000000000000000"),
        (np.inf, "float32", "0x7FF0000000000000"),
        (65504.0, "float16", "0xH7BFF"),
        (-1.5, "bfloat16", "-16448"),
    ],
)
def test_constants_are_exact(value, dtype, text):
    assert constant(np.dtype(dtype).type(value), np.dtype(dtype)) == text


# Half floats.


def all_halves(dtype=HALF):
    return np.arange(2**16, dtype=np.uint16).view(dtype)


def same(a, b):
    with np.errstate(invalid="ignore"):
        return (a == b) & (np.signbit(a) == np.signbit(b)) | (np.isnan(a) & np.isnan(b))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", [HALF, BFLOAT16])
def test_floats_of_16_bits_are_rounded_after_each_operation(width, dtype):
    builder = ExpressionBuilder()
    x, y = load(builder, dtype), load(builder, dtype, 1)
    expression = builder.finish((x + y) * x - y / x, x.unary("sqrt"), -x, x.unary("abs"), x.unary("rint"))
    a, b = all_halves(dtype), np.random.default_rng(0).permutation(all_halves(dtype))
    with np.errstate(all="ignore"):
        wanted = [(a + b) * a - b / a, np.sqrt(a), -a, np.abs(a), np.rint(a)]
    for got, want in zip(evaluate(expression, [a, b], width), wanted, strict=True):
        assert same(got, want).all()


@pytest.mark.parametrize("width", WIDTHS)
def test_doubles_become_halves_with_one_rounding(width):
    """A double becomes a half with one rounding, also when it is closer to a midpoint than a float can tell."""
    halves = all_halves()
    halves = np.sort(halves[np.isfinite(halves)].astype(np.float64))
    middles = (halves[1:] + halves[:-1]) / 2
    values = np.concatenate([halves, middles, np.nextafter(middles, np.inf), np.nextafter(middles, -np.inf)])
    values = np.concatenate([values, [65519.999, 65520, 65536, 1e300, 1e-300, -1e-300, np.inf, -np.inf, np.nan]])
    builder = ExpressionBuilder()
    (got,) = evaluate(builder.finish(load(builder, DOUBLE).convert(HALF)), [values], width)
    with np.errstate(all="ignore"):
        assert same(got, values.astype(HALF)).all()


@pytest.mark.parametrize("width", WIDTHS)
def test_floats_become_bfloat16_as_in_ml_dtypes(width):
    """Floats and doubles become bfloat16 as in ml_dtypes: near midpoints and elsewhere, doubles by way of float; NaN
    keeps its sign."""
    bits = np.arange(2**16, dtype=np.uint32) << 16
    floats = np.concatenate([bits | rest for rest in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]).astype(np.uint32)
    floats = floats.view(np.float32)
    with np.errstate(all="ignore"):
        doubles = floats.astype(np.float64) * (1 + 2.0**-40)
    for values in (floats, doubles):
        builder = ExpressionBuilder()
        there = load(builder, values.dtype).convert(BFLOAT16)
        got, back = evaluate(builder.finish(there, there.convert(np.float64)), [values], width)
        with np.errstate(all="ignore"):
            want = values.astype(BFLOAT16)
            assert same(got, want).all() and np.array_equal(np.signbit(got), np.signbit(values))
            assert same(back, want.astype(np.float64)).all()


def test_fma_of_halves_rounds_once():
    rng = np.random.default_rng(0)
    a, b, c = (rng.choice(all_halves(), 100_000) for _ in range(3))
    builder = ExpressionBuilder()
    expression = builder.finish(fma(*(load(builder, HALF, k) for k in range(3))))
    (got,) = evaluate(expression, [a, b, c], 8)
    # float64 holds the product of two halves exactly. longdouble holds the sum too, unless one term is negligible.
    with np.errstate(all="ignore"):
        exact = a.astype(np.float64) * b.astype(np.float64) + c.astype(np.longdouble)
        error = np.abs(got - exact)
        others = [np.abs(np.nextafter(got, HALF.type(side)) - exact) for side in (-np.inf, np.inf)]
    finite = np.isfinite(got)
    assert np.count_nonzero(finite) > 50_000
    assert (error <= np.minimum(*others))[finite].all()
    assert (np.isnan(got) == np.isnan(exact)).all()
    assert (np.abs(exact[np.isinf(got)]) >= 65520).all()


# The other operations.


@pytest.mark.parametrize("width", WIDTHS)
def test_integers_and_bits(width):
    rng = np.random.default_rng(0)
    x = rng.integers(-(2**31), 2**31, 1000).astype(np.int32)
    y = rng.integers(1, 2**31, 1000).astype(np.int32)
    builder = ExpressionBuilder()
    a, b = load(builder, x.dtype), load(builder, x.dtype, 1)
    count = b & 31
    outputs = [a * b, a / b, a.binary("remainder", b), a >> count, a << count, ~a ^ b, -a, a.unary("abs")]
    outputs += [a.bits(np.uint32) >> count.bits(np.uint32), a.bits(np.float32).bits(np.int32), a.convert(np.int8)]
    wanted = [x * y, np.trunc(x / y).astype(np.int32), np.fmod(x, y), x >> (y & 31), x << (y & 31), ~x ^ y, -x]
    wanted += [np.abs(x), x.view(np.uint32) >> (y & 31).view(np.uint32), x, x.astype(np.int8)]
    for got, want in zip(evaluate(builder.finish(*outputs), [x, y], width), wanted, strict=True):
        assert np.array_equal(got, want)


@pytest.mark.parametrize("width", WIDTHS)
def test_bools_are_compared_selected_and_combined(width):
    x, y = np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)
    builder = ExpressionBuilder()
    a, b = load(builder, x.dtype), load(builder, x.dtype, 1)
    outputs = [a < b, a >= b, a & ~b, a ^ b, select(a, b, ~b), a.convert(np.float64), a.convert(np.uint8)]
    wanted = [x < y, x >= y, x & ~y, x ^ y, np.where(x, y, ~y), x.astype(np.float64), x.astype(np.uint8)]
    for got, want in zip(evaluate(builder.finish(*outputs), [x, y], width), wanted, strict=True):
        assert got.dtype == want.dtype
        assert np.array_equal(got, want)


@pytest.mark.parametrize("dtype", [HALF, SINGLE, DOUBLE], ids=str)
def test_comparisons_with_nan_are_false_but_for_not_equal(dtype):
    x = np.repeat(np.array([1, np.nan], dtype), 2)
    y = np.tile(np.array([1, np.nan], dtype), 2)
    builder = ExpressionBuilder()
    a, b = load(builder, dtype), load(builder, dtype, 1)
    outputs = [a < b, a <= b, a > b, a >= b, a.equals(b), a.differs(b)]
    wanted = [x < y, x <= y, x > y, x >= y, x == y, x != y]
    for got, want in zip(evaluate(builder.finish(*outputs), [x, y], 4), wanted, strict=True):
        assert np.array_equal(got, want)


@pytest.mark.parametrize("width", WIDTHS)
def test_floats_keep_every_rounding(width):
    """No rounding is dropped: x y + z rounds twice and an explicit fma once; nothing is contracted or reassociated."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 1000))
    z = -x * y
    builder = ExpressionBuilder()
    a, b, c = (load(builder, DOUBLE, k) for k in range(3))
    plain, fused, cancelled = evaluate(builder.finish(a * b + c, fma(a, b, c), (a + b) - a), [x, y, z], width)
    assert np.array_equal(plain, np.zeros(1000))
    assert np.count_nonzero(fused) > 900
    assert np.array_equal(cancelled, (x + y) - x)
