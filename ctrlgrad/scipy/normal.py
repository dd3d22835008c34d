"""Probabilities of the normal distribution, their logarithms and inverse."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad.scipy.error_functions import erfc, erfcx, floats, in_single
from ctrlgrad.transforms.custom_jvp import custom_jvp


@in_single
def ndtr(x: Any) -> Any:
    """The probability that a standard normal number is less than x.

    >>> float(ndtr(0.0))
    0.5
    """
    return 0.5 * erfc(-floats(x) * math.sqrt(0.5))


@custom_jvp
def _log_ndtr(x: Any) -> Any:
    is_low = x < -1
    low = cnp.where(is_low, x, -1.0)
    tail = cnp.log(0.5 * erfcx(-low * math.sqrt(0.5))) - 0.5 * low * low
    return cnp.where(is_low, tail, cnp.log1p(-0.5 * erfc(cnp.where(is_low, 0.0, x) * math.sqrt(0.5))))


def _hazard(x: Any) -> Any:
    """The density at x divided by the probability to lie below."""
    is_low = x < -1
    low = math.sqrt(2 / math.pi) / erfcx(-cnp.where(is_low, x, -1.0) * math.sqrt(0.5))
    high = cnp.where(is_low, 0.0, x)
    return cnp.where(is_low, low, cnp.exp(-0.5 * high * high) / math.sqrt(2 * math.pi) / ndtr(high))


_log_ndtr.defjvps(lambda t, out, x: t * _hazard(x))


@in_single
def log_ndtr(x: Any) -> Any:
    """The logarithm of `ndtr`, exact for very negative x.

    >>> round(float(log_ndtr(-40.0)), 9)
    -804.608442014
    """
    return _log_ndtr(floats(x))


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


@custom_jvp
def _ndtri(p: Any) -> Any:
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


_ndtri.defjvps(lambda t, out, p: t * math.sqrt(2 * math.pi) * cnp.exp(0.5 * out * out))


@in_single
def ndtri(p: Any) -> Any:
    """The inverse of `ndtr`.

    >>> float(ndtri(0.5))
    0.0
    """
    return _ndtri(floats(p))


__all__ = ["log_ndtr", "ndtr", "ndtri"]
