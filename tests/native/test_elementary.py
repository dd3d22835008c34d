"""The native engine's elementary kernels: their stated error, their special values, and that loops over them vectorise.

The high-precision reference is NumPy's float64 for float32 kernels and its 80-bit `longdouble` for float64 ones.
"""

import inspect
import re

import numpy as np
import pytest

pytest.importorskip("numba")

import numba

from ctrlgrad.engines.native.elementary import KERNELS

KEYS = list(KERNELS)
EXACT = [key for key in KEYS if KERNELS[key].max_ulp == 0]
ROUNDED = [key for key in KEYS if KERNELS[key].max_ulp > 0]
HIGHER = {"float32": np.float64, "float64": np.longdouble}
has_longdouble = np.finfo(np.longdouble).nmant > 60


def _sigmoid(x):
    power = np.exp(-np.abs(x))
    return np.where(x < 0, power, x.dtype.type(1)) / (1 + power)


def _reference(op):
    return _sigmoid if op == "sigmoid" else getattr(np, op)


def _arity(key):
    return len(inspect.signature(KERNELS[key].function.py_func).parameters)


_loops = {}


def _loop(key):
    """A compiled loop over whole arrays, the result last."""
    if key not in _loops:
        function = KERNELS[key].function

        def one(x, out):
            for j in range(out.size):
                out[j] = function(x[j])

        def two(x, y, out):
            for j in range(out.size):
                out[j] = function(x[j], y[j])

        _loops[key] = numba.njit(error_model="numpy")(one if _arity(key) == 1 else two)
    return _loops[key]


def _run(key, *operands):
    out = np.empty(operands[0].size, bool if key[0] == "signbit" else operands[0].dtype)
    _loop(key)(*operands, out)
    return out


def _bits(dtype):
    return np.int32 if dtype == "float32" else np.int64


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


def _operands(key, rng):
    """Points in each binade and where functions change, for one operand or two; within the kernel's limit."""
    dtype, limit = key[1], KERNELS[key].limit
    around = [rng.uniform(-bound, bound, 10_000).astype(dtype) for bound in (1, 3, 100, 800)]
    near_one = 1 + rng.uniform(-1, 1, 10_000) * 2.0 ** rng.uniform(-30, 0, 10_000)
    quarter_turns = np.round(rng.uniform(-6e4, 6e4, 10_000)) * (np.pi / 2)
    x = np.concatenate([_each_binade(dtype, 16, rng), *around, near_one.astype(dtype), quarter_turns.astype(dtype)])
    if limit is not None:
        x = np.concatenate([x, rng.uniform(-limit, limit, 20_000).astype(dtype)])
        x = x[np.abs(x) <= limit]
    if _arity(key) == 1:
        return (x,)
    y = rng.permutation(x)
    half = x.size // 2
    scale = np.abs(x[:half]) if key[0] != "power" else 20
    with np.errstate(over="ignore"):
        y[:half] = (rng.uniform(-2, 2, half) * scale).astype(dtype)
    return x, y


def _ulp(got, exact, scale):
    """The error in units in the last place of `scale`; infinite where a special value or a sign differs."""
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


def _scale(op, exact, operands):
    """logaddexp is stated in ULP of the largest of 1, the result and the larger operand."""
    return np.fmax(np.abs(exact), np.fmax(np.abs(np.maximum(*operands)), 1)) if op == "logaddexp" else exact


@pytest.mark.parametrize("key", ROUNDED, ids="-".join)
def test_the_error_stays_within_the_stated_bound(key):
    op, dtype = key
    if dtype == "float64" and not has_longdouble:
        pytest.skip("numpy.longdouble has no more digits than float64 here")
    operands = _operands(key, np.random.default_rng(0))
    got = _run(key, *operands)
    with np.errstate(all="ignore"):
        exact = _reference(op)(*[x.astype(HIGHER[dtype]) for x in operands])
    error = _ulp(got, exact, _scale(op, exact, operands))
    worst = int(np.argmax(error))
    assert error[worst] <= KERNELS[key].max_ulp, (error[worst], [x[worst] for x in operands], got[worst], exact[worst])


def _same_bits(got, want):
    return _equal(got, want) & (np.isnan(got) | (np.signbit(got) == np.signbit(want)))


def _equal(got, want):
    return (np.isnan(got) & np.isnan(want)) | (got == want)


@pytest.mark.parametrize("key", EXACT, ids="-".join)
def test_exact_ops_are_numpys_to_the_bit(key):
    op, dtype = key
    operands = _operands(key, np.random.default_rng(0))
    if len(operands) == 2:
        ends = _special(dtype)
        grid = np.repeat(ends, ends.size), np.tile(ends, ends.size)
        operands = tuple(np.concatenate(pair) for pair in zip(operands, grid, strict=True))
    else:
        operands = (np.concatenate([operands[0], _special(dtype)]),)
    with np.errstate(all="ignore"):
        want = getattr(np, op)(*operands)
    got = _run(key, *operands)
    # Of two zeros with different signs NumPy's own maximum gives one or the other, by where they stand in the array.
    same = _equal if op in ("maximum", "minimum") or want.dtype == bool else _same_bits
    wrong = np.flatnonzero(~same(got, want))
    assert not wrong.size, [(tuple(x[i] for x in operands), got[i], want[i]) for i in wrong[:5]]


@pytest.mark.parametrize("key", [key for key in ROUNDED if KERNELS[key].limit is None], ids="-".join)
def test_special_values_are_numpys(key):
    """Where NumPy gives NaN, infinity or a zero, so does the kernel, with the same sign; elsewhere it is finite."""
    op, dtype = key
    ends = _special(dtype)
    operands = (ends,) if _arity(key) == 1 else (np.repeat(ends, ends.size), np.tile(ends, ends.size))
    with np.errstate(all="ignore"):
        want = _reference(op)(*[x.astype(HIGHER[dtype]) for x in operands]).astype(dtype)
    got = _run(key, *operands)
    special = ~np.isfinite(want) | (want == 0)
    wrong = np.flatnonzero(np.where(special, ~_same_bits(got, want), ~np.isfinite(got)))
    assert not wrong.size, [(tuple(x[i] for x in operands), got[i], want[i]) for i in wrong[:5]]


@pytest.mark.parametrize("key", [key for key in KEYS if KERNELS[key].limit is not None], ids="-".join)
def test_zeros_and_nan_within_the_limit(key):
    op, dtype = key
    x = np.array([0.0, -0.0, np.nan], dtype)
    assert _same_bits(_run(key, x), getattr(np, op)(x)).all()


def test_subnormal_results_are_rounded_not_flushed():
    x = np.array([-90, -100, -103.9, -104], np.float32)
    assert np.array_equal(_run(("exp", "float32"), x), np.exp(x.astype(np.float64)).astype(np.float32))
    assert (_run(("sigmoid", "float32"), x)[:3] > 0).all()


@pytest.mark.parametrize("key", [key for key in KEYS if KERNELS[key].vectorises], ids="-".join)
def test_loops_vectorise_and_call_nothing(key):
    """The loop's machine code holds no call, beside Numba's own of the runtime, and works on packed numbers."""
    operands = tuple(np.ones(4, key[1]) for _ in range(_arity(key)))
    _run(key, *operands)
    loop = _loop(key)
    signature = loop.signatures[0]
    machine_code = loop.inspect_asm(signature)
    vector_ir = loop.inspect_llvm(signature)
    assert re.search(r"<\d+ x (float|double|i32|i64)>", vector_ir), "no packed operation"
    called = set(re.findall(r"movabsq\s+\$(\w+), %", machine_code)) | set(re.findall(r"call\w*\s+(\w+)", machine_code))
    library = re.compile(r"^_*(exp|log|pow|sin|cos|tan|sinh|cosh|fmod|fma|hypot|floor|ceil|rint)\w{0,3}$")
    assert not [name for name in called if library.match(name)]


def test_the_limit_and_the_library_ops_are_stated():
    assert {op for op, _ in KEYS if KERNELS[op, "float32"].limit is not None} == {"sin", "cos", "tan"}
    assert {op for op, _ in KEYS if not KERNELS[op, "float64"].vectorises} == {"remainder", "floor_divide"}
    assert len({kernel.name for kernel in KERNELS.values()}) == len(KERNELS)
