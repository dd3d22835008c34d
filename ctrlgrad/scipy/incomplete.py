"""The incomplete gamma and beta functions: loops over arrays that end where every element has converged.

Values come from series and continued fractions; a derivative with respect to the bound of the integral is the
integrand, and with respect to a parameter the derivative of the loop itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad.dtypes import finfo
from ctrlgrad.frontend.while_loops import while_loop
from ctrlgrad.scipy.error_functions import in_single, promoted
from ctrlgrad.scipy.gamma_functions import betaln, gammaln
from ctrlgrad.transforms.custom_jvp import custom_jvp
from ctrlgrad.transforms.jvp import jvp

_STEPS = 2000


def summed(term: Callable[[Any, Any], Any], first: Any) -> Any:
    """The sum of `first`, `term(k, first)`, ... for k from 1, until what is added is below the last digit."""
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


def _parts(a: Any, x: Any) -> tuple[Any, Any]:
    """The lower and the upper one, for a > 0 and finite x > 0: one is computed, the other one its difference to 1."""
    is_low = (x <= 1) | (x <= a)
    # Elements that use the other form get values for which this one converges at once.
    lower = _lower(cnp.where(is_low, a, 1.0), cnp.where(is_low, x, 0.5))
    upper = _upper(cnp.where(is_low, 1.0, a), cnp.where(is_low, 2.0, x))
    return cnp.where(is_low, lower, 1 - upper), cnp.where(is_low, 1 - lower, upper)


def _inside(a: Any, x: Any) -> Any:
    return (a > 0) & (x > 0) & (x < np.inf) & (a < np.inf)


def _regularised(which: int) -> Any:
    def function(a: Any, x: Any) -> Any:
        inside = _inside(a, x)
        found = _parts(cnp.where(inside, a, 1.0), cnp.where(inside, x, 1.0))[which]
        low, high = (0.0, 1.0) if which == 0 else (1.0, 0.0)
        ends = cnp.where((x == np.inf) & (a > 0) & (a < np.inf), high, cnp.full_like(x, np.nan))
        ends = cnp.where((x == 0) & (a > 0), low, ends)
        ends = cnp.where((a == np.inf) & (x >= 0) & (x < np.inf), low, ends)
        ends = cnp.where((a == 0) & (x > 0), high, ends)
        return cnp.where(inside, found, ends)

    custom = custom_jvp(function)
    sign = 1.0 if which == 0 else -1.0
    by_bound = lambda t, out, a, x: t * sign * _integrand(a, x)
    custom.defjvps(lambda t, out, a, x: t * sign * _by_parameter(a, x), by_bound)
    return custom


def _integrand(a: Any, x: Any) -> Any:
    safe = cnp.where(x > 0, x, 1.0)
    found = cnp.exp((a - 1) * cnp.log(safe) - safe - gammaln(a))
    at_zero = cnp.where(a == 1, 1.0, cnp.where(a < 1, np.inf, cnp.zeros_like(a)))
    return cnp.where(x > 0, found, cnp.where(x == 0, at_zero, np.nan))


def _by_parameter(a: Any, x: Any) -> Any:
    inside = _inside(a, x)
    a, x = cnp.where(inside, a, 1.0), cnp.where(inside, x, 1.0)
    return cnp.where(inside, jvp(lambda a: _parts(a, x)[0], (a,), (cnp.ones_like(a),))[1], 0.0)


_gammainc, _gammaincc = _regularised(0), _regularised(1)


@in_single
def gammainc(a: Any, x: Any) -> Any:
    """The regularised lower incomplete gamma function: the integral of t**(a-1) exp(-t) / gamma(a) from 0 to x.

    >>> bool(abs(gammainc(1.0, 2.0) - (1 - np.exp(-2))) < 1e-12)
    True
    """
    return _gammainc(*promoted(a, x))


@in_single
def gammaincc(a: Any, x: Any) -> Any:
    """The regularised upper incomplete gamma function, 1 - `gammainc`.

    >>> bool(abs(gammaincc(1.0, 2.0) - np.exp(-2)) < 1e-12)
    True
    """
    return _gammaincc(*promoted(a, x))


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


@custom_jvp
def _betainc(a: Any, b: Any, x: Any) -> Any:
    inside, *safe = _safe_beta(a, b, x)
    ends = cnp.where(x == 0, 0.0, cnp.where(x == 1, 1.0, cnp.full_like(x, np.nan)))
    return cnp.where(inside, _beta_inside(*safe), cnp.where((a > 0) & (b > 0), ends, np.nan))


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


_betainc.defjvps(_beta_by(0), _beta_by(1), _beta_integrand)


@in_single
def betainc(a: Any, b: Any, x: Any) -> Any:
    """The regularised incomplete beta function: the integral of t**(a-1) (1-t)**(b-1) / beta(a, b) from 0 to x.

    >>> round(float(betainc(2.0, 1.0, 0.5)), 12)
    0.25
    """
    return _betainc(*promoted(a, b, x))


__all__ = ["betainc", "gammainc", "gammaincc", "igamma_grad_a", "random_gamma_grad"]
