"""Special functions by SciPy's names, as `jax.scipy.special`: compositions of the graph's own ops, so that they are
compiled and mapped like them; where a derivative is simpler than that of the approximation, it has a rule.

    >>> from ctrlgrad.scipy import special
    >>> float(special.erf(0.0)), round(float(special.gammaln(5.0)), 12)
    (0.0, 3.178053830348)
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad.numpy import log_softmax, logsumexp, softmax
from ctrlgrad.scipy.error_functions import erf, erfc, floats
from ctrlgrad.transforms.custom_jvp import custom_jvp


def ndtr(x: Any) -> Any:
    """The probability that a standard normal number is less than x.

    >>> float(ndtr(0.0))
    0.5
    """
    return 0.5 * erfc(-floats(x) * math.sqrt(0.5))


def expit(x: Any) -> Any:
    """1 / (1 + exp(-x)).

    >>> float(expit(0.0))
    0.5
    """
    return cnp.sigmoid(floats(x))


def logit(x: Any) -> Any:
    """log(x / (1 - x)).

    >>> float(logit(0.5))
    0.0
    """
    x = floats(x)
    return cnp.log(x / (1.0 - x))


def _safe(x: Any, is_zero: Any) -> Any:
    return cnp.where(is_zero, 1.0, x)


def xlogy(x: Any, y: Any) -> Any:
    """x log(y), and 0 where x is 0.

    >>> float(xlogy(0.0, 0.0))
    0.0
    """
    x, y = floats(x), floats(y)
    return cnp.where(x == 0, 0.0, x * cnp.log(_safe(y, x == 0)))


def xlog1py(x: Any, y: Any) -> Any:
    """x log(1 + y), and 0 where x is 0.

    >>> float(xlog1py(0.0, -1.0))
    0.0
    """
    x, y = floats(x), floats(y)
    return cnp.where(x == 0, 0.0, x * cnp.log1p(_safe(y, x == 0)))


def entr(x: Any) -> Any:
    """-x log(x), 0 at 0 and -inf below.

    >>> float(entr(1.0))
    -0.0
    """
    x = floats(x)
    return cnp.where(x < 0, -np.inf, -xlogy(x, cnp.where(x < 0, 1.0, x)))


def rel_entr(p: Any, q: Any) -> Any:
    """p log(p / q), 0 where p is 0 and q is not negative, else inf outside of the positive numbers.

    >>> float(rel_entr(1.0, 1.0))
    0.0
    """
    p, q = floats(p), floats(q)
    inside = (p > 0) & (q > 0)
    found = _safe(p, ~inside) * cnp.log(_safe(p, ~inside) / _safe(q, ~inside))
    return cnp.where(inside, found, cnp.where((p == 0) & (q >= 0), 0.0, np.inf))


def kl_div(p: Any, q: Any) -> Any:
    """p log(p / q) - p + q.

    >>> float(kl_div(1.0, 1.0))
    0.0
    """
    return rel_entr(p, q) - floats(p) + floats(q)


def boxcox(x: Any, lmbda: Any) -> Any:
    """(x**lmbda - 1) / lmbda, and log(x) for lmbda 0.

    >>> float(boxcox(1.0, 2.0))
    0.0
    """
    return boxcox1p(floats(x) - 1.0, lmbda)


def boxcox1p(x: Any, lmbda: Any) -> Any:
    """`boxcox` of 1 + x.

    >>> float(boxcox1p(0.0, 2.0))
    0.0
    """
    power, logarithm = floats(lmbda), cnp.log1p(floats(x))
    safe = _safe(power, power == 0)
    return cnp.where(power == 0, logarithm, cnp.expm1(safe * logarithm) / safe)


# Of the logarithm of the gamma function, by Stirling's series from where that has converged; Bernoulli numbers.
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)
_SHIFT = 10


def zeta(x: Any, q: Any = 1.0) -> Any:
    """Hurwitz' zeta function, the sum of (q + k)**-x over k from 0, for x > 1 and q > 0.

    Source: Euler and Maclaurin's formula, Abramowitz and Stegun 23.1.30.

    >>> bool(abs(float(zeta(2.0)) - np.pi**2 / 6) < 1e-12)
    True
    """
    x, q = floats(x), floats(q)
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
    """The logarithm of gamma(x) for x > 0, and digamma."""
    product: Any = 1.0
    inverse: Any = 0.0
    for k in range(_SHIFT):
        product = product * (x + k)
        inverse = inverse + 1.0 / (x + k)
    a = x + _SHIFT
    large = x > 1e10
    logarithm = (a - 0.5) * cnp.log(a) - a + 0.5 * math.log(2 * math.pi)
    slope = cnp.log(a) - 0.5 / a
    power = 1.0 / a
    for i, b in enumerate(_BERNOULLI):
        logarithm = logarithm + b / ((2 * i + 1) * (2 * i + 2)) * power
        power = power / a
        slope = slope - b / (2 * i + 2) * power
        power = power / a
    logarithm = logarithm - cnp.log(_safe(product, large))
    finite = cnp.where(x == np.inf, 1.0, x)
    far = (finite - 0.5) * cnp.log(finite) - finite + 0.5 * math.log(2 * math.pi)
    return cnp.where(x == np.inf, x, cnp.where(large, far, logarithm)), slope - inverse


def _mirrored(x: Any) -> tuple[Any, Any]:
    """Where x < 0.5, and 1 - x there: what the reflection formula goes by."""
    low = x < 0.5
    return low, cnp.where(low, 1.0 - x, x)


@custom_jvp
def _gammaln(x: Any) -> Any:
    low, positive = _mirrored(x)
    value = _stirling(positive)[0]
    sine = cnp.abs(cnp.sin(math.pi * cnp.remainder(x, 1.0)))
    sine = cnp.where((x <= 0) & (x == cnp.floor(x)), 0.0, sine)
    return cnp.where(low, math.log(math.pi) - cnp.log(cnp.where(low, sine, 1.0)) - value, value)


@custom_jvp
def _digamma(x: Any) -> Any:
    low, positive = _mirrored(x)
    value = _stirling(positive)[1]
    turned = math.pi * cnp.where(low, x, 0.25)
    return cnp.where(low, cnp.where((x <= 0) & (x == cnp.floor(x)), np.nan, value - math.pi / cnp.tan(turned)), value)


def _trigamma(x: Any) -> Any:
    low, positive = _mirrored(x)
    value = zeta(2.0, positive)
    sine = cnp.sin(math.pi * cnp.where(low, x, 0.5))
    return cnp.where(low, (math.pi / sine) ** 2 - value, value)


_gammaln.defjvps(lambda t, out, x: t * _digamma(x))
_digamma.defjvps(lambda t, out, x: t * _trigamma(x))


def gammaln(x: Any) -> Any:
    """The logarithm of |gamma(x)|. Its derivative is `digamma`.

    >>> bool(abs(gammaln(5.0) - np.log(24.0)) < 1e-12)
    True
    """
    return _gammaln(floats(x))


loggamma = gammaln


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


def gamma(x: Any) -> Any:
    """The gamma function.

    >>> round(float(gamma(5.0)), 9)
    24.0
    """
    return gammasgn(x) * cnp.exp(gammaln(x))


def factorial(n: Any, exact: bool = False) -> Any:
    """gamma(n + 1), 0 for negative n.

    >>> round(float(factorial(4)), 9)
    24.0
    """
    n = floats(n)
    return cnp.where(n < 0, 0.0, cnp.exp(gammaln(cnp.where(n < 0, 0.0, n) + 1.0)))


def betaln(a: Any, b: Any) -> Any:
    """The logarithm of `beta`.

    >>> bool(abs(float(betaln(1.0, 2.0)) + np.log(2)) < 1e-12)
    True
    """
    a, b = floats(a), floats(b)
    return gammaln(a) + gammaln(b) - gammaln(a + b)


def beta(a: Any, b: Any) -> Any:
    """gamma(a) gamma(b) / gamma(a + b).

    >>> round(float(beta(1.0, 2.0)), 12)
    0.5
    """
    a, b = floats(a), floats(b)
    return gammasgn(a) * gammasgn(b) * gammasgn(a + b) * cnp.exp(betaln(a, b))


def comb(N: Any, k: Any) -> Any:
    """How many ways there are to choose k of N.

    >>> round(float(comb(5, 2)), 9)
    10.0
    """
    n, k = floats(N), floats(k)
    inside = (k >= 0) & (k <= n)
    k = cnp.where(inside, k, 0.0)
    return cnp.where(inside, cnp.exp(gammaln(n + 1.0) - gammaln(k + 1.0) - gammaln(n - k + 1.0)), 0.0)


def poch(z: Any, m: Any) -> Any:
    """gamma(z + m) / gamma(z).

    >>> round(float(poch(2.0, 3.0)), 9)
    24.0
    """
    z, m = floats(z), floats(m)
    return cnp.where(m == 0, 1.0, gammasgn(z + m) * gammasgn(z) * cnp.exp(gammaln(z + m) - gammaln(z)))


def multigammaln(a: Any, d: int) -> Any:
    """The logarithm of the gamma function of d dimensions.

    >>> round(float(multigammaln(2.0, 1)), 9)
    0.0
    """
    a = floats(a)
    found: Any = d * (d - 1) / 4 * math.log(math.pi)
    for j in range(d):
        found = found + gammaln(a - 0.5 * j)
    return found


__all__ = [
    "beta",
    "betaln",
    "boxcox",
    "boxcox1p",
    "comb",
    "digamma",
    "entr",
    "erf",
    "erfc",
    "expit",
    "factorial",
    "gamma",
    "gammaln",
    "gammasgn",
    "kl_div",
    "log_softmax",
    "loggamma",
    "logit",
    "logsumexp",
    "multigammaln",
    "ndtr",
    "poch",
    "polygamma",
    "rel_entr",
    "softmax",
    "xlog1py",
    "xlogy",
    "zeta",
]
