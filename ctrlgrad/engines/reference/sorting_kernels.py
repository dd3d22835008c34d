"""Kernels of ops that find an order or positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ctrlgrad.engines.reference.table import PURE
from ctrlgrad.ir import Node, attributes


def _argsort(node: Node) -> Callable[..., Any]:
    axis = attributes.Axis.of(node).axis
    if not attributes.Order.of(node).descending:
        return lambda x: np.argsort(x, axis=axis, kind="stable")
    return lambda x: _descending(x, axis)


def _descending(x: Any, axis: int) -> Any:
    """The ascending order of the flipped elements, flipped: equal elements keep their order."""
    return x.shape[axis] - 1 - np.flip(np.argsort(np.flip(x, axis), axis=axis, kind="stable"), axis)


def _top_k(node: Node) -> Callable[..., Any]:
    axis, count = attributes.Axis.of(node).axis, attributes.Selection.of(node).count
    first = (*[slice(None)] * axis, slice(0, count))

    def top_k(x: Any) -> Any:
        if x.shape[axis] < count:
            raise ValueError("fewer elements than are selected")
        return _descending(x, axis)[first]

    return top_k


PURE["argsort"] = _argsort
PURE["top_k"] = _top_k
PURE["searchsorted"] = lambda node: (
    lambda row, values: np.searchsorted(row, values, side=attributes.Search.of(node).side)
)
PURE["nonzero"] = lambda node: lambda x: np.stack(np.nonzero(x))
