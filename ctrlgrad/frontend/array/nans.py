"""Reductions over the elements that are not nan, and nan as another number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ctrlgrad.dtypes import dtype_kind, finfo
from ctrlgrad.frontend.apply import cast
from ctrlgrad.frontend.array.accumulation import cumprod, cumsum, prod
from ctrlgrad.frontend.array.dims import dtype_of
from ctrlgrad.frontend.array.elementwise import isnan, sqrt
from ctrlgrad.frontend.array.logic import where as choose
from ctrlgrad.frontend.array.promote import floats, operand, truth
from ctrlgrad.frontend.array.reduction import all as every
from ctrlgrad.frontend.array.reduction import argmax, argmin, var
from ctrlgrad.frontend.array.reduction import max as largest
from ctrlgrad.frontend.array.reduction import min as smallest
from ctrlgrad.frontend.array.reduction import sum as total
from ctrlgrad.frontend.functions import array_function

_DOC = """As `{plain}`, of the elements that are not nan; as `numpy.{name}`.

    >>> float(cnp.{name}([cnp.nan, 1.0]))
    1.0
    """


def _without_nan(name: str, reduction: Callable[..., Any], neutral: Any) -> Callable[..., Any]:
    def function(
        x: Any, axis: Any = None, dtype: Any = None, *, keepdims: bool = False, initial: Any = None, where: Any = None
    ) -> Any:
        x = operand(name, x)
        x = x if dtype is None else cast(x, dtype)
        x = choose(isnan(x), np.asarray(neutral, dtype_of(x)), x) if _has_nan(x) else x
        return reduction(x, axis, keepdims=keepdims, initial=initial, where=where)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = _DOC.format(name=name, plain=name.removeprefix("nan"))
    return array_function()(function)


def _has_nan(x: Any) -> bool:
    return dtype_kind(dtype_of(x)) in "fc"


def _extreme(name: str, reduction: Callable[..., Any], neutral: float) -> Callable[..., Any]:
    def function(x: Any, axis: Any = None, *, keepdims: bool = False, initial: Any = None, where: Any = None) -> Any:
        x = operand(name, x)
        if not _has_nan(x):
            return reduction(x, axis, keepdims=keepdims, initial=initial, where=where)
        absent, away = isnan(x), np.asarray(neutral, dtype_of(x))
        found = reduction(choose(absent, away, x), axis, keepdims=keepdims, initial=initial, where=where)
        if initial is not None:
            return found
        return choose(every(absent, axis, keepdims=keepdims), np.asarray(np.nan, dtype_of(x)), found)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = _DOC.format(name=name, plain=name.removeprefix("nan"))
    return array_function()(function)


def _position(name: str, reduction: Callable[..., Any], neutral: float) -> Callable[..., Any]:
    def function(x: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
        x = operand(name, x)
        x = choose(isnan(x), np.asarray(neutral, dtype_of(x)), x) if _has_nan(x) else x
        return reduction(x, axis, keepdims=keepdims)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = _DOC.format(name=name, plain=name.removeprefix("nan"))
    return array_function()(function)


nanmax = _extreme("nanmax", largest, -np.inf)


nanmin = _extreme("nanmin", smallest, np.inf)


nanargmax = _position("nanargmax", argmax, -np.inf)


nanargmin = _position("nanargmin", argmin, np.inf)


nansum = _without_nan("nansum", total, 0)


nanprod = _without_nan("nanprod", prod, 1)


def _present(x: Any, axis: Any, keepdims: bool, where: Any) -> Any:
    count = total(~isnan(x), axis, keepdims=keepdims, where=where)
    return count.astype(np.zeros((), dtype_of(x)).real.dtype)


@array_function()
def nanmean(x: Any, axis: Any = None, dtype: Any = None, *, keepdims: bool = False, where: Any = None) -> Any:
    """As `mean`, of the elements that are not nan; as `numpy.nanmean`.

    >>> float(cnp.nanmean([cnp.nan, 1.0, 3.0]))
    2.0
    """
    x = floats("nanmean", x if dtype is None else cast(operand("nanmean", x), dtype))
    return nansum(x, axis, keepdims=keepdims, where=where) / _present(x, axis, keepdims, where)


@array_function()
def nanvar(
    x: Any, axis: Any = None, dtype: Any = None, ddof: Any = 0, *, keepdims: bool = False, where: Any = None
) -> Any:
    """As `var`, of the elements that are not nan; as `numpy.nanvar`.

    >>> float(cnp.nanvar([cnp.nan, 1.0, 3.0]))
    1.0
    """
    x = floats("nanvar", x if dtype is None else cast(operand("nanvar", x), dtype))
    absent = isnan(x)
    present = ~absent if where is None else ~absent & truth("nanvar", where)
    # Without a nan in what is squared: its derivative would be one.
    safe = choose(absent, np.zeros((), dtype_of(x)), x)
    found = var(safe, axis, ddof=ddof, keepdims=keepdims, where=present)
    return choose(total(present, axis, keepdims=keepdims) > ddof, found, np.asarray(np.nan, dtype_of(found)))


@array_function()
def nanstd(
    x: Any, axis: Any = None, dtype: Any = None, ddof: Any = 0, *, keepdims: bool = False, where: Any = None
) -> Any:
    """As `std`, of the elements that are not nan; as `numpy.nanstd`.

    >>> float(cnp.nanstd([cnp.nan, 1.0, 3.0]))
    1.0
    """
    return sqrt(nanvar(x, axis, dtype, ddof, keepdims=keepdims, where=where))


@array_function()
def nan_to_num(x: Any, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Any:
    """x with numbers in place of nan and infinities; as `numpy.nan_to_num`.

    >>> cnp.nan_to_num([cnp.nan, 1.0])
    array([0., 1.])
    """
    x = operand("nan_to_num", x)
    if dtype_kind(dtype_of(x)) != "f":
        return x
    limits = finfo(dtype_of(x))
    x = choose(isnan(x), np.asarray(nan, dtype_of(x)), x)
    x = choose(x == np.inf, np.asarray(limits.max if posinf is None else posinf, dtype_of(x)), x)
    return choose(x == -np.inf, np.asarray(limits.min if neginf is None else neginf, dtype_of(x)), x)


@array_function()
def nancumsum(x: Any, axis: Any = None, dtype: Any = None) -> Any:
    """As `cumsum`, nan counting as 0; as `numpy.nancumsum`.

    >>> cnp.nancumsum([1.0, cnp.nan, 2.0])
    array([1., 1., 3.])
    """
    x = operand("nancumsum", x)
    return cumsum(choose(isnan(x), np.zeros((), dtype_of(x)), x) if dtype_kind(dtype_of(x)) in "fc" else x, axis, dtype)


@array_function()
def nancumprod(x: Any, axis: Any = None, dtype: Any = None) -> Any:
    """As `cumprod`, nan counting as 1; as `numpy.nancumprod`.

    >>> cnp.nancumprod([2.0, cnp.nan, 3.0])
    array([2., 2., 6.])
    """
    x = operand("nancumprod", x)
    return cumprod(choose(isnan(x), np.ones((), dtype_of(x)), x) if dtype_kind(dtype_of(x)) in "fc" else x, axis, dtype)


__all__ = [
    "nan_to_num",
    "nanargmax",
    "nanargmin",
    "nancumprod",
    "nancumsum",
    "nanmax",
    "nanmean",
    "nanmin",
    "nanprod",
    "nanstd",
    "nansum",
    "nanvar",
]
