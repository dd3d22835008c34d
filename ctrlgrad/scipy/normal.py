"""Probabilities of the normal distribution, their logarithms and inverse."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad.scipy.error_functions import erfc, erfcx, floats
from ctrlgrad.transforms.custom_jvp import custom_jvp


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


def log_ndtr(x: Any) -> Any:
    """The logarithm of `ndtr`, exact for very negative x.

    >>> round(float(log_ndtr(-40.0)), 9)
    -804.608442014
    """
    return _log_ndtr(floats(x))


@custom_jvp
def _ndtri(p: Any) -> Any:
    inside = (p > 0) & (p < 1)
    is_low = p <= 0.5
    tail = cnp.where(inside, cnp.where(is_low, p, 1 - p), 0.5)
    wanted = cnp.log(tail)
    # Newton's steps on the logarithm, a concave function of x: from the left they never go too far.
    x = -cnp.sqrt(-2 * wanted)
    for _ in range(6):
        x = x - (_log_ndtr(x) - wanted) / _hazard(x)
    ends = cnp.where(p == 0, -np.inf, cnp.where(p == 1, np.inf, cnp.full_like(p, np.nan)))
    return cnp.where(inside, cnp.where(p == 0.5, 0.0, cnp.where(is_low, x, -x)), ends)


_ndtri.defjvps(lambda t, out, p: t * math.sqrt(2 * math.pi) * cnp.exp(0.5 * out * out))


def ndtri(p: Any) -> Any:
    """The inverse of `ndtr`.

    >>> float(ndtri(0.5))
    0.0
    """
    return _ndtri(floats(p))


__all__ = ["log_ndtr", "ndtr", "ndtri"]
