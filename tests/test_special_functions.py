"""Special functions are SciPy's, in double and single precision; their derivatives are those of finite differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.scipy import special

scipy_special = pytest.importorskip("scipy.special")
POSITIVE = np.geomspace(1e-6, 60, 40)
REAL = np.concatenate([-POSITIVE, [0.0], POSITIVE])
A, B = np.geomspace(1e-2, 200, 8)[:, None], np.geomspace(1e-2, 300, 12)
CASES: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(["i0", "i0e", "i1", "i1e", "dawsn", "erfcx", "log_ndtr", "ndtr"], (REAL,)),
    **dict.fromkeys(["exp1", "spence"], (POSITIVE,)),
    "expi": (np.concatenate([-POSITIVE, POSITIVE]),),
    "ndtri": (np.array([1e-300, 1e-9, 0.1, 0.5, 0.7, 1 - 1e-9, 0.0, 1.0, 2.0]),),
    "expn": (np.array([0.0, 1.0, 2.0, 3.0, 40.0])[:, None], POSITIVE),
    "gammainc": (A, B),
    "gammaincc": (A, B),
    "betainc": (np.geomspace(0.05, 50, 5)[:, None, None], np.geomspace(0.05, 50, 5)[:, None], np.linspace(0, 1, 7)),
    "erfinv": (np.linspace(-1, 1, 9),),
}
# Of complements to 1 and at zeros digits are lost.
TOLERANCE = {"gammainc": 1e-11, "gammaincc": 1e-10, "betainc": 1e-10, "expi": 1e-12, "log_ndtr": 1e-12, "ndtr": 1e-12}


@pytest.fixture(autouse=True)
def _by_reference():
    with cg.options(engine="reference"):
        yield


@pytest.mark.parametrize("name", CASES)
def test_a_function_is_scipy_s(name: str) -> None:
    args = CASES[name]
    with np.errstate(all="ignore"):
        found, expected = cg.function(getattr(special, name))(*args), getattr(scipy_special, name)(*args)
    np.testing.assert_allclose(found, expected, rtol=TOLERANCE.get(name, 3e-14), atol=1e-300)


@pytest.mark.parametrize("name", CASES)
def test_single_precision_stays(name: str) -> None:
    args = [np.asarray(x, np.float32) for x in CASES[name]]
    with np.errstate(all="ignore"):
        found = cg.function(getattr(special, name))(*args)
        expected = getattr(scipy_special, name)(*(x.astype(np.float64) for x in args)).astype(np.float32)
    assert found.dtype == np.float32
    is_finite = np.isfinite(expected)
    np.testing.assert_allclose(found[is_finite], expected[is_finite], rtol=4e-4, atol=2e-5)


POINTS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(["i0", "i0e", "i1", "i1e", "dawsn", "erfcx", "log_ndtr"], (np.array([-9.3, -0.7, 0.2, 1.4, 8.6]),)),
    **dict.fromkeys(["exp1", "expi", "spence"], (np.array([0.1, 0.7, 1.2, 2.2, 8.0]),)),
    "ndtri": (np.array([1e-3, 0.2, 0.7, 0.99]),),
    "gammainc": (np.array([0.3, 1.0, 2.5, 30.0]), np.array([0.5, 1.2, 2.0, 20.0])),
    "gammaincc": (np.array([0.3, 1.0, 2.5, 30.0]), np.array([0.5, 1.2, 2.0, 40.0])),
    "betainc": (np.array([0.3, 2.5, 9.0]), np.array([0.5, 2.0, 3.0]), np.array([0.2, 0.7, 0.6])),
}


@pytest.mark.parametrize("name", POINTS)
def test_derivatives_are_scipy_s_differences_in_both_modes(name: str) -> None:
    ours, theirs, args = getattr(special, name), getattr(scipy_special, name), POINTS[name]
    for k, x in enumerate(args):
        step = 1e-5 * np.maximum(np.abs(x), 1e-2)
        at = lambda x, k=k: theirs(*args[:k], x, *args[k + 1 :])
        expected = (at(x + step) - at(x - step)) / (2 * step)
        f = lambda x, k=k: ours(*args[:k], x, *args[k + 1 :])
        backward = cg.grad(lambda x, f=f: cnp.sum(f(x)))(x)
        np.testing.assert_allclose(backward, expected, rtol=1e-5, atol=1e-8)
        np.testing.assert_allclose(cg.jvp(f, (x,), (np.ones_like(x),))[1], backward, rtol=1e-10)


@pytest.mark.parametrize("name", ["i0e", "i1e", "dawsn", "erfcx", "log_ndtr", "ndtri"])
def test_second_derivatives(name: str) -> None:
    f = lambda x: getattr(special, name)(x)
    x = 0.37
    first = cg.grad(f)
    expected = (first(x + 1e-5) - first(x - 1e-5)) / 2e-5
    np.testing.assert_allclose(cg.grad(first)(x), expected, rtol=1e-6)


def test_an_integral_s_derivative_by_its_argument_alone() -> None:
    x = np.array([0.3, 1.5, 6.0])
    slope = cg.grad(lambda x: cnp.sum(special.expn(3.0, x)))(x)
    np.testing.assert_allclose(slope, -scipy_special.expn(2, x), rtol=1e-12)
    slope = cg.grad(lambda x: cnp.sum(special.expn(0.0, x)))(x)
    np.testing.assert_allclose(slope, -np.exp(-x) * (1 / x + 1 / x**2), rtol=1e-12)


def test_incomplete_functions_at_their_ends() -> None:
    a, x = np.array([1.0, 1.0, 0.0, -1.0, np.inf]), np.array([0.0, np.inf, 1.0, 1.0, 1.0])
    for name in ("gammainc", "gammaincc"):
        np.testing.assert_array_equal(getattr(special, name)(a, x), getattr(scipy_special, name)(a, x))
    np.testing.assert_allclose(special.bernoulli(8), scipy_special.bernoulli(8), atol=1e-12)


def test_loops_of_several_elements_in_machine_code() -> None:
    f = lambda a, x: special.gammainc(a, x) + special.betainc(a, 2.0, x / (1 + x))
    a, x = np.array([0.4, 3.0, 20.0]), np.array([0.2, 4.0, 18.0])
    expected = cg.value_and_grad(lambda a: cnp.sum(f(a, x)))(a)
    with cg.options(engine="native"):
        found = cg.value_and_grad(lambda a: cnp.sum(f(a, x)))(a)
    for p, q in zip(found, expected, strict=True):
        np.testing.assert_allclose(p, q, rtol=1e-10)


LOG_2, PSI = float(np.log(2)), -0.5772156649015329
# Points where a formula is 0 / 0, or where one part of a function ends: the first three derivatives.
AT_A_POINT: dict[str, tuple[Any, float, tuple[float, ...]]] = {
    "boxcox in lmbda": (lambda y: special.boxcox(2.0, y), 0.0, (LOG_2**2 / 2, LOG_2**3 / 3, LOG_2**4 / 4)),
    "boxcox1p in lmbda": (lambda y: special.boxcox1p(1.0, y), 0.0, (LOG_2**2 / 2, LOG_2**3 / 3, LOG_2**4 / 4)),
    "boxcox in x": (lambda x: special.boxcox(x, 0.0), 2.0, (0.5, -0.25, 0.25)),
    "i0": (lambda x: special.i0(x), 0.0, (0.0, 0.5, 0.0, 0.375)),
    "i1": (lambda x: special.i1(x), 0.0, (0.5, 0.0, 0.375)),
    "spence": (lambda x: special.spence(x), 1.0, (-1.0, 0.5, -2 / 3)),
    "poch in m": (lambda m: special.poch(1.0, m), 0.0, (PSI, PSI**2 + np.pi**2 / 6)),
    "poch in z": (lambda z: special.poch(z, 0.0), 2.0, (0.0, 0.0, 0.0)),
    "logit": (special.logit, 0.5, (4.0, 0.0, 32.0)),
    "sinc": (cnp.sinc, 0.0, (0.0, -(np.pi**2) / 3, 0.0, np.pi**4 / 5)),
}


@pytest.mark.parametrize("name", AT_A_POINT)
def test_derivatives_where_a_formula_ends_are_those_of_the_function(name: str) -> None:
    fn, x, derivatives = AT_A_POINT[name]
    for expected in derivatives:
        fn = cg.grad(fn)
        np.testing.assert_allclose(fn(x), expected, rtol=1e-10, atol=1e-10)


def test_the_parts_of_a_derivative_meet() -> None:
    """Just below and just above the points where a series ends, to the third derivative."""
    for fn, points in (
        (special.i1, (0.5, -0.5)),
        (special.spence, (0.75, 1.25)),
        (lambda y: special.boxcox(np.e, y), (0.5, -0.5)),
    ):
        for _ in range(3):
            fn = cg.grad(lambda x, fn=fn: fn(x).sum())
            for x in points:
                np.testing.assert_allclose(fn(np.nextafter(x, 9.0)), fn(np.nextafter(x, -9.0)), rtol=1e-8, atol=1e-8)


def test_slopes_and_values_at_the_ends_of_domains() -> None:
    np.testing.assert_array_equal(cg.grad(lambda x: special.logit(x).sum())(np.array([0.0, 1.0])), np.inf)
    np.testing.assert_array_equal(special.boxcox1p(-1.0, np.array([0.0, 2.0, -1.0])), [-np.inf, -0.5, -np.inf])
    np.testing.assert_array_equal(special.poch(np.array([0.0, -1.0, np.inf, 2.0]), 0.0), 1.0)
    # gamma(z) is infinite there: no slope of another z is handed on.
    np.testing.assert_array_equal(cg.grad(lambda m: special.poch(np.array([0.0, -1.0]), m).sum())(0.0), 0.0)


@pytest.mark.parametrize("n", [-1, -1.0, 1.5, np.array([-2, 0.5])])
def test_polygamma_of_an_order_that_is_none_is_not_a_number(n: Any) -> None:
    """Once it was 0 at 1.5, halfway between two signs."""
    assert np.isnan(cg.scipy.special.polygamma(n, 0.5)).all()
    assert not np.isnan(cg.scipy.special.polygamma(np.array([0, 1, 2]), 0.5)).any()
