"""Gathers and scatters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ctrlgrad import lax
from ctrlgrad.interop.primitives import TABLE, Entry, Equation, entry


@entry("gather")
def _gather(equation: Equation, x: Any, starts: Any) -> Any:
    params = equation.params
    numbers, sizes = params["dimension_numbers"], tuple(params["slice_sizes"])
    return lax.gather(x, starts, numbers, sizes, mode=params["mode"], fill_value=params["fill_value"])


def _scatter(fn: Callable[..., Any]) -> Entry:
    def scatter(equation: Equation, x: Any, starts: Any, updates: Any) -> Any:
        params = equation.params
        unique = params["unique_indices"]
        return fn(x, starts, updates, params["dimension_numbers"], unique_indices=unique, mode=params["mode"])

    return scatter


TABLE |= {
    "scatter": _scatter(lax.scatter),
    "scatter-add": _scatter(lax.scatter_add),
    "scatter-max": _scatter(lax.scatter_max),
    "scatter-min": _scatter(lax.scatter_min),
    "scatter-mul": _scatter(lax.scatter_mul),
    "scatter-sub": _scatter(lax.scatter_sub),
}
