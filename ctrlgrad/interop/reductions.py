"""Reductions, running reductions, sorts and products."""

from __future__ import annotations

from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad import lax
from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.interop.avals import dtype_of
from ctrlgrad.interop.primitives import TABLE, Entry, Equation, by_keyword, entry, unsupported


def _extreme(fn: Any, sign: int) -> Entry:
    """Maximum or minimum; of no elements it is the neutral element."""

    def reduce(equation: Equation, x: Any) -> Any:
        axes = tuple(equation.params["axes"])
        if all(equation.inputs[0].shape[axis] for axis in axes):
            return fn(x, axes)
        first = {"b": sign < 0, "f": -sign * np.inf}.get(dtype_kind(x.dtype))
        if first is None:
            first = np.iinfo(x.dtype).min if sign > 0 else np.iinfo(x.dtype).max
        # Of the shape of a sum, whatever axes are in front.
        return cnp.full_like(cnp.sum(x, axes), first, dtype=x.dtype)

    return reduce


TABLE |= {"reduce_max": _extreme(lax.reduce_max, 1), "reduce_min": _extreme(lax.reduce_min, -1)}
TABLE |= {name: by_keyword(getattr(lax, name), "axes") for name in ("reduce_prod", "reduce_sum")}
TABLE |= {name: by_keyword(getattr(lax, name), "axis", "reverse") for name in ("cummax", "cummin", "cumprod", "cumsum")}
TABLE["cumlogsumexp"] = by_keyword(lax.cumlogsumexp, "axis", "reverse")


def _bits(logical: Any, bitwise: Any, neutral: int) -> Any:
    """A reduction of truth values, of integers bit by bit."""

    def reduce(equation: Equation, x: Any) -> Any:
        axes = tuple(equation.params["axes"])
        if x.dtype == np.bool_:
            return logical(x, axes)
        return lax.reduce(x, cnp.asarray(neutral).astype(x.dtype), bitwise, axes)

    return reduce


TABLE |= {
    "reduce_and": _bits(lax.reduce_and, cnp.bitwise_and, -1),
    "reduce_or": _bits(lax.reduce_or, cnp.bitwise_or, 0),
    "reduce_xor": by_keyword(lax.reduce_xor, "axes"),
}


@entry("argmax", "argmin")
def _position(equation: Equation, x: Any) -> Any:
    (axis,) = equation.params["axes"]
    return (cnp.argmax if equation.name == "argmax" else cnp.argmin)(x, axis)


@entry("sort")
def _sort(equation: Equation, *operands: Any) -> Any:
    params = equation.params
    return lax.sort(operands, params["dimension"], params["is_stable"], params["num_keys"])


@entry("top_k")
def _top_k(equation: Equation, x: Any) -> Any:
    return lax.top_k(x, equation.params["k"], axis=equation.params.get("axis", -1))


@entry("approx_top_k")
def _approx_top_k(equation: Equation, x: Any) -> Any:
    """All of the largest, or of the smallest: a recall of 1, which is what JAX gives on a processor."""
    params = equation.params
    axis, count = params["reduction_dimension"], params["k"]
    if not params["aggregate_to_topk"]:
        raise unsupported(equation, "it does not gather what it finds", "pass aggregate_to_topk=True")
    if params["is_max_k"]:
        return lax.top_k(x, count, axis=axis)
    places = cnp.argsort(x, axis=axis, stable=True)[(*[slice(None)] * (axis % x.ndim), slice(0, count))]
    return cnp.take_along_axis(x, places, axis), places


@entry("dot_general")
def _dot_general(equation: Equation, a: Any, b: Any) -> Any:
    dtype = dtype_of(equation.outputs[0])
    # JAX sums in the dtype of the result.
    return lax.dot_general(a.astype(dtype), b.astype(dtype), equation.params["dimension_numbers"])
