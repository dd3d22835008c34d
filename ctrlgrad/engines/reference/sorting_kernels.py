"""Kernels of ops that find an order or positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ctrlgrad.engines.reference.table import PURE
from ctrlgrad.ir import Node


def _argsort(node: Node) -> Callable[..., Any]:
    axis = node.attrs["axis"]
    if not node.attrs["descending"]:
        return lambda x: np.argsort(x, axis=axis, kind="stable")

    def descending(x: Any) -> Any:
        # The ascending order of the flipped elements, flipped: equal elements keep their order.
        return x.shape[axis] - 1 - np.flip(np.argsort(np.flip(x, axis), axis=axis, kind="stable"), axis)

    return descending


PURE["argsort"] = _argsort
PURE["searchsorted"] = lambda node: lambda row, values: np.searchsorted(row, values, side=node.attrs["side"])
PURE["nonzero"] = lambda node: lambda x: np.stack(np.nonzero(x))
