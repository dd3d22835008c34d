"""Every elementwise op, compiled for numbers and for vectors, agrees with NumPy on every dtype that it accepts."""

import numpy as np
import pytest

pytest.importorskip("llvmlite")

from elementwise_signatures import NAMES, expression_of, part_of, signatures
from error_function import erfinv
from evaluating import Program, compiled, vector_width

from ctrlgrad.dtypes import BFLOAT16, dtype_kind, finfo

# Functions of several steps, whose results carry rounding errors.
_NAMES = """exp expm1 log log1p log2 log10 sigmoid exp2 sin cos tan tanh sinh cosh arcsin arccos arctan arcsinh arccosh
arctanh power arctan2 logaddexp hypot erfinv"""
ROUNDED = frozenset(_NAMES.split())
ROUNDED_OF_COMPLEX = ROUNDED | {"sqrt", "abs", "multiply", "strong_multiply", "square", "divide", "reciprocal"}
TOLERANCE = {
    "float16": 2e-3,
    "bfloat16": 1e-2,
    "float32": 2e-6,
    "float64": 4e-15,
    "complex64": 4e-6,
    "complex128": 8e-15,
}


def in_numpy(name, dtype, operands):
    if name == "sigmoid":
        (x,) = operands
        return (1 / (1 + np.exp(-x.astype(np.result_type(x, np.float64))))).astype(x.dtype)
    if name == "erfinv":
        (x,) = operands
        return erfinv(x.astype(np.longdouble)).astype(dtype)
    if name == "cast":
        (x,) = operands
        return (x.real if x.dtype.kind == "c" and dtype.kind not in "bc" else x).astype(dtype)
    if name == "complex":
        result = np.empty(operands[0].shape, dtype)
        result.real, result.imag = operands
        return result
    if name in ("real", "imag"):
        return getattr(operands[0], name)
    if name == "bits_to_bfloat16":
        return operands[0].view(BFLOAT16)
    if name in ("float_to_bits", "bits_to_float"):
        return operands[0].view(f"{'u' if name == 'float_to_bits' else 'f'}{operands[0].dtype.itemsize}")
    if name == "strong_multiply":
        return np.where(operands[0] == 0, np.zeros_like(operands[0]), np.multiply(*operands))
    return getattr(np, {"integer_power": "power"}.get(name, name))(*operands)


def wide(x):
    """The operands in a wider dtype, since NumPy's own complex functions lose digits."""
    return x.astype(np.clongdouble)


def run(name, dtypes, result, operands):
    """Run an op on numbers and on vectors; both must agree to the bit, except for the payload of NaN."""
    expression = expression_of(name, dtypes, result)
    parts = []
    for x in operands:
        parts += [x.real.copy(), x.imag.copy()] if x.dtype.kind == "c" else [x]
    widths = (1, vector_width(max((x.dtype for x in parts), key=lambda dtype: dtype.itemsize)))
    single, vector = (loop(parts) for loop in compiled([Program(expression, width) for width in widths]))
    for a, b in zip(single, vector, strict=True):
        assert a.dtype == b.dtype
        different = np.flatnonzero(~_same(a, b))
        assert not different.size, (name, dtypes, [x[different[0]] for x in parts])
    if result.kind != "c":
        return vector[0]
    joined = np.empty(vector[0].shape, result)
    joined.real, joined.imag = vector
    return joined


def _same(a, b):
    is_float = dtype_kind(a.dtype) == "f"
    with np.errstate(invalid="ignore"):
        return (a == b) & (np.signbit(a) == np.signbit(b) if is_float else True) | ((a != a) & (b != b))


def values(name, dtype, rng):
    """Random values of all magnitudes, and the ends of the range for real dtypes."""
    count = 400
    if dtype.kind == "b":
        return rng.integers(0, 2, count).astype(bool)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        ends = [info.min, info.max, 0, 1, 2, 7, info.max - 1, info.min + 1, 0 if dtype.kind == "u" else -1]
        return np.concatenate(
            [np.array(ends, dtype), rng.integers(info.min, info.max, count, dtype, endpoint=True)]
            + [rng.integers(0 if dtype.kind == "u" else -9, 70, count).astype(dtype)]
        )
    if dtype.kind == "c":
        part = part_of(dtype)
        sizes = 10.0 ** rng.uniform(-3, 1, (2, count))
        result = np.empty(count, dtype)
        result.real, result.imag = (rng.choice([-1, 1], (2, count)) * sizes).astype(part)
        return result
    info = finfo(dtype)
    ends = [0, 1, 0.5, 2.5, 3, float(info.tiny), float(info.smallest_subnormal), float(info.max), np.inf, np.nan]
    sizes = 2.0 ** rng.uniform(-6, 6, count)
    whole = rng.integers(-20, 20, count)
    sides = np.array([*ends, *(-np.array(ends))], dtype)
    return np.concatenate([sides, (rng.choice([-1, 1], count) * sizes).astype(dtype), whole.astype(dtype)])


def operand_values(name, dtypes, result, rng):
    """Arrays of one length; with two operands, each meets the other's first values."""
    arrays = [values(name, dtype, rng) for dtype in dtypes]
    if len(arrays) > 1:
        ends = [x[:20] for x in arrays[-2:]]
        grid = [np.repeat(ends[0], ends[1].size), np.tile(ends[1], ends[0].size)]
        arrays[-2:] = [np.concatenate([g, rng.permutation(x)]) for g, x in zip(grid, arrays[-2:], strict=True)]
        arrays = [np.resize(x, arrays[-1].size) for x in arrays]
    if name == "integer_power" and dtypes[0].kind == "i":
        arrays[1] = np.where(arrays[1] < 0, -1 - arrays[1], arrays[1])
    if name == "cast" and dtype_kind(dtypes[0]) in "fc" and result.kind in "iu":
        # C leaves the result undefined beyond the target's range and for NaN.
        info = np.iinfo(result)
        real = arrays[0].real
        with np.errstate(all="ignore"):
            arrays[0] = arrays[0][(np.trunc(real) >= info.min) & (real < float(info.max))]
    return arrays


@pytest.mark.parametrize("name", NAMES)
def test_compiled_ops_are_numpys(name):
    found = 0
    for dtypes, result in signatures(name):
        rng = np.random.default_rng(0)
        operands = operand_values(name, dtypes, result, rng)
        got = run(name, dtypes, result, operands)
        is_complex = dtypes[-1].kind == "c"
        is_rounded = name in (ROUNDED_OF_COMPLEX if is_complex else ROUNDED)
        with np.errstate(all="ignore"):
            want = in_numpy(name, result, [wide(x) for x in operands] if is_complex and is_rounded else operands)
            want = want.astype(result) if is_complex and is_rounded else want
        assert got.dtype == want.dtype == result
        if is_rounded:
            bound = TOLERANCE[dtypes[-1].name]
            same = _close_complex(got, want, bound) if is_complex else _close(got, want, bound)
        elif result.kind == "c":
            same = _same(got.real, want.real) & _same(got.imag, want.imag)
        else:
            same = _same(got, want)
            if name in ("maximum", "minimum", "sign", "nextafter"):
                # NumPy returns either of two zeros, depending on their place in the array. The sign of a bfloat16 zero
                # is the zero itself. `nextafter` of half floats differs between versions of NumPy.
                same |= (got == 0) & (want == 0)
        wrong = np.flatnonzero(~same)
        assert not wrong.size, (dtypes, [(tuple(x[i] for x in operands), got[i], want[i]) for i in wrong[:5]])
        found += 1
    assert found


def _close(got, want, bound):
    with np.errstate(all="ignore"):
        near = np.abs(got.astype(np.float64) - want.astype(np.float64)) <= bound * np.abs(want.astype(np.float64))
        # Subnormal halves have few digits, and at the edge of overflow one rounding decides.
        near |= np.abs(got - want) <= 2 * np.spacing(np.abs(want))
    return near | _same(got, want)


def _close_complex(got, want, bound):
    with np.errstate(all="ignore"):
        return (np.abs(got - want) <= bound * np.abs(want)) | (got == want)
