"""Elementwise functions that NumPy has not, or means otherwise, by the names of `jax.lax`."""

from __future__ import annotations

from typing import Any

import ctrlgrad.numpy as cnp
from ctrlgrad.dtypes import dtype_kind, result_type
from ctrlgrad.transforms.custom_jvp import custom_jvp


def div(x: Any, y: Any) -> Any:
    """x / y; of integers towards zero.

    >>> import numpy as np
    >>> int(div(np.array(-7), 2)), float(div(7.0, 2.0))
    (-3, 3.5)
    """
    dtype = result_type(*(cnp.asarray(v).dtype for v in (x, y)))
    return cnp.asarray((x - cnp.fmod(x, y)) // y) if dtype_kind(dtype) in "iu" else cnp.divide(x, y)


def rsqrt(x: Any) -> Any:
    """1 / sqrt(x).

    >>> float(rsqrt(4.0))
    0.5
    """
    return cnp.reciprocal(cnp.sqrt(x))


def integer_pow(x: Any, y: int) -> Any:
    """x to the power of a Python integer.

    >>> float(integer_pow(2.0, 3))
    8.0
    """
    return cnp.asarray(x) ** y


def round(x: Any, rounding_method: int = 0) -> Any:
    """The nearest whole numbers: halves away from zero, or with method 1 to even ones.

    >>> import numpy as np
    >>> round(np.array([0.5, 2.5])), round(np.array([0.5, 2.5]), 1)
    (array([1., 3.]), array([0., 2.]))
    """
    x = cnp.asarray(x)
    if int(rounding_method) == 1:
        return cnp.round(x)
    whole = cnp.trunc(x)
    return whole + cnp.where(cnp.abs(x - whole) >= 0.5, cnp.sign(x), x * 0)


@custom_jvp
def _clamp(low: Any, x: Any, high: Any) -> Any:
    return cnp.minimum(cnp.maximum(x, low), high)


# As in JAX: where x is at a bound, neither has a part.
_clamp.defjvps(
    lambda t, out, low, x, high: cnp.where((low > x) & (low < high), t, 0),
    lambda t, out, low, x, high: cnp.where((x > low) & (x < high), t, 0),
    lambda t, out, low, x, high: cnp.where(high < x, t, 0),
)


def clamp(min: Any, x: Any, max: Any) -> Any:
    """x between two bounds.

    >>> import numpy as np
    >>> clamp(0.0, np.array([-1.0, 0.5, 3.0]), 1.0)
    array([0. , 0.5, 1. ])
    """
    x = cnp.asarray(x)
    low, high = (cnp.broadcast_to(cnp.asarray(bound).astype(x.dtype), x.shape) for bound in (min, max))
    return _clamp(low, x, high) if dtype_kind(x.dtype) == "f" else cnp.minimum(cnp.maximum(x, low), high)


def select_n(which: Any, *cases: Any) -> Any:
    """For each element the case whose number it is; a boolean chooses among two.

    >>> import numpy as np
    >>> select_n(np.array([True, False]), np.zeros(2), np.ones(2))
    array([1., 0.])
    """
    which, found = cnp.asarray(which), cases[-1]
    for number in reversed(range(len(cases) - 1)):
        found = cnp.where(which <= number if dtype_kind(which.dtype) != "b" else ~which, cases[number], found)
    return found


def convert_element_type(operand: Any, new_dtype: Any) -> Any:
    """The operand with another dtype.

    >>> import numpy as np
    >>> convert_element_type(1.5, np.int32).dtype
    dtype('int32')
    """
    return cnp.asarray(operand).astype(new_dtype)


__all__ = [
    "clamp",
    "convert_element_type",
    "div",
    "integer_pow",
    "round",
    "rsqrt",
    "select_n",
]
