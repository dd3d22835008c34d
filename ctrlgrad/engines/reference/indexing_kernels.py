"""Kernels of indexed reads and updates; updates happen in place where nothing else sees the array."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ctrlgrad.engines.reference.run import Run
from ctrlgrad.engines.reference.table import IN_PLACE, PURE, InPlace, own
from ctrlgrad.ir import Node, TensorType, attributes
from ctrlgrad.ir.attributes import DYNAMIC, Key
from ctrlgrad.ops.arrays import fill


def _filler(key: Key) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """`fill` of one key, with all done that does not need the operands."""
    whole = [place for place, item in enumerate(key) if item is DYNAMIC]
    if any(isinstance(item, slice) and DYNAMIC in (item.start, item.stop, item.step) for item in key):
        return lambda operands: fill(key, operands)
    if not whole:
        return lambda operands: key
    if whole == [0]:
        rest = key[1:]
        return lambda operands: (operands[0], *rest)

    def filled(operands: Sequence[Any]) -> tuple[Any, ...]:
        items: list[Any] = list(key)
        for place, operand in zip(whole, operands, strict=True):
            items[place] = operand
        return tuple(items)

    return filled


def _getitem(node: Node) -> Callable[..., Any]:
    filled = _filler(attributes.Index.of(node).key)
    return lambda x, *indices: x[filled(indices)]


PURE["getitem"] = _getitem


def _updating(write: Callable[[Any, Any, Any], None]) -> InPlace:
    """An op that writes to a part of its first operand: `write(x, where, value)`."""

    def entry(node: Node) -> Callable[[list[Any], Run], Any]:
        filled = _filler(attributes.Index.of(node).key)

        def kernel(operands: list[Any], run: Run) -> Any:
            x = own(operands, run)
            value, *indices = operands
            try:
                write(x, filled(indices), value)
            except ValueError:
                # The error is about all operands.
                operands.insert(0, x)
                raise
            return x

        return kernel

    return entry


def _set(x: Any, where: Any, value: Any) -> None:
    x[where] = value


def _add(x: Any, where: Any, value: Any) -> None:
    x[where] += value


def _additem(node: Node) -> Callable[[list[Any], Run], Any]:
    repeats = any(isinstance(v.type, TensorType) and v.type.rank > 0 for v in node.operands[2:])
    return _updating(np.add.at if repeats else _add)(node)


IN_PLACE["setitem"] = _updating(_set)
IN_PLACE["additem"] = _additem
