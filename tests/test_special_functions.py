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
