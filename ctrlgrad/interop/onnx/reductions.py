"""Reductions, running sums, positions, sorts, and what is made of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad.dtypes import dtype_kind, finfo
from ctrlgrad.frontend.array.sorting import places_of_largest
from ctrlgrad.interop.onnx.arranging import axes_of
from ctrlgrad.interop.onnx.operators import TABLE, Node, entry, known_shape


def _reduce(fn: Callable[..., Any]) -> Callable[..., Any]:
    def reduce(node: Node, x: Any, axes: Any = None) -> Any:
        chosen = axes_of(node, max(x.ndim, 1))
        if chosen is None or not chosen:
            chosen = () if node.get("noop_with_empty_axes", 0) else tuple(range(x.ndim))
        chosen = tuple(axis for axis in chosen if axis < x.ndim)
        return fn(x, chosen, bool(node.get("keepdims", 1)))

    return reduce


def _log_sum_exp(x: Any, axes: Any, keep: bool) -> Any:
    if 0 in known_shape(x):
        return cnp.log(cnp.sum(cnp.exp(x), axes, keepdims=keep))
    return cnp.logsumexp(x, axes, keepdims=keep)


def _mean(x: Any, axes: Any, keep: bool) -> Any:
    return cnp.mean(x, axes, keepdims=keep).astype(x.dtype)


def _extreme(fn: Callable[..., Any], logical: Callable[..., Any]) -> Callable[..., Any]:
    def extreme(x: Any, axes: Any, keep: bool) -> Any:
        if x.dtype == np.bool_:
            return logical(x, axes, keepdims=keep)
        info: Any = finfo(x.dtype) if dtype_kind(x.dtype) == "f" else np.iinfo(x.dtype)
        # The neutral element, for no elements at all.
        least, most = (-np.inf, np.inf) if dtype_kind(x.dtype) == "f" else (info.min, info.max)
        if 0 in known_shape(x):
            return fn(x, axes, keepdims=keep, initial=np.asarray(least if fn is cnp.max else most, x.dtype)[()])
        return fn(x, axes, keepdims=keep)

    return extreme


TABLE |= {
    ("", "ReduceL1"): _reduce(lambda x, a, k: cnp.sum(cnp.abs(x), a, keepdims=k, dtype=x.dtype)),
    ("", "ReduceL2"): _reduce(lambda x, a, k: cnp.sqrt(cnp.sum(x * x, a, keepdims=k, dtype=x.dtype)).astype(x.dtype)),
    ("", "ReduceLogSum"): _reduce(lambda x, a, k: cnp.log(cnp.sum(x, a, keepdims=k, dtype=x.dtype))),
    ("", "ReduceLogSumExp"): _reduce(_log_sum_exp),
    ("", "ReduceMax"): _reduce(_extreme(cnp.max, cnp.any)),
    ("", "ReduceMean"): _reduce(_mean),
    ("", "ReduceMin"): _reduce(_extreme(cnp.min, cnp.all)),
    ("", "ReduceProd"): _reduce(lambda x, a, k: cnp.prod(x, a, keepdims=k, dtype=x.dtype)),
    ("", "ReduceSum"): _reduce(lambda x, a, k: cnp.sum(x, a, keepdims=k, dtype=x.dtype)),
    ("", "ReduceSumSquare"): _reduce(lambda x, a, k: cnp.sum(x * x, a, keepdims=k, dtype=x.dtype)),
}


@entry("ArgMax", "ArgMin")
def _position(node: Node, x: Any) -> Any:
    axis, fn = node.get("axis", 0) % x.ndim, cnp.argmax if node.name == "ArgMax" else cnp.argmin
    last = node.get("select_last_index", 0)
    found = (x.shape[axis] - 1 - fn(cnp.flip(x, axis), axis) if last else fn(x, axis)).astype(np.int64)
    return cnp.expand_dims(found, axis) if node.get("keepdims", 1) else found


def _running(fn: Callable[..., Any], neutral: int) -> Callable[..., Any]:
    def running(node: Node, x: Any, axis: Any) -> Any:
        at = int(node.value(1)) % x.ndim
        if node.get("reverse", 0):
            x = cnp.flip(x, at)
        found = fn(x, at, dtype=x.dtype)
        if node.get("exclusive", 0):
            first: list[Any] = [slice(None)] * x.ndim
            first[at] = slice(0, -1)
            widths = [(0, 0)] * x.ndim
            widths[at] = (1, 0)
            found = cnp.pad(found[tuple(first)], widths, constant_values=np.asarray(neutral, x.dtype))
        return cnp.flip(found, at) if node.get("reverse", 0) else found

    return running


TABLE["", "CumSum"] = _running(cnp.cumsum, 0)
TABLE["", "CumProd"] = _running(cnp.cumprod, 1)


@entry("TopK")
def _top_k(node: Node, x: Any, k: Any = None) -> Any:
    axis = node.get("axis", -1) % x.ndim
    count = node.get("k") if k is None else int(node.value(1).reshape(()))
    if node.get("largest", 1):
        # Of equal ones the first comes first.
        places = places_of_largest("TopK", x, count, axis)
    else:
        places = cnp.argsort(x, axis)[(*[slice(None)] * axis, slice(0, count))]
    return cnp.take_along_axis(x, places, axis=axis), places


def _over_matrix(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Up to version 12 an array counts as a matrix: the axes before `axis`, and those from it on."""

    def over(node: Node, x: Any) -> Any:
        if node.version >= 13:
            return fn(x, node.get("axis", -1))
        axis = node.get("axis", 1) % max(x.ndim, 1)
        flat = cnp.reshape(x, (int(np.prod(x.shape[:axis])), -1))
        return cnp.reshape(fn(flat, 1), x.shape)

    return over


def _hardmax(x: Any, axis: int) -> Any:
    places = cnp.expand_dims(cnp.argmax(x, axis), axis)
    size = [1] * x.ndim
    size[axis] = x.shape[axis]
    return (np.arange(x.shape[axis]).reshape(size) == places).astype(x.dtype)


TABLE["", "Softmax"] = _over_matrix(cnp.softmax)
TABLE["", "LogSoftmax"] = _over_matrix(cnp.log_softmax)
TABLE["", "Hardmax"] = _over_matrix(_hardmax)


@entry("NonZero")
def _non_zero(node: Node, x: Any) -> Any:
    known = node.inputs[0]
    if isinstance(known, np.ndarray | np.generic):
        return np.array(np.nonzero(np.atleast_1d(known)), np.int64).reshape(max(known.ndim, 1), -1)
    return cnp.transpose(cnp.argwhere(x)).astype(np.int64)


@entry("Unique")
def _unique(node: Node, x: Any) -> Any:
    x = node.value(0)
    axis = node.get("axis")
    values, first, inverse, counts = np.unique(x, True, True, True, axis=axis)
    inverse = inverse.reshape(-1)
    if not node.get("sorted", 1):
        order = np.argsort(first)
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        values = values[order] if axis is None else np.take(values, order, axis)
        first, inverse, counts = first[order], place[inverse], counts[order]
    return values, first.astype(np.int64), inverse.astype(np.int64), counts.astype(np.int64)


@entry("Det")
def _det(node: Node, x: Any) -> Any:
    return cnp.linalg.det(x)


@entry("LpNormalization")
def _lp_normalization(node: Node, x: Any) -> Any:
    axis, p = node.get("axis", -1), node.get("p", 2)
    size = cnp.sum(cnp.abs(x), axis, keepdims=True) if p == 1 else cnp.sqrt(cnp.sum(x * x, axis, keepdims=True))
    nothing = size == 0
    one = np.asarray(1, x.dtype)
    return cnp.where(nothing, np.asarray(0, x.dtype), x / cnp.where(nothing, one, size))
