"""Windows by NumPy's names, and the Bessel function that Kaiser's is made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ctrlgrad.dtypes import result_type
from ctrlgrad.frontend.apply import cast
from ctrlgrad.frontend.array.dims import dtype_of
from ctrlgrad.frontend.array.elementwise import abs as absolute
from ctrlgrad.frontend.array.elementwise import exp, sqrt
from ctrlgrad.frontend.array.logic import where
from ctrlgrad.frontend.array.promote import double_dtype, floats, operand
from ctrlgrad.frontend.functions import array_function
from ctrlgrad.options import default_float

# Chebyshev coefficients of exp(-x) i0(x) on [0, 8], and of exp(-x) i0(x) sqrt(x) as a function of 16 / x beyond:
# computed from the power series and the asymptotic one with 75 digits.
NEAR = (
    0.33839763720473803,
    -0.3046826723431984,
    0.17162090152220877,
    -0.09490109704804764,
    0.04930528423967071,
    -0.02373741480589947,
    0.010546460394594998,
    -0.004324309995050576,
    0.0016394756169413357,
    -0.0005763755745385824,
    0.00018850288509584165,
    -5.754195010082104e-05,
    1.6448448070728896e-05,
    -4.4167383584587505e-06,
    1.1173875391201037e-06,
    -2.670793853940612e-07,
    6.046995022541919e-08,
    -1.300025009986248e-08,
    2.6598237246823866e-09,
    -5.189795601635263e-10,
    9.675809035373237e-11,
    -1.7268262914415555e-11,
    2.95505266312964e-12,
    -4.856446783111915e-13,
    7.676185498603463e-14,
    -1.1685332877849838e-14,
    1.7153912841895778e-15,
    -2.4312797200684995e-16,
    3.330783115560841e-17,
    -4.414341593589106e-18,
    5.583932512740209e-19,
)
FAR = (
    0.4022452055070544,
    0.0033691164782556943,
    6.889758346916825e-05,
    2.8913705208347567e-06,
    2.0489185894690638e-07,
    2.266668990498178e-08,
    3.396232025708386e-09,
    4.940602388224974e-10,
    1.1889147107846069e-11,
    -3.149916527963373e-11,
    -1.3215811840444411e-11,
    -1.7941785315052209e-12,
    7.180124451217564e-13,
    3.8527783828690237e-13,
    1.540086223622408e-14,
    -4.150569359939181e-14,
    -9.554846849041664e-15,
    3.8116814243351245e-15,
    1.77256012037355e-15,
    -3.4255224890000575e-16,
    -2.8275912723664775e-16,
    3.4628248226046367e-17,
    4.4627353687004704e-17,
    -4.894951052917917e-18,
    -7.039337842458663e-18,
    1.2410185249324504e-18,
)


def _series(coefficients: Sequence[float], x: Any) -> Any:
    """The sum of coefficients times Chebyshev polynomials, by Clenshaw's recurrence."""
    now: Any = 0.0
    before: Any = 0.0
    for c in reversed(coefficients[1:]):
        now, before = c + 2.0 * x * now - before, now
    return coefficients[0] + x * now - before


def by_chebyshev(x: Any, near: Sequence[float], far: Sequence[float]) -> Any:
    """A function of numbers from 0 on, by its series on [0, 8] and that in 16 / x, over sqrt(x), beyond."""
    is_near = x <= 8
    inner, outer = where(is_near, x, 8), where(is_near, 8, x)
    return where(is_near, _series(near, inner / 4 - 1), _series(far, 16 / outer - 1) / sqrt(outer))


@array_function()
def i0(x: Any) -> Any:
    """The modified Bessel function of the first kind and order 0; as `numpy.i0`, and differentiable.

    >>> float(cnp.round(cnp.i0(1.0), 6))
    1.266066
    """
    x = floats("i0", x)
    size = absolute(cast(x, result_type(dtype_of(x), np.float32)))
    return cast(exp(size) * by_chebyshev(size, NEAR, FAR), dtype_of(x))


@array_function()
def kaiser(M: int, beta: Any) -> Any:
    """Kaiser's window of M numbers; as `numpy.kaiser`. `beta` may be traced.

    >>> cnp.kaiser(3, 0.0)
    array([1., 1., 1.])
    """
    beta = operand("kaiser", beta)
    dtype, beta = double_dtype(dtype_of(beta)), cast(beta, np.float64)
    if M <= 1:
        return np.ones(M if M > 0 else 0, dtype)
    half = (M - 1) / 2
    return cast(i0(beta * np.sqrt(1 - ((np.arange(M) - half) / half) ** 2)) / i0(beta), dtype)


@array_function()
def bartlett(M: int) -> Any:
    """Bartlett's window, a triangle, of M numbers of the default dtype; as `numpy.bartlett`.

    >>> cnp.bartlett(3)
    array([0., 1., 0.])
    """
    return np.bartlett(M).astype(default_float())


@array_function()
def blackman(M: int) -> Any:
    """Blackman's window of M numbers of the default dtype; as `numpy.blackman`.

    >>> cnp.blackman(5).round(2) + 0.0
    array([0.  , 0.34, 1.  , 0.34, 0.  ])
    """
    return np.blackman(M).astype(default_float())


@array_function()
def hamming(M: int) -> Any:
    """Hamming's window of M numbers of the default dtype; as `numpy.hamming`.

    >>> cnp.hamming(3)
    array([0.08, 1.  , 0.08])
    """
    return np.hamming(M).astype(default_float())


@array_function()
def hanning(M: int) -> Any:
    """Von Hann's window of M numbers of the default dtype; as `numpy.hanning`.

    >>> cnp.hanning(3)
    array([0., 1., 0.])
    """
    return np.hanning(M).astype(default_float())


__all__ = [
    "bartlett",
    "blackman",
    "hamming",
    "hanning",
    "i0",
    "kaiser",
]
