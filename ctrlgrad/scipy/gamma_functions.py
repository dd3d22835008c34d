"""Error functions, the gamma function and its logarithm, and incomplete gamma and beta functions."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad.advice import explains_calls, misfit
from ctrlgrad.dtypes import computed_dtype, dtype_kind, finfo, result_type
from ctrlgrad.frontend.apply import is_weak
from ctrlgrad.frontend.functions import described, publish
from ctrlgrad.frontend.loops import while_loop
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.options import default_float
from ctrlgrad.transforms.custom_calls import custom_jvp
from ctrlgrad.transforms.grad import jvp

# The error function and its complement, by rational approximations that are exact to the last digits.


# The rational approximations of fdlibm (Sun Microsystems, s_erf.c, 1993), highest power first.
_NEAR: tuple[float, ...] = (-2.37630166566501626084e-05, -5.77027029648944159157e-03, -2.84817495755985104766e-02)
_NEAR += (-3.25042107247001499370e-01, 1.28379167095512558561e-01)
_NEAR_BELOW: tuple[float, ...] = (-3.96022827877536812320e-06, 1.32494738004321644526e-04, 5.08130628187576562776e-03)
_NEAR_BELOW += (6.50222499887672944485e-02, 3.97917223959155352819e-01, 1.0)
_ONE = 8.45062911510467529297e-01
_MIDDLE: tuple[float, ...] = (-2.16637559486879084300e-03, 3.54783043256182359371e-02, -1.10894694282396677476e-01)
_MIDDLE += (3.18346619901161753674e-01, -3.72207876035701323847e-01, 4.14856118683748331666e-01)
_MIDDLE += (-2.36211856075265944077e-03,)
_MIDDLE_BELOW: tuple[float, ...] = (1.19844998467991074170e-02, 1.36370839120290507362e-02, 1.26171219808761642112e-01)
_MIDDLE_BELOW += (7.18286544141962662868e-02, 5.40397917702171048937e-01, 1.06420880400844228286e-01, 1.0)
_FAR: tuple[float, ...] = (-9.81432934416914548592e00, -8.12874355063065934246e01, -1.84605092906711035994e02)
_FAR += (-1.62396669462573470355e02, -6.23753324503260060396e01, -1.05586262253232909814e01)
_FAR += (-6.93858572707181764372e-01, -9.86494403484714822705e-03)
_FAR_BELOW: tuple[float, ...] = (-6.04244152148580987438e-02, 6.57024977031928170135e00, 1.08635005541779435134e02)
_FAR_BELOW += (4.29008140027567833386e02, 6.45387271733267880336e02, 4.34565877475229228821e02)
_FAR_BELOW += (1.37657754143519042600e02, 1.96512716674392571292e01, 1.0)
_LAST: tuple[float, ...] = (-4.83519191608651397019e02, -1.02509513161107724954e03, -6.37566443368389627722e02)
_LAST += (-1.60636384855821916062e02, -1.77579549177547519889e01, -7.99283237680523006574e-01)
_LAST += (-9.86494292470009928597e-03,)
_LAST_BELOW: tuple[float, ...] = (-2.24409524465858183362e01, 4.74528541206955367215e02, 2.55305040643316442583e03)
_LAST_BELOW += (3.19985821950859553908e03, 1.53672958608443695994e03, 3.25792512996573918826e02)
_LAST_BELOW += (3.03380607434824582924e01, 1.0)


def floats(x: Any) -> Any:
    """x as an array of floats."""
    x = cnp.asarray(x)
    return x if dtype_kind(x.dtype) == "f" else x.astype(default_float())


def promoted(*xs: Any) -> list[Any]:
    """Convert to floats of one dtype and shape; Python's numbers take the dtype of the arrays."""
    dtypes = [floats(x).dtype for x in xs if not isinstance(x, bool | int | float)]
    dtype = result_type(*dtypes) if dtypes else default_float()
    return list(cnp.broadcast_arrays(*(cnp.asarray(x).astype(dtype) for x in xs)))


def in_single(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Compute a function of 16-bit floats in float32 and round its result once, as JAX does."""
    fn = explains_calls(fn)

    @functools.wraps(fn)
    def function(*args: Any, **named: Any) -> Any:
        given = {x.dtype for x in (*args, *named.values()) if _has_dtype(x)}
        if all(computed_dtype(dtype) == dtype for dtype in given):
            return fn(*args, **named)
        result = result_type(*(dtype for dtype in given if dtype_kind(dtype) == "f"))
        args = tuple(_widened(x) for x in args)
        found = fn(*args, **{name: _widened(x) for name, x in named.items()})
        return found.astype(result) if computed_dtype(result) != result else found

    return function


def _has_dtype(x: Any) -> bool:
    return isinstance(x, np.ndarray | np.generic | Tensor) and not is_weak(x)


def _widened(x: Any) -> Any:
    return x.astype(computed_dtype(x.dtype)) if _has_dtype(x) else x


def special(*slopes: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A function of floats, given in one dtype and shape, with the rules of its derivatives by each argument."""

    def decorate(fn: Callable[..., Any]) -> Callable[..., Any]:
        custom, signature = custom_jvp(fn), inspect.signature(fn)
        custom.defjvps(*slopes)

        @functools.wraps(fn)
        def function(*args: Any, **named: Any) -> Any:
            try:
                given = signature.bind(*args, **named).args
            except TypeError as error:
                raise misfit(fn, args, named, error) from None
            return custom(*([floats(x) for x in given] if len(given) == 1 else promoted(*given)))

        return in_single(function)

    return decorate


def polynomial(coefficients: Sequence[float], x: Any) -> Any:
    """Evaluate a polynomial by Horner's scheme, the highest coefficient first."""
    found: Any = coefficients[0]
    for c in coefficients[1:]:
        found = found * x + c
    return found


def _ratio(above: tuple[float, ...], below: tuple[float, ...], x: Any) -> Any:
    return polynomial(above, x) / polynomial(below, x)


def _tail(size: Any) -> Any:
    """1 - erf(size) for size >= 1.25."""
    safe = cnp.clip(size, 1.25, 28.0)
    ratio = _ratio_of_tail(safe)
    # exp(-x*x) in two parts, of which the first is exact: x with half its digits.
    half = safe.astype(np.float32).astype(safe.dtype)
    half = cnp.round(safe * 1024.0) / 1024.0 if safe.dtype == np.float64 else half
    tail = cnp.exp(-half * half - 0.5625) * cnp.exp((half - safe) * (half + safe) + ratio) / safe
    return cnp.where(size > 27.5, 0.0, tail)


def _ratio_of_tail(x: Any) -> Any:
    """log(x exp(x*x) erfc(x)) + 0.5625 for x from 1.25 to 28."""
    s = 1.0 / (x * x)
    return cnp.where(x < 1 / 0.35, _ratio(_FAR, _FAR_BELOW, s), _ratio(_LAST, _LAST_BELOW, s))


def _parts(x: Any) -> tuple[Any, Any]:
    """(erf, 1 - erf) of |x|."""
    size = cnp.abs(x)
    near = size + size * _ratio(_NEAR, _NEAR_BELOW, size * size)
    middle = _ratio(_MIDDLE, _MIDDLE_BELOW, cnp.clip(size, 0.8, 1.3) - 1.0)
    tail = _tail(size)
    value = cnp.where(size < 0.84375, near, cnp.where(size < 1.25, _ONE + middle, 1.0 - tail))
    rest = cnp.where(size < 0.84375, 1.0 - near, cnp.where(size < 1.25, (1.0 - _ONE) - middle, tail))
    return value, rest


@special(lambda t, out, x: t * cnp.exp(-x * x) * (2 / math.sqrt(math.pi)))
def erf(x: Any) -> Any:
    """The error function.

    >>> float(erf(0.0))
    0.0
    """
    return cnp.where(cnp.isnan(x), x, cnp.sign(x) * _parts(x)[0])


@special(lambda t, out, x: -t * cnp.exp(-x * x) * (2 / math.sqrt(math.pi)))
def erfc(x: Any) -> Any:
    """1 - erf(x), exact for large x.

    >>> float(erfc(0.0))
    1.0
    """
    value, rest = _parts(x)
    return cnp.where(cnp.isnan(x), x, cnp.where(x < 0, 1.0 + value, rest))


@special(lambda t, out, x: t * (2.0 * x * out - 2 / math.sqrt(math.pi)))
def erfcx(x: Any) -> Any:
    """exp(x**2) `erfc`(x), which does not vanish for large x.

    >>> round(float(erfcx(1e3)), 15)
    0.000564189301453
    """
    low, middle, far = cnp.minimum(x, 1.25), cnp.clip(x, 1.25, 28.0), cnp.maximum(x, 28.0)
    scaled = cnp.exp(_ratio_of_tail(middle) - 0.5625) / middle
    # Abramowitz and Stegun 7.1.23.
    s = 0.5 / far / far
    series = (
        (1.0 - s * (1.0 - 3.0 * s * (1.0 - 5.0 * s * (1.0 - 7.0 * s * (1.0 - 9.0 * s))))) / far / math.sqrt(math.pi)
    )
    return cnp.where(x < 1.25, cnp.exp(low * low) * erfc(low), cnp.where(x <= 28.0, scaled, series))


def _safe(x: Any, is_zero: Any) -> Any:
    return cnp.where(is_zero, 1.0, x)


# Stirling's series of log(gamma), used where it has converged; its coefficients are Bernoulli numbers.
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
    """The derivative of order n of `digamma`, for x > 0; NaN where n is no whole number, or negative.

    >>> bool(abs(float(polygamma(1, 1.0)) - np.pi**2 / 6) < 1e-12)
    True
    """
    if isinstance(n, int) and n >= 0:
        x = floats(x)
        return digamma(x) if n == 0 else (-1) ** (n + 1) * math.factorial(n) * zeta(n + 1.0, x)
    n = floats(n)
    is_order = (n >= 0) & (n == cnp.floor(n))
    n = cnp.where(is_order, n, 0.0)
    sign = 1.0 - 2.0 * cnp.remainder(n + 1.0, 2.0)
    found = cnp.where(n == 0, digamma(x), sign * gamma(n + 1.0) * zeta(cnp.where(n == 0, 2.0, n + 1.0), x))
    return cnp.where(is_order, found, np.nan)


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


def _mirrored(x: Any) -> tuple[Any, Any]:
    """Return a mask of x < 0.5, and x with 1 - x where it is true, for the reflection formula."""
    low = x < 0.5
    return low, cnp.where(low, 1.0 - x, x)


def _turned(x: Any, low: Any, other: float) -> Any:
    """pi x without its whole turns, which would lose digits, where x is low; elsewhere pi times the other number."""
    return math.pi * cnp.where(low, x - cnp.rint(x), other)


@special(lambda t, out, x: t * digamma(x))
def gammaln(x: Any) -> Any:
    """The logarithm of |gamma(x)|. Its derivative is `digamma`.

    >>> bool(abs(gammaln(5.0) - np.log(24.0)) < 1e-12)
    True
    """
    low, positive = _mirrored(x)
    value = _stirling(positive)
    sine = cnp.abs(cnp.sin(math.pi * cnp.remainder(x, 1.0)))
    sine = cnp.where((x <= 0) & (x == cnp.floor(x)), 0.0, sine)
    return cnp.where(low, math.log(math.pi) - cnp.log(cnp.where(low, sine, 1.0)) - value, value)


loggamma = gammaln


def _trigamma(x: Any) -> Any:
    low, positive = _mirrored(x)
    value = zeta(2.0, positive)
    sine = cnp.sin(_turned(x, low, 0.5))
    return cnp.where(low, (math.pi / sine) ** 2 - value, value)


@special(lambda t, out, x: t * _trigamma(x))
def digamma(x: Any) -> Any:
    """The derivative of `gammaln`.

    >>> round(float(digamma(1.0)), 12)
    -0.577215664902
    """
    low, positive = _mirrored(x)
    inverse: Any = 0.0
    for k in range(_SHIFT):
        inverse = inverse + 1.0 / (positive + k)
    a = positive + _SHIFT
    square = 1.0 / (a * a)
    value = cnp.log(a) - 0.5 / a - square * polynomial(_OF_SLOPE, square) - inverse
    turned = _turned(x, low, 0.25)
    return cnp.where(low, cnp.where((x <= 0) & (x == cnp.floor(x)), np.nan, value - math.pi / cnp.tan(turned)), value)


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


# The incomplete gamma and beta functions: loops over arrays, until every element has converged.
#
# Values come from series and continued fractions; a derivative with respect to the bound of the integral is the
# integrand, and with respect to a parameter the derivative of the loop itself.


_STEPS = 2000


def summed(term: Callable[[Any, Any], Any], first: Any) -> Any:
    """The sum of `first`, `term(k, first)`, ... for k from 1, until a term is below the last digit."""
    small = float(finfo(first.dtype).eps) / 16

    def goes_on(c: Any) -> Any:
        k, now, total = c
        return (k < _STEPS) & cnp.any(cnp.abs(now) > small * cnp.abs(total))

    def step(c: Any) -> Any:
        k, now, total = c
        now = term(k.astype(first.dtype), now)
        return k + 1, now, total + now

    return while_loop(goes_on, step, (np.int64(1), first, first))[2]


def fraction(part: Callable[[Any], tuple[Any, Any]], start: Any) -> Any:
    """The continued fraction start + a1 / (b1 + a2 / (b2 + ...)), of which `part(k)` gives ak and bk.

    Source: Thompson and Barnett, "Coulomb and Bessel functions of complex arguments and order" (1986), modified from
    Lentz.
    """
    dtype = start.dtype
    tiny, small = float(finfo(dtype).tiny) * 1e3, 4 * float(finfo(dtype).eps)

    def nonzero(x: Any) -> Any:
        return cnp.where(cnp.abs(x) < tiny, tiny, x)

    start = nonzero(start)

    def goes_on(c: Any) -> Any:
        return (c[0] < _STEPS) & cnp.any(cnp.abs(c[-1] - 1) > small)

    def step(c: Any) -> Any:
        k, value, above, below, _ = c
        a, b = part(k.astype(dtype))
        below = 1 / nonzero(b + a * below)
        above = nonzero(b + a / above)
        moved = above * below
        return k + 1, value * moved, above, below, moved

    begin = (np.int64(1), start, start, cnp.zeros_like(start), cnp.zeros_like(start))
    return while_loop(goes_on, step, begin)[1]


def _and_between(a: Any) -> Any:
    """A parameter, and one half further.

    At a whole number a fraction ends early, but its derivative by the parameter does not: that has converged when the
    fraction half-way to the next whole number has.
    """
    return cnp.stack([a, a + 0.5], axis=0)


def _lower(a: Any, x: Any) -> Any:
    """Abramowitz and Stegun 6.5.29."""
    factor = cnp.exp(a * cnp.log(x) - x - gammaln(a + 1))
    return factor * summed(lambda k, now: now * x / (a + k), cnp.ones_like(x))


def _upper(a: Any, x: Any) -> Any:
    """Abramowitz and Stegun 6.5.31, contracted to its even part."""
    factor = cnp.exp(a * cnp.log(x) - x - gammaln(a))
    both = _and_between(a)
    return factor / fraction(lambda k: (-k * (k - both), x + 2 * k + 1 - both), x + 1 - both)[0]


def _incomplete_parts(a: Any, x: Any) -> tuple[Any, Any]:
    """The lower and the upper one, for a > 0 and finite x > 0: one is computed, the other one its difference to 1."""
    is_low = (x <= 1) | (x <= a)
    # Elements that use the other form get values for which this one converges at once.
    lower = _lower(cnp.where(is_low, a, 1.0), cnp.where(is_low, x, 0.5))
    upper = _upper(cnp.where(is_low, 1.0, a), cnp.where(is_low, 2.0, x))
    return cnp.where(is_low, lower, 1 - upper), cnp.where(is_low, 1 - lower, upper)


def _inside(a: Any, x: Any) -> Any:
    return (a > 0) & (x > 0) & (x < np.inf) & (a < np.inf)


def _regularised(name: str, which: int, summary: str, example: str) -> Any:
    def function(a: Any, x: Any) -> Any:
        inside = _inside(a, x)
        found = _incomplete_parts(cnp.where(inside, a, 1.0), cnp.where(inside, x, 1.0))[which]
        low, high = (0.0, 1.0) if which == 0 else (1.0, 0.0)
        ends = cnp.where((x == np.inf) & (a > 0) & (a < np.inf), high, cnp.full_like(x, np.nan))
        ends = cnp.where((x == 0) & (a > 0), low, ends)
        ends = cnp.where((a == np.inf) & (x >= 0) & (x < np.inf), low, ends)
        ends = cnp.where((a == 0) & (x > 0), high, ends)
        return cnp.where(inside, found, ends)

    sign = 1.0 if which == 0 else -1.0
    by_bound = lambda t, out, a, x: t * sign * _integrand(a, x)
    decorate = special(lambda t, out, a, x: t * sign * _by_parameter(a, x), by_bound)
    return decorate(described(function, name, summary, example))


def _integrand(a: Any, x: Any) -> Any:
    safe = cnp.where(x > 0, x, 1.0)
    found = cnp.exp((a - 1) * cnp.log(safe) - safe - gammaln(a))
    at_zero = cnp.where(a == 1, 1.0, cnp.where(a < 1, np.inf, cnp.zeros_like(a)))
    return cnp.where(x > 0, found, cnp.where(x == 0, at_zero, np.nan))


def _by_parameter(a: Any, x: Any) -> Any:
    inside = _inside(a, x)
    a, x = cnp.where(inside, a, 1.0), cnp.where(inside, x, 1.0)
    return cnp.where(inside, jvp(lambda a: _incomplete_parts(a, x)[0], (a,), (cnp.ones_like(a),))[1], 0.0)


_SUMMARY = "The regularised lower incomplete gamma function: the integral of t**(a-1) exp(-t) / gamma(a) from 0 to x."
_EXAMPLE = "bool(abs(gammainc(1.0, 2.0) - (1 - np.exp(-2))) < 1e-12) -> True"
gammainc = _regularised("gammainc", 0, _SUMMARY, _EXAMPLE)
_SUMMARY = "The regularised upper incomplete gamma function, 1 - `gammainc`."
gammaincc = _regularised("gammaincc", 1, _SUMMARY, "bool(abs(gammaincc(1.0, 2.0) - np.exp(-2)) < 1e-12) -> True")


@in_single
def igamma_grad_a(a: Any, x: Any) -> Any:
    """The derivative of `gammainc` with respect to a.

    >>> bool(igamma_grad_a(1.0, 2.0) < 0)
    True
    """
    return _by_parameter(*promoted(a, x))


@in_single
def random_gamma_grad(a: Any, x: Any) -> Any:
    """Derivative of a gamma-distributed number x by the parameter a of its distribution, at fixed probability.

    >>> bool(random_gamma_grad(1.0, 2.0) > 0)
    True
    """
    a, x = promoted(a, x)
    return -_by_parameter(a, x) / _integrand(a, x)


def _beta_fraction(a: Any, b: Any, x: Any) -> Any:
    """Numerical Recipes 6.4.5; converges fast for x < (a + 1) / (a + b + 2)."""

    both, ones = _and_between(b), cnp.ones_like(x)

    def part(k: Any) -> tuple[Any, Any]:
        m = cnp.floor(k / 2)
        even = m * (both - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + both + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        return cnp.where(k == 2 * m, even, odd), ones

    logarithm = a * cnp.log(x) + b * cnp.log1p(-x) - betaln(a, b)
    return cnp.exp(logarithm) / (a * fraction(part, cnp.ones_like(both))[0])


def _beta_inside(a: Any, b: Any, x: Any) -> Any:
    is_low = x < (a + 1) / (a + b + 2)
    first, second = cnp.where(is_low, a, b), cnp.where(is_low, b, a)
    found = _beta_fraction(first, second, cnp.where(is_low, x, 1 - x))
    return cnp.where(is_low, found, 1 - found)


def _safe_beta(a: Any, b: Any, x: Any) -> tuple[Any, Any, Any, Any]:
    inside = (a > 0) & (b > 0) & (x > 0) & (x < 1)
    return inside, cnp.where(inside, a, 1.0), cnp.where(inside, b, 1.0), cnp.where(inside, x, 0.5)


def _beta_integrand(t: Any, out: Any, a: Any, b: Any, x: Any) -> Any:
    inside, a, b, x = _safe_beta(a, b, x)
    found = cnp.exp((a - 1) * cnp.log(x) + (b - 1) * cnp.log1p(-x) - betaln(a, b))
    return t * cnp.where(inside, found, 0.0)


def _beta_by(position: int) -> Any:
    def rule(t: Any, out: Any, a: Any, b: Any, x: Any) -> Any:
        inside, *safe = _safe_beta(a, b, x)
        f = lambda p: _beta_inside(*(p if i == position else v for i, v in enumerate(safe)))
        return t * cnp.where(inside, jvp(f, (safe[position],), (cnp.ones_like(x),))[1], 0.0)

    return rule


@special(_beta_by(0), _beta_by(1), _beta_integrand)
def betainc(a: Any, b: Any, x: Any) -> Any:
    """The regularised incomplete beta function: the integral of t**(a-1) (1-t)**(b-1) / beta(a, b) from 0 to x.

    >>> round(float(betainc(2.0, 1.0, 0.5)), 12)
    0.25
    """
    inside, *safe = _safe_beta(a, b, x)
    ends = cnp.where(x == 0, 0.0, cnp.where(x == 1, 1.0, cnp.full_like(x, np.nan)))
    return cnp.where(inside, _beta_inside(*safe), cnp.where((a > 0) & (b > 0), ends, np.nan))


_HELPERS = "floats fraction igamma_grad_a in_single polynomial promoted random_gamma_grad special summed"
publish(__name__, *_HELPERS.split())
