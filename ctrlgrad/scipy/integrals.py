"""The exponential integrals, Dawson's integral and the dilogarithm."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad.frontend.loops import fori_loop
from ctrlgrad.scipy.error_functions import floats, in_single, promoted
from ctrlgrad.scipy.gamma_functions import digamma
from ctrlgrad.scipy.incomplete import fraction, summed
from ctrlgrad.transforms.custom_jvp import custom_jvp

_EULER = 0.57721566490153286061
# Of the series for small arguments: each is below 1 / k!.
_TERMS = 26


def _expn_series(n: Any, x: Any) -> Any:
    """Abramowitz and Stegun 5.1.12, for 0 < x <= 1 and n >= 1."""
    special = digamma(n) - cnp.log(x)

    def add(k: Any, c: Any) -> Any:
        power, total = c
        k = k.astype(x.dtype)
        power = cnp.where(k == 0, 1.0, -power * x / cnp.maximum(k, 1.0))
        is_special = k == n - 1
        return power, total + power * cnp.where(is_special, special, -1.0 / cnp.where(is_special, 1.0, k - n + 1))

    return fori_loop(0, _TERMS, add, (cnp.ones_like(x), cnp.zeros_like(x)))[1]


def _expn_fraction(n: Any, x: Any) -> Any:
    """Abramowitz and Stegun 5.1.22, contracted to its even part; for x > 1 and n >= 1."""
    return cnp.exp(-x) / fraction(lambda k: (-k * (n - 1 + k), x + n + 2 * k), x + n)


@custom_jvp
def _expn(n: Any, x: Any) -> Any:
    inside = (x > 0) & (n >= 1) & (x < np.inf)
    whole, safe = cnp.where(inside, n, 1.0), cnp.where(inside, x, 1.0)
    is_low = safe <= 1
    low = _expn_series(whole, cnp.where(is_low, safe, 1.0))
    high = _expn_fraction(whole, cnp.where(is_low, 2.0, safe))
    positive = cnp.where(x > 0, x, 1.0)
    found = cnp.where(is_low, low, high)
    at_zero = cnp.where(n > 1, 1.0 / cnp.where(n > 1, n - 1, 1.0), np.inf)
    ends = cnp.where(x == 0, at_zero, cnp.where(x == np.inf, 0.0, cnp.full_like(x, np.nan)))
    return cnp.where(inside, found, cnp.where((n == 0) & (x > 0), cnp.exp(-positive) / positive, ends))


def _expn_slope(t: Any, out: Any, n: Any, x: Any) -> Any:
    return -t * cnp.where(n == 0, out * (1 + 1 / cnp.where(x == 0, 1.0, x)), _expn(cnp.maximum(n - 1, 0.0), x))


_expn.defjvps(None, _expn_slope)


@in_single
def expn(n: Any, x: Any) -> Any:
    """The exponential integral of a whole order n, of exp(-x t) / t**n from 1 to infinity; differentiated by x.

    >>> round(float(expn(2, 1.0)), 12)
    0.148495506776
    """
    return _expn(*promoted(n, x))


@in_single
def exp1(x: Any) -> Any:
    """The exponential integral of order 1, of exp(-t) / t from x to infinity.

    >>> round(float(exp1(1.0)), 12)
    0.219383934396
    """
    return expn(1.0, x)


@custom_jvp
def _expi(x: Any) -> Any:
    negative = -_expn(cnp.ones_like(x), cnp.where(x < 0, -x, 1.0))
    # Convergent and asymptotic series: Abramowitz and Stegun 5.1.10 and 5.1.51.
    is_far = x > 40
    near = cnp.where((x > 0) & ~is_far, x, 1.0)
    # Of the sum of x**k / (k k!) a term is the one before times x k / (k + 1)**2.
    series = _EULER + cnp.log(near) + summed(lambda k, now: now * near * k / (k + 1) ** 2, near)
    far = cnp.where(is_far & (x < np.inf), x, 50.0)
    total, term = cnp.ones_like(far), cnp.ones_like(far)
    for k in range(1, 40):
        term = term * k / far
        total = total + term
    found = cnp.where(is_far, cnp.exp(far) / far * total, series)
    found = cnp.where(x == np.inf, np.inf, found)
    return cnp.where(x < 0, negative, cnp.where(x == 0, -np.inf, cnp.where(x > 0, found, np.nan)))


_expi.defjvps(lambda t, out, x: t * cnp.exp(x) / x)


@in_single
def expi(x: Any) -> Any:
    """The exponential integral, of exp(t) / t from minus infinity to x; as a principal value beyond 0.

    >>> round(float(expi(1.0)), 12)
    1.895117816356
    """
    return _expi(floats(x))


@custom_jvp
def _spence(x: Any) -> Any:
    positive = cnp.where(x > 0, x, 1.0)
    is_large = positive > 1.5
    y = cnp.where(is_large, 1 / positive, positive)
    is_small = y < 0.5
    z = cnp.where(is_small, y, 1 - y)
    series = summed(lambda k, now: now * z * (k / (k + 1)) ** 2, z)
    # Abramowitz and Stegun 27.7.3 and 27.7.5.
    series = cnp.where(is_small, math.pi**2 / 6 - cnp.log(y) * cnp.log1p(cnp.where(is_small, -y, 0.0)) - series, series)
    series = cnp.where(is_large, -0.5 * cnp.log(y) ** 2 - series, series)
    return cnp.where(x > 0, series, cnp.where(x == 0, math.pi**2 / 6, cnp.full_like(x, np.nan)))


def _spence_slope(t: Any, out: Any, x: Any) -> Any:
    is_one = x == 1
    safe = cnp.where(is_one, 2.0, x)
    return t * cnp.where(is_one, -1.0, cnp.log(safe) / (1 - safe))


_spence.defjvps(_spence_slope)


@in_single
def spence(x: Any) -> Any:
    """Spence's function, the dilogarithm of 1 - x: the integral of log(t) / (1 - t) from 1 to x.

    >>> bool(abs(spence(0.0) - np.pi**2 / 6) < 1e-12)
    True
    """
    return _spence(floats(x))


@custom_jvp
def _dawsn(x: Any) -> Any:
    """Rybicki, "Dawson's integral and the sampling theorem" (1989); near 0 the series, which keeps all digits."""
    step, count = 0.25, 25
    odd = np.arange(-count, count + 1, 2).astype(x.dtype)
    is_near = cnp.abs(x) < 0.3
    safe = cnp.where(is_near | ~(cnp.abs(x) < 1e8), 1.0, x)
    nearest = 2 * cnp.round(safe / (2 * step))
    rest = safe - nearest * step
    parts = cnp.exp(-((rest[..., None] - odd * step) ** 2)) / (odd + nearest[..., None])
    sampled = cnp.sum(parts, -1) / math.sqrt(math.pi)
    near = cnp.where(is_near, x, 0.0)
    series: Any = 1.0
    for k in range(14, 0, -1):
        series = 1 - series * 2 * near * near / (2 * k + 1)
    is_far = cnp.abs(x) >= 1e8
    far = 0.5 / cnp.where(is_far, x, 1.0)
    return cnp.where(is_near, near * series, cnp.where(is_far, far, cnp.where(cnp.isnan(x), x, sampled)))


_dawsn.defjvps(lambda t, out, x: t * (1 - 2 * x * out))


@in_single
def dawsn(x: Any) -> Any:
    """Dawson's integral, exp(-x**2) times that of exp(t**2) from 0 to x.

    >>> round(float(dawsn(1.0)), 12)
    0.538079506913
    """
    return _dawsn(floats(x))


__all__ = ["dawsn", "exp1", "expi", "expn", "spence"]
