"""The constants of the elementary functions, for each floating-point format.

The coefficients are minimax ones, by Remez's exchange in 50-digit arithmetic, then rounded to the format; what each
approximates, where, and how closely before that rounding stands beside it. `r`, `f`, `s` are the reduced arguments of
`exponential` and `logarithm`, `z` is the square of an argument.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ctrlgrad.records import record

Coefficients = tuple[float, ...]


@record
class Format:
    """A floating-point format and its coefficients; every float here is a number of that format."""

    dtype: np.dtype
    integer: np.dtype
    """The integer as wide."""
    unsigned: np.dtype
    """The unsigned one."""
    mantissa_bits: int
    """How far the exponent lies from the lowest bit."""
    magic: float
    """1.5 * 2**mantissa_bits: adding it rounds to an integer and leaves that integer in the low bits."""
    pi_half: Coefficients
    """pi / 2 as a sum of three, each rounded to the format."""
    ln2: Coefficients
    """log 2 as a sum of two, each rounded to the format."""
    log10_2: Coefficients
    """log10 2, likewise."""
    zero_exponent: int
    """The power of two whose bits are those of 0."""
    exp_range: Coefficients
    """Below the first, exp is 0; above the second, it is infinite. The first lies so far down that exp is a product
    with zeros there: processors take long for products that round to 0."""
    expm1_lowest: float
    """Below it, expm1 is -1."""
    expm1_tail: Coefficients
    """(expm1(r) - r) / r**2 for abs(r) <= log(2) / 2."""
    sin_tail: Coefficients
    """(sin(x) / x - 1) / z for abs(x) <= 1.01 pi / 4."""
    cos_tail: Coefficients
    """(cos(x) - 1 + z / 2) / z**2, there."""
    sinh_tail: Coefficients
    """(sinh(x) / x - 1) / z for abs(x) <= 1."""
    arctan_tail: Coefficients
    """(arctan(x) / x - 1) / z for abs(x) <= 1."""
    arcsin_tail: Coefficients
    """(arcsin(x) / x - 1) / z for abs(x) <= 1/2."""
    trigonometric_limit: float
    """The largest argument that three terms of pi / 2 reduce."""


def _of(scalar: type[np.floating], values: Sequence[float]) -> Coefficients:
    """Each rounded to the format."""
    return tuple(float(scalar(v)) for v in values)


def _single() -> Format:
    f = np.float32
    return Format(
        dtype=np.dtype(f),
        integer=np.dtype(np.int32),
        unsigned=np.dtype(np.uint32),
        mantissa_bits=23,
        magic=1.5 * 2**23,
        pi_half=_of(f, [1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15]),
        ln2=_of(f, [0.6931471824645996, -1.9046542121259336e-09]),
        log10_2=_of(f, [0.3010300099849701, -1.432098883924482e-08]),
        zero_exponent=-127,
        exp_range=_of(f, [-176, 89]),
        expm1_lowest=-18.0,
        # Relative error of expm1 2**-26.2.
        expm1_tail=_of(f, [0.49999997, 0.16666543, 0.0416672, 0.00836658, 0.0013882514]),
        # Relative errors 2**-27.9 and 2**-32.9.
        sin_tail=_of(f, [-0.16666654, 0.008332131, -0.0001951084]),
        cos_tail=_of(f, [0.041666646, -0.0013887252, 2.4425719e-05]),
        # 2**-34.0.
        sinh_tail=_of(f, [0.16666667, 0.008333351, 0.00019835962, 2.8180627e-06]),
        # 2**-28.5.
        arctan_tail=_of(
            f,
            [-0.333333, 0.19998549, -0.14264242, 0.10952189, -0.084034584]
            + [0.05795773, -0.031177975, 0.010914672, -0.001793636],
        ),
        # 2**-27.6.
        arcsin_tail=_of(f, [0.16666754, 0.07495224, 0.045479592, 0.024134351, 0.042242568]),
        trigonometric_limit=1e5,
    )


def _double() -> Format:
    f = np.float64
    return Format(
        dtype=np.dtype(f),
        integer=np.dtype(np.int64),
        unsigned=np.dtype(np.uint64),
        mantissa_bits=52,
        magic=1.5 * 2**52,
        pi_half=_of(f, [1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33]),
        ln2=_of(f, [0.6931471805599453, 2.3190468138462996e-17]),
        log10_2=_of(f, [0.3010299956639812, -2.8037281277851704e-18]),
        zero_exponent=-1023,
        exp_range=_of(f, [-1418, 710]),
        expm1_lowest=-40.0,
        # 2**-55.6.
        expm1_tail=_of(
            f,
            [0.5000000000000006, 0.16666666666666588, 0.04166666666657611, 0.008333333333389994, 0.0013888888931795076]
            + [
                0.00019841269718269826,
                2.4801504978502416e-05,
                2.7557407924205865e-06,
                2.762616162808833e-07,
                2.505375934385204e-08,
            ],
        ),
        # 2**-57.8 and 2**-63.7.
        sin_tail=_of(
            f,
            [-0.16666666666666627, 0.008333333333321286, -0.00019841269828869875]
            + [2.7557313355910744e-06, -2.5050704022286183e-08, 1.5893582889695794e-10],
        ),
        cos_tail=_of(
            f,
            [0.04166666666666658, -0.0013888888888871375, 2.4801587287782636e-05]
            + [-2.755731386543632e-07, 2.0875657555374625e-09, -1.1356265660994647e-11],
        ),
        # 2**-63.1.
        sinh_tail=_of(
            f,
            [0.16666666666666669, 0.008333333333333127, 0.00019841269841446273, 2.7557319152538274e-06]
            + [2.5052123855546586e-08, 1.6057203887272326e-10, 7.760442495501779e-13],
        ),
        # 2**-55.0.
        arctan_tail=_of(
            f,
            [-0.3333333333333186, 0.19999999999755005, -0.14285714271334177, 0.11111110678736259, -0.09090901235256373]
            + [0.07692212929694202, -0.06665860360692394, 0.05877307775373528, -0.05239233075507842]
            + [0.046739499741739784, -0.04092639333039298, 0.03406783445147797, -0.025826833130012824]
            + [0.01697807724630284, -0.009184593620196616, 0.003855995228862501, -0.0011640798373652825]
            + [0.0002230243377334111, -2.025876506403667e-05],
        ),
        # 2**-55.8.
        arcsin_tail=_of(
            f,
            [0.16666666666665367, 0.0750000000034669, 0.04464285682036911, 0.030381959463513988, 0.022371750267755647]
            + [0.017359821367746997, 0.013884091307035476, 0.012176675429741655, 0.006495893839830127]
            + [0.019615554767590707, -0.016360497432379054, 0.0320052015482748],
        ),
        trigonometric_limit=1e8,
    )


SINGLE, DOUBLE = _single(), _double()

# (log1p(f) - f + f**2 / 2) / f**3 for sqrt(1/2) <= 1 + f <= sqrt(2); relative error of log1p 2**-27.3.
LOG_TAIL_SINGLE = _of(
    np.float32,
    [0.3333333, -0.25000826, 0.20001237, -0.16623145, 0.14201353, -0.13161978, 0.12765512, -0.07634548],
)
# (log((1 + s) / (1 - s)) / s - 2) / s**2 in s**2, for s = f / (2 + f) and the same f; 2**-59.5.
LOG_TAIL_DOUBLE = _of(
    np.float64,
    [0.6666666666666735, 0.3999999999940745, 0.28571428744149313, 0.22222198377752975]
    + [0.18183575199858706, 0.15313754941913565, 0.1479907382928115],
)
# The same less its first term 2/3 s**2, over s**4; 2**-66.3.
LOG_TAIL_EXTENDED = _of(
    np.float64,
    [0.4000000000000229, 0.2857142857008374, 0.22222222522879614, 0.18181784097936007]
    + [0.15386770177352646, 0.13256508967164612, 0.13199278092682454],
)
TWO_THIRDS = _of(np.float64, [0.6666666666666666, 3.700743415417188e-17])
