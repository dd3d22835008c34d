"""Elementary functions of complex numbers at signed zeros, on branch cuts, at overflow, at infinity, and near 1."""

from fractions import Fraction

import numpy as np
import pytest

pytest.importorskip("llvmlite")

from elementwise_signatures import expression_of
from evaluating import Program, compiled

import ctrlgrad as cg

ENDS = [0, -0.0, 1, -1, 0.5, -2, 3, 800, -800, 1e200, np.inf, -np.inf, np.nan]
CIRCULAR = ["exp", "sin", "cos", "tan", "sinh", "cosh", "tanh"]
INVERSES = ["arcsin", "arccos", "arctan", "arcsinh", "arccosh", "arctanh"]
DTYPE = np.dtype(np.complex128)


def pairs(real, imaginary):
    z = np.empty(len(real), DTYPE)
    z.real, z.imag = real, imaginary
    return z


def grid(values):
    return pairs(np.repeat(values, len(values)), np.tile(values, len(values)))


def run(name, *operands):
    given = [part.copy() for z in operands for part in (z.real, z.imag)]
    expression = expression_of(name, [DTYPE] * len(operands), DTYPE)
    (function,) = compiled([Program(expression, 1)])
    return pairs(*function(given))


def wrong(got, want, bound=1e-14):
    """Mask of the results that differ from the expected ones. A finite result may be off by `bound` of its modulus,
    but each part keeps its sign."""

    def same(a, b):
        return ((a == b) & (np.signbit(a) == np.signbit(b))) | (np.isnan(a) & np.isnan(b))

    with np.errstate(all="ignore"):
        near = np.isfinite(want) & (np.abs(got - want) <= bound * np.abs(want))
        near &= (np.signbit(got.real) == np.signbit(want.real)) & (np.signbit(got.imag) == np.signbit(want.imag))
        close = [abs(g - w) <= bound * abs(w) for g, w in ((got.real, want.real), (got.imag, want.imag))]
    return ~(near | ((same(got.real, want.real) | close[0]) & (same(got.imag, want.imag) | close[1])))


def in_numpy(name, *operands):
    with np.errstate(all="ignore"):
        return getattr(np, name)(*operands)


@pytest.mark.parametrize("name", ["log", "sqrt", "log1p", "reciprocal", *CIRCULAR, *INVERSES])
def test_special_values_are_numpys(name):
    z = grid(ENDS)
    z = z[~np.isnan(z)]
    infinite = np.isinf(z.real), np.isinf(z.imag)
    if name in CIRCULAR:
        # An infinite angle has no direction.
        angle = infinite[0] if name in ("sin", "cos", "tan") else infinite[1]
        z = z[~angle]
    elif name in ("arccos", "arccosh"):
        z = z[~(infinite[0] & infinite[1])]
    got, want = run(name, z), in_numpy(name, z)
    places = np.flatnonzero(wrong(got, want))
    assert not places.size, [(z[i], got[i], want[i]) for i in places[:5]]


@pytest.mark.parametrize("name", ["exp", "log", "sqrt", *CIRCULAR, *INVERSES])
def test_nan_in_gives_nan_out(name):
    z = grid([0.5, np.nan])[1:]
    assert np.isnan(run(name, z)).all()


@pytest.mark.parametrize("name", ["power", "divide"])
def test_two_finite_operands(name):
    z = grid([0, -0.0, 1, -1, 2, -2.5, 50])
    a, b = np.repeat(z, z.size), np.tile(z, z.size)
    got, want = run(name, a, b), in_numpy(name, a, b)
    # The sign of a zero comes from a sum of products, in which some processors round once (FMA).
    with np.errstate(invalid="ignore"):
        same = (np.isnan(got) & np.isnan(want)) | (got == want) | (np.abs(got - want) <= 1e-12 * np.abs(want))
    places = np.flatnonzero(~same)
    assert not places.size, [(a[i], b[i], got[i], want[i]) for i in places[:5]]


def test_whole_powers_are_exact():
    z = pairs([0, 1, 2, -3], [1, 1, -1, 2])
    exponents = pairs([2, 3, 4, 5], [0, 0, 0, 0])
    assert np.array_equal(run("power", z, exponents), [-1, -2 + 2j, -7 - 24j, 597 + 122j])


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 60, reason="numpy.longdouble has no more digits than float64")
def test_logarithms_near_modulus_one_lose_no_digits():
    rng = np.random.default_rng(0)
    angle, off = rng.uniform(-np.pi, np.pi, 4000), rng.choice([0, 1e-16, 1e-12, 1e-5], 4000)
    on_circle = pairs(np.cos(angle) * (1 + off), np.sin(angle) * (1 + off))
    for name, z, base in (("log", on_circle, 0), ("log1p", on_circle - 1, 1)):
        excess = np.array([np.longdouble(_excess(w, base)) for w in z])
        want = (np.log1p(excess) / 2).astype(np.float64)
        got = run(name, z).real
        assert np.all(np.abs(got - want) <= 4e-16 * np.abs(want) + 1e-32), name


def _excess(z, base):
    """Return abs(base + z)**2 - 1, rounded once."""
    x, y = base + Fraction(float(z.real)), Fraction(float(z.imag))
    return float(x * x + y * y - 1)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("engine", ["native", "reference"])
def test_a_complex_number_that_is_returned_keeps_the_signs_of_its_zeros(dtype: str, engine: str) -> None:
    with cg.options(engine=engine):
        for real, imaginary in ((1.0, 0.0), (1.0, -0.0), (-0.0, 0.0), (np.nan, -0.0), (0.0, np.inf)):
            z = pairs([real], [imaginary]).astype(dtype)[0]
            assert np.asarray(cg.function(np.conj)(z)).tobytes() == np.conj(z).tobytes()
