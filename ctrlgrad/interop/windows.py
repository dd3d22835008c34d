"""Convolutions, reductions of windows, and reductions by a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.extend.core.primitives as primitives
import numpy as np

from ctrlgrad import lax
from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.interop.primitives import TABLE, Entry, Equation, entry, unsupported

_WINDOW = ("window_dimensions", "window_strides", "padding")
_DILATED = (*_WINDOW, "base_dilation", "window_dilation")


@entry("conv_general_dilated")
def _convolution(equation: Equation, x: Any, kernel: Any) -> Any:
    names = (
        "window_strides",
        "padding",
        "lhs_dilation",
        "rhs_dilation",
        "dimension_numbers",
        "feature_group_count",
        "batch_group_count",
    )
    return lax.conv_general_dilated(x, kernel, **{name: equation.params[name] for name in names})


def _windows(fn: Callable[..., Any], start: Callable[[np.dtype], Any]) -> Entry:
    def reduced(equation: Equation, x: Any) -> Any:
        settings = {name: equation.params[name] for name in _DILATED}
        return lax.reduce_window(x, start(x.dtype), fn, **settings)

    return reduced


def _least(dtype: np.dtype) -> Any:
    return -np.inf if dtype_kind(dtype) == "f" else np.iinfo(dtype).min


def _largest(dtype: np.dtype) -> Any:
    return np.inf if dtype_kind(dtype) == "f" else np.iinfo(dtype).max


TABLE |= {
    "reduce_window_max": _windows(lax.max, _least),
    "reduce_window_min": _windows(lax.min, _largest),
    "reduce_window_sum": _windows(lax.add, lambda dtype: dtype.type(0)),
}


def _computation(equation: Equation) -> Callable[[Any, Any], Any]:
    """The function of a reduction, which JAX has for numbers, over whole arrays."""
    return lambda a, b: tuple(equation.read_elementwise(equation.params["jaxpr"], *a, *b))


@entry("reduce")
def _reduce(equation: Equation, *operands: Any) -> Any:
    count = len(operands) // 2
    xs, starts = tuple(operands[:count]), tuple(operands[count:])
    return lax.reduce(xs, starts, _computation(equation), tuple(equation.params["dimensions"]))


@entry("reduce_window")
def _reduce_window(equation: Equation, *operands: Any) -> Any:
    count = len(operands) // 2
    xs, starts = tuple(operands[:count]), tuple(operands[count:])
    settings = {name: equation.params[name] for name in _DILATED}
    return lax.reduce_window(xs, starts, _computation(equation), **settings)


@entry("select_and_scatter_add")
def _select_and_scatter_add(equation: Equation, source: Any, x: Any) -> Any:
    settings = {name: equation.params[name] for name in _WINDOW}
    return lax.select_and_scatter_add(source, x, equation.params["select_prim"], **settings)


@entry("select_and_scatter")
def _select_and_scatter(equation: Equation, x: Any, source: Any, start: Any) -> Any:
    params = equation.params
    names = [[eqn.primitive.name for eqn in params[f"{which}_jaxpr"].eqns] for which in ("select", "scatter")]
    chosen = {"ge": primitives.ge_p, "le": primitives.le_p}
    if len(names[0]) != 1 or names[0][0] not in chosen or names[1] != ["add"]:
        hint = "select by jax.lax.ge or jax.lax.le, and scatter by jax.lax.add"
        raise unsupported(equation, "it does not add at the largest or the smallest of each window", hint)
    settings = {name: params[name] for name in _WINDOW}
    return start + lax.select_and_scatter_add(source, x, chosen[names[0][0]], **settings)


@entry("select_and_gather_add")
def _select_and_gather_add(equation: Equation, tangents: Any, x: Any) -> Any:
    settings = {name: equation.params[name] for name in _DILATED}
    return lax.select_and_gather_add(tangents, x, equation.params["select_prim"], **settings)
