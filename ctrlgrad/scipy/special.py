"""Special functions by the names of SciPy and `jax.scipy.special`, composed of the graph's own ops.

So they are compiled and mapped like those ops. A function whose derivative is simpler than that of its approximation
has a derivative rule.

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
from ctrlgrad.advice import explain_calls
from ctrlgrad.frontend.array.windows import FAR, NEAR, by_chebyshev
from ctrlgrad.frontend.functions import publish
from ctrlgrad.frontend.loops import fori_loop
from ctrlgrad.numpy import log_softmax as log_softmax
from ctrlgrad.numpy import logsumexp as logsumexp
from ctrlgrad.numpy import softmax as softmax
from ctrlgrad.scipy import gamma_functions
from ctrlgrad.scipy.gamma_functions import *
from ctrlgrad.scipy.gamma_functions import floats, fraction, in_single, special, summed

# Probabilities of the normal distribution, their logarithms and inverse.


@in_single
def ndtr(x: Any) -> Any:
    """The probability that a standard normal number is less than x.

    >>> float(ndtr(0.0))
    0.5
    """
    return 0.5 * erfc(-floats(x) * math.sqrt(0.5))


def _hazard(x: Any) -> Any:
    """The density at x divided by the probability to lie below."""
    is_low = x < -1
    low = math.sqrt(2 / math.pi) / erfcx(-cnp.where(is_low, x, -1.0) * math.sqrt(0.5))
    high = cnp.where(is_low, 0.0, x)
    return cnp.where(is_low, low, cnp.exp(-0.5 * high * high) / math.sqrt(2 * math.pi) / ndtr(high))


@special(lambda t, out, x: t * _hazard(x))
def log_ndtr(x: Any) -> Any:
    """The logarithm of `ndtr`, exact for very negative x.

    >>> round(float(log_ndtr(-40.0)), 9)
    -804.608442014
    """
    is_low = x < -1
    low = cnp.where(is_low, x, -1.0)
    tail = cnp.log(0.5 * erfcx(-low * math.sqrt(0.5))) - 0.5 * low * low
    return cnp.where(is_low, tail, cnp.log1p(-0.5 * erfc(cnp.where(is_low, 0.0, x) * math.sqrt(0.5))))


# Wichura, "Algorithm AS 241: The percentage points of the normal distribution", 1988, routine PPND16: the coefficients
# of a numerator and a denominator, from the constant on, for |p - 1/2| <= 0.425, for sqrt(-log p) <= 5, and beyond.
_CENTRE = (
    (3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3, 1.3731693765509461125e4,
     4.5921953931549871457e4, 6.7265770927008700853e4, 3.3430575583588128105e4, 2.5090809287301226727e3),
    (1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3,
     2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4, 5.2264952788528545610e3),
)  # fmt: skip
_MIDDLE = (
    (1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0, 3.64784832476320460504e0,
     1.27045825245236838258e0, 2.41780725177450611770e-1, 2.27238449892691845833e-2, 7.74545014278341407640e-4),
    (1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1,
     1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4, 1.05075007164441684324e-9),
)  # fmt: skip
_TAIL = (
    (6.65790464350110377720e0, 5.46378491116411436990e0, 1.78482653991729133580e0, 2.96560571828504891230e-1,
     2.65321895265761230930e-2, 1.24266094738807843860e-3, 2.71155556874348757815e-5, 2.01033439929228813265e-7),
    (1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1, 1.48753612908506148525e-2,
     7.86869131145613259100e-4, 1.84631831751005468180e-5, 1.42151175831644588870e-7, 2.04426310338993978564e-15),
)  # fmt: skip


def _rational(coefficients: tuple[tuple[float, ...], tuple[float, ...]], x: Any) -> Any:
    numerator, denominator = (cnp.polyval(cnp.asarray(c[::-1], dtype=x.dtype), x) for c in coefficients)
    return numerator / denominator


@special(lambda t, out, p: t * math.sqrt(2 * math.pi) * cnp.exp(0.5 * out * out))
def ndtri(p: Any) -> Any:
    """The inverse of `ndtr`.

    >>> float(ndtri(0.5))
    0.0
    """
    inside = (p > 0) & (p < 1)
    centred = cnp.where(inside, p - 0.5, 0.0)
    is_central = cnp.abs(centred) <= 0.425
    central = cnp.where(is_central, centred, 0.0)
    x = central * _rational(_CENTRE, 0.180625 - central * central)
    depth = cnp.sqrt(-cnp.log(cnp.where(is_central, 0.05, cnp.minimum(p, 1 - p))))
    is_middle = depth <= 5
    middle = _rational(_MIDDLE, cnp.where(is_middle, depth, 1.6) - 1.6)
    far = cnp.where(is_middle, middle, _rational(_TAIL, cnp.where(is_middle, 5.0, depth) - 5))
    ends = cnp.where(p == 0, -np.inf, cnp.where(p == 1, np.inf, cnp.full_like(p, np.nan)))
    return cnp.where(inside, cnp.where(is_central, x, cnp.sign(centred) * far), ends)


# Modified Bessel functions of order 0 and 1, by series of Chebyshev polynomials (`frontend.array.windows`).
#
# The coefficients of order 1 interpolate exp(-x) i1(x) / x on [0, 8], and exp(-x) i1(x) sqrt(x) as a function of 16 /
# x beyond: computed from the power series and the asymptotic one with 75 digits.


_NEAR_1 = (
    0.12629359322181682, -0.17641651835783406, 0.1026436586898471, -0.05294598120809499,
    0.024726449030626516, -0.010564084894626197, 0.004156422944312888, -0.0015135724506312532,
    0.0005122859561685758, -0.00016176081582589674, 4.781565107550054e-05, -1.3273163656039436e-05,
    3.4702513081376785e-06, -8.568720264695455e-07, 2.0032947535521353e-07, -4.445059128796328e-08,
    9.381537386495773e-09, -1.8872497517228294e-09, 3.625590281552117e-10, -6.663489723502027e-11,
    1.1736186298890901e-11, -1.9839743977649436e-12, 3.223793365945566e-13, -5.042185504727032e-14,
    7.600684294649187e-15, -1.105596946911604e-15, 1.5536318810494503e-16, -2.111414263388092e-17,
    2.7773010799570167e-18, -3.48901447271639e-19,
)  # fmt: skip
_FAR_1 = (
    0.38928811750914005, -0.009761097491361469, -0.00011058893876262371, -3.882564808877691e-06,
    -2.512236237870209e-07, -2.6314688468895196e-08, -3.835380385964237e-09, -5.589743462196588e-10,
    -1.8974958123505018e-11, 3.252603583015619e-11, 1.4125807436610371e-11, 2.035628544145659e-12,
    -7.198551776076825e-13, -4.083551111229825e-13, -2.101541848889319e-14, 4.272440029894204e-14,
    1.0420277129407892e-14, -3.814403848436759e-15, -1.8803547176404084e-15, 3.3082398311004077e-16,
    2.962593388506307e-16, -3.211138763845076e-17, -4.6472555560369855e-17, 4.4782909949543995e-18,
    7.314601872436776e-18, -1.172845558678173e-18,
)  # fmt: skip


def _slope_of_i1e(x: Any, value: Any) -> Any:
    """i1' = i0 - i1 / x, where a series gives the quotient near 0: it has the derivatives of higher order too."""
    is_near = cnp.abs(x) < 0.5
    near = cnp.where(is_near, x, 0.0)
    series: Any = 1.0
    for k in range(9, 0, -1):
        series = 1 + series * (near * near / (4 * k * (k + 1)))
    quotient = cnp.where(is_near, 0.5 * cnp.exp(-cnp.abs(near)) * series, value / cnp.where(is_near, 1.0, x))
    return i0e(x) - value * cnp.sign(x) - quotient


@special(lambda t, out, x: t * (i1e(x) - cnp.sign(x) * out))
def i0e(x: Any) -> Any:
    """exp(-|x|) `i0`(x).

    >>> round(float(i0e(0.0)), 12)
    1.0
    """
    return by_chebyshev(cnp.abs(x), NEAR, FAR)


@special(lambda t, out, x: t * _slope_of_i1e(x, out))
def i1e(x: Any) -> Any:
    """exp(-|x|) `i1`(x).

    >>> float(i1e(0.0))
    0.0
    """
    size = cnp.abs(x)
    return cnp.copysign(by_chebyshev(size, _NEAR_1, _FAR_1) * cnp.where(size <= 8, size, 1.0), x)


@in_single
def i0(x: Any) -> Any:
    """The modified Bessel function of the first kind of order 0.

    >>> round(float(i0(1.0)), 12)
    1.266065877752
    """
    x = floats(x)
    return cnp.exp(cnp.abs(x)) * i0e(x)


@in_single
def i1(x: Any) -> Any:
    """The modified Bessel function of the first kind of order 1.

    >>> round(float(i1(1.0)), 12)
    0.565159103992
    """
    x = floats(x)
    return cnp.exp(cnp.abs(x)) * i1e(x)


# The exponential integrals, Dawson's integral and the dilogarithm.


_EULER = 0.57721566490153286061
# Number of terms of the series for small arguments: each is below 1 / k!.
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


def _expn_slope(t: Any, out: Any, n: Any, x: Any) -> Any:
    return -t * cnp.where(n == 0, out * (1 + 1 / cnp.where(x == 0, 1.0, x)), expn(cnp.maximum(n - 1, 0.0), x))


@special(None, _expn_slope)
def expn(n: Any, x: Any) -> Any:
    """The exponential integral of a whole order n, of exp(-x t) / t**n from 1 to infinity; differentiated by x.

    >>> round(float(expn(2, 1.0)), 12)
    0.148495506776
    """
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


@in_single
def exp1(x: Any) -> Any:
    """The exponential integral of order 1, of exp(-t) / t from x to infinity.

    >>> round(float(exp1(1.0)), 12)
    0.219383934396
    """
    return expn(1.0, x)


@special(lambda t, out, x: t * cnp.exp(x) / x)
def expi(x: Any) -> Any:
    """The exponential integral, of exp(t) / t from minus infinity to x; as a principal value beyond 0.

    >>> round(float(expi(1.0)), 12)
    1.895117816356
    """
    negative = -expn(cnp.ones_like(x), cnp.where(x < 0, -x, 1.0))
    # Convergent and asymptotic series: Abramowitz and Stegun 5.1.10 and 5.1.51.
    is_far = x > 40
    near = cnp.where((x > 0) & ~is_far, x, 1.0)
    # In the sum of x**k / (k k!) each term is the previous one times x k / (k + 1)**2.
    series = _EULER + cnp.log(near) + summed(lambda k, now: now * near * k / (k + 1) ** 2, near)
    far = cnp.where(is_far & (x < np.inf), x, 50.0)
    total, term = cnp.ones_like(far), cnp.ones_like(far)
    for k in range(1, 40):
        term = term * k / far
        total = total + term
    found = cnp.where(is_far, cnp.exp(far) / far * total, series)
    found = cnp.where(x == np.inf, np.inf, found)
    return cnp.where(x < 0, negative, cnp.where(x == 0, -np.inf, cnp.where(x > 0, found, np.nan)))


def _spence_slope(t: Any, out: Any, x: Any) -> Any:
    """log(x) / (1 - x); near 1 the series of 2 arctanh((x - 1) / (x + 1)), which has derivatives there."""
    is_near = cnp.abs(x - 1) < 0.25
    near, safe = cnp.where(is_near, x, 1.0), cnp.where(is_near, 2.0, x)
    square = ((near - 1) / (near + 1)) ** 2
    series: Any = 1 / 27
    for k in range(12, -1, -1):
        series = 1 / (2 * k + 1) + series * square
    return t * cnp.where(is_near, -2 / (near + 1) * series, cnp.log(safe) / (1 - safe))


@special(_spence_slope)
def spence(x: Any) -> Any:
    """Spence's function, the dilogarithm of 1 - x: the integral of log(t) / (1 - t) from 1 to x.

    >>> bool(abs(spence(0.0) - np.pi**2 / 6) < 1e-12)
    True
    """
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


@special(lambda t, out, x: t * (1 - 2 * x * out))
def dawsn(x: Any) -> Any:
    """Dawson's integral, exp(-x**2) times that of exp(t**2) from 0 to x.

    >>> round(float(dawsn(1.0)), 12)
    0.538079506913
    """
    # Rybicki, "Dawson's integral and the sampling theorem" (1989); near 0 the series, which keeps all digits.
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
    # Of the same slope as log(x / (1 - x)), also at 0 and 1, where that is infinite.
    return cnp.log(x) - cnp.log1p(-x)


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
    # Near 0 the series of expm1(y) / y: its slope in lmbda is log(1 + x)**2 / 2 there.
    exponent = power * cnp.where((power == 0) & cnp.isinf(logarithm), 0.0, logarithm)
    is_near = cnp.abs(exponent) < 0.5
    near = cnp.where(is_near, exponent, 0.0)
    series: Any = 1.0
    for k in range(17, 1, -1):
        series = 1 + series * (near / k)
    far = cnp.expm1(exponent) / _safe(power, is_near)
    return cnp.where(is_near, cnp.where(is_near, logarithm, 0.0) * series, far)


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
    """Number of ways to choose k of N.

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
    # Both logarithms are infinite at the poles of gamma. Elsewhere m = 0 has the slope digamma(z).
    is_pole = (m == 0) & ((z == np.inf) | ((z <= 0) & (z == cnp.floor(z))))
    safe = cnp.where(is_pole, 1.0, z)
    found = gammasgn(safe + m) * gammasgn(safe) * cnp.exp(gammaln(safe + m) - gammaln(safe))
    return cnp.where(is_pole, 1.0, found)


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


publish(__name__, more=[*vars(gamma_functions)["__all__"], "log_softmax", "logsumexp", "softmax"])
explain_calls(globals(), globals()["__all__"])
