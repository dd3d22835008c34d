"""The gamma function, its logarithm and the derivatives of that."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad.scipy.error_functions import floats, in_single, polynomial, promoted
from ctrlgrad.transforms.custom_jvp import custom_jvp


def _safe(x: Any, is_zero: Any) -> Any:
    return cnp.where(is_zero, 1.0, x)


# Of the logarithm of the gamma function, by Stirling's series from where that has converged; Bernoulli numbers.
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)
_OF_LOGARITHM = [b / ((2 * i + 1) * (2 * i + 2)) for i, b in enumerate(_BERNOULLI)][::-1]
_OF_SLOPE = [b / (2 * i + 2) for i, b in enumerate(_BERNOULLI)][::-1]
_SHIFT = 10


@in_single
def zeta(x: Any, q: Any = 1.0) -> Any:
    """Hurwitz' zeta function, the sum of (q + k)**-x over k from 0, for x > 1 and q > 0.

    Source: Euler and Maclaurin's formula, Abramowitz and Stegun 23.1.30.

    >>> bool(abs(float(zeta(2.0)) - np.pi**2 / 6) < 1e-12)
    True
    """
    x, q = promoted(x, q)
    total: Any = 0.0
    for k in range(_SHIFT):
        total = total + (q + k) ** -x
    a = q + _SHIFT
    total = total + a ** (1 - x) / (x - 1) + 0.5 * a**-x
    factor = x * a ** (-x - 1)
    for i, b in enumerate(_BERNOULLI):
        total = total + b / math.factorial(2 * i + 2) * factor
        factor = factor * (x + 2 * i + 1) * (x + 2 * i + 2) / (a * a)
    return cnp.where(x == 1, np.inf, total)


@in_single
def polygamma(n: Any, x: Any) -> Any:
    """The derivative of order n, a whole number, of `digamma`, for x > 0.

    >>> bool(abs(float(polygamma(1, 1.0)) - np.pi**2 / 6) < 1e-12)
    True
    """
    if isinstance(n, int):
        x = floats(x)
        return digamma(x) if n == 0 else (-1) ** (n + 1) * math.factorial(n) * zeta(n + 1.0, x)
    n = floats(n)
    sign = 1.0 - 2.0 * cnp.remainder(n + 1.0, 2.0)
    return cnp.where(n == 0, digamma(x), sign * gamma(n + 1.0) * zeta(cnp.where(n == 0, 2.0, n + 1.0), x))


def _stirling(x: Any) -> Any:
    """The logarithm of gamma(x) for x > 0."""
    product: Any = 1.0
    for k in range(_SHIFT):
        product = product * (x + k)
    large = x > 1e10
    a = _safe(x + _SHIFT, large)
    logarithm = (a - 0.5) * cnp.log(a) - a + 0.5 * math.log(2 * math.pi)
    logarithm = logarithm + polynomial(_OF_LOGARITHM, 1.0 / (a * a)) / a - cnp.log(_safe(product, large))
    finite = cnp.where(x == np.inf, 1.0, x)
    far = (finite - 0.5) * cnp.log(finite) - finite + 0.5 * math.log(2 * math.pi)
    return cnp.where(x == np.inf, x, cnp.where(large, far, logarithm))


def _stirling_slope(x: Any) -> Any:
    """Its derivative."""
    inverse: Any = 0.0
    for k in range(_SHIFT):
        inverse = inverse + 1.0 / (x + k)
    a = x + _SHIFT
    square = 1.0 / (a * a)
    return cnp.log(a) - 0.5 / a - square * polynomial(_OF_SLOPE, square) - inverse


def _mirrored(x: Any) -> tuple[Any, Any]:
    """Return a mask of x < 0.5, and x with 1 - x where it is true, for the reflection formula."""
    low = x < 0.5
    return low, cnp.where(low, 1.0 - x, x)


def _turned(x: Any, low: Any, other: float) -> Any:
    """pi x without its whole turns, which rounding would be part of, where x is low; elsewhere pi times the other."""
    return math.pi * cnp.where(low, x - cnp.rint(x), other)


@custom_jvp
def _gammaln(x: Any) -> Any:
    low, positive = _mirrored(x)
    value = _stirling(positive)
    sine = cnp.abs(cnp.sin(math.pi * cnp.remainder(x, 1.0)))
    sine = cnp.where((x <= 0) & (x == cnp.floor(x)), 0.0, sine)
    return cnp.where(low, math.log(math.pi) - cnp.log(cnp.where(low, sine, 1.0)) - value, value)


@custom_jvp
def _digamma(x: Any) -> Any:
    low, positive = _mirrored(x)
    value = _stirling_slope(positive)
    turned = _turned(x, low, 0.25)
    return cnp.where(low, cnp.where((x <= 0) & (x == cnp.floor(x)), np.nan, value - math.pi / cnp.tan(turned)), value)


def _trigamma(x: Any) -> Any:
    low, positive = _mirrored(x)
    value = zeta(2.0, positive)
    sine = cnp.sin(_turned(x, low, 0.5))
    return cnp.where(low, (math.pi / sine) ** 2 - value, value)


_gammaln.defjvps(lambda t, out, x: t * _digamma(x))
_digamma.defjvps(lambda t, out, x: t * _trigamma(x))


@in_single
def gammaln(x: Any) -> Any:
    """The logarithm of |gamma(x)|. Its derivative is `digamma`.

    >>> bool(abs(gammaln(5.0) - np.log(24.0)) < 1e-12)
    True
    """
    return _gammaln(floats(x))


loggamma = gammaln


@in_single
def digamma(x: Any) -> Any:
    """The derivative of `gammaln`.

    >>> round(float(digamma(1.0)), 12)
    -0.577215664902
    """
    return _digamma(floats(x))


def gammasgn(x: Any) -> Any:
    """The sign of gamma(x).

    >>> float(gammasgn(-0.5))
    -1.0
    """
    x = floats(x)
    below = cnp.floor(cnp.minimum(x, 0.0))
    return cnp.where((x < 0) & (cnp.remainder(below, 2.0) != 0), -1.0, 1.0)


@in_single
def gamma(x: Any) -> Any:
    """The gamma function.

    >>> round(float(gamma(5.0)), 9)
    24.0
    """
    return gammasgn(x) * cnp.exp(gammaln(x))


@in_single
def betaln(a: Any, b: Any) -> Any:
    """The logarithm of `beta`.

    >>> bool(abs(float(betaln(1.0, 2.0)) + np.log(2)) < 1e-12)
    True
    """
    a, b = promoted(a, b)
    # One series for the three of them.
    of_a, of_b, of_both = gammaln(cnp.stack([a, b, a + b]))
    return of_a + of_b - of_both


__all__ = ["betaln", "digamma", "gamma", "gammaln", "gammasgn", "loggamma", "polygamma", "zeta"]
