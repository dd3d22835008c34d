"""Functions that NumPy lacks, as formulas: read by NumPy for arrays, and by the plan for the numbers of machine code.

A formula uses operators, comparisons and `Functions`, so that it holds for both. Float16 is computed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from ctrlgrad.dtypes import computed_dtype
from ctrlgrad.records import record


class Formula(Protocol):
    """A function of values of any kind."""

    def __call__(self, x: Any, of: Functions) -> Any: ...


@record
class Functions:
    """Functions that a formula is built from, for values of one kind."""

    # float32; else float64.
    is_single: bool
    log: Callable[[Any], Any]
    sqrt: Callable[[Any], Any]
    where: Callable[[Any, Any, Any], Any]


def _polynomial(x: Any, coefficients: Sequence[float]) -> Any:
    """With these coefficients, highest power first."""
    value: Any = coefficients[0]
    for coefficient in coefficients[1:]:
        value = value * x + coefficient
    return value


# M. Giles, "Approximating the erfinv function" (GPU Computing Gems, Jade edition, 2012).
_SINGLE_CENTRE = (
    2.81022636e-08,
    3.43273939e-07,
    -3.5233877e-06,
    -4.39150654e-06,
    0.00021858087,
    -0.00125372503,
    -0.00417768164,
    0.246640727,
    1.50140941,
)
_SINGLE_TAIL = (
    -0.000200214257,
    0.000100950558,
    0.00134934322,
    -0.00367342844,
    0.00573950773,
    -0.0076224613,
    0.00943887047,
    1.00167406,
    2.83297682,
)
_DOUBLE_CENTRE = (
    -3.6444120640178196996e-21,
    -1.685059138182016589e-19,
    1.2858480715256400167e-18,
    1.115787767802518096e-17,
    -1.333171662854620906e-16,
    2.0972767875968561637e-17,
    6.6376381343583238325e-15,
    -4.0545662729752068639e-14,
    -8.1519341976054721522e-14,
    2.6335093153082322977e-12,
    -1.2975133253453532498e-11,
    -5.4154120542946279317e-11,
    1.051212273321532285e-09,
    -4.1126339803469836976e-09,
    -2.9070369957882005086e-08,
    4.2347877827932403518e-07,
    -1.3654692000834678645e-06,
    -1.3882523362786468719e-05,
    0.0001867342080340571352,
    -0.00074070253416626697512,
    -0.0060336708714301490533,
    0.24015818242558961693,
    1.6536545626831027356,
)
_DOUBLE_TAIL = (
    2.2137376921775787049e-09,
    9.0756561938885390979e-08,
    -2.7517406297064545428e-07,
    1.8239629214389227755e-08,
    1.5027403968909827627e-06,
    -4.013867526981545969e-06,
    2.9234449089955446044e-06,
    1.2475304481671778723e-05,
    -4.7318229009055733981e-05,
    6.8284851459573175448e-05,
    2.4031110387097893999e-05,
    -0.0003550375203628474796,
    0.00095328937973738049703,
    -0.0016882755560235047313,
    0.0024914420961078508066,
    -0.0037512085075692412107,
    0.005370914553590063617,
    1.0052589676941592334,
    3.0838856104922207635,
)
_DOUBLE_END = (
    -2.7109920616438573243e-11,
    -2.5556418169965252055e-10,
    1.5076572693500548083e-09,
    -3.7894654401267369937e-09,
    7.6157012080783393804e-09,
    -1.4960026627149240478e-08,
    2.9147953450901080826e-08,
    -6.7711997758452339498e-08,
    2.2900482228026654717e-07,
    -9.9298272942317002539e-07,
    4.5260625972231537039e-06,
    -1.9681778105531670567e-05,
    7.5995277030017761139e-05,
    -0.00021503011930044477347,
    -0.00013871931833622122026,
    1.0103004648645343977,
    4.8499064014085844221,
)


def erfinv(x: Any, of: Functions) -> Any:
    """The inverse of the error function: infinite at -1 and 1, NaN beyond; x times a polynomial in log(1 - x^2)."""
    # Both differences are exact where x is near an end, as 1 - x * x is not.
    w = 0.0 - of.log((1.0 - x) * (1.0 + x))
    if of.is_single:
        centre = _polynomial(w - 2.5, _SINGLE_CENTRE)
        factor = of.where(w < 5.0, centre, _polynomial(of.sqrt(w) - 3.0, _SINGLE_TAIL))
    else:
        root = of.sqrt(w)
        tail = of.where(w < 16.0, _polynomial(root - 3.25, _DOUBLE_TAIL), _polynomial(root - 5.0, _DOUBLE_END))
        factor = of.where(w < 6.25, _polynomial(w - 3.125, _DOUBLE_CENTRE), tail)
    # No x but 1 and -1 gives a larger w than 37.
    return of.where(w > 40.0, x * math.inf, x * factor)


FORMULAS: dict[str, Formula] = {"erfinv": erfinv}


def of_arrays(formula: Formula) -> Callable[[Any], Any]:
    """A formula as a function of floating-point arrays, with a result of their dtype."""

    def function(x: Any) -> Any:
        wide = x.astype(computed_dtype(x.dtype))
        return formula(wide, Functions(wide.dtype == np.float32, np.log, np.sqrt, np.where)).astype(x.dtype)

    return function
