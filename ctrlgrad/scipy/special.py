"""Special functions by SciPy's names, as `jax.scipy.special`: compositions of the graph's own ops, so that they are
compiled and mapped like them; where a derivative is simpler than that of the approximation, it has a rule.

    >>> from ctrlgrad.scipy import special
    >>> float(special.erf(0.0)), round(float(special.gammaln(5.0)), 12)
    (0.0, 3.178053830348)
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad.numpy import log_softmax, logsumexp, softmax
from ctrlgrad.scipy.bessel import i0, i0e, i1, i1e
from ctrlgrad.scipy.error_functions import erf, erfc, erfcx, floats, in_single
from ctrlgrad.scipy.gamma_functions import betaln, digamma, gamma, gammaln, gammasgn, loggamma, polygamma, zeta
from ctrlgrad.scipy.incomplete import betainc, gammainc, gammaincc
from ctrlgrad.scipy.integrals import dawsn, exp1, expi, expn, spence
from ctrlgrad.scipy.normal import log_ndtr, ndtr, ndtri


def expit(x: Any) -> Any:
    """1 / (1 + exp(-x)).

    >>> float(expit(0.0))
    0.5
    """
    return cnp.sigmoid(floats(x))


@in_single
def logit(x: Any) -> Any:
    """log(x / (1 - x)).

    >>> float(logit(0.5))
    0.0
    """
    x = floats(x)
    return cnp.log(x / (1.0 - x))


def _safe(x: Any, is_zero: Any) -> Any:
    return cnp.where(is_zero, 1.0, x)


def _times_log(x: Any, y: Any, log: Any, end: float) -> Any:
    """x log(y), and 0 where x is 0, with the slope log(y) in x also where it is infinite: at `end` and at infinity."""
    is_off = (x == 0) & ~((y > end) & (y < np.inf))
    is_end = is_off & ((y == end) | (y == np.inf))
    # A square root is 0 at 0, with an infinite slope.
    root = cnp.sqrt(cnp.where(is_end, cnp.where(cnp.signbit(x), -x, x), 1.0))
    steep = cnp.where(cnp.signbit(x) == (y == end), root, -root) + 0.0
    return cnp.where(is_off, cnp.where(is_end, steep, 0.0), x * log(_safe(y, is_off)))


@in_single
def xlogy(x: Any, y: Any) -> Any:
    """x log(y), and 0 where x is 0.

    >>> float(xlogy(0.0, 0.0))
    0.0
    """
    x, y = floats(x), floats(y)
    return _times_log(x, y, cnp.log, 0.0)


@in_single
def xlog1py(x: Any, y: Any) -> Any:
    """x log(1 + y), and 0 where x is 0.

    >>> float(xlog1py(0.0, -1.0))
    0.0
    """
    x, y = floats(x), floats(y)
    return _times_log(x, y, cnp.log1p, -1.0)


@in_single
def entr(x: Any) -> Any:
    """-x log(x), 0 at 0 and -inf below.

    >>> float(entr(1.0))
    -0.0
    """
    x = floats(x)
    return cnp.where(x < 0, -np.inf, -xlogy(x, cnp.where(x < 0, 1.0, x)))


@in_single
def rel_entr(p: Any, q: Any) -> Any:
    """p log(p / q), 0 where p is 0 and q is not negative, else inf outside of the positive numbers.

    >>> float(rel_entr(1.0, 1.0))
    0.0
    """
    p, q = floats(p), floats(q)
    inside = (p > 0) & (q > 0)
    found = _safe(p, ~inside) * cnp.log(_safe(p, ~inside) / _safe(q, ~inside))
    return cnp.where(inside, found, cnp.where((p == 0) & (q >= 0), 0.0, np.inf))


@in_single
def kl_div(p: Any, q: Any) -> Any:
    """p log(p / q) - p + q.

    >>> float(kl_div(1.0, 1.0))
    0.0
    """
    return rel_entr(p, q) - floats(p) + floats(q)


@in_single
def boxcox(x: Any, lmbda: Any) -> Any:
    """(x**lmbda - 1) / lmbda, and log(x) for lmbda 0.

    >>> float(boxcox(1.0, 2.0))
    0.0
    """
    return boxcox1p(floats(x) - 1.0, lmbda)


@in_single
def boxcox1p(x: Any, lmbda: Any) -> Any:
    """`boxcox` of 1 + x.

    >>> float(boxcox1p(0.0, 2.0))
    0.0
    """
    power, logarithm = floats(lmbda), cnp.log1p(floats(x))
    safe = _safe(power, power == 0)
    return cnp.where(power == 0, logarithm, cnp.expm1(safe * logarithm) / safe)


@in_single
def factorial(n: Any, exact: bool = False) -> Any:
    """gamma(n + 1), 0 for negative n.

    >>> round(float(factorial(4)), 9)
    24.0
    """
    n = floats(n)
    return cnp.where(n < 0, 0.0, cnp.exp(gammaln(cnp.where(n < 0, 0.0, n) + 1.0)))


@in_single
def beta(a: Any, b: Any) -> Any:
    """gamma(a) gamma(b) / gamma(a + b).

    >>> round(float(beta(1.0, 2.0)), 12)
    0.5
    """
    a, b = floats(a), floats(b)
    return gammasgn(a) * gammasgn(b) * gammasgn(a + b) * cnp.exp(betaln(a, b))


@in_single
def comb(N: Any, k: Any) -> Any:
    """How many ways there are to choose k of N.

    >>> round(float(comb(5, 2)), 9)
    10.0
    """
    n, k = floats(N), floats(k)
    inside = (k >= 0) & (k <= n)
    k = cnp.where(inside, k, 0.0)
    return cnp.where(inside, cnp.exp(gammaln(n + 1.0) - gammaln(k + 1.0) - gammaln(n - k + 1.0)), 0.0)


@in_single
def poch(z: Any, m: Any) -> Any:
    """gamma(z + m) / gamma(z).

    >>> round(float(poch(2.0, 3.0)), 9)
    24.0
    """
    z, m = floats(z), floats(m)
    return cnp.where(m == 0, 1.0, gammasgn(z + m) * gammasgn(z) * cnp.exp(gammaln(z + m) - gammaln(z)))


@in_single
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


def erfinv(y: Any) -> Any:
    """The inverse of the error function.

    >>> float(erfinv(0.0))
    0.0
    """
    return cnp.erfinv(floats(y))


def bernoulli(n: int) -> Any:
    """The Bernoulli numbers from 0 to n, of which the first two are 1 and -1/2.

    >>> bernoulli(2)
    array([ 1.        , -0.5       ,  0.16666667])
    """
    found = [Fraction(1)]
    for m in range(1, n + 1):
        found.append(-sum((math.comb(m + 1, k) * b for k, b in enumerate(found)), Fraction(0)) / (m + 1))
    return np.array([float(b) for b in found])


__all__ = [
    "bernoulli",
    "beta",
    "betainc",
    "betaln",
    "boxcox",
    "boxcox1p",
    "comb",
    "dawsn",
    "digamma",
    "entr",
    "erf",
    "erfc",
    "erfcx",
    "erfinv",
    "exp1",
    "expi",
    "expit",
    "expn",
    "factorial",
    "gamma",
    "gammainc",
    "gammaincc",
    "gammaln",
    "gammasgn",
    "i0",
    "i0e",
    "i1",
    "i1e",
    "kl_div",
    "log_ndtr",
    "log_softmax",
    "loggamma",
    "logit",
    "logsumexp",
    "multigammaln",
    "ndtr",
    "ndtri",
    "poch",
    "polygamma",
    "rel_entr",
    "softmax",
    "spence",
    "xlog1py",
    "xlogy",
    "zeta",
]
