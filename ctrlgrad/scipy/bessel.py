"""Modified Bessel functions of order 0 and 1, by series of Chebyshev polynomials (`frontend.array.windows`).

The coefficients of order 1 interpolate exp(-x) i1(x) / x on [0, 8], and exp(-x) i1(x) sqrt(x) as a function of 16 / x
beyond: computed from the power series and the asymptotic one with 75 digits.
"""

from __future__ import annotations

from typing import Any

import ctrlgrad.numpy as cnp
from ctrlgrad.frontend.array.windows import FAR, NEAR, by_chebyshev
from ctrlgrad.scipy.error_functions import floats, in_single
from ctrlgrad.transforms.custom_jvp import custom_jvp

_NEAR_1 = (
    0.12629359322181682,
    -0.17641651835783406,
    0.1026436586898471,
    -0.05294598120809499,
    0.024726449030626516,
    -0.010564084894626197,
    0.004156422944312888,
    -0.0015135724506312532,
    0.0005122859561685758,
    -0.00016176081582589674,
    4.781565107550054e-05,
    -1.3273163656039436e-05,
    3.4702513081376785e-06,
    -8.568720264695455e-07,
    2.0032947535521353e-07,
    -4.445059128796328e-08,
    9.381537386495773e-09,
    -1.8872497517228294e-09,
    3.625590281552117e-10,
    -6.663489723502027e-11,
    1.1736186298890901e-11,
    -1.9839743977649436e-12,
    3.223793365945566e-13,
    -5.042185504727032e-14,
    7.600684294649187e-15,
    -1.105596946911604e-15,
    1.5536318810494503e-16,
    -2.111414263388092e-17,
    2.7773010799570167e-18,
    -3.48901447271639e-19,
)
_FAR_1 = (
    0.38928811750914005,
    -0.009761097491361469,
    -0.00011058893876262371,
    -3.882564808877691e-06,
    -2.512236237870209e-07,
    -2.6314688468895196e-08,
    -3.835380385964237e-09,
    -5.589743462196588e-10,
    -1.8974958123505018e-11,
    3.252603583015619e-11,
    1.4125807436610371e-11,
    2.035628544145659e-12,
    -7.198551776076825e-13,
    -4.083551111229825e-13,
    -2.101541848889319e-14,
    4.272440029894204e-14,
    1.0420277129407892e-14,
    -3.814403848436759e-15,
    -1.8803547176404084e-15,
    3.3082398311004077e-16,
    2.962593388506307e-16,
    -3.211138763845076e-17,
    -4.6472555560369855e-17,
    4.4782909949543995e-18,
    7.314601872436776e-18,
    -1.172845558678173e-18,
)


@custom_jvp
def _i0e(x: Any) -> Any:
    return by_chebyshev(cnp.abs(x), NEAR, FAR)


@custom_jvp
def _i1e(x: Any) -> Any:
    size = cnp.abs(x)
    return cnp.copysign(by_chebyshev(size, _NEAR_1, _FAR_1) * cnp.where(size <= 8, size, 1.0), x)


def _slope_of_i1e(x: Any, value: Any) -> Any:
    """i1' = i0 - i1 / x, where the quotient is 1/2 at 0."""
    is_zero = x == 0
    safe = cnp.where(is_zero, 1.0, x)
    return cnp.where(is_zero, 0.5, _i0e(x) - value * (cnp.sign(safe) + 1 / safe))


_i0e.defjvps(lambda t, out, x: t * (_i1e(x) - cnp.sign(x) * out))
_i1e.defjvps(lambda t, out, x: t * _slope_of_i1e(x, out))


@in_single
def i0e(x: Any) -> Any:
    """exp(-|x|) `i0`(x).

    >>> round(float(i0e(0.0)), 12)
    1.0
    """
    return _i0e(floats(x))


@in_single
def i1e(x: Any) -> Any:
    """exp(-|x|) `i1`(x).

    >>> float(i1e(0.0))
    0.0
    """
    return _i1e(floats(x))


@in_single
def i0(x: Any) -> Any:
    """The modified Bessel function of the first kind of order 0.

    >>> round(float(i0(1.0)), 12)
    1.266065877752
    """
    x = floats(x)
    return cnp.exp(cnp.abs(x)) * _i0e(x)


@in_single
def i1(x: Any) -> Any:
    """The modified Bessel function of the first kind of order 1.

    >>> round(float(i1(1.0)), 12)
    0.565159103992
    """
    x = floats(x)
    return cnp.exp(cnp.abs(x)) * _i1e(x)


__all__ = ["i0", "i0e", "i1", "i1e"]
