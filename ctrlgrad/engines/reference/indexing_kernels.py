"""Kernels of indexed reads and updates; updates happen in place where nothing else sees the array."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ctrlgrad.engines.reference.run import Run
from ctrlgrad.engines.reference.table import IN_PLACE, PURE, own
from ctrlgrad.ir import Node, TensorType, attributes
from ctrlgrad.ops.indexing import fill

PURE["getitem"] = lambda node: lambda x, *indices: x[fill(attributes.Index.of(node).key, indices)]


def _setitem(node: Node) -> Callable[[list[Any], Run], Any]:
    key = attributes.Index.of(node).key

    def kernel(operands: list[Any], run: Run) -> Any:
        x = own(operands, run)
        value, *indices = operands
        x[fill(key, indices)] = value
        return x

    return kernel


def _additem(node: Node) -> Callable[[list[Any], Run], Any]:
    key = attributes.Index.of(node).key
    repeats = any(isinstance(v.type, TensorType) and v.type.rank > 0 for v in node.operands[2:])

    def kernel(operands: list[Any], run: Run) -> Any:
        x = own(operands, run)
        value, *indices = operands
        where = fill(key, indices)
        if repeats:
            np.add.at(x, where, value)
        else:
            x[where] += value
        return x

    return kernel


IN_PLACE["setitem"] = _setitem
IN_PLACE["additem"] = _additem
