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

# The Chebyshev series of exp(-x) I0(x) on [0, 8], and of sqrt(x) exp(-x) I0(x) in 1 / x on [8, inf]: Clenshaw,
# "Chebyshev Series for Mathematical Functions", National Physical Laboratory Mathematical Tables 5, 1962.
NEAR = (
    -4.4153416464793395e-18,
    3.3307945188222384e-17,
    -2.431279846547955e-16,
    1.715391285555133e-15,
    -1.1685332877993451e-14,
    7.676185498604936e-14,
    -4.856446783111929e-13,
    2.95505266312964e-12,
    -1.726826291441556e-11,
    9.675809035373237e-11,
    -5.189795601635263e-10,
    2.6598237246823866e-09,
    -1.300025009986248e-08,
    6.046995022541919e-08,
    -2.670793853940612e-07,
    1.1173875391201037e-06,
    -4.4167383584587505e-06,
    1.6448448070728896e-05,
    -5.754195010082104e-05,
    0.00018850288509584165,
    -0.0005763755745385824,
    0.0016394756169413357,
    -0.004324309995050576,
    0.010546460394594998,
    -0.02373741480589947,
    0.04930528423967071,
    -0.09490109704804764,
    0.17162090152220877,
    -0.3046826723431984,
    0.6767952744094761,
)
FAR = (
    -7.233180487874754e-18,
    -4.830504485944182e-18,
    4.46562142029676e-17,
    3.461222867697461e-17,
    -2.8276239805165836e-16,
    -3.425485619677219e-16,
    1.7725601330565263e-15,
    3.8116806693526224e-15,
    -9.554846698828307e-15,
    -4.150569347287222e-14,
    1.54008621752141e-14,
    3.8527783827421426e-13,
    7.180124451383666e-13,
    -1.7941785315068062e-12,
    -1.3215811840447713e-11,
    -3.1499165279632416e-11,
    1.1889147107846439e-11,
    4.94060238822497e-10,
    3.3962320257083865e-09,
    2.266668990498178e-08,
    2.0489185894690638e-07,
    2.8913705208347567e-06,
    6.889758346916825e-05,
    0.0033691164782556943,
    0.8044904110141088,
)


def _chebyshev(x: Any, coefficients: Sequence[float]) -> Any:
    """Half of the series from the highest term to the lowest, by Clenshaw's recurrence."""
    first, second, third = x * 0 + coefficients[0], x * 0, x * 0
    for c in coefficients[1:]:
        first, second, third = x * first - second + c, first, second
    return (first - third) / 2


@array_function()
def i0(x: Any) -> Any:
    """The modified Bessel function of the first kind and order 0; as `numpy.i0`, and differentiable.

    >>> import ctrlgrad.numpy as cnp
    >>> float(cnp.round(cnp.i0(1.0), 6))
    1.266066
    """
    x = floats("i0", x)
    size = absolute(cast(x, result_type(dtype_of(x), np.float32)))
    near = size <= 8
    inner, outer = where(near, size, 8), where(near, 8, size)
    scaled = where(near, _chebyshev(inner / 2 - 2, NEAR), _chebyshev(32 / outer - 2, FAR) / sqrt(outer))
    return cast(exp(size) * scaled, dtype_of(x))


@array_function()
def kaiser(M: int, beta: Any) -> Any:
    """Kaiser's window of M numbers; as `numpy.kaiser`. `beta` may be traced.

    >>> import ctrlgrad.numpy as cnp
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

    >>> import ctrlgrad.numpy as cnp
    >>> cnp.bartlett(3)
    array([0., 1., 0.])
    """
    return np.bartlett(M).astype(default_float())


@array_function()
def blackman(M: int) -> Any:
    """Blackman's window of M numbers of the default dtype; as `numpy.blackman`.

    >>> import ctrlgrad.numpy as cnp
    >>> cnp.blackman(5).round(2) + 0.0
    array([0.  , 0.34, 1.  , 0.34, 0.  ])
    """
    return np.blackman(M).astype(default_float())


@array_function()
def hamming(M: int) -> Any:
    """Hamming's window of M numbers of the default dtype; as `numpy.hamming`.

    >>> import ctrlgrad.numpy as cnp
    >>> cnp.hamming(3)
    array([0.08, 1.  , 0.08])
    """
    return np.hamming(M).astype(default_float())


@array_function()
def hanning(M: int) -> Any:
    """Von Hann's window of M numbers of the default dtype; as `numpy.hanning`.

    >>> import ctrlgrad.numpy as cnp
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
