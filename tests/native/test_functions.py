"""Elementary functions as compiled: their stated error, their special values, and one code for numbers and vectors.

The high-precision reference is NumPy's float64 for float32 functions and its 80-bit `longdouble` for float64 ones.
"""

import re

import numpy as np
import pytest

pytest.importorskip("llvmlite")

from error_function import erfinv
from evaluating import Program, compiled, vector_width

from ctrlgrad.engines.native import library, target
from ctrlgrad.plan.elementary.constants import DOUBLE, SINGLE
from ctrlgrad.plan.elementary.table import all_elementary, elementary
from ctrlgrad.plan.expression import ExpressionBuilder, call

FLOATS = [function for function in all_elementary() if function.dtype.kind == "f"]
ROUNDED = [function for function in FLOATS if function.max_ulp > 0]
LIMITED = [function for function in FLOATS if function.beyond is not None]
HIGHER = {"float32": np.float64, "float64": np.longdouble}
has_longdouble = np.finfo(np.longdouble).nmant > 60


def _id(function):
    return f"{function.name}-{function.dtype.name}"


def _sigmoid(x):
    power = np.exp(-np.abs(x))
    return np.where(x < 0, power, x.dtype.type(1)) / (1 + power)


def _reference(name):
    return {"sigmoid": _sigmoid, "erfinv": erfinv}.get(name) or getattr(np, name)


_loops = {}


def _run(function, *operands):
    """Compute by vectors, and check that one element at a time gives the same bits, except for the payload of NaN."""
    if _id(function) not in _loops:
        builder = ExpressionBuilder()
        loads = [builder.emit("load", (), function.dtype, k) for k in range(function.arity)]
        expression = builder.finish(call(function.name, function.dtype, *loads))
        widths = (1, vector_width(function.dtype))
        _loops[_id(function)] = compiled([Program(expression, width) for width in widths])
    (single,), (vector,) = (loop(operands) for loop in _loops[_id(function)])
    assert _same_bits(single, vector).all()
    return vector


def _bits(dtype):
    return np.int32 if dtype == np.float32 else np.int64


def _each_binade(dtype, per_binade, rng):
    """Both ends and random points of each binade, subnormals included, of both signs."""
    info = np.finfo(dtype)
    fractions = rng.integers(0, 2**info.nmant, (2**info.nexp - 1, per_binade), dtype=_bits(dtype))
    fractions[:, 0], fractions[:, 1] = 0, 2**info.nmant - 1
    exponents = np.arange(2**info.nexp - 1, dtype=_bits(dtype))[:, None] << _bits(dtype)(info.nmant)
    x = (exponents | fractions).view(dtype).ravel()
    return np.concatenate([x, -x])


def _special(dtype):
    info = np.finfo(dtype)
    positive = [0, 1, 0.5, 2, 3, 2.5, 1e4, info.tiny, info.smallest_subnormal, info.max, np.inf, np.nan]
    return np.array(positive + [-v for v in positive], dtype)


def _operands(function, rng):
    """Points in each binade and where functions change their method, for one operand or two."""
    dtype = function.dtype
    around = [rng.uniform(-bound, bound, 10_000).astype(dtype) for bound in (1, 3, 100, 800)]
    near_one = 1 + rng.uniform(-1, 1, 10_000) * 2.0 ** rng.uniform(-30, 0, 10_000)
    quarter_turns = np.round(rng.uniform(-6e4, 6e4, 10_000)) * (np.pi / 2)
    x = np.concatenate([_each_binade(dtype, 16, rng), *around, near_one.astype(dtype), quarter_turns.astype(dtype)])
    if function in LIMITED and function.arity == 1:
        for limit in (1e5, 1e8):
            x = np.concatenate([x, rng.uniform(-limit, limit, 20_000).astype(dtype)])
    if function.arity == 1:
        return (x,)
    y = rng.permutation(x)
    half = x.size // 2
    scale = np.abs(x[:half]) if function.name != "power" else 20
    with np.errstate(over="ignore"):
        y[:half] = (rng.uniform(-2, 2, half) * scale).astype(dtype)
    return x, y


def _ulp(got, exact, scale):
    """Error in units in the last place of `scale`; infinite where a special value or a sign differs."""
    with np.errstate(all="ignore"):
        rounded = exact.astype(got.dtype)
        error = np.abs(got.astype(exact.dtype) - exact) / np.spacing(np.abs(scale.astype(got.dtype))).astype(
            exact.dtype
        )
        halfway = np.isfinite(exact) & (np.isinf(rounded) | np.isinf(got))
    limit = np.finfo(got.dtype).max
    agree = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    # At the edge of overflow the largest number and infinity are one ULP apart.
    neighbours = halfway & (np.abs(got) >= limit) & (np.abs(rounded) >= limit)
    special = ~np.isfinite(got) | ~np.isfinite(rounded)
    error = np.where(special, np.where(agree, 0, np.where(neighbours, 1, np.inf)), error)
    return np.where((np.signbit(got) != np.signbit(rounded)) & ~np.isnan(rounded), np.inf, error)


def _scale(name, exact, operands):
    """The scale of the error: for logaddexp, the largest of 1, the result and the larger operand."""
    return np.fmax(np.abs(exact), np.fmax(np.abs(np.maximum(*operands)), 1)) if name == "logaddexp" else exact


@pytest.mark.parametrize("function", ROUNDED, ids=_id)
def test_the_error_stays_within_the_stated_bound(function):
    name, dtype = function.name, function.dtype
    if dtype == np.float64 and not has_longdouble:
        pytest.skip("numpy.longdouble has no more digits than float64 here")
    operands = _operands(function, np.random.default_rng(0))
    got = _run(function, *operands)
    with np.errstate(all="ignore"):
        exact = _reference(name)(*[x.astype(HIGHER[dtype.name]) for x in operands])
    error = _ulp(got, exact, _scale(name, exact, operands))
    worst = int(np.argmax(error))
    assert error[worst] <= function.max_ulp, (error[worst], [x[worst] for x in operands], got[worst], exact[worst])


def _same_bits(got, want):
    return _equal(got, want) & (np.isnan(got) | (np.signbit(got) == np.signbit(want)))


def _equal(got, want):
    return (np.isnan(got) & np.isnan(want)) | (got == want)


def _all_pairs(values):
    return np.repeat(values, values.size), np.tile(values, values.size)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_fmod_is_exact(dtype):
    function = elementary("fmod", np.dtype(dtype))
    rng = np.random.default_rng(0)
    operands = [*map(np.concatenate, zip(_operands(function, rng), _all_pairs(_special(dtype)), strict=True))]
    # Quotients close to whole numbers: rounding such a quotient up would give a remainder of the other sign.
    whole, divisor = rng.integers(1, 2**20, 20_000).astype(dtype), rng.uniform(-1, 1, 20_000).astype(dtype)
    near = np.nextafter(whole * divisor, rng.choice(np.array([-np.inf, np.inf], dtype), 20_000))
    operands = [np.concatenate(pair) for pair in zip(operands, (near, divisor), strict=True)]
    with np.errstate(all="ignore"):
        want = np.fmod(*operands)
    got = _run(function, *operands)
    wrong = np.flatnonzero(~_same_bits(got, want))
    assert not wrong.size, [(tuple(x[i] for x in operands), got[i], want[i]) for i in wrong[:5]]


@pytest.mark.parametrize("function", ROUNDED, ids=_id)
def test_special_values_are_numpys(function):
    """NaN, infinity and zero come out where NumPy has them, with the same sign; every other result is finite."""
    dtype = function.dtype
    ends = _special(dtype)
    operands = (ends,) if function.arity == 1 else _all_pairs(ends)
    with np.errstate(all="ignore"):
        want = _reference(function.name)(*[x.astype(HIGHER[dtype.name]) for x in operands]).astype(dtype)
    got = _run(function, *operands)
    special = ~np.isfinite(want) | (want == 0)
    wrong = np.flatnonzero(np.where(special, ~_same_bits(got, want), ~np.isfinite(got)))
    assert not wrong.size, [(tuple(x[i] for x in operands), got[i], want[i]) for i in wrong[:5]]


def test_subnormal_results_are_rounded_not_flushed():
    x = np.array([-90, -100, -103.9, -104], np.float32)
    exp, sigmoid = (elementary(name, np.dtype(np.float32)) for name in ("exp", "sigmoid"))
    assert np.array_equal(_run(exp, x), np.exp(x.astype(np.float64)).astype(np.float32))
    assert (_run(sigmoid, x)[:3] > 0).all()


@pytest.mark.parametrize("f", [SINGLE, DOUBLE], ids=lambda f: f.dtype.name)
def test_far_below_its_range_exp_is_a_product_with_zeros_not_one_that_rounds_to_zero(f):
    count = round(f.exp_range[0] / np.log(2))
    power = np.array(f.zero_exponent, f.integer) << f.mantissa_bits
    assert count == 2 * f.zero_exponent
    assert (power + np.array(1, f.dtype).view(f.integer)).view(f.dtype) == 0


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_logaddexp_keeps_small_terms_of_zero(dtype):
    """As in softplus: near 0 the error of logaddexp is relative to the result, like that of exp."""
    function = elementary("logaddexp", np.dtype(dtype))
    x = np.array([-1e-3, -0.5, -1, -20, -40, -80, -87, -100, -700, -745, -1000, -np.inf], dtype)
    got = _run(function, x, np.zeros_like(x))
    want = np.logaddexp(x.astype(np.longdouble), 0)
    smallest = np.finfo(dtype).smallest_subnormal
    assert np.all(np.abs(got - want) <= 2 * np.maximum(np.spacing(want.astype(dtype)), smallest))


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
@pytest.mark.parametrize("kind", ["int", "uint"])
def test_powers_of_integers_wrap_for_every_exponent(kind, bits):
    dtype = np.dtype(f"{kind}{bits}")
    rng = np.random.default_rng(0)
    largest = np.iinfo(dtype).max
    base = rng.integers(np.iinfo(dtype).min, largest, 4000, dtype, endpoint=True)
    small = (np.arange(2000) % min(300, int(largest) + 1)).astype(dtype)
    exponent = np.concatenate([small, rng.integers(0, largest, 2000, dtype)])
    want = np.array([pow(int(b), int(e), 1 << bits) for b, e in zip(base, exponent, strict=True)], np.uint64)
    got = _run(elementary("integer_power", dtype), base, exponent)
    assert np.array_equal(got, want.astype(f"uint{bits}").view(dtype))


# The text of compiled functions.


@pytest.mark.parametrize("function", FLOATS, ids=_id)
def test_only_lanes_beyond_a_limit_call_anything(function):
    """A vector function consists of packed instructions; it calls a function only if it has a limit on its argument."""
    text = library.module_text(function, vector_width(function.dtype))
    callees = {name for name in re.findall(r"call [^@]*@([\w.]+)\(", text) if not name.startswith("llvm.")}
    assert callees == (set() if function.library is None else {function.library})
    if target.host().has("fma"):
        assert b"fma" not in target.compiled(text)


def test_functions_with_a_limit():
    assert {function.name for function in LIMITED} == {"sin", "cos", "tan", "fmod"}


def test_a_function_is_compiled_once_and_then_read_from_disk(tmp_path, monkeypatch):
    monkeypatch.setenv("CTRLGRAD_CACHE_DIR", str(tmp_path))
    compilations = []
    compile_text = target.compiled

    def noted(text, **options):
        compilations.append(text)
        return compile_text(text, **options)

    monkeypatch.setattr(target, "compiled", noted)
    names = ["cg_exp_float32", "cg_integer_power_int32"]
    for _ in range(2):
        # A new process has no addresses of functions yet.
        monkeypatch.setattr(library, "_ADDRESSES", {})
        assert set(library.addresses(names)) == set(names)
    # The power of large exponents is a function of its own.
    assert len(compilations) == 3
    assert len(list(tmp_path.glob("*.obj"))) == 3


@pytest.mark.parametrize("lanes", [2, 3, 5, 16, 32])
def test_vectors_of_any_width(lanes):
    builder = ExpressionBuilder()
    x = builder.emit("load", (), np.float64, 0)
    expression = builder.finish(call("sin", np.float64, x), call("power", np.float64, x, x))
    values = np.concatenate([np.linspace(0, 3, 20), [1e12, np.inf, 5.0, 1e300, np.nan]])
    single, vector = (run([values]) for run in compiled([Program(expression, 1), Program(expression, lanes)]))
    assert all(_same_bits(a, b).all() for a, b in zip(single, vector, strict=True))
